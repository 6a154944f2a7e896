//! Server names, looked up again whenever their TTL expires.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flatout_engine::{bug, say};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;

use hickory_resolver::proto::rr::{RData, Record};

use crate::control::lookups::FoundName;
use crate::server::LiveServer;
use crate::sources::service::ServiceRecord;

/// The minimum and the maximum time that an address is used, whatever its TTL.
pub(crate) const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(3600);

/// How soon a name that did not resolve is looked up again.
const RETRY: Duration = Duration::from_secs(2);

/// Which DNS servers are used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resolver {
    /// `/etc/hosts`, then the servers in `/etc/resolv.conf`.
    #[default]
    System,
    /// These servers.
    Servers(Vec<SocketAddr>),
}

/// The names of this machine, which are looked up before DNS is asked.
const HOSTS: &str = "/etc/hosts";

/// How long an address from that file is used before the file is read again, and how much of the file is read.
const HOSTS_TIME: Duration = Duration::from_secs(10);
const HOSTS_BYTES_MAX: u64 = 4 << 20;

/// Looks names up.
pub(crate) struct Names {
    resolver: TokioResolver,
    /// Whether the names in [`HOSTS`] come first.
    has_hosts: bool,
    has_ipv6: bool,
}

impl Names {
    /// # Errors
    /// The system's configuration cannot be read.
    pub(crate) fn new(resolver: &Resolver) -> io::Result<Names> {
        Names::with(resolver, true, true)
    }

    /// Asks a name server each time: who calls it follows the TTL.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub(crate) fn uncached(resolver: &Resolver) -> io::Result<Names> {
        Names::with(resolver, false, true)
    }

    /// # Errors
    /// The system's configuration cannot be read.
    pub(crate) fn with(resolver: &Resolver, is_cached: bool, has_ipv6: bool) -> io::Result<Names> {
        let built = match resolver {
            Resolver::System => TokioResolver::builder_tokio(),
            Resolver::Servers(servers) => {
                let server = |address: &SocketAddr| {
                    let port = |mut connection: ConnectionConfig| {
                        connection.port = address.port();
                        connection
                    };
                    let connections = vec![port(ConnectionConfig::udp()), port(ConnectionConfig::tcp())];
                    NameServerConfig::new(address.ip(), true, connections)
                };
                let config = ResolverConfig::from_name_servers(servers.iter().map(server).collect());
                Ok(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()))
            }
        };
        let built = built.and_then(|mut builder| {
            if !is_cached {
                builder.options_mut().cache_size = 0;
            }
            if !has_ipv6 {
                builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4Only;
            }
            builder.build()
        });
        let has_hosts = *resolver == Resolver::System;
        Ok(Names { resolver: built.map_err(io::Error::other)?, has_hosts, has_ipv6 })
    }

    /// The addresses of a name, and for how long they are valid.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn addresses(&self, name: &str) -> Result<FoundName, String> {
        let mut own = if self.has_hosts { own_addresses(name) } else { Vec::new() };
        own.retain(|ip| self.has_ipv6 || ip.is_ipv4());
        if !own.is_empty() {
            // DNS is not asked for the other address family: that may take long.
            return Ok(FoundName { addresses: own, valid_time: HOSTS_TIME });
        }
        let found = self.resolver.lookup_ip(name).await.map_err(|error| error.to_string())?;
        let left = found.valid_until().saturating_duration_since(std::time::Instant::now());
        Ok(FoundName { addresses: found.iter().collect(), valid_time: left.clamp(TTL_MIN, TTL_MAX) })
    }

    /// The SRV records of a service, and for how long they are valid.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn services(&self, name: &str) -> Result<(Vec<ServiceRecord>, Duration), String> {
        let found = self.resolver.srv_lookup(name).await.map_err(|error| match &error {
            error if error.is_nx_domain() => "the name does not exist (NXDOMAIN)".to_owned(),
            error if error.is_no_records_found() => "it has no SRV records".to_owned(),
            error => error.to_string(),
        })?;
        let record = |record: &Record| match &record.data {
            RData::SRV(of) => Some(ServiceRecord {
                priority: of.priority,
                target: of.target.to_string(),
                port: of.port,
                weight: of.weight,
            }),
            _ => None,
        };
        let left = found.valid_until().saturating_duration_since(std::time::Instant::now());
        Ok((found.answers().iter().filter_map(record).collect(), left.clamp(TTL_MIN, TTL_MAX)))
    }

    /// Keeps the address of a server up to date for ever; `resolved` is called after the first lookup.
    pub(crate) async fn follow(&self, server: &LiveServer, resolved: impl FnOnce()) {
        let Some((name, port)) = server.dns_name() else {
            bug!("{} is looked up, which is no name", server.name);
            return;
        };
        let mut resolved = Some(resolved);
        let mut was_found = true;
        loop {
            let found = self.addresses(name).await;
            let pause = match &found {
                Ok(found) => {
                    server.found_at(found.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect());
                    found.valid_time
                }
                // The previous addresses stay in use.
                Err(error) => {
                    if was_found {
                        say(format_args!("upstream server {name}: not found: {error}"));
                    }
                    RETRY
                }
            };
            was_found = found.is_ok();
            if let Some(resolved) = resolved.take() {
                resolved();
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// The addresses of a name in [`HOSTS`].
fn own_addresses(name: &str) -> Vec<IpAddr> {
    let mut text = String::new();
    let read = File::open(HOSTS).and_then(|file| file.take(HOSTS_BYTES_MAX).read_to_string(&mut text));
    read.map(|_| addresses_in(&text, name)).unwrap_or_default()
}

/// The addresses of a name in the text of a hosts file.
fn addresses_in(hosts: &str, name: &str) -> Vec<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut found = Vec::new();
    for line in hosts.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(ip)) = words.next().map(str::parse::<IpAddr>) else { continue };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !found.contains(&ip) {
            found.push(ip);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_machine_have_their_addresses() {
        let hosts = "# a comment\n127.0.0.1 localhost\n::1 localhost ip6-localhost\n10.8.0.1\tapp APP.example # other\n\
                     300.1.1.1 app\n#10.0.0.9 app\n10.8.0.1 app\n10.8.0.2 app\nfe80::1%eth0 app\n10.0.0.3\n";
        let addresses =
            |name: &str| addresses_in(hosts, name).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(addresses("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(addresses("app"), ["10.8.0.1", "10.8.0.2"]);
        assert_eq!(addresses("app.Example."), ["10.8.0.1"]);
        assert!(addresses("other").is_empty() && addresses("").is_empty());
    }
}
