//! What is written down of requests, and where it can be asked.

use std::time::Duration;

use crate::serve::options::AccessLog;
use crate::serve::parse;
use crate::serve::setting::{KEY, Key, SERVERS, SITES, Setting};
use crate::value;

pub(in crate::serve) const LOGS: &[Setting] = &[
    Setting {
        name: "access-log",
        value: "FILE",
        keys: &[
            Key {
                name: "format",
                default: "combined",
                help: "common, combined, json, or a text with variables such as $remote_addr $status",
                ..KEY
            },
            Key {
                name: "buffer",
                value: "BYTES",
                default: "256KiB",
                help: "what a worker collects before it is written",
            },
            Key { name: "flush", value: "TIME", default: "10s", help: "how long a line waits at most" },
            Key { name: "only", value: "CONDITIONS", help: "which requests, such as status>=500", ..KEY },
            Key {
                name: "sample",
                value: "N",
                default: "1",
                help: "one request in so many; errors are always logged",
            },
        ],
        default: "off",
        help: "log requests to a file, or off; in a site, only requests of that site",
        set: |options, given| {
            if given.text() == "off" {
                options.logs.clear();
                return Ok(());
            }
            options.logs.push(AccessLog {
                path: options.path(given.text()),
                format: given.key("format").unwrap_or("combined").to_owned(),
                buffer_bytes: given.read("buffer", value::bytes)?.map_or(256 << 10, |bytes| bytes as usize),
                flush: given.read("flush", value::time)?.unwrap_or(Duration::from_secs(10)),
                only: given.key("only").map(parse::names).unwrap_or_default(),
                sample: given.read("sample", parse::at_least_one)?.unwrap_or(1),
            });
            Ok(())
        },
        is_list: true,
        ..SITES
    },
    Setting {
        name: "admin",
        value: "ADDR",
        default: "off",
        help: "where metrics, health and the live page are served: unix:PATH or an address of this machine, or off",
        set: |options, given| {
            options.admin = (given.text() != "off").then(|| given.text().to_owned());
            Ok(())
        },
        ..SERVERS
    },
];
