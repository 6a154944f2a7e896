//! `flatout health [ADDRESS]`: for health checks of containers and scripts.

use clap::ArgMatches;
use flatout_admin as admin;

use crate::command::Command;
use crate::{Failure, print, top};

pub(crate) const COMMAND: Command = Command {
    name: "health",
    about: "Ask a running server whether it is serving, for health checks",
    more: "It asks the server's admin listener (flatout serve --admin).\n\
           Exit status: 0 it is serving; 1 it is draining, or cannot be reached within 5 s; 2 wrong usage.",
    examples: &[
        ("flatout health", "the server whose admin listener is unix:/run/flatout.sock"),
        ("flatout health -c site.kdl", "the server of a site file"),
        ("flatout health 127.0.0.1:9100", "a server with another admin listener"),
    ],
    arguments: |command| command.args(top::located()),
    run,
};

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let (address, text) = top::address(matches)?;
    match admin::health(&address).map_err(|error| top::unreachable(&text, &error))? {
        Ok(state) => print(&format!("{state}\n")),
        Err(state) => Err(Failure::Run(format!("{text}: {state}"))),
    }
}
