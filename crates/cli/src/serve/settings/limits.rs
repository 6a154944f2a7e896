//! Limits.

use crate::serve::options::Level;
use crate::serve::setting::{Change, ROUTES, SERVERS, ServeSetting};
use crate::value;

pub(in crate::serve) const LIMITS: &[ServeSetting] = &[
    ServeSetting {
        name: "head-bytes",
        value: "BYTES",
        default: "16KiB",
        help: "largest request head; a larger one gets 431",
        set: |options, given| {
            options.server.limits.head_bytes_max = value::bytes(given.text())? as usize;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "uri-bytes",
        value: "BYTES",
        default: "8KiB",
        help: "largest request target; a larger one gets 414",
        set: |options, given| {
            options.server.limits.target_bytes_max = value::bytes(given.text())? as usize;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "headers",
        value: "N",
        default: "100",
        help: "maximum number of header fields in a request; more get 431",
        set: |options, given| {
            options.server.limits.headers_max = value::number(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "body-bytes",
        value: "BYTES",
        default: "8MiB",
        help: "largest request body; a larger one gets 413",
        set: |options, given| {
            let bytes = value::bytes(given.text())?;
            match options.level {
                Level::Top => options.server.limits.body_bytes_max = bytes,
                _ => options.rules.body.bytes_max = Some(bytes),
            }
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "bodies-memory",
        value: "BYTES",
        default: "256MiB",
        help: "memory for all request bodies held at a time; further ones wait, then get 503",
        set: |options, given| {
            options.server.limits.bodies_memory_max = value::bytes(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "half-close",
        value: "on|off",
        default: "off",
        help: "serve a client that has closed its sending side; off drops its request",
        set: |options, given| {
            options.server.limits.half_close = value::switch(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "head-time",
        value: "TIME",
        default: "10s",
        help: "maximum time to receive a request head, from its first byte; then 408",
        set: |options, given| {
            options.server.limits.head_time_max = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "idle-time",
        value: "TIME",
        default: "60s",
        help: "close a connection after this time without a request",
        set: |options, given| {
            options.server.limits.idle_time_max = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "min-rate",
        value: "BYTES",
        default: "256",
        help: "minimum rate, in bytes per second, of receiving a body (otherwise 408) and of sending a response (otherwise the \
               connection is closed); 0 allows any",
        set: |options, given| {
            options.server.limits.rate_min_bytes_per_s = value::bytes(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "min-rate-window",
        value: "TIME",
        default: "10s",
        help: "the time over which --min-rate is measured",
        set: |options, given| {
            options.server.limits.rate_window = value::time(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "connections",
        value: "N",
        default: "as the descriptor limit allows",
        help: "maximum number of connections; further ones wait in the backlog",
        set: |options, given| {
            options.server.limits.connections_max = Some(value::number(given.text())?);
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "connections-per-address",
        value: "N",
        default: "no limit",
        help: "maximum number of connections from one address (IPv6: one /64); further ones are closed",
        set: |options, given| {
            options.server.limits.connections_per_address_max = Some(value::number(given.text())?);
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.limits.connections_per_address_max)),
        ..SERVERS
    },
    ServeSetting {
        name: "requests-per-connection",
        value: "N",
        default: "no limit",
        help: "maximum number of requests on a connection; the last response has Connection: close",
        set: |options, given| {
            options.server.limits.requests_per_connection_max = Some(value::number(given.text())?);
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "http2",
        value: "on|off",
        default: "on",
        help: "serve HTTP/2: with TLS to clients that choose it (ALPN), without TLS to those that begin with it (prior knowledge)",
        set: |options, given| {
            let is_on = value::switch(given.text())?;
            options.server.limits.http2 = is_on;
            let protocols: &[&[u8]] = if is_on { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
            options.secure.protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "streams",
        value: "N",
        default: "128",
        help: "maximum number of requests at a time on an HTTP/2 connection; further ones are refused, to be tried again",
        set: |options, given| {
            options.server.limits.streams_max = value::number(given.text())?;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "stream-window",
        value: "BYTES",
        default: "64KiB",
        help: "bytes of a request body that an HTTP/2 client may send before they are taken, from 64KiB to 16MiB, and four times as many for all requests on its connection; uploads over long distances need more",
        set: |options, given| {
            let bytes = value::bytes(given.text())?;
            options.server.limits.stream_window_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            Ok(())
        },
        ..SERVERS
    },
];
