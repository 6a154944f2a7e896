//! Upstreams, their servers, and rates.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use flatout_proxy::{Address, Balance, Protocol, Server, Tls, Upstream};
use flatout_site::plan::{Limited, Rate};
use flatout_tls::{Identity, SubjectName};
use serde::{Deserialize, Serialize};

use super::{FORMAT, check_file_name, milliseconds};

/// An upstream. What is not set is as usual.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpstreamData {
    pub(super) name: String,
    pub(super) servers: Vec<ServerData>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    h2c_streams_max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sticky_cookie: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_ms: Option<u64>,
    read_ms: u64,
    connect_ms: u64,
    send_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retry_statuses: Vec<u16>,
    retries_max: u32,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerData {
    at: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<ServerTlsData>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTlsData {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The name of the file with trusted CA certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authorities: Option<String>,
    verify: bool,
    /// Host names of which its certificate must have one, or one of the URIs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    uris: Vec<String>,
    /// The names of the files with the certificate that it is shown, and its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<[String; 2]>,
}

/// A rate of requests of each client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateData {
    pub(super) name: String,
    ipv6_bits: u8,
    requests: u32,
    window_ms: u64,
    keys_max: usize,
}

impl UpstreamData {
    pub(super) fn of(upstream: &Upstream) -> Result<UpstreamData, String> {
        let no_place = || {
            format!("upstream {}: the format {FORMAT} has no place for all of its settings", upstream.name)
        };
        let data = UpstreamData {
            name: upstream.name.clone(),
            servers: upstream.servers.iter().map(ServerData::of).collect::<Result<_, _>>()?,
            h2c_streams_max: match upstream.protocol {
                Protocol::H2c { streams_max } => Some(streams_max),
                _ => None,
            },
            sticky_cookie: match &upstream.balance {
                Balance::Sticky { cookie } => Some(cookie.clone()),
                _ => None,
            },
            request_ms: upstream.request_time_max.map(milliseconds),
            read_ms: milliseconds(upstream.read_time_max),
            connect_ms: milliseconds(upstream.connect_time_max),
            send_ms: milliseconds(upstream.send_time_max),
            retry_statuses: upstream.retry_on.statuses.clone(),
            retries_max: upstream.retries_max,
        };
        // Its servers are checked above.
        if data.upstream(Path::new(""))?.is_alike(upstream) { Ok(data) } else { Err(no_place()) }
    }

    pub(super) fn upstream(&self, folder: &Path) -> Result<Upstream, String> {
        let servers = self.servers.iter().map(|it| it.server(folder)).collect::<Result<_, _>>()?;
        let mut upstream = Upstream::new(&self.name, servers);
        if let Some(streams_max) = self.h2c_streams_max {
            upstream.protocol = Protocol::H2c { streams_max };
        }
        if let Some(cookie) = &self.sticky_cookie {
            upstream.balance = Balance::Sticky { cookie: cookie.clone() };
        }
        upstream.request_time_max = self.request_ms.map(Duration::from_millis);
        upstream.read_time_max = Duration::from_millis(self.read_ms);
        upstream.connect_time_max = Duration::from_millis(self.connect_ms);
        upstream.send_time_max = Duration::from_millis(self.send_ms);
        upstream.retry_on.statuses.clone_from(&self.retry_statuses);
        upstream.retries_max = self.retries_max;
        Ok(upstream)
    }
}

impl ServerData {
    pub(crate) fn of(server: &Server) -> Result<ServerData, String> {
        let no_place =
            || format!("server {}: the format {FORMAT} has no place for all of its settings", server.address);
        let Address::Socket(at) = server.address else { return Err(no_place()) };
        let data = ServerData { at, tls: server.tls.as_ref().map(ServerTlsData::of) };
        let folder = server.tls.as_ref().and_then(|tls| {
            let certificate = tls.certificate.as_ref().map(|it| &it.certificate);
            tls.authorities.as_ref().or(certificate)?.parent()
        });
        match data.server(folder.unwrap_or(Path::new("")))? == *server {
            true => Ok(data),
            false => Err(no_place()),
        }
    }

    pub(crate) fn server(&self, folder: &Path) -> Result<Server, String> {
        let mut server = Server::new(Address::Socket(self.at));
        server.tls = self.tls.as_ref().map(|tls| tls.tls(folder)).transpose()?;
        Ok(server)
    }
}

impl ServerTlsData {
    fn of(tls: &Tls) -> ServerTlsData {
        let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let (mut hosts, mut uris) = (Vec::new(), Vec::new());
        for name in &tls.alternatives {
            match name {
                SubjectName::Dns(host) => hosts.push(host.clone()),
                SubjectName::Uri(uri) => uris.push(uri.clone()),
            }
        }
        ServerTlsData {
            name: tls.name.clone(),
            authorities: tls.authorities.as_deref().and_then(file),
            verify: tls.verify,
            hosts,
            uris,
            certificate: tls
                .certificate
                .as_ref()
                .and_then(|Identity { certificate, key, .. }| Some([file(certificate)?, file(key)?])),
        }
    }

    fn tls(&self, folder: &Path) -> Result<Tls, String> {
        let path = |file: &String| check_file_name(file).map(|()| folder.join(file));
        let hosts = self.hosts.iter().cloned().map(SubjectName::Dns);
        let uris = self.uris.iter().cloned().map(SubjectName::Uri);
        let identity =
            |[certificate, key]: &[String; 2]| Ok::<_, String>(Identity::new(path(certificate)?, path(key)?));
        Ok(Tls {
            name: self.name.clone(),
            alternatives: hosts.chain(uris).collect(),
            authorities: self.authorities.as_ref().map(path).transpose()?,
            verify: self.verify,
            certificate: self.certificate.as_ref().map(identity).transpose()?,
            ..Tls::default()
        })
    }
}

impl RateData {
    pub(super) fn of(rate: &Rate) -> Result<RateData, String> {
        let no_place =
            || format!("rate {}: the format {FORMAT} has no place for all of its settings", rate.name);
        let Limited::Client { ipv6_bits } = rate.key else { return Err(no_place()) };
        let data = RateData {
            name: rate.name.clone(),
            ipv6_bits,
            requests: rate.requests,
            window_ms: milliseconds(rate.window),
            keys_max: rate.keys_max,
        };
        if data.rate() == *rate { Ok(data) } else { Err(no_place()) }
    }

    pub(super) fn rate(&self) -> Rate {
        Rate {
            name: self.name.clone(),
            key: Limited::Client { ipv6_bits: self.ipv6_bits },
            requests: self.requests,
            window: Duration::from_millis(self.window_ms),
            keys_max: self.keys_max,
        }
    }
}
