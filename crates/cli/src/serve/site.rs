//! Converts a site file into plans.

use std::cell::RefCell;
use std::ops::Range;

use flatout_cache::DiskPlan;
use flatout_config::{Mistake, Node, Tree, in_order};
use flatout_engine::MessagePlan;
use flatout_engine::tls::ServerPlan;
use flatout_observe::log;
use flatout_proxy::{Server, ServerSource, SourcePlace, Upstream};
use flatout_server::{AcmePart, Checked, Invalid, Plan, PrerenderPlan, SecurePart};
use flatout_site::{Fault, Place};

use super::blocks::ACTIONS;
use super::options::{Level, ServeOptions};
use super::parse;
use super::routes::{Hosts, Sites};
use super::setting::{ServeSetting, SettingScope};
use super::settings::{all, find};
use super::values::{Values, mistake};

/// Mistakes that are shown at once.
const MISTAKES_SHOWN_MAX: usize = 30;

/// The plan from a site file, or from flags alone, and where its parts are in the file.
pub(super) struct Built {
    pub(super) plan: Plan,
    /// The parsed file.
    pub(super) tree: Tree,
    pub(super) places: Places,
}

/// Positions in the file of things that a plan refers to by index.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) sites: Vec<Range<usize>>,
    pub(super) routes: Vec<Vec<Range<usize>>>,
}

impl Built {
    /// Takes the plan, if it is valid.
    ///
    /// # Errors
    /// The first mistake, with its position if it has one.
    pub(super) fn check(&mut self) -> Result<Checked, String> {
        std::mem::take(&mut self.plan).check().map_err(|invalid| match invalid {
            Invalid::Sites(fault) => self.fault(&fault),
            Invalid::Value(message) => message,
            Invalid::Address(site, reason) => {
                let at = self.places.sites.get(site).cloned().unwrap_or(0..0);
                self.tree.mistake(&at, reason).to_string()
            }
            Invalid::Admin(message) => format!("admin: {message} (admin-public)"),
            Invalid::NoDomain(part) => {
                format!("{}: there is no domain; name one: domain example.org", acme_setting(part))
            }
            Invalid::NoDnsHook(wildcard) => {
                let name = wildcard.as_deref().unwrap_or("acme-challenge dns-01");
                format!("{name}: needs a program that sets DNS records: acme-dns-hook FILE")
            }
            Invalid::NoCertificate(part) => {
                format!("{}: there is no certificate; give one: tls CERT KEY", secure_setting(part))
            }
        })
    }

    /// A fault of the plan, with its position.
    pub(super) fn fault(&self, fault: &Fault) -> String {
        let nth = |name: &str, at: usize| {
            self.tree.nodes.iter().filter(|node| node.name == name).nth(at).map(|node| node.at.clone())
        };
        let at = match fault.place {
            Place::Site(site) => self.places.sites.get(site).cloned(),
            Place::Route(site, route) => {
                self.places.routes.get(site).and_then(|site| site.get(route)).cloned()
            }
            Place::Map(map) => nth("map", map),
            Place::CrawlerAddresses(at) => nth("prerender-addresses", at),
            _ => None,
        };
        let file = fault.file.as_deref().and_then(|file| value_of_file(&self.tree.nodes, file));
        let at = file.or(at);
        let message = match at {
            Some(_) => fault.reason.clone(),
            None => fault.to_string(),
        };
        self.tree.mistake(&at.unwrap_or(0..0), message).to_string()
    }
}

/// The position of the first value that names a file.
fn value_of_file(nodes: &[Node], file: &std::path::Path) -> Option<Range<usize>> {
    nodes.iter().find_map(|node| {
        let values = node.values.iter().chain(node.keys.iter().map(|(_, value)| value));
        let mut named = values.filter(|value| !value.text.is_empty() && file.ends_with(&value.text));
        named.next().map(|value| value.at.clone()).or_else(|| value_of_file(node.inner.as_deref()?, file))
    })
}

/// A setting given by a flag.
pub(super) type Flag = (&'static ServeSetting, Values);

/// Builds plans from a tree. Flags override the same settings at the top of the file.
///
/// # Errors
/// All mistakes in the file; a mistake in a flag has no position.
pub(super) fn build(
    read: (Tree, Vec<Mistake>),
    base: &std::path::Path,
    flags: &[Flag],
) -> Result<Built, String> {
    let (built, mistakes) = build_all(read, base, flags)?;
    if mistakes.is_empty() { Ok(built) } else { Err(shown(&mistakes)) }
}

/// Mistakes as they are shown.
pub(super) fn shown(mistakes: &[Mistake]) -> String {
    let more = mistakes.len().saturating_sub(MISTAKES_SHOWN_MAX);
    let more = (more > 0).then(|| format!("and {more} more mistakes"));
    let texts = mistakes.iter().take(MISTAKES_SHOWN_MAX).map(ToString::to_string);
    texts.chain(more).collect::<Vec<_>>().join("\n")
}

/// Builds what can be built of a tree, and finds all mistakes. With mistakes, the plan is only good for finding more of them.
///
/// # Errors
/// A mistake in a flag, or a folder that is missing.
pub(super) fn build_all(
    (tree, mistakes): (Tree, Vec<Mistake>),
    base: &std::path::Path,
    flags: &[Flag],
) -> Result<(Built, Vec<Mistake>), String> {
    let has_nodes = !tree.nodes.is_empty() || mistakes.is_empty();
    let mut top = ServeOptions::new(base);
    let mistakes = RefCell::new(mistakes);
    let whens: Vec<&Node> = tree.nodes.iter().filter(|node| node.name == "when").collect();
    let reader = Reader { tree: &tree, mistakes: &mistakes, top_whens: &whens };
    reader.groups(&tree.nodes, &top);
    reader.maps(&top);
    reader.variables(&tree.nodes, &mut top);
    let is_flag = |setting: &ServeSetting| flags.iter().any(|(flag, _)| flag.name == setting.name);
    for of_upstreams in [true, false] {
        let now = |setting: &ServeSetting| (setting.stands == SettingScope::Upstream) == of_upstreams;
        reader.settings(&tree.nodes, &mut top, |setting| now(setting) && !is_flag(setting));
        if !of_upstreams {
            reader.blocks(&tree.nodes, &mut top);
        }
        top.base = std::path::PathBuf::new();
        for (setting, given) in flags.iter().filter(|(setting, _)| now(setting)) {
            (setting.set)(&mut top, given)
                .map_err(|refused| format!("--{}: {}", setting.name, refused.message))?;
        }
        top.base = base.to_owned();
        if of_upstreams {
            reader.upstreams(&top);
        }
    }
    reader.note(reader.proxy_protocol(&tree.nodes, &mut top));
    let mut sites = Sites::default();
    let mut logs: Vec<_> =
        top.logs.iter().map(|log| log.clone().plan(&top.log, log::Scope::Server)).collect();
    for node in tree.nodes.iter().filter(|node| node.name == "site") {
        let options = reader.site(node, &top, &mut sites);
        let scope = log::Scope::Site(u16::try_from(sites.plan.sites.len() - 1).unwrap_or(u16::MAX));
        logs.extend(options.logs.into_iter().map(|log| log.plan(&options.log, scope)));
    }
    let answers = |node: &&Node| node.name == "route" || ACTIONS.contains(&node.name.as_str());
    if let Some(first) = tree.nodes.iter().find(answers) {
        let hosts = Hosts {
            at: first.at.clone(),
            names: vec![("*".to_owned(), first.at.clone())],
            is_whole: mistakes.borrow().is_empty(),
        };
        // It is served at all addresses of the server.
        let mut rest = top.clone();
        rest.listens.clear();
        sites.add(reader, hosts, &tree.nodes, &rest);
    }
    if sites.plan.sites.is_empty() && mistakes.borrow().is_empty() && has_nodes {
        let message = "nothing is served; add files, proxy, push, redirect, respond, a route or a site";
        reader.note::<()>(Err(tree.mistake(&(0..0), message)));
    }
    let mistakes = in_order(mistakes.into_inner());
    match finish(top, sites, logs, tree) {
        Ok(built) => Ok((built, mistakes)),
        Err(_) if !mistakes.is_empty() => Err(shown(&mistakes)),
        Err(message) => Err(message),
    }
}

fn finish(top: ServeOptions, sites: Sites, mut logs: Vec<log::Plan>, tree: Tree) -> Result<Built, String> {
    let Sites { plan: mut sites, places, options, .. } = sites;
    // Without any certificate nothing is said about TLS.
    let is_any_secure = top.has_certificate() || options.iter().any(ServeOptions::has_certificate);
    // Connections that are passed on need no certificate here.
    let is_passed = |site: &ServeOptions| site.tls_passthrough.is_some();
    let is_top_passed = options.iter().any(|site| site.listens.is_empty() && is_passed(site));
    let placed = |level: &ServeOptions, is_passed: bool| {
        level.placed(level.has_certificate() || !is_any_secure || is_passed)
    };
    let listen = placed(&top, is_top_passed).into_iter().map(|at| at.listen).collect();
    let site_listen = options.iter().map(|site| placed(site, is_passed(site))).collect();
    let site_secure = options.iter().map(|site| site.profile(&top)).collect();
    let mut shared = top.shared.borrow_mut();
    sites.upstreams = std::mem::take(&mut shared.upstreams);
    let rendered = std::mem::take(&mut shared.rendered);
    let (route_logs, of_routes): (Vec<_>, Vec<_>) =
        std::mem::take(&mut shared.route_logs).into_iter().unzip();
    logs.extend(of_routes.into_iter().flatten());
    let prerender =
        (!rendered.is_empty()).then_some(PrerenderPlan { renderer: top.renderer, sites: rendered });
    sites.rates = std::mem::take(&mut shared.rates);
    sites.concurrency = std::mem::take(&mut shared.concurrency);
    sites.maps = std::mem::take(&mut shared.maps);
    sites.sets = std::mem::take(&mut shared.sets);
    sites.crawler_addresses = top.crawler_addresses;
    sites.trust = top.trust;
    sites.spool = top.spool;
    sites.resolver = top.resolver;
    sites.cache = top.cache;
    sites.cache.disk = top.cache_dir.map(|dir| DiskPlan { dir, bytes_max: top.cache_size });
    let mut plan = Plan {
        server: flatout_engine::Plan { listen, ..top.server },
        site_listen,
        site_secure,
        // Names of clients cost memory.
        secure: ServerPlan { keeps_names: tree.has_text("ssl_server_name"), ..top.secure },
        https_redirect: top.https_redirect.unwrap_or(!top.issue.domains.is_empty()),
        issue: top.issue,
        state: None,
        sites,
        prerender,
        push: top.push_limits,
        bus: top.bus,
        messages: MessagePlan { level: top.message_level, is_json: top.log.format == log::Format::json() },
        logs,
        route_logs,
        admin: top.admin,
        admin_public: top.admin_public,
        is_constant: false,
        restart: Vec::new(),
    };
    plan.complete().map_err(|message| format!("state: {message}; name a folder with the setting `state`"))?;
    plan.restart =
        all().filter_map(|setting| Some((setting.name, (setting.change.needs_restart()?)(&plan)))).collect();
    Ok(Built { plan, tree, places })
}

/// The setting that makes a part of a plan.
fn acme_setting(part: AcmePart) -> &'static str {
    match part {
        AcmePart::Contact => "acme-contact",
        AcmePart::Authorities => "acme-ca",
        AcmePart::Challenge => "acme-challenge",
        AcmePart::DnsHook => "acme-dns-hook",
        AcmePart::Profile => "acme-profile",
    }
}

/// The setting that makes a part of a plan.
fn secure_setting(part: SecurePart) -> &'static str {
    match part {
        SecurePart::PlainListeners => "listen-plain",
        SecurePart::HttpsRedirect => "https-redirect",
        SecurePart::ClientAuthorities => "tls-client-ca",
        SecurePart::EarlyData => "early-data",
    }
}

/// Reads nodes of a tree. It notes a mistake and goes on, so that all are found.
#[derive(Clone, Copy)]
pub(super) struct Reader<'r> {
    pub(super) tree: &'r Tree,
    /// Those found so far; some several times.
    pub(super) mistakes: &'r RefCell<Vec<Mistake>>,
    /// Each `when` at the top of the file: they are for every site.
    pub(super) top_whens: &'r [&'r Node],
}

impl Reader<'_> {
    /// The value, or its mistake is noted.
    pub(super) fn note<T>(self, result: Result<T, Mistake>) -> Option<T> {
        result.map_err(|mistake| self.mistakes.borrow_mut().push(mistake)).ok()
    }

    /// The number of mistakes so far.
    pub(super) fn mistakes_count(self) -> usize {
        self.mistakes.borrow().len()
    }

    /// Reads the settings of a level that `wanted` selects.
    pub(super) fn settings(
        self,
        nodes: &[Node],
        options: &mut ServeOptions,
        wanted: impl Fn(&ServeSetting) -> bool,
    ) {
        for node in nodes.iter().filter(|node| node.is_whole) {
            if let Some(setting) = find(&node.name).filter(|setting| wanted(setting)) {
                self.note(self.setting(setting, node, options));
            }
        }
    }

    fn setting(self, setting: &ServeSetting, node: &Node, options: &mut ServeOptions) -> Result<(), Mistake> {
        (setting.set)(options, &Values::of_node(node)).map_err(|refused| {
            let named = refused.key.map_or_else(|| setting.name.to_owned(), |key| format!("{key}="));
            mistake(self.tree, node, &refused, format!("{named}: {}", refused.message))
        })?;
        // If the server's plan is invalid, the setting that was read last is to blame.
        if setting.stands == SettingScope::Top {
            options.server.check().map_err(|message| self.tree.mistake(node.value_at(), message))?;
        }
        Ok(())
    }

    /// Decides which addresses of a level expect the PROXY protocol.
    fn proxy_protocol(self, nodes: &[Node], options: &mut ServeOptions) -> Result<(), Mistake> {
        options.settle_proxy_protocol().map_err(|(name, reason)| {
            let nodes = || nodes.iter().filter(|node| node.name == name);
            let node = nodes().find(|node| node.key("proxy-protocol").is_some()).or_else(|| nodes().next());
            self.tree.mistake(node.map_or(&(0..0), Node::value_at), reason)
        })
    }

    /// Collects the named groups of all regular expressions: texts may use them.
    fn groups(self, nodes: &[Node], top: &ServeOptions) {
        for node in nodes {
            let is_pattern =
                node.name == "rewrite" || node.key("match").is_some_and(|how| how.text.starts_with("regex"));
            let is_marked =
                ["proxy-redirect", "proxy-cookie-domain", "proxy-cookie-path"].contains(&node.name.as_str());
            let pattern = node.values.first().map_or("", |value| value.text.as_str());
            let pattern = match (is_pattern, pattern.strip_prefix('~').filter(|_| is_marked)) {
                (true, _) => Some(pattern),
                (false, marked) => marked.map(|pattern| pattern.trim_start_matches('*')),
            };
            if let Some(Ok(regex)) = pattern.map(parse::regex) {
                top.shared.borrow_mut().groups.extend(regex.capture_names().flatten().map(str::to_owned));
            }
            self.groups(node.inner.as_deref().unwrap_or_default(), top);
        }
    }

    fn upstreams(self, top: &ServeOptions) {
        for node in self.tree.nodes.iter().filter(|node| node.name == "upstream") {
            let upstream = self.note(self.upstream(node, top));
            let mut shared = top.shared.borrow_mut();
            shared.known.push(node.values[0].text.clone());
            // What refers to one with a mistake is no mistake.
            shared.upstreams.push(upstream.unwrap_or_else(|| top.upstream.clone()));
        }
    }

    fn upstream(self, node: &Node, top: &ServeOptions) -> Result<Upstream, Mistake> {
        let name = &node.values[0];
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut options = top.within(Level::Upstream);
        let before = self.mistakes_count();
        self.settings(inner, &mut options, |_| true);
        let is_service = |node: &&Node| {
            node.name == "server" && node.values.first().is_some_and(|it| it.text.starts_with("srv+"))
        };
        let servers = inner.iter().filter(|node| node.name == "server" && !is_service(node));
        let servers: Vec<_> = servers.filter_map(|node| self.note(self.server(node, &options))).collect();
        let files = inner.iter().filter(|node| node.name == "servers-file" && node.is_whole);
        let files = files.filter_map(|node| self.note(self.servers_file(node, &options)));
        let services = inner.iter().filter(is_service);
        let services = services.filter_map(|node| self.note(self.service(node, &options)));
        let sources: Vec<_> = files.chain(services).collect();
        if name.text.contains([':', '/']) || name.text.is_empty() {
            let message = format!("got `{}`, need a name without colons and slashes", name.text);
            return Err(self.tree.mistake(&name.at, message));
        }
        if top.shared.borrow().known.contains(&name.text) {
            return Err(self.tree.mistake(&name.at, format!("there is another upstream `{}`", name.text)));
        }
        options.upstream.name = name.text.clone();
        options.upstream.servers = servers;
        options.upstream.sources = sources;
        if let Some(named) = &mut options.upstream.named {
            named.tls = options.tls.clone();
        }
        let is_whole = node.is_whole && self.mistakes_count() == before;
        let has_sources = !options.upstream.sources.is_empty() || options.upstream.named.is_some();
        if is_whole && !has_sources && options.upstream.servers.iter().all(|server| server.backup) {
            let message = match options.upstream.servers.len() {
                0 => format!("upstream `{}` needs a server, such as server \"127.0.0.1:8000\"", name.text),
                _ => format!("all servers of `{}` are backups; at least one must not be", name.text),
            };
            return Err(self.tree.mistake(&node.at, message));
        }
        if is_whole {
            options.upstream.check().map_err(|message| self.tree.mistake(&node.at, message))?;
        }
        Ok(options.upstream)
    }

    fn servers_file(self, node: &Node, options: &ServeOptions) -> Result<ServerSource, Mistake> {
        let at = |message| self.tree.mistake(node.value_at(), message);
        let text = node.values[0].text.as_str();
        if text.is_empty() || text.ends_with('/') {
            return Err(at(format!("got `{text}`, need the path of a file")));
        }
        let place = SourcePlace::File(options.path(text));
        Ok(ServerSource { place, tls: options.tls.clone() })
    }

    fn service(self, node: &Node, options: &ServeOptions) -> Result<ServerSource, Mistake> {
        let text = node.values[0].text.as_str();
        if let Some((name, value)) = node.keys.first() {
            let message = format!("`{name}=` is not possible: SRV records have priorities and weights");
            return Err(self.tree.mistake(&value.at, message));
        }
        let unknown = || format!("got `{text}`, need srv+http://NAME or srv+https://NAME");
        let place = flatout_proxy::service(text).unwrap_or_else(|| Err(unknown()));
        let place = place.map_err(|message| self.tree.mistake(node.value_at(), message))?;
        Ok(ServerSource { place, tls: options.tls.clone() })
    }

    fn server(self, node: &Node, options: &ServeOptions) -> Result<Server, Mistake> {
        let at = |message| self.tree.mistake(node.value_at(), message);
        let (address, is_tls) = parse::server(&node.values[0].text).map_err(at)?;
        let mut server = options.server_at(address, is_tls);
        let given = Values::of_node(node);
        let weight = given.read("weight", parse::at_least_one);
        server.weight =
            weight.map_err(|bad| mistake(self.tree, node, &bad, bad.message.clone()))?.unwrap_or(1);
        server.backup = given.key("backup") == Some("on");
        let most = given.read("max-requests", parse::requests_max);
        server.requests_max =
            most.map_err(|bad| mistake(self.tree, node, &bad, bad.message.clone()))?.unwrap_or(0);
        Ok(server)
    }

    fn site(self, node: &Node, top: &ServeOptions, sites: &mut Sites) -> ServeOptions {
        let names = node.values.iter().map(|value| (value.text.clone(), value.at.clone())).collect();
        let hosts = Hosts { at: node.at.clone(), names, is_whole: node.is_whole };
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut options = top.within(Level::Site);
        self.level(inner, &mut options);
        self.note(self.proxy_protocol(inner, &mut options));
        sites.add(self, hosts, inner, &options);
        options
    }
}
