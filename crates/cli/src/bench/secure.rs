//! The flags of `bench` for TLS and HTTP/2.

use super::options::BenchOptions;
use crate::setting::Setting;
use crate::value;

pub(super) const SECURE: &[Setting<BenchOptions>] = &[
    Setting {
        name: "http2",
        value: "",
        default: "",
        help: "use HTTP/2; over https it has to be agreed on (ALPN), over http the server has to expect it (prior knowledge)",
        set: |options, _| {
            options.http2 = true;
            Ok(())
        },
    },
    Setting {
        name: "streams",
        value: "N",
        default: "1",
        help: "requests at a time on each connection of --http2; at most 1024",
        set: |options, text| {
            options.streams = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "ca",
        value: "FILE",
        default: "the system's",
        help: "for https: trusted CA certificates (PEM)",
        set: |options, text| {
            options.tls.authorities = Some(text.into());
            Ok(())
        },
    },
    Setting {
        name: "insecure",
        value: "",
        default: "",
        help: "for https: accept any certificate",
        set: |options, _| {
            options.tls.verify = false;
            Ok(())
        },
    },
    Setting {
        name: "tls-name",
        value: "HOST",
        default: "the URL's",
        help: "for https: the name to verify in the certificate and to send as SNI",
        set: |options, text| {
            options.secure_name = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "no-resume",
        value: "",
        default: "",
        help: "for https: make every handshake a full one; otherwise new connections resume earlier sessions",
        set: |options, _| {
            options.tls.sessions_max = 0;
            Ok(())
        },
    },
    Setting {
        name: "cipher",
        value: "NAME",
        default: "any",
        help: "for https: offer only this cipher suite, such as TLS_AES_128_GCM_SHA256; it also decides the version of TLS",
        set: |options, text| {
            options.tls.cipher = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "key-exchange",
        value: "NAME",
        default: "any",
        help: "for https: offer only this key exchange, such as X25519 or X25519MLKEM768",
        set: |options, text| {
            options.tls.key_exchange = Some(text.to_owned());
            Ok(())
        },
    },
];
