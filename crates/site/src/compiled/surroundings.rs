//! What a site is made with besides its own settings: if that is the same in the next plan, so is the site.

use flatout_proxy::{Protocol, Upstream};

use super::super::plan::{Concurrency, Plan, Rate};

/// The parts of a plan that its sites refer to.
#[derive(Debug, PartialEq)]
pub(super) struct Surroundings {
    upstreams: Vec<UpstreamFacts>,
    folders_count: usize,
    rates: Vec<Rate>,
    concurrency: Vec<Concurrency>,
    auth_names: Vec<String>,
    /// There are maps or variables, or files of addresses.
    has_tables: bool,
}

/// What sites are checked against.
#[derive(Debug, PartialEq)]
struct UpstreamFacts {
    name: String,
    protocol: Protocol,
    is_tls: bool,
}

impl Surroundings {
    pub(super) fn of(plan: &Plan, auth_names: &[String]) -> Surroundings {
        let facts = |it: &Upstream| UpstreamFacts {
            name: it.name.clone(),
            protocol: it.protocol,
            is_tls: it.servers.iter().any(|server| server.tls.is_some()),
        };
        Surroundings {
            upstreams: plan.upstreams.iter().map(facts).collect(),
            folders_count: plan.folders.len(),
            rates: plan.rates.clone(),
            concurrency: plan.concurrency.clone(),
            auth_names: auth_names.to_vec(),
            has_tables: !(plan.maps.is_empty() && plan.sets.is_empty() && plan.crawler_addresses.is_empty()),
        }
    }

    /// Whether sites that were made within these are the same within later ones: all indices mean the same. Tables are made anew for each
    /// plan.
    pub(super) fn are_kept_by(&self, later: &Surroundings) -> bool {
        later.upstreams.starts_with(&self.upstreams)
            && later.folders_count >= self.folders_count
            && later.rates.starts_with(&self.rates)
            && later.concurrency.starts_with(&self.concurrency)
            && later.auth_names == self.auth_names
            && !self.has_tables
            && !later.has_tables
    }
}
