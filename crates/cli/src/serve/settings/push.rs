//! Settings of channels.

use std::time::Duration;

use flatout_push::{Kind, Line};

use crate::serve::setting::{Change, Key, ROUTES, SERVERS, ServeSetting};
use crate::serve::{channels, parse};
use crate::value;

/// The precision of deadlines.
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);

pub(in crate::serve) const PUSH: &[ServeSetting] = &[
    ServeSetting {
        name: "push-token",
        value: "TOKEN",
        help: "the token that publishers send as Authorization: Bearer TOKEN; without it, publishing over HTTP is disabled",
        set: |options, given| {
            let token = not_empty(parse::field_value(given.text())?)?;
            options.push.publish_token = Some(token);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-secret",
        value: "SECRET",
        help: "subscribers need a token signed with SECRET; it is a JWT (HS256) whose claim channels lists names, or the \
               start of names and *, and is sent as Authorization: Bearer or as ?token=",
        set: |options, given| {
            options.push.subscribe_secret = Some(not_empty(given.text())?);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-group",
        value: "NAME",
        help: "give all routes with the same NAME the same channels, in all sites; without it, a route has channels of its own",
        set: |options, given| {
            options.push.group = channels::group(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-kind",
        value: "log|latest",
        default: "log",
        help: "messages for slow readers; log: every message, a reader too far behind is disconnected; latest: only the \
               newest value of each key",
        set: |options, given| {
            options.push.history.kind = if given.text() == "latest" { Kind::Latest } else { Kind::Log };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-history",
        value: "N",
        keys: &[Key {
            name: "age",
            value: "TIME",
            default: "5m",
            help: "how long the messages of a log are kept",
        }],
        default: "100",
        help: "messages of a channel to keep for subscribers that reconnect; for push-kind latest: maximum number of keys",
        set: |options, given| {
            options.push.history.count = value::number(given.text())?;
            if let Some(age) = given.read("age", value::time)? {
                options.push.history.age = age;
            }
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-message-bytes",
        value: "BYTES",
        default: "64KiB",
        help: "the largest message; a larger one gets 413",
        set: |options, given| {
            options.push.message_bytes_max = size(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-lag",
        value: "N",
        default: "1000",
        help: "number of messages that a slow reader of a log may be behind before it is disconnected",
        set: |options, given| {
            options.push.lag_max = value::number(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-heartbeat",
        value: "TIME",
        default: "25s",
        help: "how often to send something to idle subscribers, to detect dead connections",
        set: |options, given| {
            let time = value::time(given.text())?;
            if time < HEARTBEAT_MIN {
                return Err(format!("got `{}`, need at least 1s", given.text()).into());
            }
            options.push.heartbeat = time;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-retry",
        value: "TIME",
        default: "2s",
        help: "delay after which event streams reconnect; each uses a different delay from TIME to twice TIME",
        set: |options, given| {
            options.push.retry = value::time(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-poll-time",
        value: "TIME",
        default: "25s",
        help: "how long a long poll waits before it gets 204",
        set: |options, given| {
            options.push.poll_time = value::time(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-keys-line",
        value: "TEMPLATE",
        keys: &[Key {
            name: "type",
            value: "TYPE",
            default: "text/javascript; charset=utf-8",
            help: "the Content-Type of the response",
        }],
        help: "return the values of ?keys= as one line per key instead of one JSON object; {key} is the key and {value} the value as JSON: \
               'var quote_{key}={value};'",
        set: |options, given| {
            let content_type = given.read("type", |text| parse::field_value(text).map(str::to_owned))?;
            options.push.keys_line = Some(Line::parse(given.text(), content_type)?);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-origin",
        value: "ORIGIN",
        help: "an origin whose pages may subscribe, such as https://www.example.org, or * for all; pages of the server's \
               own host always may",
        set: |options, given| {
            if options.begins("push-origin") {
                options.push.origins.clear();
            }
            options.push.origins.push(given.text().trim_end_matches('/').to_owned());
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "push-subscribers",
        value: "N",
        default: "no limit",
        help: "maximum number of subscribers of one channel; further ones get 503",
        set: |options, given| {
            options.push.subscribers_max = Some(parse::at_least_one(given.text())?);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-per-address",
        value: "N",
        default: "no limit",
        help: "maximum number of subscribers from one address; further ones get 429",
        set: |options, given| {
            options.push.per_address_max = Some(parse::at_least_one(given.text())?);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "push-channels",
        value: "N",
        default: "100000",
        help: "maximum number of channels with subscribers or messages; further ones get 503",
        set: |options, given| {
            options.push_limits.channels_max = parse::at_least_one::<u32>(given.text())? as usize;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.push.channels_max)),
        ..SERVERS
    },
    ServeSetting {
        name: "push-memory",
        value: "BYTES",
        default: "256MiB",
        help: "memory for the messages of all channels; when it is full, old messages are dropped or publishing gets 503",
        set: |options, given| {
            options.push_limits.history_bytes_max = size(given.text())?;
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.push.history_bytes_max)),
        ..SERVERS
    },
];

fn size(text: &str) -> Result<usize, String> {
    usize::try_from(value::bytes(text)?).map_err(|_| format!("got `{text}`, which is more than memory has"))
}

fn not_empty(text: &str) -> Result<String, String> {
    match text {
        "" => Err("need at least one character".to_owned()),
        text => Ok(text.to_owned()),
    }
}
