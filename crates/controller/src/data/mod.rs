//! A plan as data: what travels from a controller to its data planes, and what they keep on disk.
//!
//! ```text
//! Translation ── PlanData::of ──> PlanData ── JSON ──> PlanData ── translation ──> Translation
//!                (controller)        └─ changes_to ──> PlanChanges ── changed ─┘    (data plane, with its own addresses and folder)
//! ```
//!
//! Its types are not those of the server: they change only with [`FORMAT`]. It has what a translation sets, and nothing else; a setting
//! that it has no place for is an error of the controller, and never lost. Parts that do not change are shared by all its versions.

mod cache;
mod changes;
mod names;
mod read_sites;
mod route;
mod rules;
mod site;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod upstream;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_engine::{Address, Listen};
use flatout_proxy::Server;
use flatout_server::SiteListen;
use flatout_site::plan::{self as site_plan, SharedSite};
use flatout_tls::Profile;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::changes::PlanChanges;
use self::names::{Indices, Names};
pub(crate) use self::read_sites::ReadSites;
use self::site::SiteData;
pub(crate) use self::upstream::ServerData;
use self::upstream::{RateData, UpstreamData};
use crate::translate::{Files, Translation, health_site, number};

/// The version of the format. A data plane refuses any other one, and so does one that finds it on its disk.
pub const FORMAT: u32 = 3;

/// Sites, upstreams and rates of a plan; routes of a site; servers of an upstream.
const PARTS_MAX: usize = 1_000_000;

/// Bytes in the name of a certificate's file.
const FILE_NAME_BYTES_MAX: usize = 80;

/// The servers of upstreams, by name.
pub(crate) type ServersByUpstream = BTreeMap<String, Vec<Server>>;

/// A plan as data. A copy shares its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanData {
    format: u32,
    sites: Vec<Arc<SiteData>>,
    upstreams: Vec<Arc<UpstreamData>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rates: Vec<Arc<RateData>>,
    /// Certificates and keys, in Base64, by the names of their files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Arc<str>>,
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

impl PlanData {
    /// A plan that serves nothing.
    pub(crate) fn empty() -> PlanData {
        let (sites, upstreams) = (Vec::new(), Vec::new());
        PlanData { format: FORMAT, sites, upstreams, rates: Vec::new(), files: BTreeMap::new() }
    }

    /// A translation as data. `addresses` are those that it was made with.
    ///
    /// # Errors
    /// A part has a setting that this format has no place for.
    pub fn of(translation: &Translation, addresses: &[IpAddr]) -> Result<PlanData, String> {
        PlanData::of_next(translation, addresses, None)
    }

    /// The same, after `former`: a translation and its data, which was made with the same addresses. What is the same as there is shared.
    ///
    /// # Errors
    /// See [`PlanData::of`].
    pub(crate) fn of_next(
        translation: &Translation,
        addresses: &[IpAddr],
        former: Option<(&Translation, &PlanData)>,
    ) -> Result<PlanData, String> {
        let plan = &translation.sites;
        let names = Names::of(plan);
        let indices = Indices::of(
            plan.upstreams.iter().map(|it| it.name.as_str()),
            plan.rates.iter().map(|it| it.name.as_str()),
        )?;
        let known_sites = KnownSites::of(former.filter(|(it, _)| Names::of(&it.sites).fit(names)));
        let mut sites = Vec::with_capacity(plan.sites.len());
        for (at, site) in plan.sites.iter().enumerate() {
            let parts = site_parts(translation, at, site);
            sites.push(match known_sites.find(parts) {
                Some(known) => known.clone(),
                None => Arc::new(SiteData::of(parts, addresses, names, &indices)?),
            });
        }
        let former_upstreams = former.map(|(it, data)| it.sites.upstreams.iter().zip(&data.upstreams));
        let known_upstreams: HashMap<&str, _> =
            former_upstreams.into_iter().flatten().map(|(it, data)| (it.name.as_str(), (it, data))).collect();
        let mut upstreams = Vec::with_capacity(plan.upstreams.len());
        for upstream in &plan.upstreams {
            upstreams.push(match known_upstreams.get(upstream.name.as_str()) {
                Some((known, data)) if *known == upstream => (*data).clone(),
                _ => Arc::new(UpstreamData::of(upstream)?),
            });
        }
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = |(path, content): (&Path, &[u8])| {
            let name = name(path);
            let has_same = |(it, _): &(&Translation, _)| it.files.content(path) == Some(content);
            let known = former.filter(has_same).and_then(|(_, data)| data.files.get(&name)).cloned();
            (name, known.unwrap_or_else(|| STANDARD.encode(content).into()))
        };
        Ok(PlanData {
            format: FORMAT,
            sites,
            upstreams,
            rates: plan.rates.iter().map(|it| RateData::of(it).map(Arc::new)).collect::<Result<_, _>>()?,
            files: translation.files.iter().map(text).collect(),
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
        plan.check()?;
        Ok(plan)
    }

    /// Changes the servers of some upstreams.
    ///
    /// # Errors
    /// It has no such upstream; then nothing has changed.
    pub(crate) fn set_servers(&mut self, servers: &BTreeMap<String, Vec<ServerData>>) -> Result<(), String> {
        let known: HashMap<&str, usize> =
            self.upstreams.iter().enumerate().map(|(at, it)| (it.name.as_str(), at)).collect();
        let mut changes = Vec::new();
        for (name, list) in servers {
            let at = known.get(name.as_str()).ok_or_else(|| format!("the plan has no upstream {name}"))?;
            changes.push((*at, list.clone()));
        }
        for (at, list) in changes {
            self.set_servers_at(at, list);
        }
        Ok(())
    }

    /// Changes the servers of the upstream at this place.
    pub(crate) fn set_servers_at(&mut self, at: usize, servers: Vec<ServerData>) {
        if let Some(upstream) = self.upstreams.get_mut(at) {
            Arc::make_mut(upstream).servers = servers;
        }
    }

    /// Checks what [`PlanData::translation`] does not.
    fn check(&self) -> Result<(), String> {
        let counts = [self.sites.len(), self.upstreams.len(), self.rates.len(), self.files.len()];
        if let Some(count) = counts.into_iter().find(|count| *count > PARTS_MAX) {
            return Err(format!("{count} parts of one kind; allowed are {PARTS_MAX}"));
        }
        self.files.keys().try_for_each(|name| check_file_name(name))
    }

    /// The translation for a data plane, with `readiness` as the text of its `/readyz`.
    ///
    /// # Errors
    /// It needs more addresses than the data plane has, or a part of it is invalid.
    pub fn translation(&self, settings: &DataPlaneSettings, readiness: &str) -> Result<Translation, String> {
        self.translation_after(&mut ReadSites::default(), settings, readiness)
    }

    /// The same. Sites that were in the last translation are shared with it.
    ///
    /// # Errors
    /// See [`PlanData::translation`].
    pub(crate) fn translation_after(
        &self,
        read: &mut ReadSites,
        settings: &DataPlaneSettings,
        readiness: &str,
    ) -> Result<Translation, String> {
        let mut contents = BTreeMap::new();
        for (name, text) in &self.files {
            let content = STANDARD.decode(&**text).map_err(|_| format!("the file {name} is not Base64"))?;
            contents.insert(settings.folder.join(name), content);
        }
        let indices = Indices::of(
            self.upstreams.iter().map(|it| it.name.as_str()),
            self.rates.iter().map(|it| it.name.as_str()),
        )?;
        let (mut sites, mut site_listen, mut site_secure) = (Vec::new(), Vec::new(), Vec::new());
        let mut reading = read.next(indices);
        for site in &self.sites {
            let address = settings.addresses.get(site.listen.address).ok_or_else(|| {
                let (needed, given) = (site.listen.address + 1, settings.addresses.len());
                format!("the plan needs {needed} addresses, this data plane has {given} (--address)")
            })?;
            let bind = SocketAddr::new(*address, site.listen.port);
            if settings.refused.contains(&bind) {
                continue;
            }
            sites.push(reading.site(site)?);
            site_secure.push(site.profile(&settings.folder)?);
            let listen = Listen { is_plain: site.listen.is_plain, ..Listen::from(Address::Tcp(bind)) };
            site_listen.push(vec![SiteListen { listen, is_default: false }]);
        }
        if let Some(health) = settings.health {
            let (site, listen) = health_site(health, readiness);
            sites.push(site.into());
            site_listen.push(vec![listen]);
            site_secure.push(None);
        }
        number(&mut sites, &site_listen);
        *read = reading.ended(&sites);
        let upstreams = self.upstreams.iter().map(|it| it.upstream(&settings.folder));
        let plan = site_plan::Plan {
            upstreams: upstreams.collect::<Result<_, _>>()?,
            rates: self.rates.iter().map(|it| it.rate()).collect(),
            sites,
            keeps_unchanged: true,
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

/// The parts of a translation that make a site.
type SiteParts<'t> = (&'t SharedSite, &'t [SiteListen], Option<&'t Profile>);

fn site_parts<'t>(translation: &'t Translation, at: usize, site: &'t SharedSite) -> SiteParts<'t> {
    let listens = translation.site_listen.get(at).map(Vec::as_slice).unwrap_or_default();
    (site, listens, translation.site_secure.get(at).and_then(Option::as_ref))
}

/// The sites of a former translation, and their data.
struct KnownSites<'f>(HashMap<SiteKey<'f>, KnownSite<'f>>);

/// A site, and its data.
type KnownSite<'f> = (SiteParts<'f>, &'f Arc<SiteData>);

/// The name of a site, and its address.
type SiteKey<'f> = (&'f str, Option<SocketAddr>);

impl<'f> KnownSites<'f> {
    fn of(former: Option<(&'f Translation, &'f PlanData)>) -> KnownSites<'f> {
        let Some((translation, data)) = former else { return KnownSites(HashMap::new()) };
        let sites = translation.sites.sites.iter().zip(&data.sites).enumerate();
        let known = |(at, (site, data)): (usize, (&'f SharedSite, &'f Arc<SiteData>))| {
            let parts = site_parts(translation, at, site);
            (KnownSites::key(parts), (parts, data))
        };
        KnownSites(sites.map(known).collect())
    }

    /// A name is that of one site at an address.
    fn key((site, listens, _): SiteParts<'_>) -> SiteKey<'_> {
        let bind = listens.first().and_then(|it| match it.listen.address {
            Address::Tcp(bind) => Some(bind),
            Address::Unix(_) => None,
        });
        (&site.name, bind)
    }

    fn find(&self, parts: SiteParts<'_>) -> Option<&Arc<SiteData>> {
        self.0.get(&KnownSites::key(parts)).filter(|(known, _)| *known == parts).map(|(_, data)| *data)
    }
}

/// A time as plans have it.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
