//! Translations one after the other: what a change cannot have touched is taken from the last one.
//!
//! ```text
//! change of ── endpoints ──> the servers of their upstreams
//!           ├─ a route ────> its record; those of all others are placed again
//!           ├─ a service ──> the records of the routes that lead to it
//!           ├─ gateways, certificates, policies, Ingresses: looked at each time; other surroundings of routes make all records anew
//!           └─ namespaces, grants: everything
//! ```
//!
//! The result is always the one that a translation of all objects has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flatout_proxy::Upstream;

use super::annotation::IngressRates;
use super::any_route::all_routes;
use super::backend::{FormerUpstreams, UpstreamBackend, Upstreams};
use super::certificate::Files;
use super::conflict::{TakenNames, object_of};
use super::ingress::IngressParts;
use super::record::{Parts, RouteRecord};
use super::route_policy::RoutePolicies;
use super::site::{FinishedSites, FormerSites, Sites};
use super::surroundings::Surroundings;
use super::{Settings, Translation, class_statuses, gateway};
use crate::condition::StatusUpdate;
use crate::kinds::{Ages, ObjectKey};
use crate::objects::{ObjectChanges, Objects};

/// Translates the objects of one store after each change.
#[derive(Default)]
pub struct Translator {
    known: Option<Known>,
    /// Since the last translation.
    changed: ObjectChanges,
}

/// The last translation, as far as the next one can use it.
struct Known {
    settings: Settings,
    upstreams: Vec<Upstream>,
    backends: Vec<UpstreamBackend>,
    /// None, if rules were refused: then all are tried again.
    records: Option<KnownRecords>,
    sites: Option<FormerSites>,
}

/// What was made of each route, by kind and place.
type Records = HashMap<(&'static str, ObjectKey), Arc<RouteRecord>>;

/// The same, and what they depend on.
type KnownRecords = (Surroundings, Records);

/// What one translation begins with.
struct Round<'r> {
    refused: &'r BTreeMap<String, String>,
    former_upstreams: FormerUpstreams<'r>,
    records: Option<&'r KnownRecords>,
    former_sites: Option<&'r FormerSites>,
    changed: &'r ObjectChanges,
}

impl Translator {
    /// Notes what has changed, for the next translation.
    pub(crate) fn note(&mut self, changed: ObjectChanges) {
        self.changed.add(changed);
    }

    /// Translates the objects, in which this has changed since it was noted last.
    pub(crate) fn translate(
        &mut self,
        objects: &Objects,
        changed: ObjectChanges,
        settings: &Settings,
    ) -> Translation {
        self.note(changed);
        let changed = std::mem::replace(&mut self.changed, ObjectChanges::none());
        let known = self.known.take();
        let near = known.as_ref().filter(|it| !changed.is_other && it.settings == *settings);
        let mut refused = BTreeMap::new();
        loop {
            let is_first = refused.is_empty();
            let round = Round {
                refused: &refused,
                former_upstreams: near
                    .map(|it| FormerUpstreams::of(&it.upstreams, &it.backends, &changed.services))
                    .unwrap_or_default(),
                records: near.filter(|_| is_first).and_then(|it| it.records.as_ref()),
                former_sites: known.as_ref().and_then(|it| it.sites.as_ref()),
                changed: &changed,
            };
            let (mut translation, removed, records, sites) = round.translate(objects, settings);
            let before = refused.len();
            let mut others = Vec::new();
            for (route, why) in removed {
                // The name of a route is that of its rule and a number.
                match route.rsplit_once('.') {
                    Some((rule, _)) if is_rule(rule) => drop(refused.insert(rule.to_owned(), why)),
                    _ => others.push((route, why)),
                }
            }
            // Each round refuses at least one rule more.
            if refused.len() > before {
                continue;
            }
            note_refused(&mut translation.statuses, others);
            self.known = Some(Known {
                settings: settings.clone(),
                upstreams: translation.sites.upstreams.clone(),
                backends: translation.backends.clone(),
                records: refused.is_empty().then_some(records),
                sites,
            });
            return translation;
        }
    }
}

/// Notes for Ingresses that the site layer refuses some of their routes.
fn note_refused(statuses: &mut [Arc<StatusUpdate>], refused: Vec<(String, String)>) {
    let mut notes: BTreeMap<String, String> = BTreeMap::new();
    for (route, why) in refused {
        let Some((object, path)) = object_of(&route).and_then(|it| route.split_at_checked(it.len())) else {
            continue;
        };
        notes.entry(object.to_owned()).or_insert_with(|| format!("the path `{path}` is not served: {why}"));
    }
    if notes.is_empty() {
        return;
    }
    for status in statuses.iter_mut() {
        if let Some(note) = notes.get(&format!("{}/{}", status.kind.name, status.key)) {
            Arc::make_mut(status).notes.push(note.clone());
        }
    }
}

/// Whether a name is one of a route's rule.
fn is_rule(name: &str) -> bool {
    ["HTTPRoute/", "GRPCRoute/"].iter().any(|kind| name.starts_with(kind))
}

impl Round<'_> {
    /// Translates all objects but refused rules. Returns also the routes that the site layer refuses, and what the next translation can use.
    fn translate(
        self,
        objects: &Objects,
        settings: &Settings,
    ) -> (Translation, Vec<(String, String)>, KnownRecords, Option<FormerSites>) {
        let Round { refused, former_upstreams, records, former_sites, changed } = self;
        let mut files = Files::below(&settings.folder);
        let mut statuses = class_statuses(objects, settings);
        let mut gateways = gateway::gateways(objects, settings, &mut files);
        let mut upstreams = Upstreams::new(objects, &mut files, former_upstreams);
        let mut policies = RoutePolicies::new(objects);
        let surroundings = Surroundings::of(&gateways, &upstreams.policies, policies.shapes());
        let records = records.filter(|(known, _)| *known == surroundings).map(|(_, records)| records);
        let mut sites = Sites::default();
        sites.add_listeners(&gateways);
        let parts = &mut Parts {
            objects,
            settings,
            gateways: &mut gateways,
            upstreams: &mut upstreams,
            sites: &mut sites,
            policies: &mut policies,
            taken: TakenNames::default(),
            refused,
        };
        let mut made = Records::new();
        let routes = all_routes(objects);
        let of_routes = routes.iter().map(|route| route.head().metadata);
        let ages = Ages::of(of_routes.chain(objects.ingresses.values().map(|it| &it.metadata)));
        for route in &routes {
            let head = route.head();
            let age = ages.place(head.metadata);
            let place = (head.kind, head.metadata.key());
            let known = records.filter(|_| !changed.routes.contains(&place)).and_then(|it| it.get(&place));
            let record = match known.filter(|it| !it.leads_to(&changed.definitions)) {
                Some(known) if parts.upstreams.use_again(&known.uses) => known.clone(),
                _ => Arc::new(parts.make(route)),
            };
            statuses.extend(parts.place(&record, &place, age));
            made.insert(place, record);
        }
        statuses.extend(gateways.iter().flat_map(|gateway| gateway.statuses(settings)));
        statuses.extend(upstreams.policies.statuses(settings));
        statuses.extend(policies.statuses(settings));
        let mut rates = policies.rates;
        let ingresses = IngressParts {
            objects,
            settings,
            upstreams: &mut upstreams,
            sites: &mut sites,
            files: &mut files,
            ages: &ages,
            rates: IngressRates::behind(&mut rates),
            served_paths: HashMap::new(),
            auth_places: HashMap::new(),
        };
        statuses.extend({ ingresses }.add_all());
        sites.add_health(settings.health);
        let FinishedSites {
            plan: sites,
            listens: site_listen,
            secure: site_secure,
            removed,
            right,
            shadowed,
        } = sites.finish((upstreams.list, rates), former_sites);
        shadowed.report(&mut statuses);
        let backends = upstreams.backends;
        let assigned =
            gateways.iter().filter_map(|it| Some((it.gateway.metadata.key(), it.address?))).collect();
        let next = right.map(|right| FormerSites::of(&sites.sites, &site_listen, right));
        let translation =
            Translation { sites, site_listen, site_secure, files, statuses, assigned, backends };
        (translation, removed, (surroundings, made), next)
    }
}
