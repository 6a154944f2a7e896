//! `flatout tune`: examines the machine, suggests changes, makes and undoes them.

mod page;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};
use flatout_config::closest;
use flatout_engine::say;
use flatout_tune::{
    Consent, Error, Finding, Host, Part, Risk, STATE_DEFAULT, Served, ServerSelector, Session, TUNINGS,
    Tuning, counts, plan, script, survey, survey_since,
};
use serde_json::{Value, json};

use crate::command::Command;
use crate::setting::{Group, Setting, fill, flags, words};
use crate::terminal::Progress;
use crate::{Failure, print, value};

pub(crate) const COMMAND: Command = Command {
    name: "tune",
    about: "List the settings of this machine that slow a server down, change them, undo it",
    more: "Without an ACTION it changes nothing: it lists what it would change and why.\nEvery old value is on disk before \
           its setting is changed, so `undo` works after a crash, too.\nExit status: 0 done, 1 something could not be \
           changed or undone, 2 wrong usage.",
    examples: &[
        ("flatout tune --port 8080", "list what would help the server on port 8080"),
        ("flatout tune explain qdisc", "why, where it is known from, what it risks"),
        ("flatout tune apply --low-risk --persist", "make the low-risk changes, also after a reboot"),
        ("flatout tune undo", "restore everything"),
        ("flatout tune script > tune.sh", "the same as a script, to read before running"),
    ],
    arguments: |command| {
        let action =
            Arg::new(ACTION).value_name("ACTION").value_parser(PossibleValuesParser::new(VERBS[1..].iter()));
        let action = action.help("What to do instead of listing");
        let names = Arg::new(NAMES.1)
            .value_name("NAME")
            .num_args(0..)
            .help("Tunings, as listed by `flatout tune --all`");
        flags(command.arg(action).arg(names), GROUPS, &[])
    },
    run,
};

const ACTION: &str = "action";

/// The argument that names tunings, and its command.
pub(crate) const NAMES: (&str, &str) = ("tune", "names");

/// The options.
#[derive(Default)]
struct TuneOptions {
    asked: ServerSelector,
    json: bool,
    all: bool,
    watch: Option<Duration>,
    low_risk: bool,
    possible: bool,
    keep: bool,
    accepts_risk: bool,
    state: Option<PathBuf>,
    root: Option<PathBuf>,
}

const GROUPS: &[Group<TuneOptions>] =
    &[("Server", SERVED), ("List", SHOWN), ("Apply", APPLY), ("Place", WHERE)];

const SERVED: &[Setting<TuneOptions>] = &[
    Setting {
        name: "port",
        value: "N",
        default: "",
        help: "the TCP port that the server listens on; the process and the network device are found by it",
        set: |options, text| {
            options.asked.port = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pid",
        value: "PID",
        default: "the process that listens on the port",
        help: "the server's process",
        set: |options, text| {
            options.asked.pid = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "interface",
        value: "DEVICE",
        default: "the one of the port's address or of the default route",
        help: "the network device that requests arrive on",
        set: |options, text| {
            options.asked.device = Some(text.to_owned());
            Ok(())
        },
    },
];

const SHOWN: &[Setting<TuneOptions>] = &[
    Setting {
        name: "all",
        value: "",
        default: "",
        help: "also list what is possible without a sign that it is needed, what is fine, and what is unknown and why",
        set: |options, _| {
            options.all = true;
            Ok(())
        },
    },
    Setting {
        name: "watch",
        value: "TIME",
        default: "",
        help: "watch the kernel's counters for this long under the real load; suggestions then follow from rates, \
               not from counts since boot",
        set: |options, text| {
            options.watch = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "",
        default: "",
        help: "print a JSON list of {name, scope, risk, value, advice, shown_to_cost, counter, moved, moved_per_s, measurable_here, why_unknown}",
        set: |options, _| {
            options.json = true;
            Ok(())
        },
    },
];

const APPLY: &[Setting<TuneOptions>] = &[
    Setting {
        name: "low-risk",
        value: "",
        default: "",
        help: "every low-risk change that a setting or a counter of this machine shows to be needed",
        set: |options, _| {
            options.low_risk = true;
            Ok(())
        },
    },
    Setting {
        name: "possible",
        value: "",
        default: "",
        help: "with --low-risk, and for a script: also changes that are merely possible (see --all)",
        set: |options, _| {
            options.possible = true;
            Ok(())
        },
    },
    Setting {
        name: "persist",
        value: "",
        default: "",
        help: "also write the files that keep it after a reboot; undo removes them",
        set: |options, _| {
            options.keep = true;
            Ok(())
        },
    },
    Setting {
        name: "accept-risk",
        value: "",
        default: "",
        help: "allow tunings that reduce protection: mitigations, audit, seccomp, firewall",
        set: |options, _| {
            options.accepts_risk = true;
            Ok(())
        },
    },
];

const WHERE: &[Setting<TuneOptions>] = &[
    Setting {
        name: "state",
        value: "DIR",
        default: STATE_DEFAULT,
        help: "the journal that undo restores everything from",
        set: |options, text| {
            options.state = Some(text.into());
            Ok(())
        },
    },
    Setting {
        name: "root",
        value: "DIR",
        default: "/",
        help: "look at the machine whose files are below DIR: a recorded /proc and /sys, or an image; no commands are run",
        set: |options, text| match Path::new(text).is_dir() {
            true => {
                options.root = Some(text.into());
                Ok(())
            }
            false => Err(format!("got `{text}`, need an existing folder")),
        },
    },
];

/// The state that all subcommands need.
struct Tune {
    host: Host,
    served: Served,
    state: PathBuf,
    options: TuneOptions,
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = TuneOptions::default();
    fill(matches, GROUPS, &mut options)?;
    let verb = matches.get_one::<String>(ACTION).map_or("", String::as_str);
    let names = &words(matches, NAMES.1)[..];
    if let Some(message) = misplaced(verb, &options) {
        return Err(Failure::Usage(message));
    }
    let root = options.root.clone().unwrap_or_else(|| "/".into());
    let host = Host::at(&root);
    let state = options.state.clone().unwrap_or_else(|| host.state_default());
    if host.holds(&state) {
        return Err(Failure::Usage(crate::tune::within(&state)));
    }
    let served = Served::find(&host, &options.asked).map_err(failure)?;
    if let Some(why) = served.why_no_process().filter(|_| verb != "undo") {
        if options.root.is_none() && names.is_empty() && !served.is_listening() {
            return Err(Failure::Run(format!("{why}; start the server first, or leave out --port")));
        }
        say(format_args!("{why}; settings of the server's process are unknown"));
    }
    let tune = Tune { host, served, state, options };
    match verb {
        "" => tune.show(),
        "explain" => tune.explain(names),
        "apply" => tune.apply(names),
        "undo" => tune.undo(names),
        _ => tune.script(names),
    }
}

/// The error for a journal inside the tree that it is about.
pub(crate) fn within(state: &Path) -> String {
    format!(
        "--state: {} is inside --root; the journal has to lie outside of what it describes; use another folder",
        state.display()
    )
}

/// The subcommands; the first one has no name.
const VERBS: &[&str] = &["", "explain", "apply", "undo", "script"];

/// The error for flags that this subcommand would ignore.
fn misplaced(verb: &str, options: &TuneOptions) -> Option<String> {
    if options.possible && verb == "apply" && !options.low_risk {
        return Some("--possible extends --low-risk, which is missing".to_owned());
    }
    let flags: [(_, _, &[&str]); 7] = [
        ("all", options.all, &[""]),
        ("json", options.json, &[""]),
        ("watch", options.watch.is_some(), &[""]),
        ("low-risk", options.low_risk, &["apply"]),
        ("possible", options.possible, &["apply", "script"]),
        ("persist", options.keep, &["apply"]),
        ("accept-risk", options.accepts_risk, &["apply"]),
    ];
    let (flag, _, verbs) =
        flags.into_iter().find(|(_, is_given, verbs)| *is_given && !verbs.contains(&verb))?;
    let whole = |verb: &str| format!("`flatout tune {verb}").trim_end().to_owned() + "`";
    let verbs = verbs.iter().map(|verb| whole(verb)).collect::<Vec<_>>().join(" and ");
    Some(format!("--{flag} has no meaning for {}; it belongs to {verbs}", whole(verb)))
}

impl Tune {
    fn show(&self) -> Result<(), Failure> {
        let findings = match self.options.watch {
            None => survey(&self.host, &self.served),
            Some(time) => {
                let before = counts(&self.host, &self.served);
                let begun = Instant::now();
                wait(time);
                survey_since(&self.host, &self.served, &before, begun.elapsed().as_secs_f64())
            }
        };
        match self.options.json {
            true => print(&format!("{:#}\n", Value::Array(findings.iter().map(json_of).collect()))),
            false => print(
                &(page::screen(&findings, self.options.all, columns(), &self.flags()) + &self.in_force()),
            ),
        }
    }

    /// A note that there is something to undo, if so.
    fn in_force(&self) -> String {
        match Session::is_clean(&self.host, &self.state) {
            true => String::new(),
            false => {
                format!(
                    "\nchanges are in force; `flatout tune undo` reverts them (journal: {})\n",
                    self.state.display()
                )
            }
        }
    }

    /// The flags to repeat in suggested commands.
    fn flags(&self) -> page::Flags {
        let TuneOptions { asked, state, root, .. } = &self.options;
        let served =
            [flag("port", asked.port), flag("pid", asked.pid), flag("interface", asked.device.as_ref())];
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let place = [flag("state", path(state)), flag("root", path(root))];
        page::Flags { served: served.concat(), place: place.concat() }
    }

    fn explain(&self, names: &[String]) -> Result<(), Failure> {
        let [name] = names else {
            return Err(Failure::Usage(format!("name one tuning to explain; {WHICH}")));
        };
        let tuning = find(name)?;
        let about = tuning.about();
        let advice = tuning.advice(&self.host, &self.served);
        let effect = tuning.effect(&self.host, &self.served);
        let stands = page::TuningText {
            value: page::or_why(tuning.probe(&self.host, &self.served)),
            advice: page::or_why(
                advice.map(|advice| advice.text().unwrap_or("nothing; it is fine").to_owned()),
            ),
            effect: page::or_why(effect.map(|counter| format!("{} = {}", counter.name, counter.value))),
            is_measurable: about.needs.are_met(&self.served),
        };
        let planned = plan(&self.host, &self.served, tuning).ok().flatten();
        let width = columns().unwrap_or(MANUAL_COLUMNS).min(MANUAL_COLUMNS);
        print(&page::manual(about, &stands, planned.as_ref(), width, &self.flags()))
    }

    fn apply(&self, names: &[String]) -> Result<(), Failure> {
        if names.is_empty() && !self.options.low_risk {
            return Err(Failure::Usage(
                "name what to apply, or give --low-risk; see `flatout tune`".to_owned(),
            ));
        }
        let mut tunings = names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
        let consent = Consent { is_named: true, accepts_risk: self.options.accepts_risk };
        for tuning in &tunings {
            consent.permits(tuning.about()).map_err(failure)?;
        }
        if self.options.low_risk {
            let is_named = |tuning: &&dyn Tuning| names.iter().any(|name| name == tuning.about().name);
            tunings.extend(self.low_risk().into_iter().filter(|tuning| !is_named(tuning)));
        }
        let session = Session::open(&self.host, &self.state).map_err(failure)?;
        let mut failed = 0;
        for tuning in tunings {
            match self.apply_one(&session, tuning) {
                // If this machine refuses one, others may still be possible.
                Err(Failure::Run(message)) => {
                    say(format_args!("{message}"));
                    failed += 1;
                }
                outcome => outcome?,
            }
        }
        match failed {
            0 => Ok(()),
            failed => Err(Failure::Run(format!("{failed} could not be applied; see above"))),
        }
    }

    /// Planned only now: an earlier tuning may have changed its settings.
    fn apply_one(&self, session: &Session<'_>, tuning: &'static dyn Tuning) -> Result<(), Failure> {
        let name = tuning.about().name;
        let Some(planned) = plan(&self.host, &self.served, tuning).map_err(failure)? else {
            let kept =
                if self.options.keep { "; nothing was changed, so there is nothing to persist" } else { "" };
            return print(&format!("{name}: already as suggested{kept}\n"));
        };
        let made = session.apply(name, &planned.all_changes(self.options.keep)).map_err(failure)?;
        let mut text = format!("{name}: {}\n", planned.what);
        for (setting, before) in made {
            text.push_str(&format!("  {} was {}\n", setting.name(), before.line()));
        }
        if self.options.keep {
            planned
                .not_kept
                .iter()
                .for_each(|reason| text.push_str(&format!("  not kept after a reboot: {reason}\n")));
        }
        if !planned.then.is_empty() {
            text.push_str(&format!("  now: {}\n", planned.then));
        }
        print(&text)
    }

    fn undo(&self, names: &[String]) -> Result<(), Failure> {
        // Variants of a climb have their own names.
        let left_over = Session::left_over(&self.host, &self.state);
        for name in names.iter().filter(|name| !left_over.contains(*name)) {
            find(name)?;
        }
        let session = Session::open(&self.host, &self.state).map_err(failure)?;
        let (undone, broken) = session.undo(names).map_err(failure)?;
        if undone.is_empty() && broken.is_empty() {
            return print("nothing to undo\n");
        }
        for one in &undone {
            print(&format!("{}: {}: {}\n", one.tuning, one.setting, one.fate))?;
        }
        broken.iter().for_each(|reason| say(format_args!("NOT undone: {reason}")));
        match broken.is_empty() && undone.iter().all(|one| one.fate.is_settled()) {
            true => Ok(()),
            false => Err(Failure::Run("not everything could be undone; see above".to_owned())),
        }
    }

    fn script(&self, names: &[String]) -> Result<(), Failure> {
        let tunings = match names {
            [] => self.low_risk(),
            names => names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?,
        };
        let mut parts = Vec::new();
        for tuning in tunings {
            match plan(&self.host, &self.served, tuning).map_err(failure)? {
                None => say(format_args!("{}: already as suggested, left out", tuning.about().name)),
                Some(planned) => parts.push(Part::of(&self.host, planned).map_err(failure)?),
            }
        }
        print(&script(&parts))
    }

    /// The low-risk tunings that would help here, and that we can apply: those shown to be needed, or all that are possible.
    fn low_risk(&self) -> Vec<&'static dyn Tuning> {
        let findings = survey(&self.host, &self.served).into_iter();
        findings
            .filter(|finding| finding.about.risk == Risk::Low && page::is_change(finding))
            .filter(|finding| self.options.possible || finding.is_shown_to_cost())
            .filter_map(|finding| flatout_tune::find(finding.about.name))
            .collect()
    }
}

fn flag(name: &str, value: Option<impl std::fmt::Display>) -> String {
    value.map(|value| format!(" --{name} {value}")).unwrap_or_default()
}

fn find(name: &str) -> Result<&'static dyn Tuning, Failure> {
    known(name).map_err(Failure::Usage)
}

/// The tuning of this name, or a suggestion.
pub(crate) fn known(name: &str) -> Result<&'static dyn Tuning, String> {
    flatout_tune::find(name).ok_or_else(|| {
        if let Some(why) = flatout_tune::without_effect(name) {
            return format!("`{name}` is no tuning: {why}");
        }
        let names: Vec<&str> = TUNINGS.iter().map(|tuning| tuning.about().name).collect();
        let guess = closest(name, &names);
        let guess = guess.map_or_else(|| WHICH.to_owned(), |guess| format!("did you mean `{guess}`?"));
        format!("no tuning `{name}`; {guess}")
    })
}

const WHICH: &str = "`flatout tune --all` lists them";

fn json_of(finding: &Finding) -> Value {
    json!({
        "name": finding.about.name,
        "scope": finding.about.scope.name(),
        "risk": finding.about.risk.name(),
        "value": finding.value.as_ref().ok(),
        "advice": page::advice(finding),
        "measurable_here": finding.is_measurable,
        "shown_to_cost": finding.is_shown_to_cost(),
        "counter": finding.moved.as_ref().map(|moved| &moved.counter),
        "moved": finding.moved.as_ref().map(|moved| moved.by),
        "moved_per_s": finding.moved.as_ref().filter(|moved| moved.is_rate).map(|moved| moved.by),
        "why_unknown": page::why_unknown(finding),
    })
}

/// Waits for `time`, and shows the remaining time.
fn wait(time: Duration) {
    let mut progress = Progress::new(time, "watching the kernel's counters");
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        progress.show(begun.elapsed());
        std::thread::sleep(left.min(SHOW_TIME));
    }
    progress.end("");
}

/// How often the remaining time is shown.
const SHOW_TIME: Duration = Duration::from_millis(250);

/// The terminal's width; `None` if stdout is not a terminal.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// The maximum width of a manual page, for readability.
const MANUAL_COLUMNS: usize = 100;

fn failure(error: Error) -> Failure {
    match error {
        Error::Usage(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}
