//! `flatout tune`: what the machine costs, what would help, changing it and taking it back.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use flatout_engine::say;
use flatout_tune::{
    About, Advice, Asked, Consent, Error, Finding, Host, Part, Planned, Risk, STATE_DEFAULT, Served, Session,
    TUNINGS, Tuning, plan, script, survey,
};
use serde_json::{Value, json};

use crate::setting::{Group, Parsed, Setting, guess, help, parse};
use crate::{Command, Failure, print, value};

pub(crate) const COMMAND: Command =
    Command { name: "tune", about: "what this machine costs each request, and what would help", run };

const USAGE: &str = "flatout tune [explain NAME | apply NAME … | undo [NAME …] | script [NAME …]] [flags]";

/// What the flags fill.
#[derive(Default)]
struct Options {
    asked: Asked,
    json: bool,
    all: bool,
    low_risk: bool,
    keep: bool,
    accepts_risk: bool,
    state: Option<PathBuf>,
    root: Option<PathBuf>,
}

const GROUPS: &[Group<Options>] =
    &[("what is served", SERVED), ("what is shown", SHOWN), ("apply", APPLY), ("where", WHERE)];

const SERVED: &[Setting<Options>] = &[
    Setting {
        name: "port",
        value: "N",
        default: "",
        help: "the TCP port; tells the process and the network device",
        set: |options, text| {
            options.asked.port = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "pid",
        value: "N",
        default: "whoever listens on the port",
        help: "the server's process",
        set: |options, text| {
            options.asked.pid = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "interface",
        value: "DEVICE",
        default: "by the port's address, or the default route",
        help: "the network device that requests come in by",
        set: |options, text| {
            options.asked.device = Some(text.to_owned());
            Ok(())
        },
    },
];

const SHOWN: &[Setting<Options>] = &[
    Setting {
        name: "all",
        value: "",
        default: "",
        help: "also what is fine, and what is not known and why",
        set: |options, _| {
            options.all = true;
            Ok(())
        },
    },
    Setting {
        name: "json",
        value: "",
        default: "",
        help: "a list of {name, scope, risk, value, advice, measurable_here, why_unknown}",
        set: |options, _| {
            options.json = true;
            Ok(())
        },
    },
];

const APPLY: &[Setting<Options>] = &[
    Setting {
        name: "low-risk",
        value: "",
        default: "",
        help: "everything of low risk that would help here",
        set: |options, _| {
            options.low_risk = true;
            Ok(())
        },
    },
    Setting {
        name: "persist",
        value: "",
        default: "",
        help: "also write the files that keep it over a reboot; undo takes them back",
        set: |options, _| {
            options.keep = true;
            Ok(())
        },
    },
    Setting {
        name: "accept-risk",
        value: "",
        default: "",
        help: "what mitigations, audit, seccomp and firewall need: protection is lost",
        set: |options, _| {
            options.accepts_risk = true;
            Ok(())
        },
    },
];

const WHERE: &[Setting<Options>] = &[
    Setting {
        name: "state",
        value: "DIR",
        default: STATE_DEFAULT,
        help: "the journal, by which undo puts everything back, also after a crash or a reboot",
        set: |options, text| {
            options.state = Some(text.into());
            Ok(())
        },
    },
    Setting {
        name: "root",
        value: "DIR",
        default: "/",
        help: "the machine whose files lie below DIR: a recorded /proc and /sys, or an image; no commands are run",
        set: |options, text| match Path::new(text).is_dir() {
            true => {
                options.root = Some(text.into());
                Ok(())
            }
            false => Err(format!("got `{text}`, need a folder that is there")),
        },
    },
];

/// Everything that a part of the command works with.
struct Tune {
    host: Host,
    served: Served,
    state: PathBuf,
    options: Options,
}

fn run(parser: lexopt::Parser) -> Result<(), Failure> {
    let mut options = Options::default();
    let free = match parse(parser, GROUPS, &[], &mut options)? {
        Parsed::Help => return print(&help(USAGE, GROUPS, &[])),
        Parsed::Run(free) => free,
    };
    let (verb, names) =
        free.split_first().map_or(("", [].as_slice()), |(verb, names)| (verb.as_str(), names));
    let root = options.root.clone().unwrap_or_else(|| "/".into());
    let host = Host::at(&root);
    let state = options.state.clone().unwrap_or_else(|| host.place(STATE_DEFAULT));
    let served = Served::find(&host, &options.asked).map_err(failure)?;
    let tune = Tune { host, served, state, options };
    match verb {
        "" => tune.show(),
        "explain" => tune.explain(names),
        "apply" => tune.apply(names),
        "undo" => tune.undo(names),
        "script" => tune.script(names),
        _ => {
            let guess = guess(verb, ["explain", "apply", "undo", "script"].into_iter());
            let guess = guess.map_or("see --help".to_owned(), |guess| format!("did you mean `{guess}`?"));
            Err(Failure::Usage(format!("tune does not know `{verb}`; {guess}")))
        }
    }
}

impl Tune {
    fn show(&self) -> Result<(), Failure> {
        let findings = survey(&self.host, &self.served);
        match self.options.json {
            true => print(&format!("{:#}\n", Value::Array(findings.iter().map(json_of).collect()))),
            false => print(&self.screen(&findings)),
        }
    }

    /// What would help, and what to type; with `--all` the rest too.
    fn screen(&self, findings: &[Finding]) -> String {
        let advised: Vec<&Finding> = findings.iter().filter(|finding| advice(finding).is_some()).collect();
        let unknown: Vec<(&Finding, String)> =
            findings.iter().filter_map(|finding| Some((finding, why_unknown(finding)?))).collect();
        let mut text = format!("{:<22} {:<30} {:<42} {}\n", "what costs", "is now", "would help", "risk");
        for finding in &advised {
            let is_now = finding.value.as_deref().unwrap_or("?");
            let help = advice(finding).unwrap_or_default();
            text.push_str(&line(finding.about, is_now, help));
        }
        let fine = findings
            .iter()
            .filter(|finding| matches!(finding.advice, Ok(Advice::Fine)) && finding.value.is_ok());
        if self.options.all {
            text.push_str("\nfine as they are\n");
            fine.for_each(|finding| {
                text.push_str(&line(finding.about, finding.value.as_deref().unwrap_or("?"), ""))
            });
            text.push_str("\nnot known here\n");
            unknown
                .iter()
                .for_each(|(finding, why)| text.push_str(&format!("{:<22} {why}\n", finding.about.name)));
        } else {
            text.push_str(&format!(
                "\n{} are fine, {} not known here (--all says why)\n",
                fine.count(),
                unknown.len()
            ));
        }
        let low =
            advised.iter().filter(|finding| is_change(finding) && finding.about.risk == Risk::Low).count();
        text.push_str(&format!(
            "\nflatout tune apply --low-risk   makes the {low} changes of low risk\n\
             flatout tune apply NAME         one of the others, if its risk is acceptable\n\
             flatout tune explain NAME       why, from where it is known, what it risks, what it would change\n\
             flatout tune undo               puts everything back\n"
        ));
        if !Session::is_clean(&self.host, &self.state) {
            text.push_str(&format!(
                "\nchanges are in force that can be taken back; journal: {}\n",
                self.state.display()
            ));
        }
        text
    }

    fn explain(&self, names: &[String]) -> Result<(), Failure> {
        let [name] = names else {
            return Err(Failure::Usage(format!("explain one tuning; there are {}", all_names())));
        };
        let tuning = find(name)?;
        let about = tuning.about();
        let mut text = format!("{}: {}\n\n{}\n\n", about.name, about.reason, wrapped(about.detail));
        let mut field = |name: &str, value: &str| text.push_str(&format!("{name:<11}{value}\n"));
        field("source", about.source);
        field("scope", about.scope.name());
        match about.lost {
            "" => field("risk", about.risk.name()),
            lost => field("risk", &format!("{}: {lost}", about.risk.name())),
        }
        field("is now", &or_why(tuning.probe(&self.host, &self.served)));
        let advice = tuning.advice(&self.host, &self.served);
        field(
            "would help",
            &or_why(advice.map(|advice| advice.text().unwrap_or("nothing: it is fine").to_owned())),
        );
        let effect = tuning.effect(&self.host, &self.served);
        field("judged by", &or_why(effect.map(|counter| format!("{} = {}", counter.name, counter.value))));
        if !about.needs.are_met(&self.served) {
            field("measured", "not measurable on this path");
        }
        if let Ok(Some(planned)) = plan(&self.host, &self.served, tuning) {
            text.push_str(&explained(&planned));
        }
        print(&text)
    }

    fn apply(&self, names: &[String]) -> Result<(), Failure> {
        if names.is_empty() && !self.options.low_risk {
            return Err(Failure::Usage("name what to apply, or say --low-risk; see flatout tune".to_owned()));
        }
        let mut tunings = names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
        let consent = Consent { is_named: true, accepts_risk: self.options.accepts_risk };
        for tuning in &tunings {
            consent.permits(tuning.about()).map_err(failure)?;
        }
        if self.options.low_risk {
            tunings.extend(
                self.helpful(|about| about.risk == Risk::Low && !names.iter().any(|name| name == about.name)),
            );
        }
        let session = Session::open(&self.host, &self.state).map_err(failure)?;
        let mut failed = 0;
        for tuning in tunings {
            match self.apply_one(&session, tuning) {
                // One that this machine refuses says nothing about the next.
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

    /// Planned only now: a tuning before it may have changed what it looks at.
    fn apply_one(&self, session: &Session<'_>, tuning: &'static dyn Tuning) -> Result<(), Failure> {
        let name = tuning.about().name;
        let Some(planned) = plan(&self.host, &self.served, tuning).map_err(failure)? else {
            return print(&format!("{name}: is as it should be\n"));
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
                .for_each(|reason| text.push_str(&format!("  not kept over a reboot: {reason}\n")));
        }
        if !planned.then.is_empty() {
            text.push_str(&format!("  now: {}\n", planned.then));
        }
        print(&text)
    }

    fn undo(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            find(name)?;
        }
        let session = Session::open(&self.host, &self.state).map_err(failure)?;
        let (undone, broken) = session.undo(names).map_err(failure)?;
        if undone.is_empty() && broken.is_empty() {
            return print("nothing to put back\n");
        }
        for one in &undone {
            print(&format!("{}: {}: {}\n", one.tuning, one.setting, one.fate))?;
        }
        broken.iter().for_each(|reason| say(format_args!("NOT put back: {reason}")));
        match broken.is_empty() && undone.iter().all(|one| one.fate.is_settled()) {
            true => Ok(()),
            false => Err(Failure::Run("not everything could be put back; see above".to_owned())),
        }
    }

    fn script(&self, names: &[String]) -> Result<(), Failure> {
        let tunings = match names {
            [] => self.helpful(|about| about.risk == Risk::Low),
            names => names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?,
        };
        let mut parts = Vec::new();
        for tuning in tunings {
            match plan(&self.host, &self.served, tuning).map_err(failure)? {
                None => say(format_args!("{}: is as it should be, left out", tuning.about().name)),
                Some(planned) => parts.push(Part::of(&self.host, planned).map_err(failure)?),
            }
        }
        print(&script(&parts))
    }

    /// The tunings of a kind that would help here, and that we can make.
    fn helpful(&self, wanted: impl Fn(&About) -> bool) -> Vec<&'static dyn Tuning> {
        let helps = |tuning: &&'static dyn Tuning| {
            wanted(tuning.about()) && matches!(plan(&self.host, &self.served, *tuning), Ok(Some(_)))
        };
        TUNINGS.iter().copied().filter(helps).collect()
    }
}

fn find(name: &str) -> Result<&'static dyn Tuning, Failure> {
    flatout_tune::find(name).ok_or_else(|| {
        let guess = guess(name, TUNINGS.iter().map(|tuning| tuning.about().name));
        let guess = guess
            .map_or_else(|| format!("there are {}", all_names()), |guess| format!("did you mean `{guess}`?"));
        Failure::Usage(format!("no tuning `{name}`; {guess}"))
    })
}

fn all_names() -> String {
    TUNINGS.iter().map(|tuning| tuning.about().name).collect::<Vec<_>>().join(", ")
}

fn advice(finding: &Finding) -> Option<&str> {
    finding.advice.as_ref().ok()?.text()
}

fn is_change(finding: &Finding) -> bool {
    matches!(finding.advice, Ok(Advice::Change { .. }))
}

/// Why something about it is not known.
fn why_unknown(finding: &Finding) -> Option<String> {
    let why = finding.value.as_ref().err().or(finding.advice.as_ref().err());
    why.map(ToString::to_string)
}

fn json_of(finding: &Finding) -> Value {
    json!({
        "name": finding.about.name,
        "scope": finding.about.scope.name(),
        "risk": finding.about.risk.name(),
        "value": finding.value.as_ref().ok(),
        "advice": advice(finding),
        "measurable_here": finding.is_measurable,
        "why_unknown": why_unknown(finding),
    })
}

/// One line of the screen. A terminal gets what fits its usual width, a file everything.
fn line(about: &About, is_now: &str, help: &str) -> String {
    let fitted =
        |text: &str, width: usize| match std::io::stdout().is_terminal() && text.chars().count() > width {
            true => format!("{}…", text.chars().take(width - 1).collect::<String>()),
            false => text.to_owned(),
        };
    let risk = match help {
        "" => String::new(),
        _ => format!("{}, {}", about.risk.name(), about.scope.name()),
    };
    format!("{:<22} {:<30} {:<42} {risk}", about.name, fitted(is_now, 30), fitted(help, 42))
        .trim_end()
        .to_owned()
        + "\n"
}

/// What a plan would do, setting by setting, and the files that would keep it.
fn explained(planned: &Planned) -> String {
    let mut text = String::from("\nwould change\n");
    for change in &planned.changes {
        text.push_str(&format!("  {} to {}\n", change.setting.name(), change.to.line()));
    }
    if !planned.then.is_empty() {
        text.push_str(&format!("and then\n  {}\n", planned.then));
    }
    for document in &planned.documents {
        text.push_str(&format!("kept over a reboot by {}\n", document.path));
        document.text.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    planned.not_kept.iter().for_each(|reason| text.push_str(&format!("not kept over a reboot: {reason}\n")));
    text
}

fn or_why(value: Result<String, flatout_tune::Unknown>) -> String {
    value.unwrap_or_else(|why| format!("not known: {why}"))
}

/// Lines of at most 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 100 => {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Usage(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}
