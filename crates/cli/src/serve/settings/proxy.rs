//! Settings of forwarding to upstreams.

use flatout_serve::proxy::Host;

use crate::serve::parse;
use crate::serve::setting::{ROUTES, Setting};
use crate::value;

pub(in crate::serve) const FORWARDING: &[Setting] = &[
    Setting {
        name: "proxy-host",
        value: "HOST",
        default: "kept",
        help: "the Host sent to upstreams: kept (that of the client), upstream (the server's address), or a name",
        set: |options, given| {
            options.forward.host = match given.text() {
                "kept" => Host::Kept,
                "upstream" => Host::Upstream,
                name => Host::Set(parse::field_value(name)?.to_owned()),
            };
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "x-forwarded",
        value: "on|off",
        default: "on",
        help: "send X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host to upstreams",
        set: |options, given| {
            options.forward.x_forwarded = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "forwarded",
        value: "on|off",
        default: "off",
        help: "send Forwarded (RFC 7239) to upstreams",
        set: |options, given| {
            options.forward.forwarded = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "via",
        value: "NAME",
        default: "off",
        help: "the name to add to Via in both directions, or off",
        set: |options, given| {
            let name = parse::field_value(given.text())?;
            options.forward.via = (name != "off").then(|| name.to_owned());
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "buffer-requests",
        value: "[on|off]",
        default: "off",
        help: "collect the whole request body before forwarding a request",
        set: |options, given| {
            options.forward.buffer_requests = given.is_on();
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "forward-path",
        value: "sent|normal",
        default: "sent",
        help: "the path sent to upstreams: as the client sent it, or normalized",
        set: |options, given| {
            options.forward.normal_path = given.text() == "normal";
            Ok(())
        },
        ..ROUTES
    },
    Setting {
        name: "upgrade",
        value: "on|off",
        default: "on",
        help: "forward Upgrade requests, such as WebSocket, and tunnel the connection",
        set: |options, given| {
            options.forward.upgrade = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
];
