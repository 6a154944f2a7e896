//! TLS to clients.

use std::path::PathBuf;

use flatout_engine::tls::{ClientCertificates, Identity, MinVersion};
use flatout_site::plan::Hsts;

use super::listeners::{LISTEN_KEYS, listen};
use crate::serve::options::{Level, ServeOptions};
use crate::serve::setting::{Change, Key, SERVERS, SITES, ServeSetting};
use crate::serve::values::Values;
use crate::value;

/// Revocation lists, beside a file of CAs.
pub(super) const CRL: Key = Key {
    name: "crl",
    value: "FILE",
    default: "none",
    help: "refuse certificates in these revocation lists (PEM), which must include a current one of each CA",
};

/// The file of passwords, beside a certificate and its key.
pub(super) const PASSWORDS: Key = Key {
    name: "passwords",
    value: "FILE",
    default: "none",
    help: "passwords for the key, one a line, if it is encrypted",
};

/// A certificate and its key.
pub(super) fn identity(options: &ServeOptions, certificate: &str, key: &str, given: &Values) -> Identity {
    Identity {
        certificate: options.path(certificate),
        key: options.path(key),
        passwords: given.key("passwords").map(|file| options.path(file)),
    }
}

pub(in crate::serve) const TLS: &[ServeSetting] = &[
    ServeSetting {
        name: "tls",
        value: "CERT [KEY]",
        keys: &[PASSWORDS],
        default: "none",
        help: "serve TLS with this certificate and key (PEM files), or with `local` a certificate of a CA on this \
               machine, for development; can be repeated: clients get the certificate for the name they request, or \
               the first; in a site, for its names instead of those at the top, or `refuse`: TLS handshakes for its names \
               fail with unrecognized_name; in the site for all other names, this includes unknown names; changed files are \
               reloaded",
        set: |options, given| {
            match (given.text(), given.value(1).filter(|key| !key.is_empty())) {
                (word @ ("local" | "refuse"), None) if given.key("passwords").is_some() => {
                    return Err(format!("`tls {word}` reads no key, so it has no passwords").into());
                }
                ("local", None) if options.level == Level::Top => options.issue.local = true,
                ("local", None) => {
                    return Err(
                        "`tls local` belongs to the top: its certificate has the names of all sites".into()
                    );
                }
                ("refuse", None) if options.level != Level::Site => {
                    return Err("`tls refuse` belongs in a site, whose names it is for".into());
                }
                ("refuse", None) => options.refuses_tls = true,
                (_, Some(_)) if options.refuses_tls => {
                    return Err("the site has `tls refuse`, so it needs no certificate".into());
                }
                (certificate, Some(key)) => {
                    let identity = identity(options, certificate, key, given);
                    if options.begins("tls") {
                        options.secure.identities.clear();
                    }
                    options.secure.identities.push(identity);
                }
                (got, None) => {
                    return Err(format!("got `{got}` alone, need CERT KEY, local or refuse").into());
                }
            }
            Ok(())
        },
        is_list: true,
        is_spread: true,
        change: Change::NotFirstNorLast(|plan| format!("{:?}", plan.is_secure())),
        ..SITES
    },
    ServeSetting {
        name: "listen-plain",
        value: "ADDR",
        keys: LISTEN_KEYS,
        default: "none",
        help: "where to listen without TLS although there is a certificate; can be repeated",
        set: |options, given| listen(options, given, true),
        is_list: true,
        ..SITES
    },
    ServeSetting {
        name: "https-redirect",
        value: "on|off",
        default: "on with domain, else off",
        help: "redirect requests without TLS to https, or respond with 421 to hosts that no site has; not for use behind a proxy that terminates TLS",
        set: |options, given| {
            options.https_redirect = Some(value::switch(given.text())?);
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.https_redirect)),
        ..SERVERS
    },
    ServeSetting {
        name: "tls-passthrough",
        value: "UPSTREAM",
        default: "none",
        help: "pass connections with TLS on to this upstream as they are, by the name in their ClientHello; an upstream of this file, or \
               an address such as 10.0.0.1:443; only in a site, for its host names, and instead of its routes: its addresses need no \
               certificate, and those without TLS are listen-plain; allow, deny, tunnel-time and send-proxy apply",
        set: |options, given| {
            if options.level == Level::Top {
                return Err("it belongs inside a site, whose host names it is for".into());
            }
            options.tls_passthrough = Some(given.text().to_owned());
            Ok(())
        },
        ..SITES
    },
    ServeSetting {
        name: "hsts",
        value: "TIME",
        keys: &[
            Key { name: "subdomains", value: "on|off", default: "off", help: "also for all subdomains" },
            Key {
                name: "preload",
                value: "on|off",
                default: "off",
                help: "allow browsers to include the site in their preload lists",
            },
        ],
        default: "off",
        help: "have browsers use HTTPS only, for this time after each visit (Strict-Transport-Security, on responses \
               over HTTPS); this cannot be revoked before the time is over",
        set: |options, given| {
            let read = |name| given.read(name, value::switch).map(|it| it.unwrap_or(false));
            options.rules.hsts = match given.text() {
                "off" => None,
                text => Some(Hsts {
                    max_age: value::time(text)?,
                    subdomains: read("subdomains")?,
                    preload: read("preload")?,
                }),
            };
            Ok(())
        },
        ..SITES
    },
    ServeSetting {
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
        ..SITES
    },
    ServeSetting {
        name: "tls-client-ca",
        value: "FILE",
        keys: &[
            Key {
                name: "optional",
                value: "on|off",
                default: "off",
                help: "also serve clients without a certificate",
            },
            Key {
                name: "unknown",
                value: "on|off",
                default: "off",
                help: "also accept certificates of other CAs; then $ssl_client_verify begins with FAILED, and something behind this \
                       server must check them",
            },
            CRL,
        ],
        default: "none",
        help: "require client certificates issued by these CAs (PEM), or off; `any` accepts those of all CAs, as unknown=on does, and \
               verifies none; a request on a connection that was opened for a site with other rules gets 421",
        set: |options, given| {
            let switch = |name| given.read(name, value::switch);
            let (optional, unknown) = (switch("optional")?.unwrap_or(false), switch("unknown")?);
            let revoked = given.key("crl").map(|file| options.path(file));
            if given.text() == "any" && revoked.is_some() {
                return Err("`any` verifies no certificates, so it has no crl".into());
            }
            if given.text() == "any" && unknown == Some(false) {
                return Err(
                    "`any` accepts certificates of all CAs; name a file of CAs for unknown=off".into()
                );
            }
            let is_given = |name: &&str| given.key(name).is_some();
            if let Some(name) =
                ["optional", "unknown", "crl"].iter().find(|name| is_given(name) && given.text() == "off")
            {
                return Err(format!("`off` asks for no certificates, so it has no {name}").into());
            }
            let clients = |authorities: Option<PathBuf>| ClientCertificates {
                takes_unknown: unknown == Some(true) || authorities.is_none(),
                authorities,
                revoked,
                required: !optional,
            };
            options.secure.clients = match given.text() {
                "off" => None,
                "any" => Some(clients(None)),
                file => Some(clients(Some(options.path(file)))),
            };
            Ok(())
        },
        ..SITES
    },
    ServeSetting {
        name: "early-data",
        value: "on|off",
        default: "off",
        help: "accept requests in the first packet of returning clients (0-RTT, TLS 1.3); GET, HEAD and OPTIONS \
               without a body are served, others get 425; an attacker on the network can replay such a request",
        set: |options, given| {
            options.secure.early_data = value::switch(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.secure.early_data)),
        ..SERVERS
    },
    ServeSetting {
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
