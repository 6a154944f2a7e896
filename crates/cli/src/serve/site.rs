//! Converts a site file into plans.

use std::ops::Range;

use flatout_cache::DiskPlan;
use flatout_config::{Mistake, Node, Tree};
use flatout_engine::MessagePlan;
use flatout_observe::log;
use flatout_server::{AcmePart, Checked, Invalid, Plan, PrerenderPlan, SecurePart};
use flatout_site::{Fault, Place};

use super::blocks::ACTIONS;
use super::options::{Level, ServeOptions};
use super::parse;
use super::routes::{Hosts, Sites};
use super::setting::{ServeSetting, SettingScope};
use super::settings::{all, find};
use super::values::{Values, place};

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
        let message = match at {
            Some(_) => fault.reason.clone(),
            None => fault.to_string(),
        };
        self.tree.mistake(&at.unwrap_or(0..0), message).to_string()
    }
}

/// A setting given by a flag.
pub(super) type Flag = (&'static ServeSetting, Values);

/// Builds plans from a tree. Flags override the same settings at the top of the file.
///
/// # Errors
/// The first mistake in the file; a mistake in a flag has no position.
pub(super) fn build(tree: Tree, base: &std::path::Path, flags: &[Flag]) -> Result<Built, String> {
    let shown = |mistake: Mistake| mistake.to_string();
    let mut top = ServeOptions::new(base);
    let reader = Reader { tree: &tree };
    reader.groups(&tree.nodes, &top);
    reader.maps(&top).map_err(shown)?;
    reader.variables(&tree.nodes, &mut top).map_err(shown)?;
    let is_flag = |setting: &ServeSetting| flags.iter().any(|(flag, _)| flag.name == setting.name);
    for of_upstreams in [true, false] {
        let now = |setting: &ServeSetting| (setting.stands == SettingScope::Upstream) == of_upstreams;
        reader.settings(&tree.nodes, &mut top, |setting| now(setting) && !is_flag(setting)).map_err(shown)?;
        if !of_upstreams {
            reader.blocks(&tree.nodes, &mut top).map_err(shown)?;
        }
        top.base = std::path::PathBuf::new();
        for (setting, given) in flags.iter().filter(|(setting, _)| now(setting)) {
            (setting.set)(&mut top, given)
                .map_err(|refused| format!("--{}: {}", setting.name, refused.message))?;
        }
        top.base = base.to_owned();
        if of_upstreams {
            reader.upstreams(&top).map_err(shown)?;
        }
    }
    reader.proxy_protocol(&tree.nodes, &mut top).map_err(shown)?;
    let mut sites = Sites::default();
    let mut logs: Vec<_> = top.logs.iter().map(|log| log.clone().plan(&top.log, None)).collect();
    for node in tree.nodes.iter().filter(|node| node.name == "site") {
        let options = reader.site(node, &top, &mut sites).map_err(shown)?;
        let index = u16::try_from(sites.plan.sites.len() - 1).ok();
        logs.extend(options.logs.into_iter().map(|log| log.plan(&options.log, index)));
    }
    let answers = |node: &&Node| node.name == "route" || ACTIONS.contains(&node.name.as_str());
    if let Some(first) = tree.nodes.iter().find(answers) {
        let hosts = Hosts { at: first.at.clone(), names: vec![("*".to_owned(), first.at.clone())] };
        // It is served at all addresses of the server.
        let mut rest = top.clone();
        rest.listens.clear();
        sites.add(reader, hosts, &tree.nodes, &rest).map_err(shown)?;
    }
    if sites.plan.sites.is_empty() {
        let message = "nothing is served; add files, proxy, push, redirect, respond, a route or a site";
        return Err(shown(tree.mistake(&(0..0), message)));
    }
    finish(top, sites, logs, tree)
}

fn finish(top: ServeOptions, sites: Sites, logs: Vec<log::Plan>, tree: Tree) -> Result<Built, String> {
    let Sites { plan: mut sites, places, options } = sites;
    // Without any certificate nothing is said about TLS.
    let is_any_secure = top.has_certificate() || options.iter().any(ServeOptions::has_certificate);
    let placed = |level: &ServeOptions| level.placed(level.has_certificate() || !is_any_secure);
    let listen = placed(&top).into_iter().map(|at| at.listen).collect();
    let site_listen = options.iter().map(placed).collect();
    let site_secure = options.iter().map(|site| site.profile(&top)).collect();
    let mut shared = top.shared.borrow_mut();
    sites.upstreams = std::mem::take(&mut shared.upstreams);
    let rendered = std::mem::take(&mut shared.rendered);
    let prerender =
        (!rendered.is_empty()).then_some(PrerenderPlan { renderer: top.renderer, sites: rendered });
    sites.rates = std::mem::take(&mut shared.rates);
    sites.concurrency = std::mem::take(&mut shared.concurrency);
    sites.maps = std::mem::take(&mut shared.maps);
    sites.sets = std::mem::take(&mut shared.sets);
    sites.crawler_addresses = top.crawler_addresses;
    sites.trust = top.trust;
    sites.spool = top.spool;
    sites.cache = top.cache;
    sites.cache.disk = top.cache_dir.map(|dir| DiskPlan { dir, bytes_max: top.cache_size });
    let mut plan = Plan {
        server: flatout_engine::Plan { listen, ..top.server },
        site_listen,
        site_secure,
        secure: top.secure,
        https_redirect: top.https_redirect.unwrap_or(!top.issue.domains.is_empty()),
        issue: top.issue,
        state: None,
        sites,
        prerender,
        push: top.push_limits,
        bus: top.bus,
        messages: MessagePlan { level: top.message_level, is_json: top.log.format == log::Format::json() },
        logs,
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

/// Reads nodes of a tree.
#[derive(Clone, Copy)]
pub(super) struct Reader<'r> {
    pub(super) tree: &'r Tree,
}

impl Reader<'_> {
    /// Reads the settings of a level that `wanted` selects.
    pub(super) fn settings(
        self,
        nodes: &[Node],
        options: &mut ServeOptions,
        wanted: impl Fn(&ServeSetting) -> bool,
    ) -> Result<(), Mistake> {
        for node in nodes {
            let Some(setting) = find(&node.name).filter(|setting| wanted(setting)) else { continue };
            let given = Values::of_node(node);
            (setting.set)(options, &given).map_err(|refused| {
                let named = refused.key.map_or_else(|| setting.name.to_owned(), |key| format!("{key}="));
                self.tree.mistake(place(node, &refused), format!("{named}: {}", refused.message))
            })?;
            // If the server's plan is invalid, the setting that was read last is to blame.
            if setting.stands == SettingScope::Top {
                options.server.check().map_err(|message| self.tree.mistake(node.value_at(), message))?;
            }
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
            if let (true, Some(pattern)) = (is_pattern, node.values.first())
                && let Ok(regex) = parse::regex(&pattern.text)
            {
                top.shared.borrow_mut().groups.extend(regex.capture_names().flatten().map(str::to_owned));
            }
            self.groups(node.inner.as_deref().unwrap_or_default(), top);
        }
    }

    fn upstreams(self, top: &ServeOptions) -> Result<(), Mistake> {
        for node in self.tree.nodes.iter().filter(|node| node.name == "upstream") {
            let name = &node.values[0];
            if name.text.contains([':', '/']) || name.text.is_empty() {
                let message = format!("got `{}`, need a name without colons and slashes", name.text);
                return Err(self.tree.mistake(&name.at, message));
            }
            if top.shared.borrow().known.contains(&name.text) {
                return Err(self
                    .tree
                    .mistake(&name.at, format!("there is another upstream `{}`", name.text)));
            }
            let inner = node.inner.as_deref().unwrap_or_default();
            let mut options = top.within(Level::Upstream);
            self.settings(inner, &mut options, |_| true)?;
            let mut servers = Vec::new();
            for server in inner.iter().filter(|node| node.name == "server") {
                let at = |message| self.tree.mistake(server.value_at(), message);
                let (address, is_tls) = parse::server(&server.values[0].text).map_err(at)?;
                let mut found = options.server_at(address, is_tls);
                let given = Values::of_node(server);
                let weight = given.read("weight", parse::at_least_one);
                found.weight =
                    weight.map_err(|bad| self.tree.mistake(place(server, &bad), bad.message))?.unwrap_or(1);
                found.backup = given.key("backup") == Some("on");
                servers.push(found);
            }
            if servers.iter().all(|server| server.backup) {
                let message = match servers.len() {
                    0 => {
                        format!("upstream `{}` needs a server, such as server \"127.0.0.1:8000\"", name.text)
                    }
                    _ => format!("all servers of `{}` are backups; at least one must not be", name.text),
                };
                return Err(self.tree.mistake(&node.at, message));
            }
            options.upstream.name = name.text.clone();
            options.upstream.servers = servers;
            options.upstream.check().map_err(|message| self.tree.mistake(&node.at, message))?;
            let mut shared = top.shared.borrow_mut();
            shared.known.push(name.text.clone());
            shared.upstreams.push(options.upstream);
        }
        Ok(())
    }

    fn site(self, node: &Node, top: &ServeOptions, sites: &mut Sites) -> Result<ServeOptions, Mistake> {
        let names = node.values.iter().map(|value| (value.text.clone(), value.at.clone())).collect();
        let hosts = Hosts { at: node.at.clone(), names };
        let inner = node.inner.as_deref().unwrap_or_default();
        let mut options = top.within(Level::Site);
        self.level(inner, &mut options)?;
        self.proxy_protocol(inner, &mut options)?;
        sites.add(self, hosts, inner, &options)?;
        Ok(options)
    }
}
