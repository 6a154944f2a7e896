//! Settings shared by several commands. Each is written once; a command says where its value goes.
//!
//! `connections`, `duration`, `warmup`, `pairs`, `pid` and `json` of `bench` and `climb` are not here: their defaults, limits
//! or values differ, and a function with these as parameters would be as long as the two settings.

use crate::setting::Setting;
use crate::value;

/// Options of a command that loads a server.
pub(crate) struct Loading {
    /// The generator's threads.
    pub(crate) threads: usize,
    /// The CPUs that they are pinned to; empty if not pinned.
    pub(crate) cpus: Vec<usize>,
    /// Header fields of every request.
    pub(crate) fields: Vec<(String, String)>,
    /// The random seed.
    pub(crate) seed: u64,
}

/// Options of a command that shows a result.
#[derive(Default)]
pub(crate) struct Showing {
    /// Path of the HTML page.
    pub(crate) report: Option<String>,
    /// An earlier result in JSON, for comparison.
    pub(crate) compare: Option<String>,
}

impl Default for Loading {
    fn default() -> Loading {
        Loading { threads: 1, cpus: Vec::new(), fields: Vec::new(), seed: 1 }
    }
}

pub(crate) const fn threads<T: AsMut<Loading>>() -> Setting<T> {
    Setting {
        name: "threads",
        value: "N",
        default: "1",
        help: "threads; each has its own connections",
        set: |options, text| {
            options.as_mut().threads = value::number(text)?;
            Ok(())
        },
    }
}

pub(crate) const fn pin<T: AsMut<Loading>>() -> Setting<T> {
    Setting {
        name: "pin",
        value: "CPUS",
        default: "not pinned",
        help: "pin threads to CPUs, such as 2,3 or 0-3; choose those that the server does not use",
        set: |options, text| {
            options.as_mut().cpus = value::cpus(text)?;
            Ok(())
        },
    }
}

pub(crate) const fn header<T: AsMut<Loading>>() -> Setting<T> {
    Setting {
        name: "header",
        value: "FIELD",
        default: "",
        help: "add a header field, `Name: value`; can be repeated; results hide values that may be secret",
        set: |options, text| {
            options.as_mut().fields.push(value::field(text)?);
            Ok(())
        },
    }
}

pub(crate) const fn seed<T: AsMut<Loading>>() -> Setting<T> {
    Setting {
        name: "seed",
        value: "N",
        default: "1",
        help: "random seed",
        set: |options, text| {
            options.as_mut().seed = value::number(text)?;
            Ok(())
        },
    }
}

pub(crate) const fn report<T: AsMut<Showing>>() -> Setting<T> {
    Setting {
        name: "report",
        value: "FILE",
        default: "",
        help: "write a standalone HTML page",
        set: |options, text| {
            options.as_mut().report = Some(text.to_owned());
            Ok(())
        },
    }
}

pub(crate) const fn compare<T: AsMut<Showing>>() -> Setting<T> {
    Setting {
        name: "compare",
        value: "FILE",
        default: "",
        help: "an earlier climb's --json file; reports whether the machine or the server got slower since",
        set: |options, text| {
            options.as_mut().compare = Some(text.to_owned());
            Ok(())
        },
    }
}
