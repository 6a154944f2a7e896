//! `flatout serve [DIR]`: a folder, upstreams, or everything in a site file.
//!
//! ```text
//! flags ─────────────┐
//! site file ── tree ─┴── site: each setting by the table ──> flatout_server::Plan
//! ```

pub(crate) mod admin_client;
mod blocks;
mod channels;
pub(crate) mod check;
pub(crate) mod explain;
mod explain_rules;
mod explain_settings;
mod format;
mod grammar;
mod manual;
mod notes;
mod options;
mod parse;
mod php;
mod prerender;
pub(crate) mod purge;
pub(crate) mod refused;
pub(crate) mod reload;
pub(crate) mod render;
mod routes;
mod schema;
mod setting;
mod settings;
mod site;
pub(crate) mod source;
#[cfg(test)]
mod tests;
pub(crate) mod upgrade;
pub(crate) mod upstream;
mod values;
pub(crate) mod welcome;
mod when;

use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use flatout_config::{Kind, parts};
use setting::ServeSetting;
use settings::GROUPS;
use site::Flag;
use values::Values;

use crate::command::{Command, VERSION};
use crate::setting::{Shape, flag};
use crate::{Failure, setting as flags};

pub(crate) const COMMAND: Command = Command {
    name: "serve",
    about: "Serve a folder, forward requests to upstream servers, or both from a site file",
    more: "SIGTERM and SIGINT stop the server after requests in flight are completed; a second signal stops it at once. SIGHUP \
           reloads the site file, SIGUSR2 upgrades to a new version of the program.\nExit status: 0 after a signal, 1 after a failure at run time, 2 for wrong usage.",
    examples: &[
        ("flatout serve ./public", "serve a folder at http://127.0.0.1:8080/"),
        (
            "flatout serve ./public --listen :80 --user www-data",
            "all addresses, port 80, without root privileges",
        ),
        ("flatout serve ./dist --spa --cache-control 'max-age=3600'", "a single-page application"),
        (
            "flatout serve ./dist --spa --prerender",
            "the same, drawn by a browser for crawlers; see docs/prerender.md",
        ),
        (
            "flatout serve ./public --domain example.org",
            "HTTPS on port 443 with a certificate from Let's Encrypt; see docs/tls.md",
        ),
        ("flatout serve ./public --tls local", "HTTPS for development, by a CA of this machine"),
        ("flatout serve --to unix:/run/api.sock", "in front of an application"),
        ("flatout serve ./wordpress --php", "a folder of PHP, run by php-fpm; see docs/proxy.md"),
        ("flatout serve --push /live --push-token SECRET", "messages to browsers; see docs/push.md"),
        ("flatout serve -c site.kdl", "everything in one file; see docs/site-file.md"),
    ],
    arguments,
    run,
};

const FOLDER: &str = "folder";
const CONFIG: &str = "config";
const TO: &str = "to";
const PORT: &str = "port";
const PORT_OFFSET: &str = "port-offset";
const PHP: &str = "php";
const PUSH: &str = "push";

fn arguments(command: clap::Command) -> clap::Command {
    let folder =
        Arg::new(FOLDER).value_name("DIR").help("The folder to serve, or a site file (*.kdl) [default: .]");
    let config = Arg::new(CONFIG)
        .short('c')
        .long(CONFIG)
        .value_name("FILE")
        .help("A site file; flags override its top-level settings")
        .value_hint(ValueHint::FilePath);
    let to = Arg::new(TO)
        .long(TO)
        .value_name("URL")
        .action(ArgAction::Append)
        .help("An upstream server: http://HOST:PORT, https://HOST, unix:PATH, or srv+http://NAME for those of its SRV records; can be repeated")
        .value_hint(ValueHint::Url);
    let php = Arg::new(PHP)
        .long(PHP)
        .value_name("ADDR")
        .num_args(0..=1)
        .default_missing_value("")
        .help(
            "Run the PHP scripts of DIR by php-fpm, found where distributions have it, or at unix:PATH or HOST:PORT; paths that are no \
             file go to index.php",
        );
    let push = Arg::new(PUSH).long(PUSH).value_name("PATH").help(
        "Serve channels below PATH: subscribe with GET PATH/CHANNEL, publish with POST (see --push-token)",
    );
    let port = Arg::new(PORT)
        .short('p')
        .long(PORT)
        .value_name("N")
        .value_parser(clap::value_parser!(u16))
        .help("Listen on this port of this machine: short for --listen 127.0.0.1:PORT");
    let port_offset = Arg::new(PORT_OFFSET)
        .long(PORT_OFFSET)
        .value_name("N")
        .value_parser(clap::value_parser!(u16))
        .help("Add this to the ports of all addresses, those of sites too: a site file is tried beside the server that it replaces");
    let mut command = command
        .arg(folder.value_hint(ValueHint::AnyPath))
        .arg(config)
        .arg(port)
        .arg(port_offset)
        .arg(to)
        .arg(php)
        .arg(push);
    for (heading, settings) in GROUPS {
        for setting in *settings {
            command = command.arg(argument(setting).help_heading(*heading));
        }
    }
    command
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let started = flatout_server::start(Box::new(source::of(matches)?), VERSION)?;
    Ok(started.run(Some(&welcome::welcome))?)
}

/// A setting as a flag.
fn argument(setting: &ServeSetting) -> Arg {
    let optional = parts(setting.value).next().filter(|part| part.is_optional && part.kind() == Kind::Choice);
    let is_switch = optional.is_some() && setting.keys.is_empty();
    let is_single = setting.is_single();
    let shape = Shape {
        name: setting.name,
        value: match (is_switch, is_single) {
            (true, _) => "",
            (_, true) => setting.value,
            _ => "TEXT",
        },
        default: setting.default,
        help: setting.help,
    };
    let arg = flag(&shape, None);
    match optional {
        // `--spa`, or `--spa=off`.
        Some(part) if is_switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("on").value_name(part.name)
        }
        _ if is_single => arg,
        _ if setting.arguments() > 1 => {
            arg.num_args(setting.arguments()).value_names(parts(setting.value).map(|part| part.name))
        }
        _ => {
            let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
            let keys: Vec<String> =
                setting.keys.iter().map(|key| format!("{}={}", key.name, key.value)).collect();
            let more = match keys.is_empty() {
                true => "one argument; values with spaces need double quotes inside it".to_owned(),
                false => format!("one argument, which may also have {}", keys.join(" ")),
            };
            arg.value_name(setting.value).long_help(format!("{help}; {more}"))
        }
    }
}

/// The settings given by flags, in order.
fn flags_of(matches: &ArgMatches) -> Result<Vec<Flag>, Failure> {
    let mut found = Vec::new();
    for setting in settings::all() {
        let count = setting.arguments();
        let values: Vec<_> = flags::values(matches, setting.name).collect();
        for values in values.chunks(count) {
            let Some((index, text)) = values.first().copied() else { continue };
            let given = match count {
                1 => Values::of_flag(setting, text),
                _ => Values::of_arguments(setting, values.iter().map(|(_, text)| (*text).clone()).collect()),
            };
            let given = given.map_err(|message| Failure::Usage(format!("--{}: {message}", setting.name)))?;
            found.push((index, (setting, given)));
        }
    }
    if let (Some(port), Some(index)) = (matches.get_one::<u16>(PORT), matches.index_of(PORT))
        && let Some(listen) = settings::find("listen")
    {
        let values = Values::of_flag(listen, &port.to_string());
        found.push((
            index,
            (listen, values.map_err(|message| Failure::Usage(format!("--{PORT}: {message}")))?),
        ));
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, flag)| flag).collect())
}
