//! The flags of `bench`: one table for name, value, default, help, and where it goes.

use std::net::IpAddr;

use flatout_load::find_max::Slo;
use flatout_load::{Arrival, Transport};
use flatout_report::require::Requirement;
use flatout_trial::compare::PAIRS_MIN;

use super::options::BenchOptions;
use super::secure::SECURE;
use crate::setting::{Group, Setting, Short};
use crate::shared::{Loading, Showing, header, pin, report, seed, threads};
use crate::value;

/// wrk's letters, more in the same style, curl's for the method and h2load's for streams.
pub(crate) const SHORTS: &[Short] = &[
    ('t', "threads"),
    ('c', "connections"),
    ('d', "duration"),
    ('n', "requests"),
    ('R', "rate"),
    ('H', "header"),
    ('X', "method"),
    ('m', "streams"),
    ('b', "body"),
];

pub(crate) const GROUPS: &[Group<BenchOptions>] = &[
    ("Load", LOAD),
    ("Open loop", RATE),
    ("Requests", REQUESTS),
    ("TLS and HTTP/2", SECURE),
    ("Limits", LIMITS),
    ("Comparison", COMPARISON),
    ("Output", OUTPUT),
];

/// More runs than anyone waits for.
const TRIALS_MAX: usize = 10_000;

/// Addresses of a range: a /16.
const SOURCES_MAX: u32 = 1 << 16;

impl AsMut<Loading> for BenchOptions {
    fn as_mut(&mut self) -> &mut Loading {
        &mut self.loading
    }
}

impl AsMut<Showing> for BenchOptions {
    fn as_mut(&mut self) -> &mut Showing {
        &mut self.showing
    }
}

const LOAD: &[Setting<BenchOptions>] = &[
    threads(),
    Setting {
        name: "connections",
        value: "N",
        default: "10",
        help: "connections, over all threads",
        set: |options, text| {
            options.connections = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "duration",
        value: "TIME",
        default: "10s",
        help: "how long to measure; with --vs, --vs-cmd and --find-max each run takes 1s by default",
        set: |options, text| {
            options.duration = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "requests",
        value: "N",
        default: "no limit",
        help: "stop after N requests",
        set: |options, text| {
            options.requests_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "warmup",
        value: "TIME",
        default: "500ms",
        help: "load before measuring starts; none with --requests, --rate, --events or --long-poll; connections are always made before",
        set: |options, text| {
            options.warmup = Some(value::time(text)?);
            Ok(())
        },
    },
    pin(),
    Setting {
        name: "trials",
        value: "N",
        default: "1",
        help: "repeat N times and report the median",
        set: |options, text| {
            options.trials = within(value::number(text)?, 1, TRIALS_MAX)?;
            Ok(())
        },
    },
    Setting {
        name: "pipeline",
        value: "N",
        default: "1",
        help: "requests sent at once on a connection; the next N follow when all responses have arrived",
        set: |options, text| {
            options.pipeline = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "close",
        value: "",
        default: "",
        help: "use a new connection for each request; connecting is part of the latency, except with --rate",
        set: |options, _| {
            options.close = true;
            Ok(())
        },
    },
    Setting {
        name: "events",
        value: "",
        default: "",
        help: "subscribe on every connection, by Server-Sent Events, or by WebSocket with a ws:// URL; messages are counted, \
               a Unix time in them (in ms, µs or ns) gives their latency, and numbers in them (\"seq\": N) show which are \
               missing",
        set: |options, _| {
            options.subscribe = Some(Transport::Events);
            Ok(())
        },
    },
    Setting {
        name: "long-poll",
        value: "",
        default: "",
        help: "the same by long poll; each response is a JSON array of messages, and the next request sends its \
               Last-Event-ID",
        set: |options, _| {
            options.subscribe = Some(Transport::LongPoll);
            Ok(())
        },
    },
    Setting {
        name: "source",
        value: "ADDRS",
        default: "the system's",
        help: "source addresses, used in turn, such as 127.0.0.2 or 127.0.0.2-127.0.0.50",
        set: |options, text| {
            options.sources = sources(text)?;
            Ok(())
        },
    },
    Setting {
        name: "hold",
        value: "N",
        default: "",
        help: "hold N connections open, each with a request every 10 s",
        set: |options, text| {
            options.hold = Some(value::number(text)?);
            Ok(())
        },
    },
];

const RATE: &[Setting<BenchOptions>] = &[
    Setting {
        name: "rate",
        value: "N",
        default: "",
        help: "send N requests per second, however fast the server is; latency counts from when each request was due",
        set: |options, text| {
            options.rate_per_s = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "stage",
        value: "TIME:RATE",
        default: "",
        help: "a stage of an open loop, such as 30s:100, or 30s:100..5000, in which the rate grows evenly; again for the next stage; latency, \
               responses and errors are shown for each",
        set: |options, text| {
            options.stages.push(text.parse()?);
            Ok(())
        },
    },
    Setting {
        name: "arrival",
        value: "constant|poisson",
        default: "constant",
        help: "how requests are spaced",
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
        help: "search for the highest rate that meets --slo",
        set: |options, _| {
            options.find_max = true;
            Ok(())
        },
    },
    Setting {
        name: "slo",
        value: "OBJECTIVE",
        default: "",
        help: "what --find-max has to meet, such as p99=5ms; a run with errors never meets it",
        set: |options, text| {
            options.objective = Some(Slo::parse(text, value::time)?);
            Ok(())
        },
    },
];

const REQUESTS: &[Setting<BenchOptions>] = &[
    Setting {
        name: "method",
        value: "NAME",
        default: "GET, or POST with a body",
        help: "the request method",
        set: |options, text| {
            options.method = Some(text.to_owned());
            Ok(())
        },
    },
    header(),
    Setting {
        name: "body",
        value: "TEXT",
        default: "",
        help: "the request body; @FILE reads it from a file",
        set: |options, text| {
            options.body = Some(content(text)?);
            Ok(())
        },
    },
    Setting {
        name: "urls",
        value: "FILE",
        default: "",
        help: "a file of paths to request, one per line: `PATH` or `WEIGHT PATH`; {counter}, {random:1-9} and {pick:a,b} \
               are filled in, also in fields and in the body",
        set: |options, text| {
            options.list = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "expect",
        value: "TEXT",
        default: "any",
        help: "the body of a good response; @FILE reads it from a file",
        set: |options, text| {
            options.expect.body = Some(content(text)?);
            Ok(())
        },
    },
    Setting {
        name: "expect-status",
        value: "CODE",
        default: "200 to 399",
        help: "the status of a good response",
        set: |options, text| {
            options.expect.status = Some(within(value::number(text)?, 200, 999)?);
            Ok(())
        },
    },
    seed(),
];

const LIMITS: &[Setting<BenchOptions>] = &[
    Setting {
        name: "timeout",
        value: "TIME",
        default: "10s",
        help: "longest time from a request to the end of its response",
        set: |options, text| {
            options.answer_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "connect-timeout",
        value: "TIME",
        default: "5s",
        help: "longest time to connect, including the handshake of TLS",
        set: |options, text| {
            options.connect_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "head-bytes",
        value: "BYTES",
        default: "16KiB",
        help: "largest response head; at most 64KiB",
        set: |options, text| {
            options.head_bytes_max = value::bytes(text)? as usize;
            Ok(())
        },
    },
    Setting {
        name: "max-errors",
        value: "N",
        default: "0",
        help: "exit with status 1 if there are more errors; not limited by default with --require errors<...",
        set: |options, text| {
            options.errors_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "require",
        value: "LIMIT",
        default: "",
        help: "exit with status 1 if a figure is not within its limit, such as p99<20ms, mean<5ms, max<1s, errors<0.1%, \
               errors<=5 or rps>1000; may be repeated; quote it for the shell",
        set: |options, text| {
            options.requirements.push(Requirement::parse(text)?);
            Ok(())
        },
    },
];

const COMPARISON: &[Setting<BenchOptions>] = &[
    Setting {
        name: "vs",
        value: "URL",
        default: "",
        help: "compare with another URL: alternating runs, the ratio of requests/s, a verdict",
        set: |options, text| {
            options.vs = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "vs-cmd",
        value: "CMD",
        default: "",
        help: "compare two commands that each start a server at the URL; give it twice",
        set: |options, text| {
            options.vs_commands.push(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "pairs",
        value: "N",
        default: "10",
        help: "runs of each candidate",
        set: |options, text| {
            options.pairs = within(value::number(text)?, PAIRS_MIN, TRIALS_MAX)?;
            Ok(())
        },
    },
];

const OUTPUT: &[Setting<BenchOptions>] = &[
    Setting {
        name: "latency",
        value: "",
        default: "",
        help: "print more percentiles",
        set: |options, _| {
            options.latency = true;
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "",
        default: "",
        help: "print the result as JSON",
        set: |options, _| {
            options.json = true;
            Ok(())
        },
    },
    Setting {
        name: "csv",
        value: "",
        default: "",
        help: "print the result as CSV",
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
        name: "junit",
        value: "FILE",
        default: "",
        help: "write the result of each --require as a JUnit report",
        set: |options, text| {
            options.junit = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "markdown",
        value: "FILE",
        default: "",
        help: "write figures and requirements as Markdown, for the summary of a CI job",
        set: |options, text| {
            options.markdown = Some(text.to_owned());
            Ok(())
        },
    },
    report(),
    Setting {
        name: "pid",
        value: "PID",
        default: "the process that listens on the port",
        help: "the server's process, for its CPU time",
        set: |options, text| {
            options.server_pid = Some(value::number(text)?);
            Ok(())
        },
    },
];

fn within<T: PartialOrd + std::fmt::Display>(got: T, min: T, max: T) -> Result<T, String> {
    if got >= min && got <= max { Ok(got) } else { Err(format!("got {got}, need {min} to {max}")) }
}

/// The text itself, or the content of the file after an `@`.
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
    use crate::bench::COMMAND;
    use crate::setting::fill;

    fn set(arguments: &[&str]) -> Result<BenchOptions, String> {
        let mut options = BenchOptions::default();
        let words = std::iter::once("http://127.0.0.1/").chain(arguments.iter().copied());
        let matches = COMMAND.parse(words.map(str::to_owned));
        match matches.and_then(|matches| fill(&matches, GROUPS, &mut options)) {
            Ok(()) => Ok(options),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn letters_stand_for_flags_of_the_table() {
        for (_, name) in SHORTS {
            assert!(GROUPS.iter().any(|(_, settings)| settings.iter().any(|setting| setting.name == *name)));
        }
        let options = set(&["-t2", "-c", "64", "-d5s", "-H", "A: b", "-R", "1000"]).unwrap();
        assert_eq!((options.loading.threads, options.connections, options.rate_per_s), (2, 64, Some(1000.0)));
        assert_eq!(options.loading.fields, [("A".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn the_url_and_the_flag_select_the_transport() {
        let plan = |flags: &[&str], url: &str| {
            set(flags).unwrap().plan(&format!("{url}127.0.0.1:1/live/a")).map(|plan| plan.subscribe)
        };
        assert_eq!(plan(&[], "http://"), Ok(None));
        assert_eq!(plan(&["--events"], "http://"), Ok(Some(Transport::Events)));
        assert_eq!(plan(&["--events"], "WS://"), Ok(Some(Transport::WebSocket)));
        assert_eq!(plan(&["--events"], "wss://"), Ok(Some(Transport::WebSocket)));
        assert_eq!(plan(&["--long-poll"], "http://"), Ok(Some(Transport::LongPoll)));
        for (flags, url, expected) in [
            (&[][..], "ws://", "add --events"),
            (&["--long-poll"], "ws://", "needs an http URL"),
            (&["--events", "--rate", "5"], "ws://", "leave out rate"),
            (&[], "wss://", "add --events"),
            (&["--events", "--http2"], "ws://", "leave out http2"),
        ] {
            let message = plan(flags, url).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn the_url_selects_tls_and_a_flag_selects_http2() {
        let plan = |flags: &[&str], url: &str| set(flags).unwrap().plan(url);
        let plain = plan(&["--ca", "ca.pem"], "http://127.0.0.1:1/").unwrap();
        assert_eq!((plain.tls, plain.streams), (None, None));
        let flags = ["--ca", "ca.pem", "--tls-name", "a.test", "--no-resume", "--http2", "-m", "9"];
        let secure = plan(&flags, "https://127.0.0.1:1/").unwrap();
        let tls = secure.tls.unwrap();
        assert_eq!((tls.name.as_str(), secure.streams), ("a.test", Some(9)));
        assert_eq!((tls.client.sessions_max, tls.client.verify), (0, true));
        assert_eq!(tls.client.authorities.as_deref(), Some("ca.pem".as_ref()));
        let insecure = plan(&["--insecure"], "https://127.0.0.1:1/").unwrap().tls.unwrap();
        assert_eq!((insecure.name.as_str(), insecure.client.verify), ("127.0.0.1", false));
        for (flags, expected) in [
            (&["-m", "9"][..], "--streams is for --http2"),
            (&["--http2", "-m", "0"], "streams: got 0, need 1 to 1024"),
            (&["--http2", "-m", "1025"], "streams: got 1025"),
            (&["--http2", "--pipeline", "2"], "leave out pipeline"),
            (&["--http2", "-m", "2", "--close"], "leave out close or streams"),
            (&["--http2", "-H", "Connection: close"], "HTTP/2 has no `Connection: close`"),
        ] {
            let message = plan(flags, "http://127.0.0.1:1/").unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    /// The defaults in the table are the real ones, if they can be written as a value.
    #[test]
    fn defaults_match_the_help() {
        let told = |options: &BenchOptions| {
            let rest = (options.trials, options.pairs, options.errors_max());
            format!("{:?} {rest:?}", options.plan("http://127.0.0.1:1/"))
        };
        let fresh = told(&BenchOptions::default());
        let mut compared = 0;
        for setting in GROUPS.iter().flat_map(|(_, settings)| settings.iter()) {
            let is_value = setting.default.starts_with(|first: char| first.is_ascii_digit())
                || setting.name == "arrival";
            // Streams exist only in HTTP/2.
            if is_value && !["expect-status", "streams"].contains(&setting.name) {
                let mut options = BenchOptions::default();
                (setting.set)(&mut options, setting.default).unwrap();
                assert_eq!(told(&options), fresh, "--{} {}", setting.name, setting.default);
                compared += 1;
            }
        }
        assert_eq!(compared, 13);
    }

    #[test]
    fn mistakes_are_reported() {
        for (arguments, expected) in [
            (&["-t", "x"][..], "--threads: got `x`, need a whole number"),
            (&["-d", "10"], "--duration: got `10`, need a time"),
            (&["-H", "no colon"], "need `Name: value`"),
            (&["--pin", "1023"], "got CPU 1023, need some of"),
            (&["--pin", "0-18446744073709551615"], "need CPUs such as"),
            (&["--pin", "b"], "need CPUs such as"),
            (&["--source", "127.0.0.9-127.0.0.2"], "need an address or a range"),
            (&["--source", "0.0.0.0-255.255.255.255"], "at most 65536 addresses"),
            (&["--arrival", "often"], "possible values: constant, poisson"),
            (&["--slo", "99=5ms"], "need an objective"),
            (&["--require", "p99"], "--require: got `p99`, need a limit such as"),
            (&["--pairs", "2"], "got 2, need 4 to"),
            (&["--expect-status", "99"], "got 99, need 200 to 999"),
            (&["--body", "@/nowhere"], "cannot read `/nowhere`"),
            (&["--conections", "1"], "similar argument exists: '--connections'"),
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
