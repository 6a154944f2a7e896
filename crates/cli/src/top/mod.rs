//! `flatout top [ADDRESS]`.

mod history;
mod live;
mod view;

use std::io::ErrorKind;

use clap::{Arg, ArgMatches, ValueHint};
use flatout_admin::{Event, Watch};
use flatout_engine::Address;

use crate::command::{Command, with};
use crate::serve::admin_client;
use crate::setting::{Group, Setting, fill};
use crate::{Failure, print, signals, terminal, value};
use history::History;
use live::TopScreen;

pub(crate) const COMMAND: Command = Command {
    name: "top",
    about: "Show the rate, latency and errors of a running flatout server",
    more: "It reads the events of the server's admin listener (flatout serve --admin). q or Ctrl-C ends it. If the output is \
           not a terminal, it prints one line a second.\nExit status: 0 ended by the user or by --count, 1 the server is not \
           reached or has ended, 2 wrong usage.",
    examples: &[
        ("flatout top", "the server whose admin listener is unix:/run/flatout.sock"),
        ("flatout top -c site.kdl", "the server of a site file"),
        ("flatout top 127.0.0.1:9100", "a server with another admin listener"),
        ("flatout top --json --count 1", "the figures of one second, for a script"),
    ],
    arguments: |command| {
        let [address, config] = located();
        with(command, address, GROUPS, &[]).arg(config)
    },
    run,
};

/// The arguments that select an admin listener: an address, or the site file that names it.
pub(crate) fn located() -> [Arg; 2] {
    let address = Arg::new(ADDRESS).value_name("ADDRESS").value_hint(ValueHint::Other);
    let help = format!("The admin listener: unix:PATH or IP:PORT [default: {ADDRESS_DEFAULT}]");
    let config = Arg::new(CONFIG)
        .short('c')
        .long(CONFIG)
        .value_name("FILE")
        .help("The site file, which names the admin listener")
        .conflicts_with(ADDRESS)
        .value_hint(ValueHint::FilePath);
    [address.help(help), config]
}

const ADDRESS: &str = "address";
const CONFIG: &str = "config";

/// The admin listener of a packaged server.
const ADDRESS_DEFAULT: &str = "unix:/run/flatout.sock";

/// The options.
#[derive(Default)]
struct TopOptions {
    json: bool,
    count: Option<u64>,
}

const GROUPS: &[Group<TopOptions>] = &[("Output", OUTPUT)];

const OUTPUT: &[Setting<TopOptions>] = &[
    Setting {
        name: "json",
        value: "",
        default: "",
        help: "print each second as one line of JSON",
        set: |options, _| {
            options.json = true;
            Ok(())
        },
    },
    Setting {
        name: "count",
        value: "N",
        default: "",
        help: "stop after N seconds",
        set: |options, text| {
            options.count = Some(value::number(text)?);
            Ok(())
        },
    },
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = TopOptions::default();
    fill(matches, GROUPS, &mut options)?;
    let (address, text) = address(matches)?;
    let watch = Watch::connect(&address).map_err(|error| unreachable(&text, &error))?;
    match !options.json && options.count.is_none() && terminal::is_interactive() {
        true => show(watch, &text),
        false => list(watch, &options),
    }
}

/// The admin listener that the arguments of [`located`] name, and as the user wrote it.
pub(crate) fn address(matches: &ArgMatches) -> Result<(Address, String), Failure> {
    let of_file = matches.get_one::<String>(CONFIG).map(|file| admin_of(file)).transpose()?;
    let text = matches.get_one::<String>(ADDRESS).or(of_file.as_ref());
    let text = text.map_or(ADDRESS_DEFAULT, String::as_str);
    let address = admin_client::parsed(text).map_err(|_| {
        Failure::Usage(format!(
            "admin address: got `{text}`, need unix:PATH or IP:PORT, such as 127.0.0.1:9100"
        ))
    })?;
    Ok((address, text.to_owned()))
}

/// Why an admin listener cannot be reached, and what to look at.
pub(crate) fn unreachable(text: &str, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "; is a server running with --admin at this address?"
        }
        ErrorKind::PermissionDenied => "; only the user who started the server may open it",
        _ => "",
    };
    Failure::Run(format!("cannot reach {text}: {error}{hint}"))
}

/// The first admin listener that a site file names.
fn admin_of(file: &str) -> Result<String, Failure> {
    let checked = crate::serve::source::checked(std::path::Path::new(file)).map_err(Failure::Usage)?;
    match checked.plan().admin.first() {
        Some(address) => Ok(address.to_string()),
        None => Err(Failure::Usage(format!(
            "`{file}` has no admin listener; add one, such as admin \"unix:/run/flatout.sock\", and restart the server"
        ))),
    }
}

/// On a terminal, until the user quits.
fn show(mut watch: Watch, address: &str) -> Result<(), Failure> {
    let stop = signals::stop_or_end()?;
    let mut screen = TopScreen::new(address, stop)?;
    // Events come from a separate thread, so that keys do not wait for them.
    let (tell, events) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let event = watch.event();
            let is_end = event.is_err();
            if tell.send(event).is_err() || is_end {
                return;
            }
        }
    });
    screen.run(&events).map_err(ended)
}

/// A line for each second.
fn list(mut watch: Watch, options: &TopOptions) -> Result<(), Failure> {
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut lines = 0u64;
    while left > 0 {
        let Event::Frame(frame) = watch.event().map_err(ended)? else { continue };
        left -= 1;
        match options.json {
            true => {
                let line = serde_json::to_string(&frame).map_err(|error| Failure::Run(error.to_string()))?;
                print(&format!("{line}\n"))?;
            }
            false => {
                if lines.is_multiple_of(HEADING_LINES) {
                    print(&History::heading())?;
                }
                print(&History::line(&frame))?;
                lines += 1;
            }
        }
    }
    Ok(())
}

/// Lines per heading.
const HEADING_LINES: u64 = 20;

fn ended(error: std::io::Error) -> Failure {
    Failure::Run(match error.kind() {
        ErrorKind::UnexpectedEof => "the server has stopped".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "the server has stopped sending".to_owned(),
        _ => error.to_string(),
    })
}
