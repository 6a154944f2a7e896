//! What a server reports when it starts, in at most six lines: a table on a terminal, log lines elsewhere. The last line
//! has its addresses; programs wait for it.

use std::io::{IsTerminal, Write};

use flatout_engine::{Address, Severity, report, say};
use flatout_files::Site;
use flatout_observe::log::{StandardStream, SyslogTarget};
use flatout_report::unit::{bytes, count};
use flatout_server::Welcome;

use super::TO;
use super::notes::{HSTS_USELESS, is_hsts_useless};
use crate::command::VERSION;

/// Names of sites, upstreams and folders that are shown.
const NAMES_MAX: usize = 5;

/// Reports on stderr what is served, and where.
pub(crate) fn welcome(started: &Welcome<'_>) {
    let details = details(started);
    if is_hsts_useless(started.plan) {
        report(Severity::Warning, format_args!("{HSTS_USELESS}"));
    }
    if !std::io::stderr().is_terminal() {
        for (name, value) in &details {
            say(format_args!("{name}: {value}"));
        }
        return say(format_args!("listening on {}", started.urls.join(" ")));
    }
    let urls = started.addresses.iter().zip(started.urls).map(|(address, url)| shown(address, url));
    let urls: Vec<String> = urls.collect();
    let mut lines = vec![("URL", listed(urls.into_iter()))];
    lines.extend(details);
    lines.push(("stop", format!("Ctrl-C; {} workers", started.workers_count)));
    let text: String = lines.iter().map(|(name, value)| format!("  {name:<8} {value}\n")).collect();
    // A closed terminal is no reason not to serve.
    let _ = write!(std::io::stderr(), "flatout {VERSION}\n{text}");
}

/// What is served, the admin page, the state folder, and how to see requests.
fn details(started: &Welcome<'_>) -> Vec<(&'static str, String)> {
    let mut lines = vec![("serves", served(started))];
    if !started.admin.is_empty() {
        lines.push(("admin", listed(started.admin.iter().map(url))));
    }
    if let Some(state) = &started.plan.state {
        lines.push(("state", state.folder().display().to_string()));
    }
    let logs = &started.plan.logs;
    let name = |path: &std::path::Path| match StandardStream::of(path) {
        Some(StandardStream::Stdout) => "standard output".to_owned(),
        Some(StandardStream::Stderr) => "standard error".to_owned(),
        None => match path.to_str().filter(|name| SyslogTarget::parse(name).is_some()) {
            Some(name) => name.to_owned(),
            None => absolute(path),
        },
    };
    lines.push(match logs.is_empty() {
        true => ("requests", "not logged; --access-log - shows them".to_owned()),
        false => ("requests", format!("logged to {}", listed(logs.iter().map(|log| name(&log.path))))),
    });
    lines
}

fn served(started: &Welcome<'_>) -> String {
    let Welcome { plan, sites, .. } = started;
    let mut parts = Vec::new();
    let names: Vec<String> =
        plan.sites.sites.iter().map(|site| site.name.clone()).filter(|name| name != "*").collect();
    if !names.is_empty() {
        let noun = if names.len() == 1 { "site" } else { "sites" };
        parts.push(format!("{noun} {}", listed(names.into_iter())));
    }
    let upstreams = plan.sites.upstreams.iter();
    let upstreams = upstreams.map(|upstream| match &upstream.servers[..] {
        [] if !upstream.sources.is_empty() => {
            let places = listed(upstream.sources.iter().map(|source| source.place.to_string()));
            if places == upstream.name || upstream.name == TO {
                places
            } else {
                format!("{} ({places})", upstream.name)
            }
        }
        // That of --to has no name of its own.
        [server] if upstream.name == TO => server.address.to_string(),
        [server] => format!("{} ({})", upstream.name, server.address),
        servers => format!("{} ({} servers)", upstream.name, servers.len()),
    });
    let upstreams: Vec<String> = upstreams.collect();
    if !upstreams.is_empty() {
        parts.push(format!("upstream {}", listed(upstreams.into_iter())));
    }
    if !sites.folders().is_empty() {
        let sum = |of: fn(&Site) -> u64| sites.folders().iter().map(of).sum::<u64>();
        let (files, memory) = (sum(|site| site.files_count() as u64), sum(Site::memory_bytes));
        let noun = if files == 1 { "file" } else { "files" };
        let folders = listed(plan.sites.folders.iter().map(|folder| absolute(&folder.root)));
        parts.push(format!("folder {folders} ({} {noun}, {} in memory)", count(files), bytes(memory as f64)));
    }
    if parts.is_empty() {
        parts.push("the site file's routes".to_owned());
    }
    parts.join("; ")
}

fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut text = names.take(NAMES_MAX).collect::<Vec<String>>().join(" ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// An address for a browser on this machine, with its scheme.
fn shown(address: &Address, secure: &str) -> String {
    match secure.starts_with("https:") {
        true => url(address).replacen("http:", "https:", 1).replacen(
            "https://localhost:443/",
            "https://localhost/",
            1,
        ),
        false => url(address),
    }
}

/// The URL for a browser on this machine.
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
