//! A plan as data: what travels from a controller to its data planes, and what they keep on disk.
//!
//! ```text
//! Translation ── PlanData::of ──> PlanData ── JSON ──> PlanData ── translation ──> Translation
//!                (controller)                                       (data plane, with its own addresses and folder)
//! ```
//!
//! Its types are not those of the server: they change only with [`FORMAT`]. It has what a translation sets, and nothing else; a setting
//! that it has no place for is an error of the controller, and never lost.

mod route;
#[cfg(test)]
pub(crate) mod tests;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_engine::{Address, Listen};
use flatout_proxy::Server;
use flatout_server::SiteListen;
use flatout_site::plan::{self as site_plan, Host, PassthroughShare, Site, TlsPassthrough};
use flatout_tls::{Identity, Profile};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::route::RouteData;
pub(crate) use self::upstream::ServerData;
use self::upstream::{RateData, UpstreamData};
use crate::translate::{Files, Translation, health_site, number};

/// The version of the format. A data plane refuses any other one, and so does one that finds it on its disk.
pub const FORMAT: u32 = 1;

/// Sites, upstreams and rates of a plan; routes of a site; servers of an upstream.
const PARTS_MAX: usize = 1_000_000;

/// Bytes in the name of a certificate's file.
const FILE_NAME_BYTES_MAX: usize = 80;

/// The servers of upstreams, by name.
pub(crate) type ServersByUpstream = BTreeMap<String, Vec<Server>>;

/// A plan as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanData {
    format: u32,
    sites: Vec<SiteData>,
    upstreams: Vec<UpstreamData>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rates: Vec<RateData>,
    /// Certificates and keys, in Base64, by the names of their files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, String>,
}

/// What a data plane adds to a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPlaneSettings {
    /// The addresses for gateways, in the order of the controller's.
    pub addresses: Vec<IpAddr>,
    /// Where `/healthz` and `/readyz` are served.
    pub health: Option<SocketAddr>,
    /// The folder for certificates and for the plan.
    pub folder: PathBuf,
    /// Addresses that the machine refuses for now.
    pub refused: BTreeSet<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteData {
    name: String,
    host: HostData,
    listen: ListenData,
    /// The names of its certificates and their keys; none: it has no certificates of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificates: Option<Vec<[String; 2]>>,
    /// Its connections with TLS are passed on: the upstreams, with their shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passthrough: Option<Vec<ShareData>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteData>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HostData {
    Exact(String),
    Below(String),
    Any,
}

/// A listener: the index of its address among the controller's, because each data plane has addresses of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenData {
    address: usize,
    port: u16,
    is_plain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareData {
    weight: u32,
    upstream: Option<usize>,
}

impl PlanData {
    /// A plan that serves nothing.
    pub(crate) fn empty() -> PlanData {
        let (sites, upstreams) = (Vec::new(), Vec::new());
        PlanData { format: FORMAT, sites, upstreams, rates: Vec::new(), files: BTreeMap::new() }
    }

    /// A translation as data. `addresses` are those that it was made with. It takes as long as comparing all of it twice.
    ///
    /// # Errors
    /// A part has a setting that this format has no place for.
    pub fn of(translation: &Translation, addresses: &[IpAddr]) -> Result<PlanData, String> {
        let Translation { sites: plan, site_listen, site_secure, files, .. } = translation;
        let mut sites = Vec::new();
        for (at, site) in plan.sites.iter().enumerate() {
            let (listens, secure) = (site_listen.get(at), site_secure.get(at));
            let listens = listens.map(Vec::as_slice).unwrap_or_default();
            sites.push(SiteData::of(site, listens, secure.and_then(Option::as_ref), addresses)?);
        }
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(PlanData {
            format: FORMAT,
            sites,
            upstreams: plan.upstreams.iter().map(UpstreamData::of).collect::<Result<_, _>>()?,
            rates: plan.rates.iter().map(RateData::of).collect::<Result<_, _>>()?,
            files: files.iter().map(|(path, content)| (name(path), STANDARD.encode(content))).collect(),
        })
    }

    /// Reads one.
    ///
    /// # Errors
    /// It has another format, or is none.
    pub fn read(value: Value) -> Result<PlanData, String> {
        match value.get("format").and_then(Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                return Err(format!("the plan has the format {format}; this version knows {FORMAT}"));
            }
            None => return Err("a plan without the number of its format".to_owned()),
        }
        let plan: PlanData =
            serde_json::from_value(value).map_err(|error| format!("the plan is malformed: {error}"))?;
        plan.check_indices()?;
        Ok(plan)
    }

    /// Replaces the servers of some upstreams.
    ///
    /// # Errors
    /// There is no such upstream; then nothing changes.
    pub(crate) fn set_servers(&mut self, servers: &BTreeMap<String, Vec<ServerData>>) -> Result<(), String> {
        let known: BTreeMap<&str, usize> =
            self.upstreams.iter().enumerate().map(|(at, it)| (it.name.as_str(), at)).collect();
        let mut changes = Vec::new();
        for (name, list) in servers {
            let at = known.get(name.as_str()).ok_or_else(|| format!("the plan has no upstream {name}"))?;
            changes.push((*at, list.clone()));
        }
        for (at, list) in changes {
            self.upstreams[at].servers = list;
        }
        Ok(())
    }

    /// Whether all that refers to another part refers to one that is there.
    fn check_indices(&self) -> Result<(), String> {
        let too_many = [self.sites.len(), self.upstreams.len(), self.rates.len(), self.files.len()];
        if let Some(count) = too_many.into_iter().find(|count| *count > PARTS_MAX) {
            return Err(format!("{count} parts of one kind; allowed are {PARTS_MAX}"));
        }
        let upstream = |at: usize| match at < self.upstreams.len() {
            true => Ok(()),
            false => Err(format!("the upstream {at} of {}", self.upstreams.len())),
        };
        for site in &self.sites {
            for at in site.passthrough.iter().flatten().filter_map(|share| share.upstream) {
                upstream(at)?;
            }
            for route in &site.routes {
                route.upstreams().try_for_each(upstream)?;
                if let Some(at) = route.rates().find(|at| *at >= self.rates.len()) {
                    return Err(format!("the rate {at} of {}", self.rates.len()));
                }
            }
        }
        for name in self.files.keys() {
            check_file_name(name)?;
        }
        Ok(())
    }

    /// The translation for a data plane, with `readiness` as the text of its `/readyz`.
    ///
    /// # Errors
    /// It needs more addresses than the data plane has, or a part of it is invalid.
    pub fn translation(&self, settings: &DataPlaneSettings, readiness: &str) -> Result<Translation, String> {
        let mut contents = BTreeMap::new();
        for (name, text) in &self.files {
            let content = STANDARD.decode(text).map_err(|_| format!("the file {name} is not Base64"))?;
            contents.insert(settings.folder.join(name), content);
        }
        let (mut sites, mut site_listen, mut site_secure) = (Vec::new(), Vec::new(), Vec::new());
        for site in &self.sites {
            let address = settings.addresses.get(site.listen.address).ok_or_else(|| {
                let (needed, given) = (site.listen.address + 1, settings.addresses.len());
                format!("the plan needs {needed} addresses, this data plane has {given} (--address)")
            })?;
            let bind = SocketAddr::new(*address, site.listen.port);
            if settings.refused.contains(&bind) {
                continue;
            }
            sites.push(site.site()?);
            site_secure.push(site.profile(&settings.folder)?);
            let listen = Listen { is_plain: site.listen.is_plain, ..Listen::from(Address::Tcp(bind)) };
            site_listen.push(vec![SiteListen { listen, is_default: false }]);
        }
        if let Some(health) = settings.health {
            let (site, listen) = health_site(health, readiness);
            sites.push(site);
            site_listen.push(vec![listen]);
            site_secure.push(None);
        }
        number(&mut sites, &site_listen);
        let upstreams = self.upstreams.iter().map(|it| it.upstream(&settings.folder));
        let plan = site_plan::Plan {
            upstreams: upstreams.collect::<Result<_, _>>()?,
            rates: self.rates.iter().map(RateData::rate).collect(),
            sites,
            ..site_plan::Plan::default()
        };
        Ok(Translation {
            sites: plan,
            site_listen,
            site_secure,
            files: Files::of(&settings.folder, contents),
            statuses: Vec::new(),
            assigned: BTreeMap::new(),
            backends: Vec::new(),
        })
    }
}

impl SiteData {
    fn of(
        site: &Site,
        listens: &[SiteListen],
        secure: Option<&Profile>,
        addresses: &[IpAddr],
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
                Host::Pattern(_) => return Err(no_place()),
            },
            listen: ListenData {
                address: address.ok_or_else(no_place)?,
                port: bind.port(),
                is_plain: listen.listen.is_plain,
            },
            certificates: secure.map(|it| it.identities.iter().filter_map(pair).collect()),
            passthrough: site.tls_passthrough.as_ref().map(|it| {
                it.shares.iter().map(|it| ShareData { weight: it.weight, upstream: it.upstream }).collect()
            }),
            routes: site.routes.iter().map(RouteData::of).collect::<Result<_, _>>()?,
        };
        // What a data plane reads of it is the same, but for the numbers of listeners, which it sets.
        let folder = secure.and_then(|it| it.identities.first()?.certificate.parent());
        let bare = Site { listeners: Vec::new(), routes: Vec::new(), ..site.clone() };
        let is_same = format!("{:?}", data.shell()) == format!("{bare:?}")
            && data.profile(folder.unwrap_or(Path::new("")))?.as_ref() == secure;
        if is_same { Ok(data) } else { Err(no_place()) }
    }

    fn site(&self) -> Result<Site, String> {
        let routes = self.routes.iter().map(RouteData::route).collect::<Result<_, _>>()?;
        Ok(Site { routes, ..self.shell() })
    }

    /// The site without its routes.
    fn shell(&self) -> Site {
        let share = |it: &ShareData| PassthroughShare { weight: it.weight, upstream: it.upstream };
        Site {
            name: self.name.clone(),
            hosts: vec![match &self.host {
                HostData::Exact(name) => Host::Exact(name.clone()),
                HostData::Below(name) => Host::Below(name.clone()),
                HostData::Any => Host::Any,
            }],
            tls_passthrough: self
                .passthrough
                .as_ref()
                .map(|shares| TlsPassthrough { shares: shares.iter().map(share).collect() }),
            ..Site::default()
        }
    }

    fn profile(&self, folder: &Path) -> Result<Option<Profile>, String> {
        let Some(pairs) = &self.certificates else { return Ok(None) };
        let mut identities = Vec::new();
        for [certificate, key] in pairs {
            check_file_name(certificate)?;
            check_file_name(key)?;
            identities.push(Identity { certificate: folder.join(certificate), key: folder.join(key) });
        }
        Ok(Some(Profile { identities, ..Profile::default() }))
    }
}

/// Whether a name stays inside the folder, and is none of the data plane's own files.
fn check_file_name(name: &str) -> Result<(), String> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    let is_known = ["crt", "key", "ca"].iter().any(|end| {
        name.rsplit_once('.').is_some_and(|(stem, found)| !stem.is_empty() && found.starts_with(end))
    });
    match is_plain && is_known && !name.starts_with('.') && name.len() <= FILE_NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(format!("a file of the name `{}`", name.escape_debug().take(100).collect::<String>())),
    }
}
