//! Server names, looked up again whenever their TTL expires.

use std::io;
use std::net::SocketAddr;
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
const TTL_MIN: Duration = Duration::from_secs(1);
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

/// Looks names up.
pub(crate) struct Names(TokioResolver);

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
        Ok(Names(built.map_err(io::Error::other)?))
    }

    /// The addresses of a name, and for how long they are valid.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn addresses(&self, name: &str) -> Result<FoundName, String> {
        let found = self.0.lookup_ip(name).await.map_err(|error| error.to_string())?;
        let left = found.valid_until().saturating_duration_since(std::time::Instant::now());
        Ok(FoundName { addresses: found.iter().collect(), valid_time: left.clamp(TTL_MIN, TTL_MAX) })
    }

    /// The SRV records of a service, and for how long they are valid.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) async fn services(&self, name: &str) -> Result<(Vec<ServiceRecord>, Duration), String> {
        let found = self.0.srv_lookup(name).await.map_err(|error| match &error {
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
            let found = self.0.lookup_ip(name).await;
            let pause = match &found {
                Ok(found) => {
                    server.found_at(found.iter().map(|ip| SocketAddr::new(ip, port)).collect());
                    let left = found.valid_until().saturating_duration_since(std::time::Instant::now());
                    left.clamp(TTL_MIN, TTL_MAX)
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
