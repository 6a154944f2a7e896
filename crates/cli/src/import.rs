//! `flatout import FILE`.

use std::path::Path;

use clap::{Arg, ArgMatches, ValueHint};
use flatout_import::{nginx, site_file};

use crate::command::Command;
use crate::serve::source::mistake;
use crate::setting::words;
use crate::{Failure, print, terminal};

pub(crate) const COMMAND: Command = Command {
    name: "import",
    about: "Turn an nginx configuration into a site file",
    more: "The site file goes to stdout. What is not carried over stands in it as a comment with the reason.\nExit status: \
           0, or 2 if nginx could not read the configuration either.",
    examples: &[("flatout import /etc/nginx/nginx.conf > site.kdl", "with all that it includes")],
    arguments: |command| {
        let file = Arg::new(FILE).value_name("FILE").required(true).help("An nginx.conf");
        command.arg(file.value_hint(ValueHint::FilePath))
    },
    run,
};

const FILE: &str = "file";

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(file) = words(matches, FILE).into_iter().next() else { return Ok(()) };
    let directives = nginx::read(Path::new(&file)).map_err(Failure::Usage)?;
    let imported = site_file(&directives);
    print(&imported.text)?;
    if let Some(mistake) = mistake("site.kdl", &imported.text) {
        terminal::complain(&format!("the site file needs a change before it can be served: {mistake}"));
    }
    Ok(())
}
