//! What a reload has changed, for the operator's log: parts of a plan by name.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::take;

use flatout_proxy::Upstream;
use flatout_site::plan::{Route, SharedSite, Site};

use crate::plan::Plan;

/// Names listed of each kind of change.
const NAMES_MAX: usize = 5;

/// The parts of a plan. There may be thousands of sites, and a controller reloads for each change of one: only what differs gets a name.
pub(crate) struct Parts {
    settings: u64,
    cache: u64,
    upstreams: Vec<Upstream>,
    folders: Vec<(String, u64)>,
    sites: Vec<SharedSite>,
}

/// A part, to be compared with the one of the same name.
#[derive(PartialEq)]
enum Part<'p> {
    Settings(u64),
    Upstream(&'p Upstream),
    Site(&'p Site),
    Route(&'p Route),
}

/// Parts by their names in messages.
type Named<'p> = BTreeMap<String, Part<'p>>;

impl Parts {
    pub(crate) fn of(plan: &Plan) -> Parts {
        Parts::with(plan, plan.sites.upstreams.clone(), plan.sites.sites.clone())
    }

    /// The parts of a plan that is not needed any more: its upstreams are moved instead of copied.
    pub(crate) fn of_owned(mut plan: Plan) -> Parts {
        let (upstreams, sites) = (take(&mut plan.sites.upstreams), take(&mut plan.sites.sites));
        Parts::with(&plan, upstreams, sites)
    }

    fn with(plan: &Plan, upstreams: Vec<Upstream>, sites: Vec<SharedSite>) -> Parts {
        Parts {
            settings: digest(&(&plan.server, &plan.messages, &plan.sites.trust, &plan.sites.resolver)),
            cache: digest(&plan.sites.cache),
            upstreams,
            folders: plan
                .sites
                .folders
                .iter()
                .map(|it| (it.root.display().to_string(), digest(it)))
                .collect(),
            sites,
        }
    }

    /// The differences to a later plan, as in `added site a; changed route /b of c`.
    pub(crate) fn until(&self, later: &Parts) -> String {
        let (upstreams, later_upstreams) = middles(&self.upstreams, &later.upstreams);
        let (sites, later_sites) = middles(&self.sites, &later.sites);
        let former = self.named(upstreams, sites);
        let later = later.named(later_upstreams, later_sites);
        let names = |of: &Named<'_>, is_it: &dyn Fn(&String, &Part<'_>) -> bool| -> Vec<String> {
            of.iter().filter(|(name, part)| is_it(name, part)).map(|(name, _)| name.clone()).collect()
        };
        let added = names(&later, &|name, _| !former.contains_key(name));
        let removed = names(&former, &|name, _| !later.contains_key(name));
        let changed =
            names(&later, &|name, part| former.get(name).is_some_and(|former| former.differs(part)));
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

    /// All parts, with these upstreams and sites.
    fn named<'p>(&self, upstreams: &'p [Upstream], sites: &'p [SharedSite]) -> Named<'p> {
        let mut parts = Named::new();
        parts.insert("settings of the server".to_owned(), Part::Settings(self.settings));
        parts.insert("settings of the cache".to_owned(), Part::Settings(self.cache));
        for (root, digest) in &self.folders {
            parts.insert(format!("folder {root}"), Part::Settings(*digest));
        }
        for upstream in upstreams {
            parts.insert(format!("upstream {}", upstream.name), Part::Upstream(upstream));
        }
        for site in sites {
            parts.insert(format!("site {}", site.name), Part::Site(site));
            for route in &site.routes {
                parts.insert(format!("route {} of {}", route.name, site.name), Part::Route(route));
            }
        }
        parts
    }
}

impl Part<'_> {
    /// Whether it differs from the part of the same name. Routes of sites are parts of their own.
    fn differs(&self, other: &Part<'_>) -> bool {
        match (self, other) {
            (Part::Site(one), Part::Site(other)) => {
                let own = (&one.hosts, &one.listeners, &one.rules, &one.rewrites);
                own != (&other.hosts, &other.listeners, &other.rules, &other.rewrites)
            }
            _ => self != other,
        }
    }
}

/// Two lists without what is the same at their beginnings and ends.
fn middles<'l, T: PartialEq>(former: &'l [T], later: &'l [T]) -> (&'l [T], &'l [T]) {
    let front = former.iter().zip(later).take_while(|(one, other)| one == other).count();
    let (former, later) = (&former[front..], &later[front..]);
    let back = former.iter().rev().zip(later.iter().rev()).take_while(|(one, other)| one == other).count();
    (&former[..former.len() - back], &later[..later.len() - back])
}

/// A digest of all fields of a plan's part, as `Debug` shows them: only this process compares it.
fn digest(part: &dyn Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{part:?}").hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use flatout_site::plan::{Action, PathMatch, Template};

    use super::*;

    fn site(name: &str, texts: &[&str]) -> Site {
        let route = |(at, text): (usize, &&str)| Route {
            name: format!("/{at}"),
            ..Route::new(
                PathMatch::Exact(format!("/{at}")),
                Action::Respond { status: 200, content_type: String::new(), body: Template::text(text) },
            )
        };
        Site {
            name: name.to_owned(),
            routes: texts.iter().enumerate().map(route).collect(),
            ..Site::default()
        }
    }

    fn parts(sites: &[Site], upstreams: &[&str]) -> Parts {
        let mut plan = Plan::default();
        plan.sites.sites = sites.iter().cloned().map(SharedSite::from).collect();
        plan.sites.upstreams = upstreams.iter().map(|name| Upstream::new(name, Vec::new())).collect();
        Parts::of(&plan)
    }

    #[test]
    fn differences_are_named_wherever_they_are() {
        let [a, b, c] = [site("a", &["1", "2"]), site("b", &["1"]), site("c", &["1"])];
        let other_b = site("b", &["2"]);
        let renamed = Site { tls_rules: Some(1), ..c.clone() };
        for (former, later, expected) in [
            (vec![&a, &b], vec![&a, &b], "no setting has changed"),
            (vec![&a, &b, &c], vec![&a, &other_b, &c], "changed route /0 of b"),
            (vec![&a, &c], vec![&a, &b, &c], "added route /0 of b, site b"),
            (vec![&a, &b, &c], vec![&a, &c], "removed route /0 of b, site b"),
            (vec![&c, &b, &a], vec![&a, &b, &c], "no setting has changed"),
            // Numbers that the server sets are no settings.
            (vec![&a, &c], vec![&a, &renamed], "no setting has changed"),
        ] {
            let of = |list: &[&Site]| parts(&list.iter().map(|it| (*it).clone()).collect::<Vec<_>>(), &["u"]);
            assert_eq!(of(&former).until(&of(&later)), expected);
        }
        let of = |upstreams: &[&str]| parts(std::slice::from_ref(&a), upstreams);
        let changed = of(&["u", "v"]).until(&of(&["v", "w"]));
        assert_eq!(changed, "added upstream w; removed upstream u");
    }
}
