//! `flatout profile`.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::ArgMatches;
use flatout_admin::{Event, Watch};
use flatout_engine::Address;
use flatout_owner::{Here, Listening};
use flatout_profile::{Plan, Profile, RATE_HZ_DEFAULT, RATE_HZ_MAX, Sampler, Softirq, compare};
use flatout_report::{ResultOrigin, flame};

use crate::command::Command;
use crate::setting::{Group, Setting, Short, fill, flags};
use crate::terminal::Progress;
use crate::{Failure, print, signals, value};

pub(crate) const COMMAND: Command = Command {
    name: "profile",
    about: "Show what a request costs any server, as a table and a flame graph",
    more: "Root sees everything. Other users see their own processes, without the kernel's work in interrupts; the result \
           says what is missing.\nExit status: 0 sampled, 1 for a failure at run time, 2 for wrong usage.",
    examples: &[
        ("flatout profile --port 8080 --report profile.html", "ten seconds of the server on port 8080"),
        ("flatout profile --port 8080 --requests-per-s 190000", "costs per request"),
        ("flatout profile --port 8080 --admin 127.0.0.1:9090", "the same; the server counts its requests"),
        ("flatout profile --diff before.json after.json --report diff.html", "compare two that --json wrote"),
    ],
    arguments: |command| flags(command, GROUPS, SHORTS),
    run,
};

const SHORTS: &[Short] = &[('d', "duration")];

/// The longest sampling time: an hour. Raw stacks are kept until the end.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The options.
struct ProfileOptions {
    plan: Plan,
    port: Option<u16>,
    time: Duration,
    requests: Requests,
    admin: Option<Address>,
    diff: Vec<String>,
    report: Option<String>,
    json: Option<String>,
    folded: Option<String>,
    speedscope: Option<String>,
}

/// How many requests were served meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Requests {
    Unknown,
    Count(f64),
    PerSecond(f64),
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions {
            plan: Plan { pids: Vec::new(), rate_hz: RATE_HZ_DEFAULT, softirq: Softirq::All },
            port: None,
            time: Duration::from_secs(10),
            requests: Requests::Unknown,
            admin: None,
            diff: Vec::new(),
            report: None,
            json: None,
            folded: None,
            speedscope: None,
        }
    }
}

const GROUPS: &[Group<ProfileOptions>] = &[("Sampling", SAMPLED), ("Output", WRITTEN)];

const SAMPLED: &[Setting<ProfileOptions>] = &[
    Setting {
        name: "pid",
        value: "PID",
        default: "",
        help: "the server's process and all its descendants; can be repeated",
        set: |options, text| {
            options.plan.pids.push(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "port",
        value: "N",
        default: "",
        help: "the TCP port that the server listens on; the processes are found by it",
        set: |options, text| {
            options.port = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "duration",
        value: "TIME",
        default: "10s",
        help: "how long to sample; Ctrl-C or SIGTERM ends it early with what was sampled",
        set: |options, text| {
            options.time = value::time(text)?;
            match options.time.is_zero() || options.time > TIME_MAX {
                true => Err(format!("got {text}, need more than 0s and at most {} s", TIME_MAX.as_secs())),
                false => Ok(()),
            }
        },
    },
    Setting {
        name: "frequency",
        value: "HZ",
        default: "499",
        help: "samples per second and CPU",
        set: |options, text| {
            options.plan.rate_hz = value::number(text)?;
            match (1..=RATE_HZ_MAX).contains(&options.plan.rate_hz) {
                true => Ok(()),
                false => Err(format!("got {text}, need 1 to {RATE_HZ_MAX}")),
            }
        },
    },
    Setting {
        name: "requests",
        value: "N",
        default: "",
        help: "requests served while sampling; costs are then given per request",
        set: |options, text| {
            options.requests = Requests::Count(positive(text)?);
            Ok(())
        },
    },
    Setting {
        name: "requests-per-s",
        value: "N",
        default: "",
        help: "requests served per second while sampling; as --requests",
        set: |options, text| {
            options.requests = Requests::PerSecond(positive(text)?);
            Ok(())
        },
    },
    Setting {
        name: "admin",
        value: "ADDR",
        default: "",
        help: "the admin listener of a flatout server, which is asked how many requests were served while sampling; as --requests",
        set: |options, text| {
            options.admin = Some(crate::serve::admin_client::parsed(text)?);
            Ok(())
        },
    },
    Setting {
        name: "softirq",
        value: "all|kernel|off",
        default: "all",
        help: "network interrupt work to count for the server: all, kernel or off; `kernel` counts what ran in the idle \
               task and kernel threads, not in a client on this machine",
        set: |options, text| {
            options.plan.softirq = match text {
                "all" => Softirq::All,
                "kernel" => Softirq::Kernel,
                "off" => Softirq::Off,
                _ => return Err(format!("got `{text}`, need all, kernel or off")),
            };
            Ok(())
        },
    },
];

const WRITTEN: &[Setting<ProfileOptions>] = &[
    Setting {
        name: "report",
        value: "FILE",
        default: "",
        help: "write a standalone HTML page with the flame graph",
        set: |options, text| {
            options.report = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "FILE",
        default: "",
        help: "write the profile as JSON, for --diff",
        set: |options, text| {
            options.json = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "folded",
        value: "FILE",
        default: "",
        help: "write folded stacks, for flamegraph.pl and similar tools",
        set: |options, text| {
            options.folded = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "speedscope",
        value: "FILE",
        default: "",
        help: "write a file for speedscope and Firefox Profiler",
        set: |options, text| {
            options.speedscope = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "diff",
        value: "BEFORE AFTER",
        default: "",
        help: "compare two profiles that --json wrote, per request, instead of sampling",
        set: |options, text| {
            options.diff.push(text.to_owned());
            Ok(())
        },
    },
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = ProfileOptions::default();
    fill(matches, GROUPS, &mut options)?;
    match options.diff.as_slice() {
        [] => print_profile(options),
        [before, after] => print_difference(before, after, &options),
        _ => Err(Failure::Usage("--diff: give it once, with two files: BEFORE.json AFTER.json".to_owned())),
    }
}

fn print_profile(mut options: ProfileOptions) -> Result<(), Failure> {
    let mut missing = None;
    if let Some(port) = options.port {
        let (pids, why) = listening_on(port)?;
        options.plan.pids.extend(pids);
        missing = why;
    }
    if options.plan.pids.is_empty() {
        return Err(Failure::Usage("nothing to sample: give --pid or --port".to_owned()));
    }
    let before = options.admin.as_ref().map(served).transpose()?;
    let time = options.time;
    let stop = signals::stop_or_end()?;
    let mut sampler = Sampler::start(options.plan.clone()).map_err(run_failure)?;
    let mut progress = Progress::new(time, "Ctrl-C ends it with what was sampled");
    sampler.run_while(|so_far| {
        progress.show(so_far);
        so_far < time && !stop.load(Ordering::Relaxed)
    });
    progress.end("reading symbols");
    // Sampling ends now, while the server is asked.
    let (profile, after) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| options.admin.as_ref().map(served).transpose());
        (sampler.finish(), asked.join())
    });
    let mut profile = profile.map_err(run_failure)?;
    let after = after.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    progress.end("");
    profile.notes.extend(missing);
    if options.plan.softirq == Softirq::All {
        profile.notes.push(OTHERS_COUNTED.to_owned());
    }
    // A frame of the admin listener ends up to a second after the samples: what counts is the rate.
    let counted = after.zip(before).map(|((after, ended), (before, begun))| {
        let rate = after.saturating_sub(before) as f64 / ended.duration_since(begun).as_secs_f64().max(1e-3);
        rate * profile.time.as_secs_f64()
    });
    profile.request_count = match options.requests {
        Requests::Unknown => counted.filter(|count| *count > 0.0),
        Requests::Count(count) => Some(count),
        Requests::PerSecond(rate) => Some(rate * profile.time.as_secs_f64()),
    };
    if profile.request_count.is_none() {
        profile.notes.push(match counted {
            Some(_) => "the server served no request meanwhile: costs are not per request".to_owned(),
            None => "costs are not per request: give --admin ADDR of a flatout server, or --requests-per-s N"
                .to_owned(),
        });
    }
    let origin = ResultOrigin::now(std::env::args().skip(1));
    write(options.report.as_deref(), || flame::page(&profile, &origin))?;
    write(options.json.as_deref(), || flame::to_json(&profile))?;
    write(options.folded.as_deref(), || flame::folded(&profile))?;
    write(options.speedscope.as_deref(), || flame::speedscope(&profile))?;
    print(&flame::table(&profile))
}

fn print_difference(before: &str, after: &str, options: &ProfileOptions) -> Result<(), Failure> {
    let (before, after) = (read(before)?, read(after)?);
    let comparison = compare(&before, &after).map_err(|error| Failure::Usage(error.to_string()))?;
    let origin = ResultOrigin::now(std::env::args().skip(1));
    write(options.report.as_deref(), || flame::comparison_page(&before, &after, &comparison, &origin))?;
    print(&flame::comparison_table(&comparison))
}

/// Why its figure is higher than that of `bench` and `top`.
const OTHERS_COUNTED: &str = "network interrupts that ran while other processes had the CPU, such as a client on this machine, are included; \
                              --softirq off leaves them out, as `flatout bench` and `flatout top` do";

/// The processes that listen on a port, and a message about those that are not visible.
fn listening_on(port: u16) -> Result<(Vec<u32>, Option<String>), Failure> {
    let found = Listening::find(&Here, port).map_err(|error| Failure::Run(format!("/proc: {error}")))?;
    match found.missing() {
        Some(why) if found.pids.is_empty() => Err(Failure::Run(format!("{why}; or give --pid"))),
        missing => Ok((found.pids, missing)),
    }
}

/// The requests that a server has served since its start, and when it said so.
fn served(address: &Address) -> Result<(u64, Instant), Failure> {
    let failed = |error: io::Error| {
        Failure::Run(format!("--admin {address}: {error}; is a server running with this admin listener?"))
    };
    let mut watch = Watch::connect(address).map_err(failed)?;
    // The first event has the past, the next one is made within a second.
    loop {
        if let Event::Frame(frame) = watch.event().map_err(failed)? {
            return Ok((frame.requests, Instant::now()));
        }
    }
}

fn read(path: &str) -> Result<Profile, Failure> {
    let text = value::file(path).map_err(Failure::Usage)?;
    flame::from_json(&text).map_err(|message| Failure::Usage(format!("{path}: {message}")))
}

fn write(path: Option<&str>, content: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = path.map(Path::new) else { return Ok(()) };
    std::fs::write(path, content()).map_err(|error| Failure::Run(format!("{}: {error}", path.display())))
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().unwrap_or(f64::NAN);
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err(format!("got `{text}`, need a number above 0")),
    }
}

fn run_failure(error: flatout_profile::Error) -> Failure {
    Failure::Run(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(arguments: &[&str]) -> String {
        let matches = COMMAND.parse(arguments.iter().map(ToString::to_string));
        match matches.and_then(|matches| run(&matches)) {
            Err(failure) => failure.to_string(),
            Ok(()) => panic!("{arguments:?} is no mistake"),
        }
    }

    #[test]
    fn mistakes_are_reported() {
        for (arguments, expected) in [
            (&[][..], "give --pid or --port"),
            (&["8080"], "unexpected argument '8080'"),
            (&["--pid", "x"], "--pid: got `x`"),
            (&["--port", "70000"], "--port: got `70000`"),
            (&["--seconds", "5"], "--seconds is now --duration"),
            (&["--duration", "0s"], "--duration: got 0s, need more than 0s and at most 3600 s"),
            (&["--frequency", "20000"], "need 1 to 10000"),
            (&["--requests", "nan"], "--requests: got `nan`"),
            (&["--requests-per-s", "-1"], "need a number above 0"),
            (&["--softirq", "some"], "possible values: all, kernel, off"),
            (&["--diff", "one.json"], "2 values required for '--diff <BEFORE> <AFTER>'"),
            (&["--diff", "/no/such.json", "b.json"], "cannot read `/no/such.json`: No such file"),
            (&["--diff", "/proc/self/comm", "b.json"], "/proc/self/comm: not a profile: it is not JSON"),
        ] {
            let message = mistake(arguments);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn defaults_match_the_help() {
        for (name, check) in [
            (
                "duration",
                (|options: &ProfileOptions| format!("{:?}", options.time)) as fn(&ProfileOptions) -> String,
            ),
            ("frequency", |options| options.plan.rate_hz.to_string()),
            ("softirq", |options| format!("{:?}", options.plan.softirq).to_lowercase()),
        ] {
            let setting = SAMPLED.iter().find(|setting| setting.name == name).unwrap();
            assert_eq!(check(&ProfileOptions::default()), setting.default, "--{name}");
        }
    }
}
