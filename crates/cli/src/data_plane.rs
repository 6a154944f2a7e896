//! `flatout data-plane`: serves the plans of a controller.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, ValueHint, value_parser};
use flatout_controller::{DataPlane, DataPlaneCredentials, DataPlaneSettings, follow_controller};
use flatout_lane::process::host_name;

use crate::Failure;
use crate::command::{Command, VERSION};
use crate::controller::{admin, base, health, option, workers};
use crate::serve::welcome;

pub(crate) const COMMAND: Command = Command {
    name: "data-plane",
    about: "Serve the plans of a controller",
    more: "A plan is checked before it is served, kept on disk, and acknowledged to the controller. Without a controller, the last one \
           stays in use; a data plane that starts without one serves the plan on its disk. It needs no access to the API server.\n\
           Exit status: 0 after a signal, 1 after a failure at run time, 2 for wrong usage.",
    examples: &[(
        "flatout data-plane --controller flatout-plans:8082 --ca ca.crt --token-file token --state /var/lib/flatout-plane",
        "the plans of any of the controllers with this name",
    )],
    arguments,
    run,
};

/// Where the plan is kept by default; only this user may read it.
const STATE_DEFAULT: &str = "/var/lib/flatout-plane";

fn arguments(command: clap::Command) -> clap::Command {
    command
        .arg(
            option(
                "controller",
                "HOST:PORT",
                "A controller's --plans; can be repeated, then all are tried in turn",
            )
            .action(ArgAction::Append)
            .required(true),
        )
        .arg(
            option(
                "ca",
                "FILE",
                "The CA certificates that a controller's must be of [default: the system's]",
            )
            .value_hint(ValueHint::FilePath),
        )
        .arg(
            option("token-file", "FILE", "The token that the controller expects")
                .value_hint(ValueHint::FilePath)
                .required(true),
        )
        .arg(option("name", "NAME", "Its name in messages and statuses [default: the host's]"))
        .arg(
            option("address", "IP", "Where gateways are bound: as many as the controller has, in its order")
                .value_parser(value_parser!(IpAddr))
                .action(ArgAction::Append)
                .default_value("0.0.0.0"),
        )
        .arg(health())
        .arg(
            option("state", "DIR", "The folder for the last plan and its certificates, with private keys")
                .default_value(STATE_DEFAULT)
                .value_hint(ValueHint::DirPath),
        )
        .arg(admin())
        .arg(workers())
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let controllers: Vec<String> = matches.get_many("controller").unwrap_or_default().cloned().collect();
    for controller in &controllers {
        let port = controller.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
        if !matches!(port, Some((true, Ok(1..)))) {
            return Err(Failure::Usage(format!("--controller: got `{controller}`, need HOST:PORT")));
        }
    }
    let data_plane = DataPlane {
        controllers,
        credentials: DataPlaneCredentials {
            authorities: text("ca").map(PathBuf::from),
            token: PathBuf::from(text("token-file").unwrap_or_default()),
        },
        name: text("name").unwrap_or_else(host_name),
        settings: DataPlaneSettings {
            addresses: matches.get_many("address").unwrap_or_default().copied().collect(),
            health: matches.get_one("health").copied(),
            folder: PathBuf::from(text("state").unwrap_or_default()),
            refused: Default::default(),
        },
    };
    let started = follow_controller(data_plane, base(matches)?, VERSION)?;
    Ok(started.run(Some(&welcome::welcome))?)
}
