//! ServeOptions of the listening sockets.

use flatout_engine::Locality;

use crate::serve::setting::{Change, SERVERS, ServeSetting};
use crate::value;

pub(in crate::serve) const SOCKETS: &[ServeSetting] = &[
    ServeSetting {
        name: "backlog",
        value: "N",
        default: "4096",
        help: "connections that may wait to be accepted, per worker; net.core.somaxconn is the upper limit",
        set: |options, given| {
            options.server.socket.backlog = value::number(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.backlog)),
        ..SERVERS
    },
    ServeSetting {
        name: "nodelay",
        value: "on|off",
        default: "on",
        help: "TCP_NODELAY",
        set: |options, given| {
            options.server.socket.nodelay = value::switch(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.nodelay)),
        ..SERVERS
    },
    ServeSetting {
        name: "tcp-keepalive",
        value: "TIME",
        default: "60s",
        help: "SO_KEEPALIVE: probe a connection after this idle time; 0s disables probes",
        set: |options, given| {
            options.server.socket.keepalive = Some(value::time(given.text())?).filter(|time| !time.is_zero());
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.keepalive)),
        ..SERVERS
    },
    ServeSetting {
        name: "defer-accept",
        value: "TIME",
        default: "",
        help: "TCP_DEFER_ACCEPT: accept a connection when its first data arrives, or after this time",
        set: |options, given| {
            options.server.socket.defer_accept = Some(value::time(given.text())?);
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.defer_accept)),
        ..SERVERS
    },
    ServeSetting {
        name: "congestion",
        value: "NAME",
        default: "the system's",
        help: "TCP_CONGESTION, such as reno, cubic or bbr",
        set: |options, given| {
            options.server.socket.congestion = Some(given.text().to_owned());
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.congestion)),
        ..SERVERS
    },
    ServeSetting {
        name: "share-port",
        value: "[on|off]",
        default: "off",
        help: "allow other processes of this user to listen on the same port",
        set: |options, given| {
            options.server.socket.share_port = given.is_on();
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.share_port)),
        ..SERVERS
    },
    ServeSetting {
        name: "locality",
        value: "auto|on|off",
        default: "auto",
        help: "handle each connection on the CPU where it arrives: on, off, or auto; auto turns it on if the network card \
               has a queue for each worker",
        set: |options, given| {
            options.server.socket.locality = match given.text() {
                "on" => Locality::On,
                "off" => Locality::Off,
                _ => Locality::Auto,
            };
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.server.socket.locality)),
        ..SERVERS
    },
];
