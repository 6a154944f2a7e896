//! The bus to other servers.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use flatout_bus as bus;

use crate::serve::setting::{Change, Key, SERVERS, ServeSetting};
use crate::value;

/// JetStream refuses a retention time below its window for duplicates.
const HISTORY_MIN: Duration = Duration::from_secs(1);

/// Maximum size of a file with credentials.
const CREDENTIALS_BYTES_MAX: u64 = 4 << 10;

pub(in crate::serve) const BUS: &[ServeSetting] = &[ServeSetting {
    name: "bus",
    value: "URL",
    keys: &[
        Key {
            name: "group",
            value: "NAME",
            default: "flatout",
            help: "the name of this group of servers; servers with different names share nothing",
        },
        Key {
            name: "history",
            value: "TIME",
            default: "off",
            help: "keep messages on the bus for this long (JetStream), for servers that were disconnected or are new",
        },
        Key {
            name: "auth",
            value: "FILE",
            default: "",
            help: "a file whose first line is USER:PASSWORD or a token",
        },
    ],
    default: "none",
    help: "share push messages and purges with other servers over NATS: nats://HOST:PORT, or tls:// for TLS; several servers of one \
           cluster are separated by commas; see docs/push.md",
    set: |options, given| {
        let mut plan: bus::Plan = given.text().parse()?;
        given.read("group", |group| plan.set_group(group))?;
        plan.history = given.read("history", history)?.flatten();
        let credentials = given.read("auth", |file| credentials(&options.path(file)))?;
        if let Some(credentials) = credentials {
            plan.set_credentials(&credentials);
        }
        options.bus = Some(plan);
        Ok(())
    },
    change: Change::Restart(|plan| fingerprint(plan.bus.as_ref())),
    ..SERVERS
}];

fn history(text: &str) -> Result<Option<Duration>, String> {
    match (text, value::time(text)) {
        ("off", _) => Ok(None),
        (_, Ok(time)) if time < HISTORY_MIN => Err(format!("got `{text}`, need at least 1s")),
        (_, time) => time.map(Some),
    }
}

fn credentials(file: &std::path::Path) -> Result<bus::Credentials, String> {
    use std::io::Read;
    let cannot = |error: std::io::Error| format!("cannot read `{}`: {error}", file.display());
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(cannot)?;
    opened.take(CREDENTIALS_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    let line = text.lines().next().unwrap_or_default();
    bus::Credentials::of_line(line)
        .ok_or_else(|| format!("the first line of `{}` is not USER:PASSWORD or a token", file.display()))
}

/// A hash of the plan, which does not reveal its credentials.
fn fingerprint(plan: Option<&bus::Plan>) -> String {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish().to_string()
}
