//! Sites that were read from plans: of thousands, the next plan changes a few.

use std::collections::HashMap;
use std::sync::Arc;

use flatout_site::plan::SharedSite;

use super::names::Indices;
use super::site::SiteData;

/// The sites of the last plan, as data and as they were read.
#[derive(Default)]
pub(crate) struct ReadSites {
    /// By the address of their data. The Arc is held so that its address is not used again.
    sites: HashMap<usize, (Arc<SiteData>, SharedSite)>,
    /// The indices that they were read with.
    indices: Option<Indices>,
}

/// Reads the sites of one plan.
pub(super) struct Reading<'r> {
    former: &'r ReadSites,
    /// All indices mean the same as in the last plan.
    is_alike: bool,
    indices: Indices,
    read: Vec<Arc<SiteData>>,
}

impl ReadSites {
    /// Reads the sites of a plan with these indices.
    pub(super) fn next(&self, indices: Indices) -> Reading<'_> {
        let is_alike = self.indices.as_ref().is_some_and(|former| former.are_kept_by(&indices));
        Reading { former: self, is_alike, indices, read: Vec::new() }
    }
}

impl Reading<'_> {
    pub(super) fn site(&mut self, data: &Arc<SiteData>) -> Result<SharedSite, String> {
        self.read.push(data.clone());
        let known = self.former.sites.get(&Arc::as_ptr(data).addr()).filter(|_| self.is_alike);
        known.map_or_else(|| data.site(&self.indices).map(SharedSite::from), |(_, known)| Ok(known.clone()))
    }

    /// What the next plan can use; `sites` begins with those that were read.
    pub(super) fn ended(self, sites: &[SharedSite]) -> ReadSites {
        let pairs = self.read.into_iter().zip(sites);
        let sites = pairs.map(|(data, site)| (Arc::as_ptr(&data).addr(), (data, site.clone()))).collect();
        ReadSites { sites, indices: Some(self.indices) }
    }
}
