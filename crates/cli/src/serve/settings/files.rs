//! Settings of static files.

use std::time::Duration;

use flatout_files::{self as files, INDEX_NAMES_MAX, Listing, NamePattern, Watch};

use crate::serve::parse;
use crate::serve::setting::{Key, ROUTES, ServeSetting};
use crate::serve::values::Refused;
use crate::value;

/// Sweeping more often would leave no time for anything else.
const SWEEP_TIME_MIN: Duration = Duration::from_millis(100);

pub(in crate::serve) const FILES: &[ServeSetting] = &[
    ServeSetting {
        name: "index",
        value: "NAME…",
        default: "index.html",
        help: "the file that is served for a folder: the first of these names that it has; or off",
        set: |options, given| {
            let names: Vec<String> =
                given.values().filter(|name| *name != "off").map(str::to_owned).collect();
            if names.len() > INDEX_NAMES_MAX {
                return Err(format!("got {} names, need at most {INDEX_NAMES_MAX}", names.len()).into());
            }
            options.files.index = names;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "spa",
        value: "[on|off]",
        default: "off",
        help: "serve the root's index file for paths that have no file and no extension",
        set: |options, given| {
            options.files.spa = given.is_on();
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "listing",
        value: "[on|off|json|xml]",
        default: "off",
        help: "list the files of folders that have no index file: as a page, as an array of JSON with name, type, mtime and size, or \
               as XML",
        set: |options, given| {
            options.files.listing = match given.text() {
                "off" => Listing::Off,
                "json" => Listing::Json,
                "xml" => Listing::Xml,
                _ => Listing::Html,
            };
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "hide",
        value: "NAME…",
        default: "off",
        help: "names of files and folders that are not served, as if they did not exist, such as *.php, or off; names that start with a dot never are, except .well-known",
        set: |options, given| {
            if options.begins("hide") {
                options.files.hide.clear();
            }
            let names = given.values().filter(|name| *name != "off").map(NamePattern::parse);
            options.files.hide.extend(names.collect::<Result<Vec<_>, _>>()?);
            Ok(())
        },
        is_list: true,
        ..ROUTES
    },
    ServeSetting {
        name: "compress",
        value: "on|off",
        default: "on",
        help: "compress text in advance: gzip, brotli, zstd",
        set: |options, given| {
            options.files.compress = value::switch(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "cache-control",
        value: "TEXT",
        default: "",
        help: "the Cache-Control header field of files, or off",
        set: |options, given| {
            let value = parse::field_value(given.text())?;
            options.files.cache_control = (value != "off").then(|| value.to_owned());
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "small-bytes",
        value: "BYTES",
        default: "256KiB",
        help: "largest file to keep in memory; larger ones are sent from disk",
        set: |options, given| {
            options.files.small_bytes_max = value::bytes(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "memory-bytes",
        value: "BYTES",
        default: "256MiB",
        help: "memory for the files of a folder and their compressed variants; if exceeded, the least used are sent from disk",
        set: |options, given| {
            options.files.memory_bytes_max = value::bytes(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "changes",
        value: "HOW",
        default: "inotify",
        keys: &[Key {
            name: "open-time",
            value: "TIME",
            default: "10s",
            help: "with sweep=: how long a request waits until the volume has opened its file; then 503",
        }],
        help: "how to detect changes in the folder: inotify, sweep=TIME (for NFS and FUSE), or off",
        set: |options, given| {
            options.files.watch = changes(given.text())?;
            let time = given.read("open-time", value::time)?;
            if time.is_some() && !matches!(options.files.watch, Watch::Sweep(_)) {
                let message =
                    "only with sweep=TIME: other folders are on disks, which are not waited for".to_owned();
                return Err(Refused { key: Some("open-time"), message, ..Refused::default() });
            }
            options.files.open_time_max = time.unwrap_or(files::Plan::default().open_time_max);
            Ok(())
        },
        ..ROUTES
    },
    ServeSetting {
        name: "ranges",
        value: "N",
        default: "16",
        help: "maximum number of ranges in one request; with more, the whole file is sent",
        set: |options, given| {
            options.files.ranges_max = value::number(given.text())?;
            Ok(())
        },
        ..ROUTES
    },
];

fn changes(text: &str) -> Result<Watch, String> {
    match text {
        "inotify" => Ok(Watch::Inotify),
        "off" => Ok(Watch::Off),
        _ => match text.strip_prefix("sweep=") {
            Some(time) => Ok(Watch::Sweep(value::time(time)?.max(SWEEP_TIME_MIN))),
            None => Err(format!("got `{text}`, need inotify, sweep=TIME or off")),
        },
    }
}
