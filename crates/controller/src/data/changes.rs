//! What changes from one plan to the next: a change of a route is that of its sites, among thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::site::SiteData;
use super::steps::{Step, after, steps};
use super::upstream::{RateData, UpstreamData};
use super::{FORMAT, PlanData};

/// The changes from one plan to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanChanges {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sites: Vec<Step<Arc<SiteData>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    upstreams: Vec<Step<Arc<UpstreamData>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rates: Vec<Step<Arc<RateData>>>,
    /// Files that are new, by name; those that are gone have no content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: BTreeMap<String, Option<Arc<str>>>,
}

impl PlanData {
    /// The changes to a later plan.
    pub(crate) fn changes_to(&self, later: &PlanData) -> PlanChanges {
        let mut files: BTreeMap<String, Option<Arc<str>>> = BTreeMap::new();
        let gone = self.files.keys().filter(|name| !later.files.contains_key(*name));
        files.extend(gone.map(|name| (name.clone(), None)));
        let fresh = later.files.iter().filter(|(name, text)| self.files.get(*name) != Some(text));
        files.extend(fresh.map(|(name, text)| (name.clone(), Some(text.clone()))));
        PlanChanges {
            sites: steps(&self.sites, &later.sites, SiteData::key),
            upstreams: steps(&self.upstreams, &later.upstreams, |it| it.name.clone()),
            rates: steps(&self.rates, &later.rates, |it| it.name.clone()),
            files,
        }
    }

    /// The plan after these changes.
    ///
    /// # Errors
    /// They are those of another plan, or the result is none.
    pub(crate) fn changed(&self, changes: PlanChanges) -> Result<PlanData, String> {
        let PlanChanges { sites, upstreams, rates, files } = changes;
        let mut plan = PlanData {
            format: FORMAT,
            sites: after(&self.sites, sites)?,
            upstreams: after(&self.upstreams, upstreams)?,
            rates: after(&self.rates, rates)?,
            files: self.files.clone(),
        };
        for (name, text) in files {
            match text {
                Some(text) => drop(plan.files.insert(name, text)),
                None => drop(plan.files.remove(&name)),
            }
        }
        plan.check()?;
        Ok(plan)
    }

    /// The upstreams whose servers are others in a later plan that differs in nothing else, with these servers.
    pub(crate) fn servers_in(&self, later: &PlanData) -> BTreeMap<String, Vec<super::ServerData>> {
        let changed = self.upstreams.iter().zip(&later.upstreams).filter(|(known, it)| known != it);
        changed.map(|(_, it)| (it.name.clone(), it.servers.clone())).collect()
    }
}
