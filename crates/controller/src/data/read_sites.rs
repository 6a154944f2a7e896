//! Sites that were read from plans: of thousands, the next plan changes a few.

use std::collections::HashMap;
use std::sync::Arc;

use flatout_site::plan::SharedSite;

use super::PlanData;
use super::names::Indices;
use super::site::SiteData;

/// The sites of the last plan, as data and as they were read.
#[derive(Default)]
pub(crate) struct ReadSites {
    /// By the address of their data, which is kept so that no other one has it.
    sites: HashMap<usize, (Arc<SiteData>, SharedSite)>,
    names: PlanNames,
}

/// The names that sites refer to, by their indices.
#[derive(Default)]
struct PlanNames {
    upstreams: Vec<String>,
    rates: Vec<String>,
}

/// Reads the sites of one plan.
pub(super) struct Reading<'r> {
    former: &'r ReadSites,
    /// All indices mean the same as in the last plan.
    is_alike: bool,
    names: PlanNames,
    read: Vec<Arc<SiteData>>,
}

impl ReadSites {
    pub(super) fn next(&self, plan: &PlanData) -> Reading<'_> {
        let names = PlanNames {
            upstreams: plan.upstreams.iter().map(|it| it.name.clone()).collect(),
            rates: plan.rates.iter().map(|it| it.name.clone()).collect(),
        };
        let is_alike =
            names.upstreams.starts_with(&self.names.upstreams) && names.rates.starts_with(&self.names.rates);
        Reading { former: self, is_alike, names, read: Vec::new() }
    }
}

impl Reading<'_> {
    pub(super) fn site(&mut self, data: &Arc<SiteData>, indices: &Indices) -> Result<SharedSite, String> {
        self.read.push(data.clone());
        let known = self.former.sites.get(&Arc::as_ptr(data).addr()).filter(|_| self.is_alike);
        known.map_or_else(|| data.site(indices).map(SharedSite::from), |(_, known)| Ok(known.clone()))
    }

    /// What the next plan can use; `sites` begins with those that were read.
    pub(super) fn ended(self, sites: &[SharedSite]) -> ReadSites {
        let pairs = self.read.into_iter().zip(sites);
        let sites = pairs.map(|(data, site)| (Arc::as_ptr(&data).addr(), (data, site.clone()))).collect();
        ReadSites { sites, names: self.names }
    }
}
