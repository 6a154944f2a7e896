//! `flatout import FILE`, and `flatout import --check OLD NEW [LOG]`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use flatout_import::compare::{Ask, Bounds, Compared, FIELDS, Policy, Server, Vocabulary, compare, line};
use flatout_import::{nginx, site_file};

use crate::command::Command;
use crate::serve;
use crate::serve::source::{add_requests, mistake};
use crate::setting::words;
use crate::{Failure, print, terminal, value};

pub(crate) const COMMAND: Command = Command {
    name: "import",
    about: "Convert an nginx configuration to a site file, or compare two servers",
    more: "The site file goes to stdout. Directives that cannot be converted become comments with the reason. \
           If nginx passed requests to something that is not converted, or checked them in such a way, the site file responds \
           501 to them, and the first lines say so.\n--check sends \
           each request once to both servers and shows differences in status, some header fields, and body. It sends only \
           GET, HEAD and OPTIONS. Requests come from an access log (common or combined), with -c from the hosts, routes, conditions and files of \
           nginx configurations and site files, or with --ingress from the hosts and paths of Ingresses.\n--ingress converts Ingresses with annotations of ingress-nginx to objects of the Gateway API, in programs with the feature \
           controller; what is lost is on stderr and in comments. An Ingress that something protects, which the Gateway API cannot \
           express, is left out: its requests get 500, and so do those of a path that cannot be converted.\nExit status: 0, 1 if --check found a \
           difference or an Ingress or path is left out, 2 for a configuration that \
           cannot be read.",
    examples: &[
        ("flatout import /etc/nginx/nginx.conf > site.kdl", "convert nginx.conf and all included files"),
        (
            "flatout import --check http://old http://new /var/log/nginx/access.log",
            "compare the responses of two servers to the requests of a log",
        ),
        (
            "flatout import --check http://old http://new -c /etc/nginx/nginx.conf -c site.kdl",
            "compare them by the routes, conditions and files of both configurations",
        ),
    ],
    arguments,
    run,
};

const FILES: &str = "files";

/// What `--ingress` does, in programs that know Kubernetes.
const INGRESS: Option<&str> = if cfg!(feature = "controller") {
    Some(
        "Convert the Ingresses of the YAML files in this folder, or of the API server (`cluster`), to objects of the Gateway API",
    )
} else {
    None
};

/// Bytes of a log line; the rest of a longer one counts as another line, which is no request.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Bytes of a log that are read.
const LOG_BYTES_MAX: u64 = 1 << 30;

fn arguments(command: clap::Command) -> clap::Command {
    let files = Arg::new(FILES).value_name("FILE").num_args(1..=3);
    let files =
        if INGRESS.is_some() { files.required_unless_present("ingress") } else { files.required(true) };
    let flag = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    let command = match INGRESS {
        Some(help) => command.arg(flag("ingress", "DIR|cluster").help(help)),
        None => command,
    };
    command
        .arg(files.help("An nginx.conf; with --check: OLD NEW [LOG]").value_hint(ValueHint::FilePath))
        .arg(
            Arg::new("check")
                .long("check")
                .action(ArgAction::SetTrue)
                .help("Compare the servers OLD and NEW"),
        )
        .arg(flag("config", "FILE").short('c').action(ArgAction::Append).help(
            "--check: request what this nginx configuration or site file has routes and conditions for",
        ))
        .arg(flag("host", "NAME").help("--check: the Host of the requests [default: the host of OLD]"))
        .arg(flag("field", "NAME").action(ArgAction::Append).help("--check: compare this header field too"))
        .arg(flag("requests", "N").help("--check: maximum number of requests [default: 1000]"))
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    #[cfg(feature = "controller")]
    if let Some(from) = matches.get_one::<String>("ingress") {
        return match (matches.get_flag("check"), &words(matches, FILES)[..]) {
            (true, [old, new]) => check(matches, old, new, &RequestOrigin::Ingresses(from)),
            (false, []) => import_ingresses(from),
            (true, _) => Err(Failure::Usage(
                "--ingress and --check need two servers, and take their requests from the Ingresses: http://old http://new"
                    .to_owned(),
            )),
            (false, _) => Err(Failure::Usage(
                "--ingress converts Ingresses, and takes no file; --check compares two servers".to_owned(),
            )),
        };
    }
    let files = words(matches, FILES);
    match (matches.get_flag("check"), &files[..]) {
        (true, [old, new, rest @ ..]) => {
            let requests = match (rest.first(), &words(matches, "config")[..]) {
                (Some(log), []) => RequestOrigin::Log(log),
                (None, files @ [_, ..]) => RequestOrigin::Configurations(files.to_vec()),
                _ => {
                    return Err(Failure::Usage(
                        "give an access log, or configurations with -c, to take requests from".to_owned(),
                    ));
                }
            };
            check(matches, old, new, &requests)
        }
        (false, [file]) => import(file),
        (true, _) => Err(Failure::Usage("--check needs two servers: http://old http://new".to_owned())),
        (false, _) => {
            Err(Failure::Usage("give one configuration; included files are read automatically".to_owned()))
        }
    }
}

fn import(file: &str) -> Result<(), Failure> {
    let directives = nginx::read(Path::new(file)).map_err(|mistake| match serve::source::is_valid(file) {
        true => Failure::Usage(format!("{mistake}\n{file} is a site file already: flatout check {file}")),
        false => Failure::Usage(mistake),
    })?;
    let imported = site_file(&directives);
    if !imported.unserved.is_empty() {
        terminal::complain(&imported.unserved.join("\n"));
    }
    print(&imported.text)?;
    if let Some(mistake) = mistake("site.kdl", &imported.text) {
        terminal::complain(&format!("the site file needs a change before it can be served: {mistake}"));
    }
    Ok(())
}

/// In place of a folder: the objects of the API server. A folder of this name is `./cluster`.
#[cfg(feature = "controller")]
const CLUSTER: &str = "cluster";

/// The objects of a folder or a cluster, among which are Ingresses.
#[cfg(feature = "controller")]
fn read_ingresses(from: &str) -> Result<flatout_controller::Objects, Failure> {
    let (read, shown) = match from {
        CLUSTER => {
            (flatout_controller::cluster::read_once(&["Ingress", "Service"]), "the cluster".to_owned())
        }
        folder => {
            (flatout_controller::folder::read_once(Path::new(folder)), format!("the files of {folder}"))
        }
    };
    let (objects, faults) = read.map_err(Failure::Usage)?;
    if let Some(fault) = faults.first() {
        return Err(Failure::Usage(fault.clone()));
    }
    if objects.ingresses.is_empty() {
        return Err(Failure::Usage(format!("there is no Ingress in {shown}")));
    }
    Ok(objects)
}

/// The requests that follow from Ingresses.
#[cfg(feature = "controller")]
fn of_ingresses(from: &str, host: &str) -> Result<Vec<Ask>, Failure> {
    let ask = |it: flatout_controller::IngressRequest| Ask {
        method: "GET".to_owned(),
        host: it.host.unwrap_or_else(|| host.to_owned()),
        target: it.path,
        fields: it.fields,
    };
    Ok(flatout_controller::ingress_requests(&read_ingresses(from)?).into_iter().map(ask).collect())
}

/// Prints Gateways and HTTPRoutes in place of the Ingresses of a folder or a cluster, and says what is lost.
#[cfg(feature = "controller")]
fn import_ingresses(from: &str) -> Result<(), Failure> {
    let objects = read_ingresses(from)?;
    let converted = flatout_controller::convert(&objects);
    if !converted.lost.is_empty() {
        terminal::complain(&converted.lost.join("\n"));
    }
    let comments: String = converted.lost.iter().map(|line| format!("# {line}\n")).collect();
    print(&format!("{comments}{}", flatout_controller::yaml_documents(&converted.objects)))?;
    let all = converted.left_out + converted.converted;
    match (converted.left_out, converted.closed_paths) {
        (0, 0) => Ok(()),
        (0, paths) => Err(Failure::Run(format!("paths whose requests get 500: {paths}"))),
        (count, 0) => Err(Failure::Run(format!("{count} of {all} Ingresses are left out"))),
        (count, paths) => Err(Failure::Run(format!(
            "{count} of {all} Ingresses are left out; paths of others whose requests get 500: {paths}"
        ))),
    }
}

/// Where the requests of a comparison come from.
enum RequestOrigin<'r> {
    Log(&'r str),
    Configurations(Vec<String>),
    #[cfg(feature = "controller")]
    Ingresses(&'r str),
}

fn check(matches: &ArgMatches, old: &str, new: &str, requests: &RequestOrigin<'_>) -> Result<(), Failure> {
    let (old, new) =
        (Server::parse(old).map_err(Failure::Usage)?, Server::parse(new).map_err(Failure::Usage)?);
    let text = |name: &str| matches.get_one::<String>(name);
    let mut bounds = Bounds::default();
    if let Some(count) = text("requests") {
        let count =
            value::number(count).map_err(|message| Failure::Usage(format!("--requests: {message}")))?;
        bounds.requests_max = count;
    }
    let host = text("host").cloned().unwrap_or_else(|| old.host());
    let mut set = Vec::new();
    let asked = match requests {
        RequestOrigin::Log(log) => of_log(log, &host)?,
        RequestOrigin::Configurations(files) => {
            let vocabulary = of_configurations(files, bounds.requests_max)?;
            set = vocabulary.set_fields().to_vec();
            vocabulary.requests(&host, bounds.requests_max)
        }
        #[cfg(feature = "controller")]
        RequestOrigin::Ingresses(from) => of_ingresses(from, &host)?,
    };
    let mut fields: Vec<String> = FIELDS.iter().map(|name| (*name).to_owned()).collect();
    for name in words(matches, "field").into_iter().map(|name| name.to_lowercase()).chain(set) {
        if !fields.contains(&name) {
            fields.push(name);
        }
    }
    let compared = compare(&old, &new, asked, &fields, &bounds);
    print(&report(&compared))?;
    match (compared.asked, compared.differences.len()) {
        (0, _) => Err(Failure::Run("there are no requests to compare".to_owned())),
        (_, 0) => Ok(()),
        (asked, count) => Err(Failure::Run(format!("{count} of {asked} requests got different responses"))),
    }
}

/// The requests of nginx configurations and site files.
fn of_configurations(files: &[String], count_max: usize) -> Result<Vocabulary, Failure> {
    let mut vocabulary = Vocabulary::default();
    for file in files {
        let path = Path::new(file);
        let Err(mistake) = add_requests(path, count_max, &mut vocabulary) else { continue };
        match nginx::read(path) {
            Ok(directives) if directives.iter().any(|directive| directive.name == "http") => {
                vocabulary.add_nginx(&directives);
            }
            _ => return Err(Failure::Usage(mistake)),
        }
    }
    Ok(vocabulary)
}

/// The requests of an access log. Other lines are skipped.
fn of_log(path: &str, host: &str) -> Result<Vec<Ask>, Failure> {
    let failure = |error: std::io::Error| Failure::Usage(format!("cannot read `{path}`: {error}"));
    let mut log = BufReader::new(File::open(path).map_err(failure)?.take(LOG_BYTES_MAX));
    let mut found = std::collections::HashSet::new();
    let mut asks = Vec::new();
    loop {
        let mut bytes = Vec::new();
        if (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).map_err(failure)? == 0 {
            return Ok(asks);
        }
        let Some(line) = line(&String::from_utf8_lossy(&bytes)) else { continue };
        let host = line.host.unwrap_or_else(|| host.to_owned());
        let ask = Ask { method: line.method, host, target: line.target, fields: Vec::new() };
        // A day's log repeats few requests many times.
        if found.insert(ask.clone()) {
            asks.push(ask);
        }
    }
}

/// Why responses differ on purpose.
const POLICIES: &[(Policy, &str)] = &[
    (Policy::HiddenFile, "files with such a name are not served; see hide in the site file"),
    (Policy::FolderWithoutIndex, "a folder without an index gets 404, in nginx 403"),
    (Policy::ForwardedField, "such fields of clients that are no trusted proxies do not reach applications"),
];

fn report(compared: &Compared) -> String {
    let mut text = String::new();
    for difference in &compared.differences {
        let ask = &difference.ask;
        let fields: String = ask.fields.iter().map(|(name, value)| format!("  {name}: {value}")).collect();
        text.push_str(&format!("{} http://{}{}{}\n", ask.method, ask.host, ask.target, shown(&fields)));
        for (name, one, other) in &difference.what {
            text.push_str(&format!("  {name:<16} {}  →  {}\n", shown(one), shown(other)));
        }
    }
    let Compared { asked, differences, policies, unsafe_count, left_count } = compared;
    let same = asked - differences.len() - policies.len();
    text.push_str(&format!(
        "{asked} requests: {same} with equal responses, {} with different ones\n",
        differences.len()
    ));
    for (policy, why) in POLICIES {
        let mut asks = policies.iter().filter(|(_, this)| this == policy).map(|(ask, _)| ask);
        if let Some(first) = asks.next() {
            let (count, target) = (1 + asks.count(), shown(&first.target));
            text.push_str(&format!("{count} differ on purpose, such as {target}: {why}\n"));
        }
    }
    if *unsafe_count > 0 {
        text.push_str(&format!("{unsafe_count} not sent, because their methods may change something\n"));
    }
    if *left_count > 0 {
        text.push_str(&format!("{left_count} more not sent; see --requests\n"));
    }
    text
}

/// Removes control characters from text of a server.
fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
}
