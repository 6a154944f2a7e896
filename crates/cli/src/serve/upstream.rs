//! `flatout upstream`: changes the servers of an upstream while the server runs.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use flatout_admin as admin;
use flatout_admin::upstreams::{UPSTREAM_PATH, UpstreamAction, UpstreamCommand};

use super::admin_client;
use crate::command::Command;
use crate::{Failure, print};

/// What can be done.
const ACTIONS: [&str; 9] = ["list", "add", "remove", "drain", "down", "up", "weight", "set", "undo"];

pub(crate) const COMMAND: Command = Command {
    name: "upstream",
    about: "List or change the servers of an upstream of a running server",
    more: "The command is sent to the server's admin listener, and logged there with your user name. Connections to other servers \
           stay as they are.\n\
           list    servers, with their state and what is in progress at each\n\
           add     a server, with --weight and --backup\n\
           remove  a server, after its requests in progress were finished\n\
           drain   a server gets no more requests, those in progress are finished; idle connections are closed\n\
           down    a server gets no more requests, those in progress go to another server if that is safe, or end\n\
           up      ends drain and down\n\
           weight  a server gets this share of requests: the weight comes after the server\n\
           set     the servers are these from now on\n\
           undo    takes all changes of the upstream back: its servers are those of the site file again\n\
           Changes stay over a reload, unless the site file then has other servers for the upstream: it replaces all changes of \
           that upstream. They stay over a restart if the upstream has an `upstream-state` file.\n\
           Exit status: 0 done, also if there was nothing to do; 1 not done; 2 wrong usage.",
    examples: &[
        ("flatout upstream list -c site.kdl", "all servers"),
        ("flatout upstream drain app 10.0.0.7:8000 -c site.kdl", "before its deployment"),
        ("flatout upstream up app 10.0.0.7:8000 -c site.kdl", "after it"),
        ("flatout upstream add app 10.0.0.9:8000 --weight 2 --admin unix:/run/flatout.sock", "one more"),
        ("flatout upstream weight app 10.0.0.9:8000 5 -c site.kdl", "a larger share"),
    ],
    arguments,
    run,
};

fn arguments(command: clap::Command) -> clap::Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let config = text("config", "FILE", "The site file, which names the admin listener").short('c');
    let weight = text("weight", "N", "With add: the weight [default: 1]").value_parser(value_parser!(u32));
    command
        .arg(
            Arg::new("action")
                .value_name("ACTION")
                .required(true)
                .help("What to do")
                .value_parser(PossibleValuesParser::new(ACTIONS)),
        )
        .arg(Arg::new("upstream").value_name("UPSTREAM").help("The upstream, as in the site file"))
        .arg(
            Arg::new("server").value_name("SERVER").num_args(0..).help(
                "The server, as in the site file; with weight, the weight after it; with set, all servers",
            ),
        )
        .arg(weight)
        .arg(
            Arg::new("backup")
                .long("backup")
                .action(ArgAction::SetTrue)
                .help("With add: the server gets requests only if no other is up"),
        )
        .arg(config.value_hint(ValueHint::FilePath).required_unless_present("admin"))
        .arg(text("admin", "ADDR", "The admin listener of the server"))
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name| matches.get_one::<String>(name).cloned();
    let command = UpstreamCommand { upstream: text("upstream"), by: Some(user()), action: action(matches)? };
    let address = admin_client::address(matches)?;
    let body = serde_json::to_vec(&command).map_err(|error| Failure::Run(error.to_string()))?;
    let message = admin_client::message(&address, admin::ask(&address, UPSTREAM_PATH, &body))?;
    print(&format!("{message}\n"))
}

/// The action on the command line.
fn action(matches: &ArgMatches) -> Result<UpstreamAction, Failure> {
    let name = matches.get_one::<String>("action").map_or("list", String::as_str);
    let mut servers: Vec<String> =
        matches.get_many::<String>("server").unwrap_or_default().cloned().collect();
    let wrong = |what: String| Err(Failure::Usage(what));
    let (weight, backup) = (matches.get_one::<u32>("weight").copied(), matches.get_flag("backup"));
    if name != "add" && (weight.is_some() || backup) {
        return wrong(format!("--weight and --backup are for add, got {name}"));
    }
    if name != "list" && matches.get_one::<String>("upstream").is_none() {
        return wrong(format!("{name} needs an UPSTREAM; `flatout upstream list` shows them"));
    }
    let expected = match name {
        "list" | "undo" => 0,
        "weight" => 2,
        _ => 1,
    };
    if name == "set" {
        return Ok(UpstreamAction::Set { servers });
    }
    if servers.len() != expected {
        let need = match name {
            "list" => "at most an UPSTREAM",
            "undo" => "an UPSTREAM alone",
            "weight" => "UPSTREAM SERVER WEIGHT",
            _ => "UPSTREAM SERVER",
        };
        return wrong(format!("{name} needs {need}, got {} values after the upstream", servers.len()));
    }
    let last = servers.pop().unwrap_or_default();
    Ok(match name {
        "add" => UpstreamAction::Add { server: last, weight, backup },
        "remove" => UpstreamAction::Remove { server: last },
        "drain" => UpstreamAction::Drain { server: last },
        "down" => UpstreamAction::Down { server: last },
        "up" => UpstreamAction::Up { server: last },
        "weight" => match last.parse() {
            Ok(weight) => UpstreamAction::Weight { server: servers.pop().unwrap_or_default(), weight },
            Err(_) => return wrong(format!("got the weight `{last}`, need a number from 1")),
        },
        "undo" => UpstreamAction::Undo,
        _ => UpstreamAction::List,
    })
}

/// Who runs this command.
fn user() -> String {
    let variable = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
    let uid = rustix::process::getuid().as_raw();
    match variable("SUDO_USER").or_else(|| variable("USER")).or_else(|| variable("LOGNAME")) {
        Some(name) => {
            format!("{} (uid {uid})", name.escape_default().to_string().chars().take(64).collect::<String>())
        }
        None => format!("uid {uid}"),
    }
}
