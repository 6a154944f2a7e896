//! TLS to clients.

use flatout_engine::tls::{ClientCertificates, Identity, MinVersion};

use crate::serve::setting::{Key, SERVERS, Setting};
use crate::value;

pub(in crate::serve) const TLS: &[Setting] = &[
    Setting {
        name: "tls",
        value: "CERT KEY",
        default: "none",
        help: "speak TLS with this certificate and key (PEM files); can be repeated, clients get the certificate for the name \
               they ask for, or the first; files that change are read again",
        set: |options, given| {
            options.secure.identities.push(Identity {
                certificate: options.path(given.text()),
                key: options.path(given.value(1).unwrap_or_default()),
            });
            Ok(())
        },
        is_list: true,
        is_spread: true,
        ..SERVERS
    },
    Setting {
        name: "listen-plain",
        value: "ADDR",
        default: "none",
        help: "where to listen without TLS besides, where there is a certificate; can be repeated",
        set: |options, given| {
            options.server.listen_plain.push(given.text().parse()?);
            Ok(())
        },
        is_list: true,
        ..SERVERS
    },
    Setting {
        name: "https-redirect",
        value: "on|off",
        default: "off",
        help: "redirect requests that come without TLS to https; not behind a proxy that ends TLS itself",
        set: |options, given| {
            options.https_redirect = value::switch(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    Setting {
        name: "tls-min-version",
        value: "1.2|1.3",
        default: "1.2",
        help: "the oldest version of TLS that clients may use",
        set: |options, given| {
            options.secure.min_version = match given.text() {
                "1.3" => MinVersion::Tls13,
                _ => MinVersion::Tls12,
            };
            Ok(())
        },
        ..SERVERS
    },
    Setting {
        name: "tls-client-ca",
        value: "FILE",
        keys: &[Key {
            name: "optional",
            value: "on|off",
            default: "off",
            help: "also serve clients that show no certificate",
        }],
        default: "none",
        help: "ask clients for certificates that these authorities have signed (PEM)",
        set: |options, given| {
            let optional = given.read("optional", value::switch)?.unwrap_or(false);
            options.secure.clients =
                Some(ClientCertificates { authorities: options.path(given.text()), required: !optional });
            Ok(())
        },
        ..SERVERS
    },
    Setting {
        name: "tls-handshake-time",
        value: "TIME",
        default: "10s",
        help: "longest time for a handshake",
        set: |options, given| {
            options.server.limits.handshake_time_max = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
];
