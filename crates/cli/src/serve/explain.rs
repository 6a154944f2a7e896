//! `flatout explain METHOD URL -c FILE`: which site, route and rules would apply, and why.

use std::fmt::Write;

use clap::{Arg, ArgAction, ArgMatches, ValueHint};
use flatout_engine::{Address, Listen};
use flatout_observe::log::Scope;
use flatout_observe::observed::RequestLogs;
use flatout_proxy::{Address as Server, Forward, Resolver, SourcePlace, Upstream};
use flatout_push::Kind;
use flatout_server::Checked;
use flatout_site::Fault;
use flatout_site::explain::{Explained, Question, explain};
use flatout_site::plan::{Action, Host, PathMatch, PathPolicy, Plan, Reroute, Route, RouteEntry, Site};

use super::explain_rules::{of_blocks, of_guards, of_response, of_rewrites};
use super::explain_settings::{Met, of_settings};
use super::format;
use super::site::Built;
use super::source::built;
use crate::command::Command;
use crate::setting::words;
use crate::{Failure, print, value};

pub(crate) const COMMAND: Command = Command {
    name: "explain",
    about: "Show which site, route and rules apply to a request, and why",
    more: "It runs the same code as the server. Nothing is sent.\nExit status: 0, or 2 if the site file has a \
           mistake.",
    examples: &[
        ("flatout explain GET https://example.org/api/x -c site.kdl", "how a request would be handled"),
        (
            "flatout explain GET http://example.org/ -c site.kdl --from 192.0.2.7",
            "the same from this client address",
        ),
        ("flatout explain GET http://example.org/ -c site.kdl --cost", "with the cost of its conditions"),
    ],
    arguments: |command| {
        command
            .arg(Arg::new(METHOD).value_name("METHOD").required(true).help("The method, such as GET"))
            .arg(Arg::new(URL).value_name("URL").required(true).help("The URL").value_hint(ValueHint::Url))
            .arg(
                Arg::new("config")
                    .short('c')
                    .long("config")
                    .value_name("FILE")
                    .required(true)
                    .help("The site file")
                    .value_hint(ValueHint::FilePath),
            )
            .arg(
                Arg::new("header")
                    .short('H')
                    .long("header")
                    .value_name("FIELD")
                    .action(ArgAction::Append)
                    .help("A header field of the request, `Name: value`; can be repeated"),
            )
            .arg(
                Arg::new("cost")
                    .long("cost")
                    .action(ArgAction::SetTrue)
                    .help("Also print the most steps that the conditions of this path take"),
            )
            .arg(Arg::new("from").long("from").value_name("IP").help("The address of the client"))
    },
    run,
};

const METHOD: &str = "method";
const URL: &str = "url";

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let one = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let question = question(&one(METHOD), &one(URL), &words(matches, "header"), &one("from"));
    let question = question.map_err(Failure::Usage)?;
    let mut built = built(std::path::Path::new(&one("config"))).map_err(Failure::Usage)?;
    let checked = built.check().map_err(Failure::Usage)?;
    let (listen, explained) =
        explained(&checked, &question).map_err(|fault| Failure::Usage(fault.to_string()))?;
    let has_own = checked.plan().site_listen.iter().any(|own| !own.is_empty());
    let mut text = lines_of(&built, checked.plan(), &explained, listen.filter(|_| has_own), &question);
    if matches.get_flag("cost") {
        let _ = writeln!(text, "{:<10} at most {} steps of conditions", "cost", explained.steps);
    }
    print(&text)
}

/// What would happen to the request at the listener that has the port of its URL. A file for another machine may have other
/// ports than a URL that users know: then the first listener counts where a site has the host.
fn explained<'c>(
    checked: &'c Checked,
    question: &Question,
) -> Result<(Option<&'c Listen>, Explained), Fault> {
    let usual = if question.is_tls { 443 } else { 80 };
    let port = question.host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(usual);
    let has_port = |listen: &&Listen| matches!(listen.address, Address::Tcp(at) if at.port() == port);
    let mut listens: Vec<&Listen> = checked.listens().iter().filter(has_port).collect();
    if listens.is_empty() {
        listens = checked.listens().iter().collect();
    }
    let mut first = None;
    for listen in listens {
        let question = Question { listener: listen.number, ..question.clone() };
        let explained = explain(&checked.plan().sites, &question)?;
        if explained.site.is_some() {
            return Ok((Some(listen), explained));
        }
        first.get_or_insert((Some(listen), explained));
    }
    match first {
        Some(first) => Ok(first),
        None => Ok((None, explain(&checked.plan().sites, question)?)),
    }
}

/// Whether a site gets requests for a host that is not among its names.
fn is_for_other_names(site: &Site, host: &str) -> bool {
    let host = host.rsplit_once(':').map_or(host, |(name, _)| name).to_ascii_lowercase();
    !site.hosts.iter().any(|known| match known {
        Host::Exact(name) => *name == host,
        Host::Below(name) => host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.')),
        // An expression may match it. Without any names, there is nothing to say.
        Host::Pattern(_) => true,
        Host::Unnamed => false,
        Host::Any => site.hosts.len() == 1,
    })
}

fn question(method: &str, url: &str, fields: &[String], from: &str) -> Result<Question, String> {
    let rest = url.split_once("://").map(|(_, rest)| rest);
    let rest = rest.ok_or_else(|| format!("got `{url}`, need a URL such as https://example.org/path"))?;
    let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let target = target.split('#').next().unwrap_or_default();
    let fields: Result<Vec<_>, _> = fields.iter().map(|field| value::field(field)).collect();
    let peer = match from {
        "" => None,
        text => {
            let address: Result<std::net::IpAddr, _> = text.parse();
            Some((address.map_err(|_| format!("--from: got `{text}`, need an IP address"))?, 0).into())
        }
    };
    Ok(Question {
        method: method.to_owned(),
        host: host.to_owned(),
        target: if target.starts_with('/') { target.to_owned() } else { format!("/{target}") },
        fields: fields?,
        peer,
        listener: 0,
        is_tls: url.starts_with("https://"),
    })
}

/// Lines of a name and what it is.
#[derive(Default)]
pub(super) struct Lines(String);

impl Lines {
    pub(super) fn line(&mut self, name: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "{name:<10} {}", text.as_ref());
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// All lines: the way of the request to its route, what it meets there, and what happens to the response.
fn lines_of(
    built: &Built,
    server: &flatout_server::Plan,
    explained: &Explained,
    listen: Option<&Listen>,
    question: &Question,
) -> String {
    let (plan, is_tls) = (&server.sites, question.is_tls);
    let mut lines = Lines::default();
    if let Some(listen) = listen {
        lines.line(
            "listen",
            listen.address.url((server.is_secure() || listen.passes_tls) && !listen.is_plain),
        );
    }
    if server.https_redirect && !is_tls {
        lines.line(
            "first",
            "308, a redirect to https (https-redirect); what follows is for the other ways to this server",
        );
    }
    let site = explained.site.and_then(|at| Some((at, plan.sites.get(at)?)));
    if let Some((at, site)) = site {
        let line = built.places.sites.get(at).map_or(0, |at| built.tree.line(at));
        let why = if is_for_other_names(site, &question.host) { ", for names that no site has" } else { "" };
        lines.line("site", format!("{}, line {line}{why}", site.name));
    }
    if let (Some((_, site)), true) = (site, is_tls)
        && let Some(passthrough) = &site.tls_passthrough
    {
        for upstream in passthrough.shares.iter().filter_map(|share| plan.upstreams.get(share.upstream?)) {
            lines.line("tls", format!("passed on as it is to upstream {} (tls-passthrough)", upstream.name));
        }
        of_guards(&mut lines, plan, &site.rules);
        return lines.0;
    }
    let place_of =
        |site: usize, route: usize| built.places.routes.get(site).and_then(|routes| routes.get(route));
    let mut met = Met { route: None, site: None, place: None, upstream: None, is_tls };
    met.site = explained.site.and_then(|at| built.places.sites.get(at)).cloned();
    match (&explained.route, site) {
        (Ok(at), Some((site_at, site))) if site.routes.get(*at).is_some() => {
            let route = &site.routes[*at];
            let place = place_of(site_at, *at);
            let line = place.map_or(0, |at| built.tree.line(at));
            lines.line("route", format!("{}, line {line}", route.name));
            lines.line("because", why(route));
            rewrites(&mut lines, plan, site, route);
            lines.line("path", &explained.path);
            of_guards(&mut lines, plan, &route.rules);
            of_action(&mut lines, plan, route, explained);
            of_response(&mut lines, plan, &route.rules);
            of_blocks(&mut lines, plan, &route.rules);
            if let Action::Reroute(Reroute::Named(name)) = &route.action {
                of_named(&mut lines, built, plan, (site_at, name), explained);
            }
            (met.route, met.place) = (Some(route), place.cloned());
            if let Action::Proxy(forward) = &route.action {
                met.upstream = plan.upstreams.get(forward.upstream).map(|upstream| upstream.name.clone());
            }
        }
        (Err(refused), _) => {
            lines.line("response", format!("{}: {}", refused.status, refused.reason));
            if let Some((site_at, site)) = site {
                let route = refused.route.and_then(|at| Some((at, site.routes.get(at)?)));
                if let Some((at, route)) = route {
                    let line = place_of(site_at, at).map_or(0, |at| built.tree.line(at));
                    lines.line("rules", format!("of route {}, line {line}, apply first", route.name));
                }
                let rules = route.map_or(&site.rules, |(_, route)| &route.rules);
                of_guards(&mut lines, plan, rules);
                of_response(&mut lines, plan, rules);
            }
        }
        _ => {}
    }
    of_settings(&mut lines, built, &met);
    of_logs(&mut lines, server, explained, site.map(|(_, site)| &**site));
    for condition in &explained.conditions {
        let truth = match condition.holds {
            Some(true) => "true",
            Some(false) => "false",
            None => "decided when the response is known",
        };
        let route = condition.route.and_then(|at| site?.1.routes.get(at));
        let subject =
            route.map_or_else(|| "rules".to_owned(), |route| format!("route {}", route.path.text()));
        lines.line("condition", format!("{}: {truth} ({subject})", condition.source));
    }
    if let Some(client) = explained.client {
        lines.line("client", client.to_string());
    }
    lines.0
}

/// The logs that the request is written to.
fn of_logs(lines: &mut Lines, server: &flatout_server::Plan, explained: &Explained, site: Option<&Site>) {
    let route = match &explained.route {
        Ok(at) => Some(*at),
        Err(refused) => refused.route,
    };
    let rules =
        site.map(|site| route.and_then(|at| site.routes.get(at)).map_or(&site.rules, |route| &route.rules));
    let logs = rules.map_or(RequestLogs::Usual, |rules| rules.logs);
    // The block of a condition is for all other requests.
    let condition = |bit: u8| {
        let skips = 1u8.checked_shl(bit.into())?;
        let block = rules?.when.iter().find(|block| block.rules.log_skips == skips)?;
        block.conditions.last()?.source().strip_prefix("!(")?.strip_suffix(')')
    };
    for log in &server.logs {
        let is_written = match (log.scope, logs) {
            (Scope::Server, RequestLogs::Usual) => true,
            (Scope::Site(at), RequestLogs::Usual) => Some(usize::from(at)) == explained.site,
            (Scope::Route(of), RequestLogs::Route(route)) => of == route,
            _ => false,
        };
        if is_written {
            let condition = log.skip.and_then(condition).map(|condition| format!(" if {condition}"));
            lines.line("log", format!("{}{}", log.path.display(), condition.unwrap_or_default()));
        }
    }
}

/// Those of its site apply before a route is chosen, those of the route after that.
fn rewrites(lines: &mut Lines, plan: &Plan, site: &Site, route: &Route) {
    of_rewrites(lines, plan, &site.rewrites);
    of_rewrites(lines, plan, &route.rewrites);
}

/// The route that a request continues at.
fn of_named(
    lines: &mut Lines,
    built: &Built,
    plan: &Plan,
    (site, name): (usize, &str),
    explained: &Explained,
) {
    let Some(routes) = plan.sites.get(site).map(|site| &site.routes) else { return };
    let Some((at, route)) = routes.iter().enumerate().find(|(_, route)| route.name == *name) else { return };
    let line = built.places.routes.get(site).and_then(|places| places.get(at));
    lines.line("route", format!("{name}, line {}", line.map_or(0, |at| built.tree.line(at))));
    of_guards(lines, plan, &route.rules);
    of_action(lines, plan, route, explained);
    of_response(lines, plan, &route.rules);
    of_blocks(lines, plan, &route.rules);
}

fn why(route: &Route) -> String {
    let path = match &route.path {
        _ if route.entry == RouteEntry::BeforePaths => "its condition is true; paths are not compared",
        PathMatch::Exact(_) => "an exact match",
        PathMatch::Prefix { before_patterns: true, .. } => "the longest prefix, with before-patterns",
        PathMatch::Prefix { .. } => "the longest prefix; no exact path or pattern matches",
        PathMatch::Glob(_) | PathMatch::Regex { .. } => "the first matching pattern; no exact path matches",
    };
    match route.methods.is_empty() {
        true => path.to_owned(),
        false => format!("{path}; methods {}", route.methods.join(" ")),
    }
}

/// What happens while a client is slower than its upstream.
fn of_buffering(plan: &Plan, forward: &Forward) -> String {
    match (forward.buffer_response_bytes, &plan.spool.folder) {
        (0, _) => "the upstream waits (buffer-response off)".to_owned(),
        (_, None) => "responses are kept in memory, up to 512KiB each; then the upstream waits".to_owned(),
        (bytes, Some(folder)) => {
            format!(
                "responses are kept in memory, then in files in {}, up to {} each",
                folder.display(),
                format::bytes(bytes)
            )
        }
    }
}

fn of_action(lines: &mut Lines, plan: &Plan, route: &Route, explained: &Explained) {
    let folder =
        |at: usize| plan.folders.get(at).map(|folder| folder.root.display().to_string()).unwrap_or_default();
    if let Some(at) = route.try_files {
        let rest = if route.try_files_final { "; what is there does not continue" } else { "" };
        lines.line("first", format!("a file in {}{rest}", folder(at)));
    }
    if !route.files_at.is_empty() {
        lines.line("files at", route.files_at.clone());
    }
    match &route.action {
        Action::Files(at) => lines.line("files", folder(*at)),
        Action::Proxy(forward) => {
            if let Some(upstream) =
                plan.upstreams.get(forward.upstream).filter(|_| route.upstream_name.is_none())
            {
                lines.line("upstream", of_upstream(upstream));
                lines.line("balance", format::balance(&upstream.balance));
                let whole = upstream.request_time_max.map(|time| format!(", request {}", format::time(time)));
                lines.line(
                    "times",
                    format!(
                        "connect {}, send {}, read {}{}; {} retries",
                        format::time(upstream.connect_time_max),
                        format::time(upstream.send_time_max),
                        format::time(upstream.read_time_max),
                        whole.unwrap_or_default(),
                        upstream.retries_max
                    ),
                );
            }
            if let Some(name) = &route.upstream_name {
                let others = plan.upstreams.get(forward.upstream).filter(|_| route.names_server);
                let others =
                    others.map(|others| format!("; otherwise a server of this name, by {}", others.name));
                let name = format::template(plan, name);
                let among = route.named_upstreams.as_ref().filter(|among| !among.is_empty());
                let among = among.map(|among| format!(" among {}", among.join(", "))).unwrap_or_default();
                lines.line(
                    "upstream",
                    format!("the one with the name {name}{among}{}", others.unwrap_or_default()),
                );
            }
            lines.line("target", &explained.target);
            lines.line("buffering", of_buffering(plan, forward));
            if forward.private.accel {
                lines.line(
                    "instructions",
                    "X-Accel-Redirect, X-Accel-Expires, X-Accel-Charset and X-Accel-Limit-Rate are followed",
                );
            }
            for mirror in &forward.mirrors {
                let name = plan.upstreams.get(mirror.upstream).map_or("", |upstream| &upstream.name);
                let percent = 100.0 * f64::from(mirror.numerator) / f64::from(mirror.denominator.max(1));
                lines.line("mirror", format!("copies of {percent}% of the requests go to {name}"));
            }
            for allowed in &route.rules.sendfile {
                lines.line("X-Sendfile", format!("{}/… by the route of {}", allowed.folder, allowed.path));
            }
        }
        Action::Push(push) => {
            let kind = match push.history.kind {
                Kind::Log => "a log",
                Kind::Latest => "latest values",
            };
            lines.line("channels", format!("{kind}; {} messages or keys are kept", push.history.count));
            lines.line("push group", &push.group);
        }
        Action::Redirect { status, to } => {
            lines.line("response", format!("{status}, a redirect to {}", format::template(plan, to)));
        }
        Action::Reroute(Reroute::Named(name)) => lines.line("then", format!("the route {name}")),
        Action::Reroute(Reroute::Path(to)) => {
            lines.line("then", format!("the route of {}", format::template(plan, to)));
        }
        Action::StubStatus => lines.line("response", "200, the figures of this server"),
        Action::Close => lines.line("response", "none: the connection is closed"),
        Action::Respond { status, content_type, .. } => {
            lines.line("response", format!("{status}, {content_type}"))
        }
    }
    let paths = match route.paths {
        PathPolicy::Strict => "strict: dot segments, %2F and backslashes get 400",
        PathPolicy::Forward => "forward: resolved for matching",
    };
    lines.line("paths", paths);
}

pub(super) fn of_upstream(upstream: &Upstream) -> String {
    let servers = upstream.servers.iter().map(|server| {
        let address = match &server.address {
            Server::Socket(address) => address.to_string(),
            Server::Name(name, port) => format!("{name}:{port}"),
            Server::Unix(path) => format!("unix:{}", path.display()),
        };
        let scheme = if server.tls.is_some() { "https://" } else { "" };
        let backup = if server.backup { " (backup)" } else { "" };
        let most = match server.requests_max {
            0 => String::new(),
            most => format!(" (at most {most} requests at a time)"),
        };
        format!("{scheme}{address}{backup}{most}")
    });
    let sources = upstream.sources.iter().map(|source| match source.read(&Resolver::System, upstream) {
        _ if matches!(source.place, SourcePlace::Service { .. }) => source.place.to_string(),
        Ok(servers) => {
            let servers = servers.iter().map(|server| {
                let drain = if server.drain { " (drained)" } else { "" };
                format!("{}{drain}", server.address)
            });
            format!("{}: {}", source.place, servers.collect::<Vec<_>>().join(", "))
        }
        Err(why) => format!("{}: {why}", source.place),
    });
    format!("{}: {}", upstream.name, servers.chain(sources).collect::<Vec<_>>().join(", "))
}
