//! `flatout man DIR`: the manual pages, for packagers.

use std::path::Path;

use clap::{Arg, ArgMatches, ValueHint};
use clap_mangen::Man;

use crate::Failure;
use crate::command::{Command, program};

pub(crate) const COMMAND: Command = Command {
    name: "man",
    about: "",
    more: "",
    examples: &[],
    arguments: |command| {
        let folder = Arg::new(FOLDER).value_name("DIR").help("Where the pages are written").required(true);
        command.about("Write the manual pages").hide(true).arg(folder.value_hint(ValueHint::DirPath))
    },
    run,
};

const FOLDER: &str = "folder";

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let folder = Path::new(matches.get_one::<String>(FOLDER).map_or(".", String::as_str));
    for (name, page) in pages().map_err(|error| Failure::Run(format!("cannot render a page: {error}")))? {
        let path = folder.join(name);
        std::fs::write(&path, page)
            .map_err(|error| Failure::Run(format!("cannot write `{}`: {error}", path.display())))?;
    }
    Ok(())
}

/// A page for the program and one for each listed command.
fn pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let program = program();
    let version = program.get_version().unwrap_or_default().to_owned();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut all = vec![("flatout".to_owned(), program.clone())];
    all.extend(commands.map(|command| (format!("flatout-{}", command.get_name()), command.clone())));
    let render = |(name, command): (String, clap::Command)| {
        let mut page = Vec::new();
        let command = command.display_name(name.clone()).bin_name(name.replacen('-', " ", 1));
        let version = version.clone();
        Man::new(command)
            .title(name.to_uppercase())
            .source(format!("flatout {version}"))
            .render(&mut page)?;
        Ok((format!("{name}.1"), page))
    };
    all.into_iter().map(render).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_command_has_a_page() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert!(
            names.starts_with(&["flatout.1", "flatout-serve.1"]) && names.contains(&"flatout-bench.1"),
            "{names:?}"
        );
        assert!(!names.contains(&"flatout-json-api.1") && !names.contains(&"flatout-man.1"), "{names:?}");
        let climb = pages.iter().find(|(name, _)| name == "flatout-climb.1").unwrap();
        let text = String::from_utf8(climb.1.clone()).unwrap();
        assert!(text.contains("budget") && text.contains("Examples") && !text.contains('\x1b'), "{text}");
    }
}
