//! Sites: host names, listeners, certificates, and their routes.

use std::net::IpAddr;
use std::path::Path;

use flatout_engine::Address;
use flatout_site::plan::{Host, PassthroughShare, Site, TlsPassthrough};
use flatout_tls::{ClientCertificates, Identity, Profile};
use serde::{Deserialize, Serialize};

use super::names::{Indices, Names};
use super::route::RouteData;
use super::{FORMAT, SiteParts, check_file_name};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SiteData {
    pub(super) name: String,
    host: HostData,
    pub(super) listen: ListenData,
    /// The names of its certificates and their keys; none: it has no certificates of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificates: Option<Vec<[String; 2]>>,
    /// The name of the file with the CAs of clients, which need a certificate then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clients: Option<String>,
    /// Clients are asked for a certificate, and any is accepted.
    #[serde(default, skip_serializing_if = "is_false")]
    asks_clients: bool,
    /// The realm of its connections.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    realm: String,
    /// Its connections with TLS are passed on: the upstreams, with their shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passthrough: Option<Vec<ShareData>>,
    /// TLS ends here, and what is inside is passed on.
    #[serde(default, skip_serializing_if = "is_false")]
    ends_tls: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteData>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HostData {
    Exact(String),
    Below(String),
    Any,
}

/// A listener: the index of its address among the controller's, because each data plane has addresses of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenData {
    pub(super) address: usize,
    pub(super) port: u16,
    pub(super) is_plain: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareData {
    weight: u32,
    /// The name of the upstream; none: its connections are refused.
    upstream: Option<String>,
}

impl SiteData {
    pub(super) fn of(
        (site, listens, secure): SiteParts<'_>,
        addresses: &[IpAddr],
        names: Names<'_>,
        indices: &Indices,
    ) -> Result<SiteData, String> {
        let no_place =
            || format!("site {}: the format {FORMAT} has no place for all of its settings", site.name);
        let ([host], [listen]) = (&site.hosts[..], listens) else { return Err(no_place()) };
        let Address::Tcp(bind) = listen.listen.address else { return Err(no_place()) };
        let address = addresses.iter().position(|it| *it == bind.ip());
        let name = |path: &Path| path.file_name().map(|it| it.to_string_lossy().into_owned());
        let pair = |it: &Identity| Some([name(&it.certificate)?, name(&it.key)?]);
        let data = SiteData {
            name: site.name.clone(),
            host: match host {
                Host::Exact(name) => HostData::Exact(name.clone()),
                Host::Below(name) => HostData::Below(name.clone()),
                Host::Any => HostData::Any,
                Host::Pattern(_) | Host::Unnamed => return Err(no_place()),
            },
            listen: ListenData {
                address: address.ok_or_else(no_place)?,
                port: bind.port(),
                is_plain: listen.listen.is_plain,
            },
            certificates: secure.map(|it| it.identities.iter().filter_map(pair).collect()),
            clients: secure.and_then(|it| name(it.clients.as_ref()?.authorities.as_deref()?)),
            asks_clients: secure.is_some_and(|it| it.clients.as_ref().is_some_and(|it| it.takes_unknown)),
            realm: secure.map(|it| it.realm.clone()).unwrap_or_default(),
            ends_tls: site.tls_passthrough.as_ref().is_some_and(|it| it.ends_tls),
            passthrough: site.tls_passthrough.as_ref().map(|it| ShareData::of(it, names)),
            routes: site
                .routes
                .iter()
                .map(|route| RouteData::of(route, names, indices))
                .collect::<Result<_, _>>()?,
        };
        // What a data plane reads of it is the same, but for the numbers of listeners, which it sets.
        let folder = secure.and_then(|it| it.identities.first()?.certificate.parent());
        let bare = Site { listeners: Vec::new(), routes: Vec::new(), ..Site::clone(site) };
        let is_same =
            data.shell(indices)? == bare && data.profile(folder.unwrap_or(Path::new("")))?.as_ref() == secure;
        if is_same { Ok(data) } else { Err(no_place()) }
    }

    /// What no other site of a plan has.
    pub(super) fn key(&self) -> (ListenData, HostData) {
        (self.listen, self.host.clone())
    }

    pub(super) fn site(&self, indices: &Indices) -> Result<Site, String> {
        let routes = self.routes.iter().map(|it| it.route(indices)).collect::<Result<_, _>>()?;
        Ok(Site { routes, ..self.shell(indices)? })
    }

    /// The site without its routes.
    fn shell(&self, indices: &Indices) -> Result<Site, String> {
        let share = |it: &ShareData| {
            let upstream = it.upstream.as_deref().map(|name| indices.upstream(name)).transpose()?;
            Ok::<_, String>(PassthroughShare { weight: it.weight, upstream })
        };
        let shares = |list: &Vec<ShareData>| list.iter().map(share).collect::<Result<_, _>>();
        Ok(Site {
            name: self.name.clone(),
            hosts: vec![match &self.host {
                HostData::Exact(name) => Host::Exact(name.clone()),
                HostData::Below(name) => Host::Below(name.clone()),
                HostData::Any => Host::Any,
            }],
            tls_passthrough: self
                .passthrough
                .as_ref()
                .map(|list| shares(list).map(|shares| TlsPassthrough { shares, ends_tls: self.ends_tls }))
                .transpose()?,
            ..Site::default()
        })
    }

    pub(super) fn profile(&self, folder: &Path) -> Result<Option<Profile>, String> {
        let Some(pairs) = &self.certificates else { return Ok(None) };
        let mut identities = Vec::new();
        for [certificate, key] in pairs {
            check_file_name(certificate)?;
            check_file_name(key)?;
            identities.push(Identity::new(folder.join(certificate), folder.join(key)));
        }
        let clients = match &self.clients {
            Some(file) => {
                check_file_name(file)?;
                let authorities = Some(folder.join(file));
                Some(ClientCertificates { authorities, required: true, ..ClientCertificates::default() })
            }
            None => self
                .asks_clients
                .then(|| ClientCertificates { takes_unknown: true, ..ClientCertificates::default() }),
        };
        Ok(Some(Profile {
            identities,
            clients,
            realm: self.realm.clone(),
            is_opaque: self.ends_tls,
            ..Profile::default()
        }))
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ShareData {
    fn of(passthrough: &TlsPassthrough, names: Names<'_>) -> Vec<ShareData> {
        let name = |at: usize| names.upstream(at).map(str::to_owned);
        let share =
            |it: &PassthroughShare| ShareData { weight: it.weight, upstream: it.upstream.and_then(name) };
        passthrough.shares.iter().map(share).collect()
    }
}
