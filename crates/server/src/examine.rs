//! What only this machine can tell of a plan, without changing anything: its folders, certificates, addresses and user, and the names of
//! its upstreams.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flatout_engine::tls::{Acceptor, ServerPlan};
use flatout_engine::{Address as ListenAddress, Listen};
use flatout_lane::process;
use flatout_observe::log::{StandardStream, SyslogTarget};
use flatout_proxy::{Address, SourcePlace};

use crate::plan::Plan;
use crate::start::{cannot_read, missing_folders};

/// How long all names may take together: the system's resolver waits longer for servers that do not respond.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);

/// Names that are looked up.
const LOOKUPS_MAX: usize = 64;

/// Something that this machine lacks.
pub enum Lack {
    /// The folder of this index, and why it cannot be served.
    Folder(usize, String),
    /// A certificate, and why it cannot be used.
    Certificate(String),
    /// The setting with this name and value, and why a server could not start with it.
    Setting(&'static str, String, String),
    /// A server of the upstream with this index, whose name has no address; requests to it get 502 or 504 until it has.
    Name(usize, String),
}

/// Finds everything that this machine lacks. The plan may have mistakes.
pub fn examine(plan: &Plan) -> Vec<Lack> {
    let folders = missing_folders(&plan.sites).map(|(at, failure)| Lack::Folder(at, failure.to_string()));
    folders
        .chain(unreadable_folders(plan))
        .chain(certificates(plan))
        .chain(settings(plan))
        .chain(names(plan))
        .collect()
}

/// Folders that exist, but that the user of the server cannot read. Known only to root, who can become this user.
fn unreadable_folders(plan: &Plan) -> Vec<Lack> {
    let Some(user) = &plan.server.user else { return Vec::new() };
    let folders = plan.sites.folders.iter().map(|folder| &folder.root);
    let read = || folders.map(std::fs::read_dir).map(|found| found.err()).collect::<Vec<_>>();
    let Ok(faults) = process::as_user(user, read) else { return Vec::new() };
    let of_rights = faults.into_iter().enumerate().filter_map(|(at, fault)| {
        let fault = fault.filter(|fault| fault.kind() == ErrorKind::PermissionDenied)?;
        let root = plan.sites.folders.get(at)?.root.display().to_string();
        Some(Lack::Folder(at, cannot_read(&root, Some(user), &fault).to_string()))
    });
    of_rights.collect()
}

/// The user, addresses and files of settings that a server needs to start.
fn settings(plan: &Plan) -> Vec<Lack> {
    let mut found = Vec::new();
    let mut lack = |name, value: String, why: Result<(), String>| {
        found.extend(why.err().map(|why| Lack::Setting(name, value, why)));
    };
    if let Some(user) = &plan.server.user {
        let why = process::user_ids(user).map_err(|error| format!("the user `{user}`: {error}"));
        lack("user", user.clone(), why.map(drop));
    }
    let of_sites = plan.site_listen.iter().flatten().map(|own| &own.listen);
    for Listen { address, is_plain, .. } in plan.server.listen.iter().chain(of_sites) {
        let name = if *is_plain { "listen-plain" } else { "listen" };
        lack(name, address.to_string(), bindable(address));
    }
    for address in &plan.admin {
        lack("admin", address.to_string(), bindable(address));
    }
    for log in plan.logs.iter().filter(|log| is_file(&log.path)) {
        lack("access-log", log.path.display().to_string(), has_folder(&log.path));
    }
    for upstream in &plan.sites.upstreams {
        for source in &upstream.sources {
            let SourcePlace::File(path) = &source.place else { continue };
            let why =
                source.read(&plan.sites.resolver, upstream).map_err(|why| format!("{}: {why}", source.place));
            lack("servers-file", path.display().to_string(), why.map(drop));
        }
    }
    let servers = plan.sites.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let mut authorities: Vec<&PathBuf> =
        servers.filter_map(|server| server.tls.as_ref()?.authorities.as_ref()).collect();
    authorities.sort();
    authorities.dedup();
    for file in authorities {
        let opened = std::fs::File::open(file).map_err(|error| format!("`{}`: {error}", file.display()));
        lack("upstream-ca", file.display().to_string(), opened.map(drop));
    }
    found
}

/// Whether a log is a file, and not a system log or a stream of the process.
fn is_file(path: &Path) -> bool {
    let is_syslog = path.to_str().is_some_and(|name| SyslogTarget::parse(name).is_some());
    !is_syslog && StandardStream::of(path).is_none()
}

/// Whether an address can be bound, except that another process may use it.
fn bindable(address: &ListenAddress) -> Result<(), String> {
    match address {
        ListenAddress::Unix(path) => has_folder(path),
        ListenAddress::Tcp(address) => is_of_this_machine(address.ip()),
    }
}

fn is_of_this_machine(ip: IpAddr) -> Result<(), String> {
    match TcpListener::bind((ip, 0)) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            Err(format!("no network interface of this machine has {ip}: `ip address` lists all"))
        }
        _ => Ok(()),
    }
}

fn has_folder(path: &Path) -> Result<(), String> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) if !folder.is_dir() => Err(format!("`{}` is not a folder", folder.display())),
        _ => Ok(()),
    }
}

/// Certificates that cannot be read: each is tried alone, so that all are found.
fn certificates(plan: &Plan) -> Vec<Lack> {
    let of_sites = plan.site_secure.iter().flatten().flat_map(|profile| &profile.identities);
    let mut found: Vec<Lack> = Vec::new();
    for identity in plan.secure.identities.iter().chain(of_sites) {
        let alone = ServerPlan { identities: vec![identity.clone()], ..ServerPlan::default() };
        found.extend(Acceptor::open(alone).err().map(Lack::Certificate));
    }
    if found.is_empty() && plan.is_secure() {
        let tls = plan.tls().map_err(|fault| fault.to_string());
        let opened = tls.and_then(|(secure, selector)| Acceptor::open_with(secure, selector));
        found.extend(opened.err().map(Lack::Certificate));
    }
    found
}

/// Names of upstream servers without an address.
fn names(plan: &Plan) -> Vec<Lack> {
    let named = plan.sites.upstreams.iter().enumerate().flat_map(|(at, upstream)| {
        upstream.servers.iter().filter_map(move |server| match &server.address {
            Address::Name(name, port) => Some((at, name.clone(), *port)),
            _ => None,
        })
    });
    let (results, found) = mpsc::channel();
    let mut waiting = Vec::new();
    for (at, name, port) in named.take(LOOKUPS_MAX) {
        let (results, asked) = (results.clone(), name.clone());
        let lookup = move || {
            let error = (asked.as_str(), port).to_socket_addrs().err();
            let _ = results.send((at, asked, error.map(|error| error.to_string())));
        };
        if std::thread::Builder::new().spawn(lookup).is_ok() {
            waiting.push((at, name));
        }
    }
    drop(results);
    let (begun, mut lacks) = (Instant::now(), Vec::new());
    while !waiting.is_empty() {
        let left = LOOKUP_TIME_MAX.saturating_sub(begun.elapsed());
        let Ok((at, name, error)) = found.recv_timeout(left) else { break };
        waiting.retain(|(other, waits)| (*other, waits) != (at, &name));
        lacks.extend(error.map(|error| (at, format!("`{name}` has no address: {error}"))));
    }
    let seconds = LOOKUP_TIME_MAX.as_secs();
    let silent =
        |(at, name): (usize, String)| (at, format!("`{name}`: no name server responded within {seconds} s"));
    lacks.extend(waiting.into_iter().map(silent));
    for (at, upstream) in plan.sites.upstreams.iter().enumerate() {
        let services = upstream.sources.iter().filter(|it| matches!(it.place, SourcePlace::Service { .. }));
        for source in services {
            let found = source.read(&plan.sites.resolver, upstream);
            lacks.extend(found.err().map(|why| (at, format!("{}: {why}", source.place))));
        }
    }
    lacks.sort();
    lacks.dedup();
    lacks.into_iter().map(|(at, why)| Lack::Name(at, why)).collect()
}
