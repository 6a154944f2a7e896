//! The same changes as a shell script, for people who do not let a program change their machine.
//!
//! Its `undo` has no journal: it compares the current values with those that it would have set. Files, limits and
//! CPUs of processes and units are compared; parameters of cards, qdiscs and rules are restored without checking
//! their current values.

use crate::change::{Change, Content, chosen};
use crate::document::Document;
use crate::error::{Error, Unknown};
use crate::host::{Host, is_kernel_file};
use crate::journal::Beside;
use crate::plan::Planned;
use crate::session::beside;
use crate::settings::{Setting, Step};
use crate::tuning::About;

/// One tuning's part of a script.
pub struct Part {
    /// The changes.
    pub planned: Planned,
    /// The current value of each setting that it changes.
    pub now: Vec<Content>,
    /// For each of them, the settings that may be reset with it, and their values.
    reset: Vec<Vec<Beside>>,
}

impl Part {
    /// A plan, and the current values of its settings.
    ///
    /// # Errors
    /// One of them cannot be read, or cannot be restored by a script.
    pub fn of(host: &Host, planned: Planned) -> Result<Part, Error> {
        let now = planned.changes.iter().map(|change| change.setting.kind().read(host));
        let now: Result<Vec<Content>, Unknown> = now.collect();
        let now = now.map_err(|reason| Error::Refused(format!("{}: {reason}", planned.about.name)))?;
        for (change, now) in planned.changes.iter().zip(&now) {
            let steps = change.setting.kind().steps(now);
            steps.map_err(|reason| Error::Refused(format!("{}: {reason}", planned.about.name)))?;
        }
        let reset = planned.changes.iter().map(|change| {
            let beside = beside(host, &change.setting)?;
            beside.iter().try_for_each(|one| one.setting.kind().steps(&one.before).map(drop))?;
            Ok(beside)
        });
        let reset: Result<Vec<Vec<Beside>>, String> = reset.collect();
        let reset = reset.map_err(|reason| Error::Refused(format!("{}: {reason}", planned.about.name)))?;
        Ok(Part { planned, now, reset })
    }

    fn applying(&self) -> Vec<String> {
        lines(self.planned.changes.iter().map(|change| (&change.setting, &change.to)))
    }

    fn undoing(&self) -> Vec<String> {
        self.planned
            .changes
            .iter()
            .zip(self.now.iter().zip(&self.reset))
            .rev()
            .flat_map(|(change, (before, reset))| {
                let reset = reset.iter().flat_map(undoing_reset);
                undoing(change, before).into_iter().chain(reset)
            })
            .collect()
    }

    fn heading(&self) -> String {
        let About { name, reason, source, risk, lost, .. } = self.planned.about;
        let lost = if lost.is_empty() { String::new() } else { format!(": {lost}") };
        let mut text =
            format!("    # {name}: {reason}\n    # source: {source}\n    # risk: {}{lost}\n", risk.name());
        for (change, now) in self.planned.changes.iter().zip(&self.now) {
            text.push_str(&format!("    # {} is {}\n", change.setting.name(), now.line()));
        }
        text
    }
}

/// The lines that undo one change: they do nothing if the setting has changed since, and if they fail the rest is
/// undone nevertheless.
fn undoing(change: &Change, before: &Content) -> Vec<String> {
    let (name, kind) = (change.setting.name(), change.setting.kind());
    let mut found = Vec::new();
    for step in kind.steps(before).unwrap_or_default() {
        let of_file = match &step {
            Step::Write { path, .. } | Step::Remove { path } => {
                let text = match is_kernel_file(path) {
                    true => change.to.line(),
                    false => String::from_utf8_lossy(change.to.bytes().unwrap_or_default()).into_owned(),
                };
                Some(format!("holds {} {}", quote(&text), quote(path)))
            }
            Step::Run { .. } => None,
        };
        let undone = shell(&step);
        match kind.holds_in_shell(&change.to).or(of_file) {
            None => found.push(format!("{undone} || failed=1")),
            Some(condition) => found.extend([
                format!("if {condition}; then"),
                format!("    {undone} || failed=1"),
                "else".to_owned(),
                format!("    echo {}", quote(&format!("{name}: left alone, somebody changed it since"))),
                "fi".to_owned(),
            ]),
        }
    }
    found
}

/// The lines that restore a setting which was reset with another one, if it still exists.
fn undoing_reset(one: &Beside) -> Vec<String> {
    let steps = one.setting.kind().steps(&one.before).unwrap_or_default();
    let line = |step: &Step| {
        let undone = shell(step);
        match (&one.setting, step) {
            (Setting::Interrupt(interrupt), _) => {
                format!("! {} || {undone} || failed=1", interrupt.exists_in_shell())
            }
            (_, Step::Write { path, .. }) => format!("[ ! -e {} ] || {undone} || failed=1", quote(path)),
            _ => format!("{undone} || failed=1"),
        }
    };
    steps.iter().map(line).collect()
}

/// A script with `apply`, `undo`, `persist` and `unpersist`. It restores the values at the time it was written.
pub fn script(parts: &[Part]) -> String {
    let mut text = String::from(HEAD);
    text.push_str("\napply() {\n    :\n");
    for part in parts {
        text.push_str(&part.heading());
        text.push_str(&indented(&part.applying()));
        if !part.planned.then.is_empty() {
            let then = format!("{}: then {}", part.planned.about.name, part.planned.then);
            text.push_str(&indented(&[format!("echo {}", quote(&then))]));
        }
    }
    text.push_str("}\n\nundo() {\n    :\n");
    for part in parts.iter().rev() {
        text.push_str(&format!("    # {}\n", part.planned.about.name));
        text.push_str(&indented(&part.undoing()));
    }
    let documents: Vec<&Document> = parts.iter().flat_map(|part| &part.planned.documents).collect();
    text.push_str("    return $failed\n}\n\npersist() {\n    :\n");
    for document in &documents {
        let folder = document.path.rsplit_once('/').map_or("/", |(folder, _)| folder);
        let step = Step::Write { path: document.path.clone(), bytes: document.text.clone().into_bytes() };
        text.push_str(&indented(&[format!("mkdir -p {}", quote(folder)), shell(&step)]));
    }
    text.push_str("}\n\nunpersist() {\n    :\n");
    let removals: Vec<String> =
        documents.iter().map(|document| format!("rm -f {}", quote(&document.path))).collect();
    text.push_str(&indented(&removals));
    text.push_str(TAIL);
    text
}

const HEAD: &str = r#"#!/bin/sh
# Written by `flatout tune script` for this machine as it is now. Read it; then, as root:
#   sh FILE apply       make the changes      sh FILE undo         restore the old values, except what somebody changed
#   sh FILE persist     keep them at boot     sh FILE unpersist    no longer keep them
set -eu

# put VALUE PATH: writes a value and prints where.
put() {
    echo "$2"
    printf '%s' "$1" > "$2"
}

# spelt TEXT PATH: the content of a file in one spelling: of `a [b] c` only b, a mask without leading zeros, single spaces.
spelt() {
    text=$1
    case $text in *\[*\]*) text=${text#*\[}; text=${text%%\]*} ;; esac
    case $2 in *_cpus) text=$(printf '%s' "$text" | tr -d , | sed 's/^0*//') ;; esac
    printf '%s' "$text" | tr -s ' \t\n' '   ' | sed 's/^ //; s/ $//'
}

# holds VALUE PATH: whether a file exists and holds this value.
holds() {
    [ -e "$2" ] && [ "$(spelt "$1" "$2")" = "$(spelt "$(cat "$2")" "$2")" ]
}

# started, files, allowed PID: when a process started, how many files it may open, the CPUs that it may run on.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
files() { sed -n 's/^Max open files *\([^ ]*\) *\([^ ]*\).*/\1:\2/p' "/proc/$1/limits" 2>/dev/null; }
allowed() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null; }

failed=0
"#;

const TAIL: &str = r#"}

case ${1:-} in
    apply | undo | persist | unpersist) "$1" ;;
    *)
        echo "usage: sh $0 apply|undo|persist|unpersist" >&2
        exit 2
        ;;
esac
"#;

/// A step as one or more lines of shell.
pub(crate) fn shell(step: &Step) -> String {
    match step {
        Step::Write { path, bytes } => {
            let text = String::from_utf8_lossy(bytes);
            let value = match is_kernel_file(path) {
                // A file that reads `a [b] c` accepts only the choice itself.
                true => chosen(&text).unwrap_or(&text).trim_end(),
                false => &text,
            };
            format!("put {} {}", quote(value), quote(path))
        }
        Step::Remove { path } => format!("rm -f {}", quote(path)),
        Step::Run { program, arguments, input } => {
            let words: Vec<String> = arguments.iter().map(|word| quote(word)).collect();
            let command = format!("{program} {}", words.join(" "));
            match input.is_empty() {
                true => command,
                false => format!("printf '%s' {} | {command}", quote(input)),
            }
        }
    }
}

/// Lines that restore settings. Values that cannot be restored were refused before.
fn lines<'s>(contents: impl Iterator<Item = (&'s Setting, &'s Content)>) -> Vec<String> {
    let steps = contents.flat_map(|(setting, to)| setting.kind().steps(to).unwrap_or_default());
    steps.map(|step| shell(&step)).collect()
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

/// Quotes a word for the shell.
pub fn quote(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Interrupt, RssTable};

    #[test]
    fn settings_that_a_driver_resets_are_restored_where_they_exist() {
        let lines = |setting: Setting, before: &str| {
            undoing_reset(&Beside { setting, before: Content::Text(before.to_owned()), settled: None })
        };
        assert_eq!(
            lines(Setting::file("/sys/class/net/eth0/queues/tx-3/xps_cpus"), "2\n"),
            [
                "[ ! -e /sys/class/net/eth0/queues/tx-3/xps_cpus ] || put 2 /sys/class/net/eth0/queues/tx-3/xps_cpus || failed=1"
            ]
        );
        assert_eq!(
            lines(Interrupt { name: "eth0-0".to_owned(), number: 30 }.into(), "1\n"),
            [
                "! grep -q '^ *30:.* eth0-0$' /proc/interrupts || put 1 /proc/irq/30/smp_affinity_list || failed=1"
            ]
        );
        let table = RssTable { device: "eth0".to_owned() };
        assert_eq!(lines(table.into(), "0 0 1 1"), ["ethtool -X eth0 weight 2 2 || failed=1"]);
    }
}
