//! Upstreams and rates by name: a plan as data refers to them so, and what is added or removed changes nothing else of it.

use std::collections::HashMap;

use flatout_proxy::Upstream;
use flatout_site::plan::{Plan, Rate};

/// The names of a plan's upstreams and rates, by their indices.
#[derive(Clone, Copy)]
pub(super) struct Names<'p> {
    upstreams: &'p [Upstream],
    rates: &'p [Rate],
}

/// The indices, by name.
pub(super) struct Indices {
    upstreams: HashMap<String, usize>,
    rates: HashMap<String, usize>,
}

impl<'p> Names<'p> {
    pub(super) fn of(plan: &'p Plan) -> Names<'p> {
        Names { upstreams: &plan.upstreams, rates: &plan.rates }
    }

    pub(super) fn upstream(self, at: usize) -> Option<&'p str> {
        self.upstreams.get(at).map(|it| it.name.as_str())
    }

    pub(super) fn rate(self, at: usize) -> Option<&'p str> {
        self.rates.get(at).map(|it| it.name.as_str())
    }

    /// Whether all indices that both have mean the same.
    pub(super) fn fit(self, other: Names<'_>) -> bool {
        let is_same = |(one, other): (&Upstream, &Upstream)| one.name == other.name;
        self.upstreams.iter().zip(other.upstreams).all(is_same)
            && self.rates.iter().zip(other.rates).all(|(one, other)| one.name == other.name)
    }
}

impl Indices {
    /// # Errors
    /// Two have the same name.
    pub(super) fn of<'n>(
        upstreams: impl Iterator<Item = &'n str>,
        rates: impl Iterator<Item = &'n str>,
    ) -> Result<Indices, String> {
        Ok(Indices { upstreams: indices("upstream", upstreams)?, rates: indices("rate", rates)? })
    }

    /// Whether all of them mean the same in a later plan.
    pub(super) fn are_kept_by(&self, later: &Indices) -> bool {
        self.upstreams.iter().all(|(name, at)| later.upstreams.get(name) == Some(at))
            && self.rates.iter().all(|(name, at)| later.rates.get(name) == Some(at))
    }

    pub(super) fn upstream(&self, name: &str) -> Result<usize, String> {
        self.upstreams.get(name).copied().ok_or_else(|| missing("upstream", name))
    }

    pub(super) fn rate(&self, name: &str) -> Result<usize, String> {
        self.rates.get(name).copied().ok_or_else(|| missing("rate", name))
    }
}

fn indices<'n>(what: &str, names: impl Iterator<Item = &'n str>) -> Result<HashMap<String, usize>, String> {
    let mut found = HashMap::new();
    for (at, name) in names.enumerate() {
        if found.insert(name.to_owned(), at).is_some() {
            return Err(format!("the plan has the {what} {name} twice"));
        }
    }
    Ok(found)
}

fn missing(what: &str, name: &str) -> String {
    format!("the plan has no {what} {name}")
}
