//! `flatout json-api`: the JSON API that `flatout climb` takes where no server is named.

use flatout::{App, Json};
use flatout_engine::{Address, Locality};

use crate::setting::{Group, Parsed, Setting, help, parse};
use crate::{Command, Failure, print, value};

pub(crate) const COMMAND: Command = Command { name: "json-api", about: "", run };

const USAGE: &str = "flatout json-api [--listen ADDR …] [flags]";

/// What the flags fill.
#[derive(Default)]
struct Options {
    listen: Vec<Address>,
    workers: Option<usize>,
    congestion: Option<String>,
    locality: Locality,
}

/// What is answered: TechEmpower's JSON test.
const MESSAGE: &str = "Hello, World!";

const GROUPS: &[Group<Options>] = &[("server", SERVER)];

const SERVER: &[Setting<Options>] = &[
    Setting {
        name: "listen",
        value: "ADDR",
        default: "",
        help: "where to listen; may be given several times",
        set: |options, text| {
            options.listen.push(text.parse()?);
            Ok(())
        },
    },
    Setting {
        name: "workers",
        value: "N",
        default: "one for each CPU",
        help: "threads, each on a CPU of its own; the last one given counts",
        set: |options, text| {
            options.workers = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "congestion",
        value: "NAME",
        default: "the system's",
        help: "TCP_CONGESTION, such as reno",
        set: |options, text| {
            options.congestion = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "locality",
        value: "HOW",
        default: "auto",
        help: "on or off: hand a connection to the worker on whose CPU it arrives",
        set: |options, text| {
            options.locality = if value::switch(text)? { Locality::On } else { Locality::Off };
            Ok(())
        },
    },
];

fn run(parser: lexopt::Parser) -> Result<(), Failure> {
    let mut options = Options::default();
    match parse(parser, GROUPS, &[], &mut options)? {
        Parsed::Help => return print(&help(USAGE, GROUPS, &[])),
        Parsed::Run(free) if free.is_empty() => {}
        Parsed::Run(_) => return Err(Failure::Usage(format!("usage: {USAGE}"))),
    }
    let app = App::new()
        .get("/json", || Json(std::collections::BTreeMap::from([("message", MESSAGE)])))
        .plan(|plan| {
            plan.listen = options.listen;
            plan.workers = options.workers;
            plan.socket.congestion = options.congestion;
            plan.socket.locality = options.locality;
        });
    app.run().map_err(|error| match error {
        flatout::Error::Usage(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    })
}
