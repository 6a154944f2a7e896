//! What only this machine can tell of a plan, without changing anything: its folders, certificates and the names of its upstreams.

use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flatout_engine::tls::{Acceptor, ServerPlan};
use flatout_proxy::Address;

use crate::plan::Plan;
use crate::start::missing_folders;

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
    /// A server of the upstream with this index, whose name has no address; requests to it get 502 or 504 until it has.
    Name(usize, String),
}

/// Finds everything that this machine lacks. The plan may have mistakes.
pub fn examine(plan: &Plan) -> Vec<Lack> {
    let folders = missing_folders(&plan.sites).map(|(at, failure)| Lack::Folder(at, failure.to_string()));
    folders.chain(certificates(plan)).chain(names(plan)).collect()
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
        let (secure, selector) = plan.tls();
        found.extend(Acceptor::open_with(secure, selector).err().map(Lack::Certificate));
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
    lacks.sort();
    lacks.dedup();
    lacks.into_iter().map(|(at, why)| Lack::Name(at, why)).collect()
}
