//! Settings of the response cache.

use std::ops::RangeInclusive;
use std::time::Duration;

use flatout_cache::{Validity, is_never_stored};
use flatout_site::plan::Template;

use crate::serve::options::ServeOptions;
use crate::serve::parse;
use crate::serve::setting::{ROUTES, SERVERS, ServeSetting};
use crate::serve::values::{Refused, Values};
use crate::value;

/// The texts of a setting.
fn templates(options: &ServeOptions, given: &Values) -> Result<Vec<Template>, String> {
    given.values().map(|text| options.template(text)).collect()
}

/// A smaller cache is useless.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// There must be room for several segments.
const SIZE_BYTES_MIN: u64 = 4 << 20;

/// Each slice costs a request.
const SLICE_BYTES_MIN: u64 = 4 << 10;

/// Times of last use are stored in seconds.
const INACTIVE_MIN: Duration = Duration::from_secs(1);

pub(in crate::serve) const CACHING: &[ServeSetting] = &[
    ServeSetting {
        name: "cache",
        value: "TIME",
        default: "off",
        help: "cache responses of upstreams, or off; TIME is how long a 200 is fresh if it does not state it; with 0s only responses that state it are cached",
        set: |options, given| {
            options.cache_time = match given.text() {
                "off" => None,
                text => Some(value::time(text)?),
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-valid",
        value: "TIME STATUSES…",
        help: "how long responses with these statuses are fresh if they do not state it, such as 1m 404 302 500-599",
        set: |options, given| {
            let time = value::time(given.text())?;
            let statuses = given.values().skip(1).map(|text| parse::statuses(text, 200..=599));
            let statuses = statuses.collect::<Result<Vec<_>, _>>()?;
            // A range may contain them, as it stands for all others in it.
            let is_lost = |statuses: &&RangeInclusive<u16>| {
                statuses.start() == statuses.end() && is_never_stored(*statuses.start())
            };
            if let Some(lost) = statuses.iter().find(is_lost) {
                let lost = lost.start();
                return Err(format!("got `{lost}`, which is never stored; see docs/cache.md").into());
            }
            if options.begins("cache-valid") {
                options.caching.rules.valid.clear();
            }
            options.caching.rules.valid.push(Validity { statuses, time });
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "cache-key",
        value: "TEXT",
        default: "scheme, host, path and query",
        help: "the cache key; requests with equal keys get the same response, such as $scheme$host$request_uri$http_authorization; a port is always part of it",
        set: |options, given| {
            let key = options.template(given.text())?;
            options.caching.key = Some(key);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-bypass",
        value: "TEXT…",
        help: "do not use the cache, nor store the response, if any of these texts is neither empty nor 0, such as $cookie_session",
        set: |options, given| {
            options.caching.bypass = templates(options, given)?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-refresh",
        value: "TEXT…",
        help: "get a new response, and store it in place of the present one, if any of these texts is neither empty nor 0; anyone who can \
               send such a request makes the upstream work for it",
        set: |options, given| {
            options.caching.refresh = templates(options, given)?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-no-store",
        value: "TEXT…",
        help: "do not store the response if any of these texts is neither empty nor 0",
        set: |options, given| {
            options.caching.no_store = templates(options, given)?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-min-uses",
        value: "N",
        default: "1",
        help: "store a response only from the Nth request for it on",
        set: |options, given| {
            let uses_min = parse::at_least_one(given.text())?;
            options.caching.rules.uses_min = uses_min;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-ignore",
        value: "FIELD…",
        help: "fields to ignore: cache-control, expires, set-cookie or vary of responses; request ignores Cache-Control and Pragma of requests",
        set: ignore,
        ..ROUTES
    },
    ServeSetting {
        name: "cache-stale",
        value: "TIME [STATUSES…]",
        default: "60s",
        help: "how long a stale response may replace an upstream that fails, or whose response has one of these statuses, such as 10m 500-504 429; 0s only if the response allows it",
        set: |options, given| {
            let time = value::time(given.text())?;
            let statuses = given.values().skip(1).map(|text| parse::statuses(text, 400..=599));
            let statuses = statuses.collect::<Result<Vec<_>, _>>()?;
            let rules = &mut options.caching.rules;
            (rules.stale_time, rules.stale_statuses) = (time, statuses);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-updating",
        value: "TIME",
        default: "0s",
        help: "how long a stale response is served at once while it is fetched again in the background; the response may allow longer (stale-while-revalidate), or forbid it",
        set: |options, given| {
            options.caching.rules.updating_time = value::time(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-slice",
        value: "BYTES",
        default: "off",
        help: "fetch ranges of responses that are not stored in aligned slices of this size, such as 1MiB, and store \
               the slices, or off",
        set: |options, given| {
            let bytes = match given.text() {
                "off" => None,
                text => Some(value::bytes(text)?),
            };
            if bytes.is_some_and(|bytes| bytes < SLICE_BYTES_MIN) {
                return Err(format!("got `{}`, need at least 4KiB, or off", given.text()).into());
            }
            options.caching.rules.slice_bytes = bytes;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-status",
        value: "on|off",
        default: "on",
        help: "report the use of the cache in Cache-Status and X-Cache-Status",
        set: |options, given| {
            let says_status = value::switch(given.text())?;
            options.caching.rules.says_status = says_status;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-memory",
        value: "BYTES",
        default: "256MiB",
        help: "memory for responses, including the index",
        set: |options, given| {
            let bytes = value::bytes(given.text())?;
            if bytes < MEMORY_BYTES_MIN {
                return Err(format!("got `{}`, need at least 1MiB", given.text()).into());
            }
            options.cache.memory_bytes = bytes;
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "cache-inactive",
        value: "TIME",
        default: "off",
        help: "remove responses that were not requested for this time, fresh or not, such as 10m, or off",
        set: |options, given| {
            options.cache.inactive = match given.text() {
                "off" => None,
                text => Some(value::time(text)?),
            };
            if options.cache.inactive.is_some_and(|time| time < INACTIVE_MIN) {
                return Err(format!("got `{}`, need at least 1s, or off", given.text()).into());
            }
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "cache-dir",
        value: "DIR",
        default: "off",
        help: "keep responses in this folder too, so that they survive a restart, or off",
        set: |options, given| {
            options.cache_dir = (given.text() != "off").then(|| options.path(given.text()));
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "cache-size",
        value: "BYTES",
        default: "10GiB",
        help: "maximum size of that folder",
        set: |options, given| {
            let bytes = value::bytes(given.text())?;
            if bytes < SIZE_BYTES_MIN {
                return Err(format!("got `{}`, need at least 4MiB", given.text()).into());
            }
            options.cache_size = bytes;
            Ok(())
        },
        ..SERVERS
    },
];

fn ignore(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let rules = &mut options.caching.rules;
    for name in given.values() {
        match name.to_ascii_lowercase().as_str() {
            "cache-control" => rules.ignored.cache_control = true,
            "expires" => rules.ignored.expires = true,
            "set-cookie" => rules.ignored.set_cookie = true,
            "vary" => rules.ignored.vary = true,
            "x-accel-expires" => rules.ignored.x_accel_expires = true,
            "request" => rules.ignores_requests = true,
            _ => {
                let known = "cache-control, expires, set-cookie, vary, x-accel-expires or request";
                return Err(format!("got `{name}`, need {known}").into());
            }
        }
    }
    Ok(())
}
