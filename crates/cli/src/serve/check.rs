//! `flatout check FILE` and `flatout fmt FILE`.

use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use flatout_config::formatted;
use flatout_server::Plan;
use flatout_site::Fault;
use flatout_site::explain::{Advice, AdviceKind, advice};

use super::site::Built;
use super::{channels, manual, schema, source};
use crate::command::Command;
use crate::setting::words;
use crate::{Failure, print};

pub(crate) const CHECK: Command = Command {
    name: "check",
    about: "Check site files",
    more: "Exit status: 0 if all files are valid, 2 otherwise; the first mistake is shown with its line and column. \
           Notes and warnings explain what a valid file does that may surprise; they do not change the exit status.",
    examples: &[
        ("flatout check site.kdl", "before a reload"),
        ("flatout check --schema > site.schema.json", "the settings as a JSON schema"),
    ],
    arguments: |command| {
        let switch = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
        };
        command
            .arg(files().required_unless_present_any(["schema", "reference"]))
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
        for file in words(matches, FILES) {
            let mut built = source::built(Path::new(&file)).map_err(Failure::Usage)?;
            let checked = built.check().map_err(Failure::Usage)?;
            for note in notes(&built, checked.plan()).map_err(|fault| Failure::Usage(built.fault(&fault)))? {
                let _ = writeln!(std::io::stderr(), "{file}:{note}");
            }
            print(&format!("{file}: valid\n"))?;
            for warning in channels::warnings(&built, checked.plan()) {
                print(&format!("{file}: warning: {warning}\n"))?;
            }
            // The file may be for another machine, so this is no mistake in it.
            if let Err(why) = flatout_server::examine(&checked) {
                let _ = writeln!(std::io::stderr(), "{file}: warning: a server would not start here: {why}");
            }
        }
        Ok(())
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

/// What a reader of a valid file might not expect, each with its line.
fn notes(built: &Built, plan: &Plan) -> Result<Vec<String>, Fault> {
    let note = |found: Advice| {
        let place = |route: usize| built.places.routes.get(found.site)?.get(route);
        let line = |route: usize| place(route).map_or(0, |at| built.tree.line(at));
        let routes = &plan.sites.sites.get(found.site)?.routes;
        let (route, other) = (routes.get(found.route)?, routes.get(found.other)?);
        let (name, other_name, other_line) = (&route.name, &other.name, line(found.other));
        let alike = routes.iter().filter(|other| other.path.is_same(&route.path));
        let methods: Vec<&str> = alike.flat_map(|route| &route.methods).map(String::as_str).collect();
        let text = match found.kind {
            AdviceKind::Methods => format!(
                "route `{name}` serves {} only; other methods get 405 after its rules, and do not go to route \
                 `{other_name}` on line {other_line}",
                methods.join(", ")
            ),
            AdviceKind::Pattern => format!(
                "paths below route `{name}` that match `{other_name}` on line {other_line} get the rules of that route, \
                 which lets in other clients; before-patterns=on keeps them here"
            ),
        };
        Some(format!("{}: note: {text}", line(found.route)))
    };
    Ok(advice(&plan.sites)?.into_iter().filter_map(note).collect())
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
