//! Builds sites with their routes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use flatout_cache::Rules;
use flatout_config::{Mistake, Node};
use flatout_files as files;
use flatout_proxy::{Forward, Mirror};
use flatout_site::plan::{
    Action, Condition, Host, PassthroughShare, PathMatch, Plan, Route, RouteEntry, Site, TlsPassthrough,
};

use super::blocks::ACTIONS;
use super::channels;
use super::options::{Level, ServeOptions};
use super::parse;
use super::prerender::rendered;
use super::site::{Places, Reader};
use super::values::{Values, mistake, mistake_in};
use super::when::ConditionalAction;

/// What a site for requests without a host is called.
const UNNAMED: &str = "unnamed";

/// Sites so far.
#[derive(Default)]
pub(super) struct Sites {
    pub(super) plan: Plan,
    pub(super) places: Places,
    /// Their options.
    pub(super) options: Vec<ServeOptions>,
    names: HashSet<String>,
    by_host: HashMap<Host, Vec<usize>>,
    /// Folders.
    by_root: HashMap<PathBuf, Vec<usize>>,
}

/// The host names of a site, and their positions.
pub(super) struct Hosts {
    pub(super) at: Range<usize>,
    pub(super) names: Vec<(String, Range<usize>)>,
    /// Whether the site has no mistakes so far.
    pub(super) is_whole: bool,
}

impl Sites {
    /// Adds a site with the routes among these nodes; its settings are already in `options`.
    pub(super) fn add(&mut self, reader: Reader<'_>, hosts: Hosts, nodes: &[Node], options: &ServeOptions) {
        let before = reader.mistakes_count();
        let name = self.unique_name(&hosts, options);
        let mut site = Site {
            cache_space: if options.listens.is_empty() { String::new() } else { name.clone() },
            name,
            trust: options.trust.clone(),
            rules: options.rules.clone(),
            rewrites: options.rewrites.clone(),
            ..Site::default()
        };
        site.rules.log_values = options.log_values();
        for (name, at) in &hosts.names {
            let host = parse::host(name).map_err(|message| reader.tree.mistake(at, message));
            let Some(host) = reader.note(host) else { continue };
            let mut others = self.by_host.get(&host).into_iter().flatten();
            let wrong = match others.find(|other| options.shares_address(&self.options[**other])) {
                Some(other) => {
                    let line = reader.tree.line(&self.places.sites[*other]);
                    Some(format!("another site has `{name}`, on line {line}"))
                }
                None => site.hosts.contains(&host).then(|| format!("`{name}` occurs twice")),
            };
            match wrong {
                Some(message) => drop(reader.note::<()>(Err(reader.tree.mistake(at, message)))),
                None => site.hosts.push(host),
            }
        }
        let mut places = Vec::new();
        let site_name = site.name.clone();
        let mut add = |mut route: Route, at: Range<usize>, is_rest: bool| {
            route.rules.trust = route.rules.trust.filter(|trust| *trust != options.trust);
            if let Some(first) = site.routes.iter().position(|other| hides(other, &route)) {
                let line = reader.tree.line(&places[first]);
                let message = match route.when.is_empty() {
                    true if is_rest => format!("the route \"/\" on line {line} handles this already"),
                    true => format!("this route occurs twice; first on line {line}"),
                    false => format!("this is never used: the route on line {line} takes all its requests"),
                };
                reader.note::<()>(Err(reader.tree.mistake(&at, message)));
                return;
            }
            places.push(at);
            site.routes.push(route);
        };
        let rest = options.within(Level::Route);
        // Those of the top of the file are for every site.
        let is_passed = options.tls_passthrough.is_some();
        let has_top = options.level != Level::Top && !is_passed;
        let of_top: (&[Node], Vec<&Node>) = match has_top {
            true => (&reader.tree.nodes, reader.top_whens.to_vec()),
            false => Default::default(),
        };
        site.tls_passthrough = reader.note(passthrough(reader, nodes, options)).flatten();
        for (level, whens) in [of_top, (nodes, nodes.iter().collect())] {
            for conditional in reader.conditional_actions(whens, options) {
                let path = PathMatch::prefix("/");
                let rest = before_files(&[level, nodes], &conditional, &rest);
                let route = self.conditional_route(reader, &conditional, &path, &rest);
                let Some((mut route, at)) = reader.note(route) else { continue };
                route.entry = RouteEntry::BeforePaths;
                for route in reader.note(rendered(reader, route, &at, &rest, &site_name)).unwrap_or_default()
                {
                    add(route, at.clone(), false);
                }
            }
        }
        for node in nodes.iter().filter(|node| node.name == "route") {
            let routes = self.routes(reader, node, options, &site_name);
            for (route, at) in reader.note(routes).unwrap_or_default() {
                add(route, at, false);
            }
        }
        // The action of the site itself handles everything that no route does.
        if let Some((action, at)) = reader.note(self.action(reader, nodes, &rest)).flatten() {
            let mut route = self.route_of(PathMatch::prefix("/"), action, rest.clone());
            reader.note(Sites::name_upstream(reader, nodes, &rest, &mut route));
            for route in reader.note(rendered(reader, route, &at, &rest, &site_name)).unwrap_or_default() {
                add(route, at.clone(), true);
            }
        }
        if site.routes.is_empty() && !is_passed && hosts.is_whole && reader.mistakes_count() == before {
            let message = "this site serves nothing; add files, proxy, push, redirect, respond or a route";
            reader.note::<()>(Err(reader.tree.mistake(&hosts.at, message)));
        }
        for (route, at) in site.routes.iter_mut().zip(&places) {
            if let Action::Push(plan) = &mut route.action
                && plan.group.is_empty()
            {
                let group = channels::own_group(&site.name, route.path.text());
                let group = group.map_err(|message| reader.tree.mistake(at, message));
                plan.group = reader.note(group).unwrap_or_default();
            }
        }
        for host in &site.hosts {
            self.by_host.entry(host.clone()).or_default().push(self.plan.sites.len());
        }
        self.names.insert(site_name);
        self.plan.sites.push(site.into());
        self.options.push(options.clone());
        self.places.sites.push(hosts.at);
        self.places.routes.push(places);
    }

    /// The name of a site: its first host name, with its first address if another site has that name.
    fn unique_name(&self, hosts: &Hosts, options: &ServeOptions) -> String {
        let host = hosts.names.first().map(|(name, _)| name.as_str()).unwrap_or_default();
        let host = if host.is_empty() { UNNAMED } else { host };
        let address = options.listens.first().map(|listen| listen.text.as_str()).unwrap_or_default();
        let with_address = (!address.is_empty()).then(|| format!("{host} ({address})"));
        let numbered = (2..).map(|number| format!("{host} ({number})"));
        let mut names = std::iter::once(host.to_owned()).chain(with_address).chain(numbered);
        names.find(|name| !self.names.contains(name)).unwrap_or_default()
    }

    /// A route, and before it those for the actions under conditions in it.
    fn routes(
        &mut self,
        reader: Reader<'_>,
        node: &Node,
        site: &ServeOptions,
        site_name: &str,
    ) -> Result<Vec<(Route, Range<usize>)>, Mistake> {
        let name = node.values[0].text.as_str();
        let is_named = name.starts_with('@');
        let path = match is_named {
            true if node.keys.iter().any(|(key, _)| key != "when") => {
                Err("a named route has no path to match".to_owned())
            }
            true => Ok(PathMatch::prefix("/")),
            false => path(node),
        };
        let path = path.map_err(|message| reader.tree.mistake(node.value_at(), message));
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut options = site.within(Level::Route);
        let when = node.key("when").map(|value| reader.condition(value, &options)).transpose();
        let before = reader.mistakes_count();
        reader.level(inner, &mut options);
        let keys = node.keys.iter().map(|(key, value)| format!(" {key}={}", value.text));
        let logs = options.own_logs(format!("{site_name} {name}{}", keys.collect::<String>()));
        logs.map_err(|message| reader.tree.mistake(node.value_at(), message))?;
        let action = self.action(reader, inner, &options);
        let (path, when) = (path?, when?);
        if let (true, Some(value)) = (is_named, node.key("when")) {
            return Err(reader.tree.mistake(&value.at, "a named route has no condition; put a when in it"));
        }
        let entry = match node.key("entry").map(|value| value.text.as_str()) {
            Some("internal") => RouteEntry::Internal,
            _ if is_named => RouteEntry::Named,
            _ => RouteEntry::Paths,
        };
        if is_named && !reader.conditional_actions(inner, &options).is_empty() {
            let message = "an action under a condition is not possible in a named route; reroute to a path";
            return Err(reader.tree.mistake(node.value_at(), message));
        }
        let mut found = Vec::new();
        for conditional in reader.conditional_actions(inner, &options) {
            let options = before_files(&[inner], &conditional, &options);
            let (mut route, at) = self.conditional_route(reader, &conditional, &path, &options)?;
            route.when.splice(0..0, when.clone());
            route.entry = entry;
            let routes = rendered(reader, route, &at, &options, site_name)?;
            found.extend(routes.into_iter().map(|route| (route, at.clone())));
        }
        let Some((action, _)) = action? else {
            if !node.is_whole || reader.mistakes_count() > before {
                return Ok(found);
            }
            let message = "this route serves nothing; add files, proxy, push, redirect, respond or reroute";
            return Err(reader.tree.mistake(&node.at, message));
        };
        let mut route = self.route_of(path, action, options.clone());
        Sites::name_upstream(reader, inner, &options, &mut route)?;
        route.when.extend(when);
        route.entry = entry;
        if is_named {
            route.name = name.to_owned();
        }
        let routes = rendered(reader, route, node.value_at(), &options, site_name)?;
        found.extend(routes.into_iter().map(|route| (route, node.value_at().clone())));
        Ok(found)
    }

    /// The route for an action in a `when`.
    fn conditional_route(
        &mut self,
        reader: Reader<'_>,
        conditional: &ConditionalAction<'_>,
        path: &PathMatch,
        options: &ServeOptions,
    ) -> Result<(Route, Range<usize>), Mistake> {
        let node = conditional.node;
        let inner = node.inner.as_deref().unwrap_or_default();
        let Some((action, _)) = self.action(reader, inner, options)? else {
            return Err(reader.tree.mistake(&node.at, "this has no action"));
        };
        let mut route = self.route_of(path.clone(), action, options.clone());
        let source = conditional.conditions.last().map(Condition::source).unwrap_or_default();
        route.name = format!("{} when {source}", route.name);
        route.when.clone_from(&conditional.conditions);
        Sites::name_upstream(reader, inner, options, &mut route)?;
        Ok((route, node.value_at().clone()))
    }

    fn route_of(&mut self, path: PathMatch, action: Action, options: ServeOptions) -> Route {
        let mut route = Route::new(path, action);
        let log_values = options.log_values();
        if let Action::Push(plan) = &mut route.action {
            plan.prefix = route.path.text().to_owned();
        }
        route.paths = options.paths.unwrap_or(route.paths);
        route.methods = options.methods;
        route.files_at = options.files_at;
        route.rewrites = options.rewrites;
        route.rules = options.rules;
        route.rules.log_values = log_values;
        route.rules.trust = Some(options.trust);
        route.rules.cache = options.cache_time.map(|time| {
            let mut cached = options.caching;
            cached.rules.valid.extend(Rules::fresh(time).valid);
            cached
        });
        route.rules.compress =
            Some(options.compress).filter(|compress| !compress.levels.is_empty() || compress.decodes);
        if let (Some(root), false) = (options.try_files, matches!(route.action, Action::Files(_))) {
            route.try_files = Some(self.folder(files::Plan { root, ..options.files }));
            route.try_files_final = options.try_files_final;
        }
        route
    }

    /// Adds to a route which upstreams or servers its requests name, if the action among these nodes has variables.
    fn name_upstream(
        reader: Reader<'_>,
        nodes: &[Node],
        options: &ServeOptions,
        route: &mut Route,
    ) -> Result<(), Mistake> {
        let has_variables = |node: &&Node| node.name == "proxy" && node.values[0].text.contains('$');
        let Some(node) = nodes.iter().find(has_variables) else { return Ok(()) };
        let at = |message: String| mistake_in(reader.tree, node, message);
        let given = Values::of_node(node);
        let among = given.key("among");
        let names: Vec<String> = among.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        if let Some(why) = names.iter().find_map(|name| options.upstream_of(name).err()) {
            return Err(at(format!("among: {why}")));
        }
        route.upstream_name = Some(options.template(given.text()).map_err(at)?);
        route.names_server = given.key("others").is_some();
        route.named_upstreams = (route.names_server || among.is_some()).then_some(names);
        Ok(())
    }

    /// The action among these nodes.
    fn action(
        &mut self,
        reader: Reader<'_>,
        nodes: &[Node],
        options: &ServeOptions,
    ) -> Result<Option<(Action, Range<usize>)>, Mistake> {
        let mut actions = nodes.iter().filter(|node| ACTIONS.contains(&node.name.as_str()));
        let Some(node) = actions.next() else { return Ok(None) };
        if let Some(other) = actions.next() {
            let line = reader.tree.line(&node.at);
            let message = format!("there is `{}` on line {line} already; use one of them", node.name);
            return Err(reader.tree.mistake(&other.at, message));
        }
        let given = Values::of_node(node);
        let at = |message: String| mistake_in(reader.tree, node, message);
        let action = match node.name.as_str() {
            "files" => {
                let root = options.path(given.text());
                Action::Files(self.folder(files::Plan { root, ..options.files.clone() }))
            }
            "proxy" => {
                // The name comes from variables.
                if given.key("among").is_some() && !given.text().contains('$') {
                    return Err(at("among= is for an upstream whose name has variables".to_owned()));
                }
                let upstream = match (given.text().contains('$'), given.key("others")) {
                    (true, None) => options.first_upstream().map_err(at)?,
                    (true, Some(others)) => options.named_upstream(others).map_err(at)?,
                    (false, None) => options.upstream_of(given.text()).map_err(at)?,
                    (false, Some(_)) => {
                        return Err(at("others= is for an upstream whose name has variables".to_owned()));
                    }
                };
                let mut forward = Forward { upstream, ..options.forward.clone() };
                for mirror in &options.mirrors {
                    let copied = options.upstream_of(&mirror.upstream);
                    let upstream = copied.map_err(|message| at(format!("mirror: {message}")))?;
                    let (numerator, denominator) = (mirror.numerator, mirror.denominator);
                    forward.mirrors.push(Mirror { upstream, numerator, denominator });
                }
                Action::Proxy(forward)
            }
            "push" => Action::Push(Box::new(options.push.clone())),
            "redirect" => {
                let status = given.read("status", parse::redirect_status).map(|status| status.unwrap_or(302));
                let status = status.map_err(|bad| mistake(reader.tree, node, &bad, bad.message.clone()))?;
                Action::Redirect { status, to: options.template(given.text()).map_err(at)? }
            }
            "reroute" => Action::Reroute(options.reroute(given.text()).map_err(at)?),
            "stub-status" => Action::StubStatus,
            "close" => Action::Close,
            _ => {
                let status = parse::status(given.text(), 200..=599).map_err(at)?;
                let body = options.template(given.value(1).unwrap_or_default());
                let body = body.map_err(at)?;
                let content_type = given.key("type").unwrap_or("text/plain; charset=utf-8").to_owned();
                Action::Respond { status, content_type, body }
            }
        };
        Ok(Some((action, node.value_at().clone())))
    }

    /// The index of a folder; shared if all its settings are the same.
    fn folder(&mut self, plan: files::Plan) -> usize {
        let here = self.by_root.entry(plan.root.clone()).or_default();
        if let Some(same) = here.iter().find(|at| self.plan.folders[**at] == plan) {
            return *same;
        }
        here.push(self.plan.folders.len());
        self.plan.folders.push(plan);
        self.plan.folders.len() - 1
    }
}

/// Where the connections of a site are passed on to, by the setting among these nodes.
fn passthrough(
    reader: Reader<'_>,
    nodes: &[Node],
    options: &ServeOptions,
) -> Result<Option<TlsPassthrough>, Mistake> {
    let Some(text) = &options.tls_passthrough else { return Ok(None) };
    let is_action = |node: &&Node| {
        ["route", "when"].contains(&node.name.as_str()) || ACTIONS.contains(&node.name.as_str())
    };
    if let Some(action) = nodes.iter().find(is_action) {
        let name = &action.name;
        let message = format!(
            "connections of this site are passed on as they are (tls-passthrough): it cannot have `{name}`"
        );
        return Err(reader.tree.mistake(&action.at, message));
    }
    let node = nodes.iter().find(|node| node.name == "tls-passthrough");
    let at = node.map_or(0..0, |node| node.value_at().clone());
    let upstream = options.upstream_of(text).map_err(|message| reader.tree.mistake(&at, message))?;
    let shares = vec![PassthroughShare { weight: 1, upstream: Some(upstream) }];
    Ok(Some(TlsPassthrough { shares, ..TlsPassthrough::default() }))
}

/// Whether a route takes all requests of a later one.
fn hides(route: &Route, later: &Route) -> bool {
    let has_same_name = route.entry != RouteEntry::Named || route.name == later.name;
    let has_same_paths = has_same_name
        && route.entry == later.entry
        && route.path == later.path
        && route.methods == later.methods;
    has_same_paths && (route.when.is_empty() || route.when == later.when)
}

/// The paths of a route.
fn path(node: &Node) -> Result<PathMatch, String> {
    let text = node.values[0].text.clone();
    let how = node.key("match").map_or("prefix", |value| value.text.as_str());
    let before_patterns = node.key("before-patterns").is_some_and(|value| value.text == "on");
    let is_prefix = ["prefix", "starts-with"].contains(&how);
    if before_patterns && !is_prefix {
        return Err("before-patterns= is for prefix and starts-with only".to_owned());
    }
    let may_begin_so =
        how.starts_with("regex") || text.starts_with('/') || (how == "glob" && text.starts_with('*'));
    if !may_begin_so {
        return Err(format!("got `{text}`, need a path that begins with /"));
    }
    Ok(match how {
        "exact" => PathMatch::Exact(text),
        "glob" => PathMatch::Glob(text),
        "regex" | "regex-ignore-case" => {
            parse::regex(&text)?;
            PathMatch::Regex { pattern: text, ignore_case: how != "regex" }
        }
        _ => PathMatch::Prefix { path: text, segments: how == "prefix", before_patterns },
    })
}

/// The settings for an action in a `when`. If it stands above the innermost `try-files` of these levels, it also handles requests for files.
fn before_files(
    levels: &[&[Node]],
    conditional: &ConditionalAction<'_>,
    options: &ServeOptions,
) -> ServeOptions {
    let mut options = options.clone();
    let tried = levels.iter().rev().find_map(|nodes| nodes.iter().find(|node| node.name == "try-files"));
    if tried.is_some_and(|tried| conditional.node.at.start < tried.at.start) {
        options.try_files = None;
    }
    options
}
