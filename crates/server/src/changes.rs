//! What a reload has changed, for the operator's log: parts of a plan by name, compared by their digests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::plan::Plan;

/// Names listed of each kind of change.
const NAMES_MAX: usize = 5;

/// The parts of a plan, each with a digest of its settings.
pub(crate) struct Parts(BTreeMap<String, u64>);

impl Parts {
    pub(crate) fn of(plan: &Plan) -> Parts {
        let mut parts = BTreeMap::new();
        let mut add = |name: String, value: u64| {
            parts.insert(name, value);
        };
        add(
            "settings of the server".to_owned(),
            digest(&(&plan.server, &plan.messages, &plan.sites.trust, &plan.sites.resolver)),
        );
        add("settings of the cache".to_owned(), digest(&plan.sites.cache));
        for upstream in &plan.sites.upstreams {
            add(format!("upstream {}", upstream.name), digest(upstream));
        }
        for folder in &plan.sites.folders {
            add(format!("folder {}", folder.root.display()), digest(folder));
        }
        for site in &plan.sites.sites {
            let (name, rest) = (&site.name, (&site.hosts, &site.listeners, &site.rewrites, &site.rules));
            add(format!("site {name}"), digest(&rest));
            for route in &site.routes {
                add(format!("route {} of {name}", route.name), digest(route));
            }
        }
        Parts(parts)
    }

    /// The differences to a later plan, as in `added site a; changed route /b of c`.
    pub(crate) fn until(&self, later: &Parts) -> String {
        let names = |of: &Parts, is_it: &dyn Fn(&String, &u64) -> bool| -> Vec<String> {
            of.0.iter().filter(|(name, digest)| is_it(name, digest)).map(|(name, _)| name.clone()).collect()
        };
        let added = names(later, &|name, _| !self.0.contains_key(name));
        let removed = names(self, &|name, _| !later.0.contains_key(name));
        let changed = names(later, &|name, digest| self.0.get(name).is_some_and(|former| former != digest));
        let kinds = [("added", added), ("changed", changed), ("removed", removed)];
        let listed = kinds.iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| {
            let more = match names.len().saturating_sub(NAMES_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(String::as_str).collect();
            format!("{kind} {}{more}", shown.join(", "))
        });
        let listed: Vec<String> = listed.collect();
        if listed.is_empty() { "no setting has changed".to_owned() } else { listed.join("; ") }
    }
}

/// A digest of all fields of a plan's part, as `Debug` shows them: only this process compares it.
fn digest(part: &dyn Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{part:?}").hash(&mut hasher);
    hasher.finish()
}
