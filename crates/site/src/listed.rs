//! Sites and routes in a few words, for people who watch a server.

use crate::plan::{Action, Host, Plan, Reroute, Route, Rules};

/// A site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSite {
    /// Its name.
    pub name: String,
    /// Its host names, as in a site file.
    pub hosts: Vec<String>,
    /// Its routes, in their order.
    pub routes: Vec<ListedRoute>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRoute {
    /// Its name: the path, and what else selects it.
    pub name: String,
    /// What handles its requests: `files ./public`, `proxy api`.
    pub action: String,
    /// Its rules by their settings: `basic-auth`, `cache`.
    pub rules: Vec<&'static str>,
}

/// All sites of a plan.
pub(crate) fn listed(plan: &Plan) -> Vec<ListedSite> {
    let site = |site: &crate::plan::SharedSite| ListedSite {
        name: site.name.clone(),
        hosts: site.hosts.iter().map(host).collect(),
        routes: site.routes.iter().map(|it| route(plan, it)).collect(),
    };
    plan.sites.iter().map(site).collect()
}

fn host(host: &Host) -> String {
    match host {
        Host::Exact(name) => name.clone(),
        Host::Below(name) => format!("*.{name}"),
        Host::Pattern(pattern) => format!("~{pattern}"),
        Host::Unnamed => String::new(),
        Host::Any => "*".to_owned(),
    }
}

fn route(plan: &Plan, route: &Route) -> ListedRoute {
    let folder =
        |at: usize| plan.folders.get(at).map(|folder| folder.root.display().to_string()).unwrap_or_default();
    let upstream =
        |at: usize| plan.upstreams.get(at).map(|upstream| upstream.name.clone()).unwrap_or_default();
    let action = match &route.action {
        Action::Files(at) => format!("files {}", folder(*at)),
        Action::Proxy(_) if route.upstream_name.is_some() => "proxy, by a variable".to_owned(),
        Action::Proxy(forward) => format!("proxy {}", upstream(forward.upstream)),
        Action::Push(_) => "push".to_owned(),
        Action::Redirect { status, .. } => format!("redirect {status}"),
        Action::Respond { status, .. } => format!("respond {status}"),
        Action::Reroute(Reroute::Named(name)) => format!("reroute {name}"),
        Action::Reroute(Reroute::Path(_)) => "reroute".to_owned(),
        Action::StubStatus => "stub-status".to_owned(),
        Action::Close => "close".to_owned(),
    };
    let action = match route.try_files {
        Some(at) => format!("try-files {}, then {action}", folder(at)),
        None => action,
    };
    ListedRoute { name: route.name.clone(), action, rules: rules(&route.rules) }
}

/// The settings of the rules that a route has.
fn rules(rules: &Rules) -> Vec<&'static str> {
    let all = [
        (rules.trust.is_some(), "trusted-proxies"),
        (rules.maintenance.is_some(), "maintenance"),
        (!rules.access.is_empty(), "allow/deny"),
        (!rules.rates.is_empty(), "rate-limit"),
        (rules.cors.is_some(), "cors"),
        (rules.basic_auth.is_some(), "basic-auth"),
        (rules.forward_auth.is_some() || rules.auth_route.is_some(), "forward-auth"),
        (!rules.concurrency.is_empty(), "request-limit"),
        (rules.cache.is_some(), "cache"),
        (rules.compress.is_some(), "encode"),
        (!rules.when.is_empty(), "when"),
    ];
    all.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PathMatch, Site, Template};

    #[test]
    fn routes_are_listed_with_their_rules() {
        let mut route = Route::new(
            PathMatch::prefix("/old"),
            Action::Redirect { status: 301, to: Template::text("/new") },
        );
        route.rules.satisfies_any = true;
        route.rules.compress = Some(flatout_compress::Compress::default());
        let hosts = vec![Host::Below("a.test".to_owned()), Host::Any];
        let site = Site { name: "a".to_owned(), hosts, routes: vec![route], ..Site::default() };
        let listed = listed(&Plan { sites: vec![site.into()], ..Plan::default() });
        assert_eq!(listed[0].hosts, ["*.a.test", "*"]);
        let expected =
            ListedRoute { name: "/old".to_owned(), action: "redirect 301".to_owned(), rules: vec!["encode"] };
        assert_eq!(listed[0].routes, [expected]);
    }
}
