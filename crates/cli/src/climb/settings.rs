//! The flags of `climb`: one table for name, value, default, help, and where it goes.

use std::path::Path;

use flatout_climb::{Attempt, LoadRate, Needs, Objective, Rung, Variant};

use super::options::ClimbOptions;
use crate::setting::{Group, Setting, Short};
use crate::shared::{Loading, Showing, compare, header, pin, report, seed, threads};
use crate::value;

/// The same letters as in `bench`.
pub(crate) const SHORTS: &[Short] =
    &[('t', "threads"), ('c', "connections"), ('d', "duration"), ('H', "header")];

pub(crate) const GROUPS: &[Group<ClimbOptions>] = &[
    ("Server", SERVER),
    ("Load", LOAD),
    ("Tunings", TUNINGS),
    ("Variants (the flags apply to the --variant before them)", VARIANTS),
    ("Method", METHOD),
    ("Result", RESULT),
];

/// Settings that a plan file may have, by the same names.
pub(super) fn of_files() -> impl Iterator<Item = &'static Setting<ClimbOptions>> {
    let groups = [SERVER, LOAD, METHOD].into_iter().flatten();
    groups.filter(|setting| setting.name != PLAN)
}

/// Settings of a variant in a plan file, and the flags with the same meaning.
pub(super) const OF_VARIANTS: &[(&str, &str)] = &[
    ("server-cmd", "with-cmd"),
    ("server-args", "with-args"),
    ("set", "set"),
    ("unset", "unset"),
    ("restart", "restart"),
    ("burden", "burden"),
    ("needs", "needs"),
];

/// The flag that names a plan file.
const PLAN: &str = "plan";

impl AsMut<Loading> for ClimbOptions {
    fn as_mut(&mut self) -> &mut Loading {
        &mut self.loading
    }
}

impl AsMut<Showing> for ClimbOptions {
    fn as_mut(&mut self) -> &mut Showing {
        &mut self.showing
    }
}

const SERVER: &[Setting<ClimbOptions>] = &[
    Setting {
        name: PLAN,
        value: "FILE",
        default: "",
        help: "a file with rungs, and with settings by the names of these flags; flags override the file",
        set: |options, text| {
            options.plan_file = Some(text.into());
            Ok(())
        },
    },
    Setting {
        name: "server-cmd",
        value: "CMD",
        default: "the bundled JSON API",
        help: "a shell command that starts the server in the foreground, such as nginx -g 'daemon off;'",
        set: |options, text| {
            options.server_command = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "url",
        value: "URL",
        default: "",
        help: "what to request",
        set: |options, text| {
            options.url = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "port",
        value: "N",
        default: "",
        help: "the port of a server that runs on this machine; short for --url http://127.0.0.1:N/",
        set: |options, text| {
            options.port = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pid",
        value: "PID",
        default: "the process that listens on the port",
        help: "the process of a running server, for its CPU time",
        set: |options, text| {
            options.pid = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "interface",
        value: "DEVICE",
        default: "",
        help: "the network device through which another machine loads the server; needs --bench 'ssh client …' and a \
               --url that the other machine can reach; tunings of the device can then be measured",
        set: |options, text| {
            options.interface = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "lab",
        value: "",
        default: "",
        help: "run in two network namespaces joined by a veth pair; needs root, and a server that listens on every \
               address",
        set: |options, _| {
            options.is_lab = true;
            Ok(())
        },
    },
    Setting {
        name: "lab-setup",
        value: "CMD",
        default: "",
        help: "a shell command that runs in the lab's network of the server before the server starts, for example to add \
               firewall rules; $FLATOUT_DEVICE is its device, $FLATOUT_CLIENT_NETWORK the other network, for nsenter --net, \
               and what it leaves running has to end with the process $FLATOUT_PID",
        set: |options, text| {
            options.lab_setup = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "cache-time",
        value: "TIME",
        default: "",
        help: "try a response cache, too: you agree that a response may be served again for so long; without it none is tried, \
               because only the application's author can know",
        set: |options, text| {
            options.cache_time = Some(value::time(text)?);
            Ok(())
        },
    },
];

const LOAD: &[Setting<ClimbOptions>] = &[
    Setting {
        name: "bench",
        value: "CMD",
        default: "the built-in generator",
        help: "a shell command that runs another load generator once; wrk, oha --output-format json, k6 \
               --summary-export=/dev/stdout, flatout bench --json and what prints `requests/sec` are understood; \
               $FLATOUT_URL is the URL",
        set: |options, text| {
            options.generator_command = Some(text.to_owned());
            Ok(())
        },
    },
    threads(),
    Setting {
        name: "connections",
        value: "N",
        default: "64",
        help: "connections, over all threads",
        set: |options, text| {
            options.connections = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "duration",
        value: "TIME",
        default: "500ms",
        help: "how long to measure in each run",
        set: |options, text| {
            options.run_time = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "warmup",
        value: "TIME",
        default: "100ms",
        help: "load before measuring starts, in each run",
        set: |options, text| {
            options.warmup = value::time(text)?;
            Ok(())
        },
    },
    pin(),
    header(),
];

const VARIANTS: &[Setting<ClimbOptions>] = &[
    Setting {
        name: "variant",
        value: "NAME",
        default: "",
        help: "a change of your own; can be repeated",
        set: |options, text| {
            let change = Attempt::Variant(Variant::default());
            options.rungs.push(Rung { name: text.to_owned(), change, needs: Needs::AnyPath });
            Ok(())
        },
    },
    Setting {
        name: "set",
        value: "CMD",
        default: "",
        help: "the shell command that makes the change; $FLATOUT_URL and $FLATOUT_PIDS are set",
        set: |options, text| {
            options.variant()?.set = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "unset",
        value: "CMD",
        default: "",
        help: "the shell command that undoes it",
        set: |options, text| {
            options.variant()?.unset = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "restart",
        value: "",
        default: "",
        help: "restart the server after --set and --unset",
        set: |options, _| {
            options.variant()?.is_restarting = true;
            Ok(())
        },
    },
    Setting {
        name: "burden",
        value: "",
        default: "",
        help: "it adds a burden equal to an existing one, such as a packet tap; shows what removing that one would gain, \
               and is never kept",
        set: |options, _| {
            options.variant()?.is_burden = true;
            Ok(())
        },
    },
    Setting {
        name: "with-cmd",
        value: "CMD",
        default: "",
        help: "a command that replaces --server-cmd",
        set: |options, text| {
            options.variant()?.server_command = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "with-args",
        value: "ARGS",
        default: "",
        help: "arguments to append to the server's command",
        set: |options, text| {
            options.variant()?.server_arguments = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "needs",
        value: "any|device|reboot",
        default: "any",
        help: "what the effect needs to show: any path, a network device, or a reboot",
        set: |options, text| {
            options.variant()?;
            let needs = match text {
                "any" => Needs::AnyPath,
                "device" => Needs::Card,
                "reboot" => Needs::Reboot,
                _ => return Err(format!("got `{text}`, need any, device or reboot")),
            };
            options.rungs.iter_mut().next_back().into_iter().for_each(|rung| rung.needs = needs);
            Ok(())
        },
    },
];

const TUNINGS: &[Setting<ClimbOptions>] = &[
    Setting {
        name: "low-risk",
        value: "",
        default: "",
        help: "try every low-risk tuning that would change something here",
        set: |options, _| {
            options.low_risk = true;
            Ok(())
        },
    },
    Setting {
        name: "accept-risk",
        value: "",
        default: "",
        help: "allow tunings that reduce protection while they are tried: mitigations, audit, seccomp, firewall",
        set: |options, _| {
            options.accepts_risk = true;
            Ok(())
        },
    },
    Setting {
        name: "stop",
        value: "PID",
        default: "",
        help: "stop this holder of a packet tap at the end if an equal tap costs something; can be repeated; needs the \
               tuning taps, --keep and --accept-risk; stops its systemd unit, or else the process",
        set: |options, text| {
            options.stops.push(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "resume",
        value: "",
        default: "",
        help: "continue a climb after the reboot that one of its rungs needs; takes everything but --state from that \
               climb",
        set: |options, _| {
            options.is_resumed = true;
            Ok(())
        },
    },
    Setting {
        name: "state",
        value: "DIR",
        default: flatout_tune::STATE_DEFAULT,
        help: "the journal that `flatout tune undo` restores everything from; also where a climb waits for a reboot",
        set: |options, text| {
            options.state = Some(text.into());
            Ok(())
        },
    },
    Setting {
        name: "root",
        value: "DIR",
        default: "/",
        help: "look at and change the machine whose files are below DIR: a recorded /proc and /sys, or an image; the \
               server and the load run here, and tunings run no commands",
        set: |options, text| match Path::new(text).is_dir() {
            true => {
                options.root = Some(text.into());
                Ok(())
            }
            false => Err(format!("got `{text}`, need an existing folder")),
        },
    },
];

const METHOD: &[Setting<ClimbOptions>] = &[
    Setting {
        name: "for",
        value: "throughput|p99|cpu",
        default: "cpu if the load shares the server's CPUs, and only the server is changed or softirqs are known (root); otherwise throughput",
        help: "what a rung is kept for: throughput, p99 (at --load-rate), or cpu (of the server's processes, and of \
               the kernel's softirqs for it; without root, see climb-method.md); never when errors rise",
        set: |options, text| {
            let found = Objective::ALL.into_iter().find(|objective| objective.name() == text);
            let found = found.ok_or_else(|| format!("got `{text}`, need throughput, p99 or cpu"))?;
            options.objective = Some(found);
            Ok(())
        },
    },
    Setting {
        name: "load-rate",
        value: "RATE",
        default: "70% for p99",
        help: "with --for p99 or cpu: send this many requests per second, however fast the server is; a percentage \
               is of the highest rate that the server reaches before any change",
        set: |options, text| {
            options.load_rate = Some(match text.contains('%') {
                true => LoadRate::Share(value::percent(text)?),
                false => LoadRate::PerS(value::number(text)?),
            });
            Ok(())
        },
    },
    Setting {
        name: "interval",
        value: "PERCENT",
        default: "3%",
        help: "a comparison ends when its interval is no wider, or its share of the budget ends",
        set: |options, text| {
            options.width_max = Some(value::percent(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pairs",
        value: "N",
        default: "5",
        help: "fewest pairs of runs in a comparison",
        set: |options, text| {
            options.pairs_min = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pairs-max",
        value: "N",
        default: "200",
        help: "most pairs of runs in a comparison",
        set: |options, text| {
            options.pairs_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "budget",
        value: "TIME",
        default: "5m",
        help: "how long the whole climb may take",
        set: |options, text| {
            options.budget = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "shapley",
        value: "N",
        default: "0",
        help: "put the rungs in place in so many random orders too, and report what each adds on average; 6 or more",
        set: |options, text| {
            options.orders = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "profile",
        value: "TIME",
        default: "3s",
        help: "how long to profile the server before and after; 0s does not",
        set: |options, text| {
            options.profile_time = Some(value::time(text)?);
            Ok(())
        },
    },
    seed(),
];

const RESULT: &[Setting<ClimbOptions>] = &[
    Setting {
        name: "keep",
        value: "",
        default: "",
        help: "leave what helped in place",
        set: |options, _| {
            options.keep = true;
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "FILE",
        default: "",
        help: "write the result as JSON",
        set: |options, text| {
            options.json = Some(text.to_owned());
            Ok(())
        },
    },
    report(),
    compare(),
    Setting {
        name: "peak-rate",
        value: "N",
        default: "",
        help: "your requests per second at the busiest time; gives headroom and the number of machines",
        set: |options, text| {
            options.today.rate_per_s = Some(value::positive(text)?);
            Ok(())
        },
    },
    Setting {
        name: "price",
        value: "N",
        default: "",
        help: "the price of this machine per hour; gives the price per billion requests",
        set: |options, text| {
            options.today.price_per_hour = Some(value::positive(text)?);
            Ok(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::climb::{COMMAND, NAMES};
    use crate::setting::{fill, words};

    fn plan(arguments: &[&str]) -> Result<flatout_climb::Plan, String> {
        let mut options = ClimbOptions::default();
        let matches = COMMAND.parse(arguments.iter().map(ToString::to_string));
        let matches = matches.map_err(|failure| failure.to_string())?;
        fill(&matches, GROUPS, &mut options).map_err(|failure| failure.to_string())?;
        options.plan(words(&matches, NAMES.1), &flatout_tune::Host::live())
    }

    #[test]
    fn flags_become_a_plan() {
        let url = ["--url", "http://127.0.0.1:1/", "--server-cmd", "x"];
        let variants =
            ["--variant", "a", "--with-args", "-a", "--variant", "b", "--set", "s", "--unset", "u"];
        let rest = ["--restart", "--needs", "device", "--for", "cpu", "--interval", "2%", "gro", "-c9"];
        let plan = plan(&[&url[..], &variants, &rest].concat()).unwrap();
        let names: Vec<&str> = plan.rungs.iter().map(|rung| rung.name.as_str()).collect();
        assert_eq!(names, ["gro", "a", "b"]);
        assert_eq!((plan.rungs[0].change.clone(), plan.rungs[2].needs), (Attempt::Tuning, Needs::Card));
        assert_eq!((plan.objective, plan.width_max), (Objective::Cpu, 0.02));
        let Attempt::Variant(variant) = &plan.rungs[2].change else { panic!() };
        assert!(variant.is_restarting && variant.unset.as_deref() == Some("u"));
    }

    #[test]
    fn without_a_server_the_bundled_one_is_climbed() {
        let plan = plan(&[]).unwrap();
        assert!(plan.url.ends_with("/json"), "{}", plan.url);
        assert_eq!(plan.rungs[0].name, "workers");
    }

    #[test]
    fn mistakes_are_reported() {
        for (arguments, expected) in [
            (&["--set", "x"][..], "--set: give --variant NAME first"),
            (&["--server-cmd", "x"], "--server-cmd needs --url"),
            (&["--pid", "1"], "--pid needs --url or --port"),
            (&["--pid", "1", "--server-cmd", "x", "--port", "1"], "give one"),
            (&["--port", "1"], "no rung to try"),
            (&["--port", "1", "--url", "ftp://x", "gro"], "scheme `ftp`"),
            (&["--for", "fun"], "possible values: throughput, p99, cpu"),
            (&["--interval", "0"], "--interval: got `0`"),
            (&["--interval", "x%"], "--interval: got `x%`"),
            (&["--price", "-1"], "--price: got `-1`"),
            (&["--peak-rate", "NaN"], "--peak-rate: got `NaN`"),
            (&["--shapley", "1"], "orders: got 1"),
            (&["--variant", "a", "--needs", "luck"], "possible values: any, device, reboot"),
            (&["--variant", "a"], "it changes nothing"),
            (&["--lab", "--port", "1", "gro"], "has to start the server"),
            (&["--root", "/nowhere"], "--root: got `/nowhere`, need an existing folder"),
            (&["--port", "1", "gro", "--stop", "7"], "--stop: it needs the tuning `taps`"),
            (&["--port", "1", "taps", "--stop", "7", "--keep"], "--stop: it ends another program"),
            (&["--lab", "taps", "--stop", "7"], "--stop: in the lab"),
            (&["-c", "0"], "connections: got 0"),
            (&["--budgte", "1m"], "similar argument exists: '--budget'"),
        ] {
            let Err(message) = plan(arguments) else { panic!("{arguments:?}") };
            assert!(message.contains(expected), "{arguments:?}: {message}");
        }
    }
}
