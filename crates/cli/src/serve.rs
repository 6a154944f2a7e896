//! `flatout serve [DIR]`.

use std::io::{self, ErrorKind, IsTerminal, Write};

use clap::{Arg, ArgMatches, ValueHint};
use flatout_engine::{Address, Error, Locality, Plan};
use flatout_report::unit::{bytes, count};
use flatout_serve::files::{self, Site, Watch};

use crate::command::{Command, VERSION, with};
use crate::setting::{Group, Setting, fill};
use crate::{Failure, value};

pub(crate) const COMMAND: Command = Command {
    name: "serve",
    about: "Serve a folder",
    more: "SIGTERM and SIGINT end the server once requests in flight are served; a second signal ends it at once.\nExit \
           status: 0 after that, 1 for a failure at run time, 2 for wrong usage.",
    examples: &[
        ("flatout serve ./public", "http://127.0.0.1:8080/"),
        (
            "flatout serve ./public --listen :80 --user www-data",
            "every address, port 80, without root's rights",
        ),
        ("flatout serve ./dist --spa --cache-control 'max-age=3600'", "a single-page application"),
    ],
    arguments: |command| {
        let folder = Arg::new(FOLDER).value_name("DIR").help("The folder to serve [default: .]");
        with(command, folder.value_hint(ValueHint::DirPath), GROUPS, &[])
    },
    run,
};

const FOLDER: &str = "folder";

/// What is served by default: the folder that one stands in.
const DIR_DEFAULT: &str = ".";

/// Where it listens by default: on this machine only.
const LISTEN_DEFAULT: &str = "127.0.0.1:8080";

/// What the flags fill.
#[derive(Default)]
struct Options {
    server: Plan,
    files: files::Plan,
}

const GROUPS: &[Group<Options>] =
    &[("Listening", LISTENING), ("Files", FILES), ("Limits", LIMITS), ("Sockets", SOCKETS)];

const LISTENING: &[Setting<Options>] = &[
    Setting {
        name: "listen",
        value: "ADDR",
        default: LISTEN_DEFAULT,
        help: "where to listen: IP:PORT, [IPv6]:PORT, :PORT or unix:PATH; can be repeated; sockets from systemd \
               (LISTEN_FDS) take its place",
        set: |options, text| {
            options.server.listen.push(text.parse()?);
            Ok(())
        },
    },
    Setting {
        name: "workers",
        value: "N",
        default: "one for each CPU",
        help: "threads; each is pinned to its own CPU",
        set: |options, text| {
            options.server.workers = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "user",
        value: "NAME",
        default: "",
        help: "user to become after binding the sockets; needs root",
        set: |options, text| {
            options.server.user = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "server-name",
        value: "TEXT",
        default: "flatout",
        help: "the Server header field, or off",
        set: |options, text| {
            options.server.server_name = (text != "off").then(|| text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "drain-time",
        value: "TIME",
        default: "30s",
        help: "longest time for requests in flight after SIGTERM or SIGINT; a second signal ends the server at once",
        set: |options, text| {
            options.server.drain_time_max = value::time(text)?;
            Ok(())
        },
    },
];

const FILES: &[Setting<Options>] = &[
    Setting {
        name: "index",
        value: "NAME",
        default: "index.html",
        help: "the file that is served for a folder",
        set: |options, text| {
            options.files.index = text.to_owned();
            Ok(())
        },
    },
    Setting {
        name: "spa",
        value: "",
        default: "",
        help: "serve the root's index file for paths that have no file and no extension",
        set: |options, _| {
            options.files.spa = true;
            Ok(())
        },
    },
    Setting {
        name: "listing",
        value: "",
        default: "",
        help: "list the files of folders that have no index file",
        set: |options, _| {
            options.files.listing = true;
            Ok(())
        },
    },
    Setting {
        name: "compress",
        value: "on|off",
        default: "on",
        help: "compress text in advance: gzip, brotli, zstd",
        set: |options, text| {
            options.files.compress = value::switch(text)?;
            Ok(())
        },
    },
    Setting {
        name: "cache-control",
        value: "TEXT",
        default: "",
        help: "the Cache-Control header field of files",
        set: |options, text| {
            if text.is_empty() || text.bytes().any(|byte| byte.is_ascii_control()) {
                return Err("need a header value without control characters".to_owned());
            }
            options.files.cache_control = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "small-bytes",
        value: "BYTES",
        default: "256KiB",
        help: "largest file to keep in memory; larger ones are sent from disk",
        set: |options, text| {
            options.files.small_bytes_max = value::bytes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "memory-bytes",
        value: "BYTES",
        default: "256MiB",
        help: "memory for files and their compressed variants; beyond it, the least used are sent from disk",
        set: |options, text| {
            options.files.memory_bytes_max = value::bytes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "changes",
        value: "HOW",
        default: "inotify",
        help: "how to notice changes in the folder: inotify, sweep=TIME (for NFS and FUSE), or off",
        set: |options, text| {
            options.files.watch = changes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "ranges",
        value: "N",
        default: "16",
        help: "most ranges in one request; beyond it, the whole file is sent",
        set: |options, text| {
            options.files.ranges_max = value::number(text)?;
            Ok(())
        },
    },
];

const LIMITS: &[Setting<Options>] = &[
    Setting {
        name: "head-bytes",
        value: "BYTES",
        default: "16KiB",
        help: "largest request head; a larger one gets 431",
        set: |options, text| {
            options.server.limits.head_bytes_max = value::bytes(text)? as usize;
            Ok(())
        },
    },
    Setting {
        name: "uri-bytes",
        value: "BYTES",
        default: "8KiB",
        help: "largest request target; a larger one gets 414",
        set: |options, text| {
            options.server.limits.target_bytes_max = value::bytes(text)? as usize;
            Ok(())
        },
    },
    Setting {
        name: "headers",
        value: "N",
        default: "100",
        help: "most header fields in a request; more get 431",
        set: |options, text| {
            options.server.limits.headers_max = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "body-bytes",
        value: "BYTES",
        default: "8MiB",
        help: "largest request body; a larger one gets 413",
        set: |options, text| {
            options.server.limits.body_bytes_max = value::bytes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "bodies-memory",
        value: "BYTES",
        default: "256MiB",
        help: "memory for all request bodies that are held at a time; more wait, then get 503",
        set: |options, text| {
            options.server.limits.bodies_memory_max = value::bytes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "half-close",
        value: "on|off",
        default: "off",
        help: "serve a client that has closed its sending side; off drops its request",
        set: |options, text| {
            options.server.limits.half_close = value::switch(text)?;
            Ok(())
        },
    },
    Setting {
        name: "head-time",
        value: "TIME",
        default: "10s",
        help: "longest time to receive a request head, from its first byte; then 408",
        set: |options, text| {
            options.server.limits.head_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "idle-time",
        value: "TIME",
        default: "60s",
        help: "close a connection after this time without a request",
        set: |options, text| {
            options.server.limits.idle_time_max = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "min-rate",
        value: "BYTES",
        default: "256",
        help: "lowest rate, in bytes per second, to send a body (else 408) or to read a response (else closed); 0 allows any",
        set: |options, text| {
            options.server.limits.rate_min_bytes_per_s = value::bytes(text)?;
            Ok(())
        },
    },
    Setting {
        name: "min-rate-window",
        value: "TIME",
        default: "10s",
        help: "the time over which --min-rate is measured",
        set: |options, text| {
            options.server.limits.rate_window = value::time(text)?;
            Ok(())
        },
    },
    Setting {
        name: "connections",
        value: "N",
        default: "what the descriptor limit leaves",
        help: "most connections; more wait in the backlog",
        set: |options, text| {
            options.server.limits.connections_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "connections-per-address",
        value: "N",
        default: "any number",
        help: "most connections from one address (IPv6: one /64); more are closed at once",
        set: |options, text| {
            options.server.limits.connections_per_address_max = Some(value::number(text)?);
            Ok(())
        },
    },
    Setting {
        name: "requests-per-connection",
        value: "N",
        default: "any number",
        help: "most requests on a connection; the last response says Connection: close",
        set: |options, text| {
            options.server.limits.requests_per_connection_max = Some(value::number(text)?);
            Ok(())
        },
    },
];

const SOCKETS: &[Setting<Options>] = &[
    Setting {
        name: "backlog",
        value: "N",
        default: "4096",
        help: "connections that may wait to be accepted, per worker; net.core.somaxconn is the upper limit",
        set: |options, text| {
            options.server.socket.backlog = value::number(text)?;
            Ok(())
        },
    },
    Setting {
        name: "nodelay",
        value: "on|off",
        default: "on",
        help: "TCP_NODELAY",
        set: |options, text| {
            options.server.socket.nodelay = value::switch(text)?;
            Ok(())
        },
    },
    Setting {
        name: "tcp-keepalive",
        value: "TIME",
        default: "60s",
        help: "SO_KEEPALIVE: probe a connection after this time of silence; 0s never does",
        set: |options, text| {
            options.server.socket.keepalive = Some(value::time(text)?).filter(|time| !time.is_zero());
            Ok(())
        },
    },
    Setting {
        name: "defer-accept",
        value: "TIME",
        default: "",
        help: "TCP_DEFER_ACCEPT: accept a connection when its first bytes have arrived, or after this time",
        set: |options, text| {
            options.server.socket.defer_accept = Some(value::time(text)?);
            Ok(())
        },
    },
    Setting {
        name: "congestion",
        value: "NAME",
        default: "the system's",
        help: "TCP_CONGESTION, such as reno, cubic or bbr",
        set: |options, text| {
            options.server.socket.congestion = Some(text.to_owned());
            Ok(())
        },
    },
    Setting {
        name: "share-port",
        value: "",
        default: "",
        help: "allow other processes of this user to listen on the same port",
        set: |options, _| {
            options.server.socket.share_port = true;
            Ok(())
        },
    },
    Setting {
        name: "locality",
        value: "auto|on|off",
        default: "auto",
        help: "give each connection to the worker on the CPU where it arrives: on, off, or auto; auto does it if the network \
               card has a queue for each worker",
        set: |options, text| {
            options.server.socket.locality = match text {
                "auto" => Locality::Auto,
                "on" => Locality::On,
                "off" => Locality::Off,
                _ => return Err(format!("got `{text}`, need auto, on or off")),
            };
            Ok(())
        },
    },
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let mut options = Options::default();
    fill(matches, GROUPS, &mut options)?;
    let root = matches.get_one::<String>(FOLDER).map_or(DIR_DEFAULT, String::as_str);
    options.files.root = root.into();
    if options.server.listen.is_empty() {
        options.server.listen.extend(LISTEN_DEFAULT.parse());
    }
    options.server.check().map_err(Failure::Usage)?;
    // A mistake on the command line is found before anything is bound. Rights are not looked at yet: on a network file
    // system root may have fewer of them than the user who serves.
    match std::fs::metadata(root) {
        Ok(found) if !found.is_dir() => {
            return Err(cannot_read(root, None, &ErrorKind::NotADirectory.into()));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(cannot_read(root, None, &error)),
        _ => {}
    }
    let user = options.server.user.clone();
    let bound = flatout_engine::bind(options.server).map_err(failure)?;
    // As the user who serves them: what this user may not read is not served.
    let site = Site::open(options.files).map_err(|error| cannot_read(root, user.as_deref(), &error))?;
    let served = site.clone();
    let server = bound.start(move |_| site.service()).map_err(failure)?;
    let workers = server.workers_count();
    match std::io::stderr().is_terminal() {
        true => server.run_announced(|addresses| welcome(root, &served, workers, addresses)),
        // One line, that programs wait for.
        false => server.run(),
    }
    .map_err(failure)
}

fn cannot_read(root: &str, user: Option<&str>, error: &io::Error) -> Failure {
    match (error.kind(), user) {
        (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
            Failure::Usage(format!("`{root}` is not a folder: {error}; give the folder to serve"))
        }
        (_, Some(user)) => Failure::Run(format!("cannot read `{root}` as user `{user}`: {error}")),
        (_, None) => Failure::Run(format!("cannot read `{root}`: {error}")),
    }
}

/// What a person wants to know who has started it.
fn welcome(root: &str, site: &Site, workers: usize, addresses: &[Address]) {
    let folder =
        std::path::absolute(root).map_or_else(|_| root.to_owned(), |path| path.display().to_string());
    let urls = addresses.iter().map(|address| ("URL", url(address)));
    let lines = urls.chain([
        ("folder", folder),
        (
            "files",
            format!("{}, {} in memory", count(site.files_count() as u64), bytes(site.memory_bytes() as f64)),
        ),
        ("workers", workers.to_string()),
        ("stop", "Ctrl-C".to_owned()),
    ]);
    let text: String = lines.map(|(name, value)| format!("  {name:<8} {value}\n")).collect();
    // A terminal that is gone is no reason not to serve.
    let _ = write!(std::io::stderr(), "flatout {VERSION}\n{text}");
}

/// Where a browser on this machine finds it.
fn url(address: &Address) -> String {
    match address {
        Address::Tcp(address) if address.ip().is_unspecified() && address.port() == 80 => {
            "http://localhost/".to_owned()
        }
        Address::Tcp(address) if address.ip().is_unspecified() => {
            format!("http://localhost:{}/ (listening on every address)", address.port())
        }
        Address::Tcp(_) => format!("{address}/"),
        _ => address.to_string(),
    }
}

fn changes(text: &str) -> Result<Watch, String> {
    match text {
        "inotify" => Ok(Watch::Inotify),
        "off" => Ok(Watch::Off),
        _ => match text.strip_prefix("sweep=") {
            Some(time) => Ok(Watch::Sweep(value::time(time)?.max(std::time::Duration::from_millis(100)))),
            None => Err(format!("got `{text}`, need inotify, sweep=TIME or off")),
        },
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Plan(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let matches = COMMAND.parse(arguments.iter().map(ToString::to_string));
        match matches.and_then(|matches| fill(&matches, GROUPS, &mut options)) {
            Ok(()) => Ok(options),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// What the table says is the default is the default, wherever it can be written as a value.
    #[test]
    fn defaults_are_what_the_help_says() {
        let written = |setting: &&Setting<Options>| {
            !setting.default.is_empty() && !setting.value.is_empty() && setting.name != "listen"
        };
        let prose = ["one for each CPU", "what the descriptor limit leaves", "any number", "the system's"];
        for setting in GROUPS.iter().flat_map(|(_, settings)| settings.iter()).filter(written) {
            if prose.contains(&setting.default) {
                continue;
            }
            let mut options = Options::default();
            (setting.set)(&mut options, setting.default).unwrap();
            let fresh = Options::default();
            let same = format!("{:?}{:?}", options.server, options.files)
                == format!("{:?}{:?}", fresh.server, fresh.files);
            assert!(same, "--{} {}", setting.name, setting.default);
        }
    }

    #[test]
    fn flags_are_read() {
        let options = set(&["--head-bytes=1KiB", "--listen", ":1", "--listen", "unix:/a", "--spa"]).unwrap();
        assert_eq!(options.server.limits.head_bytes_max, 1024);
        assert_eq!(options.server.listen.len(), 2);
        assert!(options.files.spa);
    }

    #[test]
    fn mistakes_are_told() {
        for (arguments, expected) in [
            (&["--lisen", "x"][..], "similar argument exists: '--listen'"),
            (&["--listen", "x"], "--listen: listen address: got `x`"),
            (&["--head-bytes", "many"], "--head-bytes: got `many`"),
            (&["--changes", "sweep=5"], "need a time"),
            (&["--workers"], "a value is required for '--workers <N>'"),
            (&["-x"], "unexpected argument '-x'"),
        ] {
            let Err(message) = set(arguments) else { panic!("{arguments:?}") };
            assert!(message.contains(expected), "{message}");
        }
    }
}
