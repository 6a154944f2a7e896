//! `flatout reload`: asks a running server to read its site file again.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, ValueHint};
use flatout_admin as admin;
use flatout_engine::Address;
use flatout_owner::{Here, Listening};
use rustix::process::{Pid, Signal, kill_process};

use super::admin_client;
use super::source::checked;
use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "reload",
    about: "Reload the site file of a running server",
    more: "The file is checked first. If it has an admin listener, the server is asked there and reports the result; \
           otherwise the process that listens on the file's addresses gets SIGHUP and logs the result. If the file has a \
           mistake, the old configuration stays in use.\nExit status: 0 reloaded (or the signal was sent), 1 not reloaded, 2 a mistake in \
           the file.",
    examples: &[
        ("flatout reload -c site.kdl", "the server that runs with this file"),
        ("flatout reload --admin unix:/run/flatout.sock", "the server with this admin listener"),
    ],
    arguments,
    run,
};

/// The flags that select the server.
pub(super) fn arguments(command: clap::Command) -> clap::Command {
    let config = Arg::new("config").short('c').long("config").value_name("FILE").help("The site file");
    let admin = Arg::new("admin").long("admin").value_name("ADDR").help("The admin listener of the server");
    command.arg(config.value_hint(ValueHint::FilePath).required_unless_present("admin")).arg(admin)
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    ask(matches, "/reload", Signal::HUP, "reload")
}

/// Asks the server that `--config` or `--admin` selects: at its admin listener, or else with a signal.
pub(super) fn ask(matches: &ArgMatches, path: &str, signal: Signal, wish: &str) -> Result<(), Failure> {
    let (mut admin, mut listens) = (admin_client::named(matches)?, Vec::new());
    if let Some(file) = matches.get_one::<String>("config") {
        let checked = checked(Path::new(file)).map_err(Failure::Usage)?;
        admin = admin.or(checked.plan().admin.first().cloned());
        listens.extend(checked.listens().iter().map(|listen| listen.address.clone()));
    }
    match admin {
        Some(address) => {
            let message = admin_client::message(&address, admin::ask(&address, path, b""))?;
            print(&format!("{message}\n"))
        }
        None => send(&listens, signal, wish),
    }
}

/// Signals the flatout process that listens at one of these addresses: the file may add new ones.
fn send(listens: &[Address], signal: Signal, wish: &str) -> Result<(), Failure> {
    let ports = listens.iter().filter_map(|address| match address {
        Address::Tcp(address) => Some(address.port()).filter(|port| *port > 0),
        Address::Unix(_) => None,
    });
    let mut why =
        "the file has no TCP port by which the server could be found; add an admin listener".to_owned();
    let mut found = None;
    for port in ports {
        match find(port) {
            Ok(pid) => {
                found = Some(pid);
                break;
            }
            Err(missing) => why = missing,
        }
    }
    let Some(pid) = found else { return Err(Failure::Run(why)) };
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| Failure::Run(format!("{pid} is not a valid process id")))?;
    kill_process(number, signal)
        .map_err(|error| Failure::Run(format!("cannot signal process {pid}: {error}")))?;
    print(&format!("process {pid} was asked to {wish}; see its log for the result\n"))
}

/// The flatout process that listens on this port.
fn find(port: u16) -> Result<u32, String> {
    let found = Listening::find(&Here, port).map_err(|error| format!("port {port}: {error}"))?;
    if let (Some(missing), true) = (found.missing(), found.pids.is_empty()) {
        return Err(missing);
    }
    let is_ours = |pid: &u32| name_of(*pid).is_some_and(|name| name.starts_with("flatout"));
    let ours = found.pids.iter().copied().find(is_ours);
    ours.ok_or_else(|| format!("the process that listens on port {port} is not flatout"))
}

fn name_of(pid: u32) -> Option<String> {
    std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/comm"))).ok()
}
