//! The flags of `bench`: one table for name, value, default, help, and where it goes.

use std::net::IpAddr;

use flatout_load::Arrival;
use flatout_load::find_max::Objective;
use flatout_trial::compare::PAIRS_MIN;

use super::options::Options;
use crate::setting::{Group, Setting, Short};
use crate::value;

/// wrk's letters, and those that follow from them.
pub(crate) const SHORTS: &[Short] = &[
    ('t', "threads"),
    ('c', "connections"),
    ('d', "duration"),
    ('n', "requests"),
    ('R', "rate"),
    ('H', "header"),
    ('m', "method"),
    ('b', "body"),
];

pub(crate) const GROUPS: &[Group<Options>] = &[
    ("load", LOAD),
    ("open loop", RATE),
    ("requests", REQUESTS),
    ("limits", LIMITS),
    ("comparison", COMPARISON),
    ("output", OUTPUT),
];

/// More runs than anybody waits for.
const TRIALS_MAX: usize = 10_000;

/// Addresses of a range: a /16.
const SOURCES_MAX: u32 = 1 << 16;

const LOAD: &[Setting<Options>] = &[
    Setting {
        name: "threads",
        value: "N",
        default: "1",
        help: "threads, each with connections of its own",
        set: |options, text| {
            options.threads = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "connections",
        value: "N",
        default: "10",
        help: "connections over all threads",
        set: |options, text| {
            options.connections = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "duration",
        value: "TIME",
        default: "10s",
        help: "how long is counted; 1s for each run of --vs, --vs-cmd and --find-max",
        set: |options, text| {
            options.duration = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "requests",
        value: "N",
        default: "any number",
        help: "end when so many requests were sent and answered",
        set: |options, text| {
            options.requests_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "warmup",
        value: "TIME",
        default: "500ms",
        help: "load before the counted time; connections are made before in any case; none with --requests, --rate or --events",
        set: |options, text| {
            options.warmup = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pin",
        value: "CPUS",
        default: "not pinned",
        help: "a CPU for each thread in turn, such as 2,3 or 0-3; of those that this process may use",
        set: |options, text| {
            options.cpus = value::cpus(text)?;
            Ok(())
        },
    },
    Setting {
        name: "trials",
        value: "N",
        default: "1",
        help: "run so often; the median is the result",
        set: |options, text| {
            options.trials = within(value::number(text)?, 1, TRIALS_MAX)?;
            Ok(())
        },
    },
    Setting {
        name: "pipeline",
        value: "N",
        default: "1",
        help: "requests sent at once on a connection; the next follow when all are answered",
        set: |options, text| {
            options.pipeline = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "close",
        value: "",
        default: "",
        help: "a new connection for each request; its making is part of the latency, except with --rate",
        set: |options, _| {
            options.close = true;
            Ok(())
        },
    },
    Setting {
        name: "events",
        value: "",
        default: "",
        help: "Server-Sent Events: every connection subscribes; messages count, and their latency from a \
               time since 1970 in them, in ms, µs or ns",
        set: |options, _| {
            options.events = true;
            Ok(())
        },
    },
    Setting {
        name: "source",
        value: "ADDRS",
        default: "the system's",
        help: "our own addresses, used in turn: 127.0.0.2 or 127.0.0.2-127.0.0.50",
        set: |options, text| {
            options.sources = sources(text)?;
            Ok(())
        },
    },
    Setting {
        name: "hold",
        value: "N",
        default: "",
        help: "hold so many connections, each with a request every 10 s",
        set: |options, text| {
            options.hold = Some(value::number(text)?);
            Ok(())
        },
    },
];

const RATE: &[Setting<Options>] = &[
    Setting {
        name: "rate",
        value: "N",
        default: "",
        help: "open loop: so many requests a second; latency counts from when each was due",
        set: |options, text| {
            options.rate_per_s = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "arrival",
        value: "HOW",
        default: "constant",
        help: "how they are spread: constant or poisson",
        set: |options, text| {
            options.arrival = match text {
                "constant" => Arrival::Constant,
                "poisson" => Arrival::Poisson,
                _ => return Err(format!("got `{text}`, need constant or poisson")),
            };
            Ok(())
        },
    },
    Setting {
        name: "find-max",
        value: "",
        default: "",
        help: "search the highest rate that meets --slo",
        set: |options, _| {
            options.find_max = true;
            Ok(())
        },
    },
    Setting {
        name: "slo",
        value: "OBJECTIVE",
        default: "",
        help: "what --find-max has to meet, such as p99=5ms; errors never do",
        set: |options, text| {
            options.objective = Some(Objective::parse(text, value::time)?);
            Ok(())
        },
    },
];

const REQUESTS: &[Setting<Options>] = &[
    Setting {
        name: "method",
        value: "NAME",
        default: "GET, or POST with a body",
        help: "the method",
        set: |options, text| {
            options.method = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "header",
        value: "FIELD",
        default: "",
        help: "a header field, `Name: value`; may be given several times",
        set: |options, text| {
            options.fields.push(value::field(text)?);
            Ok(())
        },
    },
    Setting {
        name: "body",
        value: "TEXT",
        default: "",
        help: "the body; @FILE reads it from a file",
        set: |options, text| {
            options.body = Some(content(text)?);
            Ok(())
        },
    },
    Setting {
        name: "urls",
        value: "FILE",
        default: "",
        help: "paths instead of the URL's: `WEIGHT PATH` or `PATH` a line; in paths, fields and body \
               {counter}, {random:1-9} and {pick:a,b} are filled in",
        set: |options, text| {
            options.list = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "expect",
        value: "TEXT",
        default: "any",
        help: "the body that a good answer has; @FILE reads it from a file",
        set: |options, text| {
            options.expect.body = Some(content(text)?);
            Ok(())
        },
    },
    Setting {
        name: "expect-status",
        value: "CODE",
        default: "200 to 399",
        help: "the status that a good answer has",
        set: |options, text| {
            options.expect.status = Some(within(value::number(text)?, 200, 999)?);
            Ok(())
        },
    },
    Setting {
        name: "seed",
        value: "N",
        default: "1",
        help: "what random numbers begin with",
        set: |options, text| {
            options.seed = value::number(text)?;
            Ok(())
        },
    },
];

const LIMITS: &[Setting<Options>] = &[
    Setting {
        name: "timeout",
        value: "TIME",
        default: "10s",
        help: "an answer must be whole within this time from when its request was sent",
        set: |options, text| {
            options.answer_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "connect-timeout",
        value: "TIME",
        default: "5s",
        help: "a connection must be made within this time",
        set: |options, text| {
            options.connect_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "head-bytes",
        value: "BYTES",
        default: "16KiB",
        help: "an answer's head; at most 64KiB",
        set: |options, text| {
            options.head_bytes_max = value::bytes(text)? as usize;
            Ok(())
        },
    },
    Setting {
        name: "max-errors",
        value: "N",
        default: "0",
        help: "with more errors the exit status is 1",
        set: |options, text| {
            options.errors_max = value::number(text)?;
            Ok(())
        },
    },
];

const COMPARISON: &[Setting<Options>] = &[
    Setting {
        name: "vs",
        value: "URL",
        default: "",
        help: "compare with another URL: runs in turn, ratio of requests/s, verdict",
        set: |options, text| {
            options.vs = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "vs-cmd",
        value: "COMMAND",
        default: "",
        help: "given twice: compare two commands that each start a server at the URL",
        set: |options, text| {
            options.vs_commands.push(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "pairs",
        value: "N",
        default: "10",
        help: "runs of each of the two",
        set: |options, text| {
            options.pairs = within(value::number(text)?, PAIRS_MIN, TRIALS_MAX)?;
            Ok(())
        },
    },
];

const OUTPUT: &[Setting<Options>] = &[
    Setting {
        name: "latency",
        value: "",
        default: "",
        help: "more percentiles",
        set: |options, _| {
            options.latency = true;
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "",
        default: "",
        help: "the result as JSON",
        set: |options, _| {
            options.json = true;
            Ok(())
        },
    },
    Setting {
        name: "csv",
        value: "",
        default: "",
        help: "the result as CSV",
        set: |options, _| {
            options.csv = true;
            Ok(())
        },
    },
    Setting {
        name: "hdr",
        value: "FILE",
        default: "",
        help: "write the latencies as an HdrHistogram log",
        set: |options, text| {
            options.hdr = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "report",
        value: "FILE",
        default: "",
        help: "write an HTML page with plots",
        set: |options, text| {
            options.report = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "server-pid",
        value: "PID",
        default: "who listens on the port",
        help: "the process whose CPU time is told as the server's",
        set: |options, text| {
            options.server_pid = Some(value::number(text)?);
            Ok(())
        },
    },
];

fn within<T: PartialOrd + std::fmt::Display>(got: T, min: T, max: T) -> Result<T, String> {
    if got >= min && got <= max { Ok(got) } else { Err(format!("got {got}, need {min} to {max}")) }
}

/// The text itself, or what is in the file behind an `@`.
fn content(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix('@') {
        Some(path) => std::fs::read(path).map_err(|error| format!("cannot read `{path}`: {error}")),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// One address, or a range of IPv4 addresses.
fn sources(text: &str) -> Result<Vec<IpAddr>, String> {
    let wrong = || format!("got `{text}`, need an address or a range such as 127.0.0.2-127.0.0.50");
    let Some((first, last)) = text.split_once('-') else {
        return text.parse().map(|address| vec![address]).map_err(|_| wrong());
    };
    match (first.parse(), last.parse()) {
        (Ok(IpAddr::V4(first)), Ok(IpAddr::V4(last))) if first <= last => {
            let (first, last) = (u32::from(first), u32::from(last));
            if last - first >= SOURCES_MAX {
                return Err(format!("got `{text}`, need a range of at most {SOURCES_MAX} addresses"));
            }
            Ok((first..=last).map(|address| IpAddr::V4(address.into())).collect())
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use crate::setting::parse;

    fn set(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let parser = lexopt::Parser::from_iter(std::iter::once("flatout").chain(arguments.iter().copied()));
        match parse(parser, GROUPS, SHORTS, &mut options) {
            Ok(_) => Ok(options),
            Err(Failure::Usage(message) | Failure::Run(message)) => Err(message),
        }
    }

    #[test]
    fn letters_stand_for_flags_of_the_table() {
        for (_, name) in SHORTS {
            assert!(GROUPS.iter().any(|(_, settings)| settings.iter().any(|setting| setting.name == *name)));
        }
        let options = set(&["-t2", "-c", "64", "-d5s", "-H", "A: b", "-R", "1000"]).unwrap();
        assert_eq!((options.threads, options.connections, options.rate_per_s), (2, 64, Some(1000.0)));
        assert_eq!(options.fields, [("A".to_owned(), "b".to_owned())]);
    }

    /// What the table says is the default is the default, wherever it can be written as a value.
    #[test]
    fn defaults_are_what_the_help_says() {
        let target = flatout_load::Target::parse("http://127.0.0.1:1/").unwrap();
        let told = |options: &Options| {
            let rest = (options.trials, options.pairs, options.errors_max);
            format!("{:?} {rest:?}", options.plan(&target))
        };
        let fresh = told(&Options::default());
        let mut compared = 0;
        for setting in GROUPS.iter().flat_map(|(_, settings)| settings.iter()) {
            let is_value = setting.default.starts_with(|first: char| first.is_ascii_digit())
                || setting.name == "arrival";
            if is_value && setting.name != "expect-status" {
                let mut options = Options::default();
                (setting.set)(&mut options, setting.default).unwrap();
                assert_eq!(told(&options), fresh, "--{} {}", setting.name, setting.default);
                compared += 1;
            }
        }
        assert_eq!(compared, 13);
    }

    #[test]
    fn mistakes_are_told() {
        for (arguments, expected) in [
            (&["-t", "x"][..], "--threads: got `x`, need a whole number"),
            (&["-d", "10"], "--duration: got `10`, need a time"),
            (&["-H", "no colon"], "need `Name: value`"),
            (&["--pin", "9999"], "got CPU 9999, need some of"),
            (&["--pin", "0-18446744073709551615"], "got CPU"),
            (&["--pin", "b"], "need CPUs such as"),
            (&["--source", "127.0.0.9-127.0.0.2"], "need an address or a range"),
            (&["--source", "0.0.0.0-255.255.255.255"], "at most 65536 addresses"),
            (&["--arrival", "often"], "need constant or poisson"),
            (&["--slo", "99=5ms"], "need an objective"),
            (&["--pairs", "2"], "got 2, need 4 to"),
            (&["--expect-status", "99"], "got 99, need 200 to 999"),
            (&["--body", "@/nowhere"], "cannot read `/nowhere`"),
            (&["--conections", "1"], "did you mean --connections?"),
        ] {
            let Err(message) = set(arguments) else { panic!("{arguments:?}") };
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn ranges_of_addresses_are_counted_out() {
        assert_eq!(sources("127.0.0.2-127.0.0.50").unwrap().len(), 49);
        assert_eq!(sources("::1").unwrap().len(), 1);
    }
}
