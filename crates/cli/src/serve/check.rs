//! `flatout check FILE` and `flatout fmt FILE`.

use std::io::Write;
use std::path::Path;

use super::site::shown;
use super::{channels, manual, notes, schema, source};
use crate::command::Command;
use crate::setting::words;
use crate::{Failure, print};
use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use flatout_config::formatted;

pub(crate) const CHECK: Command = Command {
    name: "check",
    about: "Check site files",
    more: "All mistakes are shown with their lines and columns. Notes and warnings say what a valid file does that may surprise, and \
           what this machine lacks for it: folders, certificates, addresses, users, names of upstreams.\n\
           Exit status: 0 if all files are valid, 1 if a server would not start here with one of them (--elsewhere: not examined), 2 if \
           one has a mistake.",
    examples: &[
        ("flatout check site.kdl", "before a reload"),
        ("flatout check --elsewhere site.kdl", "a file for another machine"),
        ("flatout check --schema > site.schema.json", "the settings as a JSON schema"),
    ],
    arguments: |command| {
        let switch = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
        };
        command
            .arg(files().required_unless_present_any(["schema", "reference"]))
            .arg(switch("elsewhere", "The files are for another machine: do not examine this one"))
            .arg(switch("schema", "Print all settings as a JSON schema"))
            .arg(switch("reference", "Print all settings as Markdown"))
    },
    run: |matches| {
        if matches.get_flag("schema") {
            return print(&schema::text());
        }
        if matches.get_flag("reference") {
            return print(&manual::text());
        }
        let is_here = !matches.get_flag("elsewhere");
        let (mut mistakes, mut unusable) = (Vec::new(), Vec::new());
        for file in words(matches, FILES) {
            match check(&file, is_here) {
                Ok(true) => {}
                Ok(false) => unusable.push(file),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        match (mistakes.is_empty(), unusable.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => {
                Err(Failure::Run(format!("a server would not start here with {}", unusable.join(", "))))
            }
            (false, _) => Err(Failure::Usage(mistakes.join("\n"))),
        }
    },
};

pub(crate) const FMT: Command = Command {
    name: "fmt",
    about: "Format site files",
    more: "Comments are kept. Files that are already formatted are not written.\nExit status: 0, 1 if --check found a \
           file that is not formatted, 2 if a file is not valid KDL.",
    examples: &[
        ("flatout fmt site.kdl", "in place"),
        ("flatout fmt --check site.kdl", "only check whether it is formatted"),
    ],
    arguments: |command| {
        let check = Arg::new("check").long("check").action(ArgAction::SetTrue);
        command.arg(files().required(true)).arg(check.help("Write nothing; fail if a file is not formatted"))
    },
    run: fmt,
};

/// Checks a file, and shows what a reader might not expect and, if a server is to run here, what this machine lacks. Returns whether
/// one would start.
///
/// # Errors
/// All mistakes.
fn check(file: &str, is_here: bool) -> Result<bool, String> {
    let path = Path::new(file);
    let (mut built, mistakes) = source::read(path)?;
    let warn = |text: &str| drop(writeln!(std::io::stderr(), "{file}:{text}"));
    if !mistakes.is_empty() {
        if is_here {
            notes::lacks(&built, &built.plan).iter().for_each(|lack| warn(&lack.text));
        }
        return Err(source::hinted(path, shown(&mistakes)));
    }
    let checked = built.check()?;
    for note in notes::notes(&built, checked.plan()).map_err(|fault| built.fault(&fault))? {
        warn(&note);
    }
    print(&format!("{file}: valid\n")).map_err(|failure| failure.to_string())?;
    for warning in channels::warnings(&built, checked.plan()) {
        print(&format!("{file}: warning: {warning}\n")).map_err(|failure| failure.to_string())?;
    }
    let lacks = if is_here { notes::lacks(&built, checked.plan()) } else { Vec::new() };
    lacks.iter().for_each(|lack| warn(&lack.text));
    Ok(!lacks.iter().any(|lack| lack.prevents_start))
}

const FILES: &str = "files";

fn files() -> Arg {
    Arg::new(FILES).value_name("FILE").num_args(1..).help("Site files").value_hint(ValueHint::FilePath)
}

fn fmt(matches: &ArgMatches) -> Result<(), Failure> {
    let mut unformatted = Vec::new();
    for file in words(matches, FILES) {
        let before = source::source(Path::new(&file)).map_err(Failure::Usage)?;
        let after = formatted(&before).map_err(|mistake| Failure::Usage(mistake.to_string()))?;
        if before.text() == after {
            continue;
        }
        match matches.get_flag("check") {
            true => unformatted.push(file),
            false => replace(Path::new(&file), &after)
                .map_err(|error| Failure::Run(format!("`{file}`: {error}")))?,
        }
    }
    match &unformatted[..] {
        [] => Ok(()),
        files => Err(Failure::Run(format!("not formatted: {}", files.join(", ")))),
    }
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // The target of a link is replaced, not the link.
    let path = path.canonicalize()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let draft = path.with_file_name(name);
    let written = (|| {
        let mut file = std::fs::File::create_new(&draft)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(std::fs::metadata(&path)?.permissions())?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}
