//! `flatout json-api`: the JSON API that `flatout climb` measures if no server is named.

use clap::ArgMatches;
use flatout::{App, Json};
use flatout_engine::{Address, Locality};
use flatout_observe::log::{self, Log};
use flatout_observe::metrics::Metrics;
use flatout_observe::observed::{Observers, Sites};

use crate::command::Command;
use crate::setting::{Group, Setting, fill, flags};
use crate::{Failure, value};

pub(crate) const COMMAND: Command = Command {
    name: "json-api",
    about: "",
    more: "",
    examples: &[],
    arguments: |command| {
        flags(command.about("Serve the JSON API that `climb` measures by default"), GROUPS, &[])
    },
    run,
};

/// The options.
#[derive(Default)]
struct JsonApiOptions {
    listen: Vec<Address>,
    workers: Option<usize>,
    congestion: Option<String>,
    locality: Locality,
    access_log: Option<String>,
    metrics: bool,
}

/// The response: TechEmpower's JSON test.
const MESSAGE: &str = "Hello, World!";

const GROUPS: &[Group<JsonApiOptions>] = &[("server", SERVER)];

const SERVER: &[Setting<JsonApiOptions>] = &[
    Setting {
        name: "listen",
        value: "ADDR",
        default: "",
        help: "where to listen; can be repeated",
        set: |options, text| {
            options.listen.push(text.parse()?);
            Ok(())
        },
    },
    Setting {
        name: "workers",
        value: "N",
        default: "one for each CPU",
        help: "threads; each is pinned to its own CPU",
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
        value: "auto|on|off",
        default: "auto",
        help: "give each connection to the worker on the CPU where it arrives: on, off, or auto",
        set: |options, text| {
            options.locality = match text {
                "auto" => Locality::Auto,
                _ if value::switch(text)? => Locality::On,
                _ => Locality::Off,
            };
            Ok(())
        },
    },
    Setting {
        name: "access-log",
        value: "FILE",
        default: "",
        help: "log each request into this file",
        set: |options, text| {
            options.access_log = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "metrics",
        value: "",
        default: "",
        help: "count requests as metrics that nothing reads, to measure their cost",
        set: |options, _| {
            options.metrics = true;
            Ok(())
        },
    },
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = JsonApiOptions::default();
    fill(matches, GROUPS, &mut options)?;
    let logs = options.access_log.map(|path| Log::open(log::Plan::new(path))).transpose();
    let logs = logs.map_err(|error| Failure::Run(format!("cannot open the access log: {error}")))?;
    let observers = Observers {
        logs: logs.into_iter().collect(),
        metrics: options.metrics.then(|| Metrics::new(Sites::single("default"))),
    };
    let observed = observers.clone();
    let app = App::new()
        .wrap(move |service| observed.wrap(|_| service))
        .get("/json", || Json(std::collections::BTreeMap::from([("message", MESSAGE)])))
        .plan(|plan| {
            plan.listen = options.listen.into_iter().map(Into::into).collect();
            plan.workers = options.workers;
            plan.socket.congestion = options.congestion;
            plan.socket.locality = options.locality;
        });
    let ended = app.run();
    observers.logs.iter().for_each(Log::close);
    ended.map_err(|error| match error {
        flatout::Error::Usage(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    })
}
