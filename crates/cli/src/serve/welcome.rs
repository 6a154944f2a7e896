//! The welcome message of a server on a terminal.

use std::io::Write;

use flatout_engine::Address;
use flatout_files::Site;
use flatout_report::unit::{bytes, count};
use flatout_server::Welcome;

use crate::command::VERSION;

/// Prints it to stderr.
pub(super) fn welcome(started: &Welcome<'_>) {
    let Welcome { plan, sites, workers_count, addresses, urls, admin } = started;
    let shown = |(address, secure): (&Address, &String)| match secure.starts_with("https:") {
        true => url(address).replacen("http:", "https:", 1).replacen(
            "https://localhost:443/",
            "https://localhost/",
            1,
        ),
        false => url(address),
    };
    let urls = addresses.iter().zip(*urls).map(|both| ("URL", shown(both)));
    let mut lines: Vec<(&str, String)> =
        urls.chain(admin.iter().map(|address| ("admin", url(address)))).collect();
    let names: Vec<&str> =
        plan.sites.sites.iter().map(|site| site.name.as_str()).filter(|name| *name != "*").collect();
    if !names.is_empty() {
        lines.push(("sites", names.join(" ")));
    }
    for upstream in &plan.sites.upstreams {
        lines.push(("upstream", format!("{}, {} servers", upstream.name, upstream.servers.len())));
    }
    for folder in &plan.sites.folders {
        let path = std::path::absolute(&folder.root).unwrap_or_else(|_| folder.root.clone());
        lines.push(("folder", path.display().to_string()));
    }
    let sum = |of: fn(&Site) -> u64| sites.folders().iter().map(of).sum::<u64>();
    if !sites.folders().is_empty() {
        let (files, memory) = (sum(|site| site.files_count() as u64), sum(Site::memory_bytes));
        lines.push(("files", format!("{}, {} in memory", count(files), bytes(memory as f64))));
    }
    lines.push(("workers", workers_count.to_string()));
    lines.push(("stop", "Ctrl-C".to_owned()));
    let text: String = lines.iter().map(|(name, value)| format!("  {name:<8} {value}\n")).collect();
    // A closed terminal is no reason not to serve.
    let _ = write!(std::io::stderr(), "flatout {VERSION}\n{text}");
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
