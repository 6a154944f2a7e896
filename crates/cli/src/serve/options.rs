//! The options that settings fill. A site starts with a copy of the top level's options, a route with its site's:
//! this is all there is to inheritance.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use flatout_bus as bus;
use flatout_cache as cache;
use flatout_compress::Compress;
use flatout_engine::tls::{Profile, ServerPlan};
use flatout_engine::{Address as ListenAddress, Listen, Plan, ProxyHeader, Severity};
use flatout_files as files;
use flatout_observe::log::{self, Format, StandardStream};
use flatout_observe::observed::{LOG_CONDITIONS_MAX, ROUTE_LOGS_MAX, RequestLogs};
use flatout_proxy::{Address, Forward, Resolver, Server, ServerSource, SpoolPlan, Tls, Upstream};
use flatout_push as push;
use flatout_server::{Issue, SiteListen};
use flatout_site::plan::{
    AddressFrom, BadTemplate, Cached, Concurrency, Condition, CrawlerAddresses, Expression, ExpressionFault,
    Limited, Map, PathPolicy, Piece, Rate, Reroute, Rewrite, Rules, SetVariable, Template, Trust, VARIABLES,
    Variable, Vocabulary, WhenBlock,
};

use super::prerender::PrerenderOptions;

/// The options of one level: the server, a site, a route, an upstream.
#[derive(Debug, Clone)]
pub(super) struct ServeOptions {
    /// The level.
    pub(super) level: Level,
    pub(super) server: Plan,
    /// TLS to clients; unused without certificates.
    pub(super) secure: ServerPlan,
    /// Handshakes for the names of the site are refused.
    pub(super) refuses_tls: bool,
    /// Automatic certificates.
    pub(super) issue: Issue,
    /// The upstream that connections with TLS are passed on to, as it is written; for a site.
    pub(super) tls_passthrough: Option<String>,
    /// Whether plain HTTP requests are redirected to HTTPS, if configured.
    pub(super) https_redirect: Option<bool>,
    /// The addresses of the server or of a site.
    pub(super) listens: Vec<ListenSetting>,
    pub(super) trust: Trust,
    /// Whether `client-address` was set explicitly.
    pub(super) names_client_address: bool,
    pub(super) files: files::Plan,
    /// An upstream without servers.
    pub(super) upstream: Upstream,
    /// For servers of an upstream that use TLS.
    pub(super) tls: Tls,
    /// How requests are forwarded; the upstream is not known yet.
    pub(super) forward: Forward,
    /// The upstream that gets copies of requests too.
    pub(super) mirrors: Vec<MirrorSetting>,
    /// Channels; their path prefix is not known yet.
    pub(super) push: push::Plan,
    pub(super) push_limits: push::Limits,
    /// How other servers are reached.
    pub(super) bus: Option<bus::Plan>,
    pub(super) rules: Rules,
    pub(super) paths: Option<PathPolicy>,
    pub(super) methods: Vec<String>,
    pub(super) try_files: Option<PathBuf>,
    pub(super) try_files_final: bool,
    pub(super) files_at: String,
    /// Rewrites of this level alone.
    pub(super) rewrites: Vec<Rewrite>,
    /// The number of error pages set at this level: they come before inherited ones.
    pub(super) pages_here: usize,
    /// Access logs of the server, of a site or of a route.
    pub(super) logs: Vec<AccessLog>,
    /// The conditions of access logs at this level and around it.
    pub(super) log_conditions: Vec<Condition>,
    /// The least urgent messages of the server itself that are written.
    pub(super) message_level: Severity,
    /// Defaults of logs; its path is unused.
    pub(super) log: log::Plan,
    /// Addresses of the admin listener.
    pub(super) admin: Vec<ListenAddress>,
    pub(super) admin_public: bool,
    /// The response cache of the server.
    pub(super) cache: cache::Plan,
    /// The cache's folder, and its size limit.
    pub(super) cache_dir: Option<PathBuf>,
    pub(super) cache_size: u64,
    /// Where responses for slow clients are kept, and how much of them.
    pub(super) spool: SpoolPlan,
    /// What looks up the names of upstreams.
    pub(super) resolver: Resolver,
    /// Pages for crawlers, and the browser that draws them.
    pub(super) prerender: PrerenderOptions,
    pub(super) renderer: flatout_prerender::Plan,
    pub(super) crawler_addresses: Vec<CrawlerAddresses>,
    /// How long a 200 without its own lifetime is fresh; without this setting nothing is cached.
    pub(super) cache_time: Option<Duration>,
    /// How responses are cached, if they are.
    pub(super) caching: Cached,
    /// Without codings, nothing is compressed.
    pub(super) compress: Compress,
    /// The folder that file names are relative to: that of the site file.
    pub(super) base: PathBuf,
    /// The conditions around this level, of a `when` and those around it.
    pub(super) conditions: Vec<Condition>,
    /// The condition of each `when` so far, by its position.
    pub(super) whens: Vec<(usize, Condition)>,
    /// The number of inherited blocks of conditional rules.
    pub(super) blocks_inherited: usize,
    /// Variables of the file that texts of this level can use, with their value's index; the last one of a name counts.
    pub(super) variables: Vec<(String, usize)>,
    /// Lists that were replaced at this level.
    begun: Vec<&'static str>,
    pub(super) shared: Rc<RefCell<Shared>>,
}

/// An upstream that gets copies of a share of the requests, before its name is looked up.
#[derive(Debug, Clone)]
pub(super) struct MirrorSetting {
    /// Its name or address.
    pub(super) upstream: String,
    /// The share of the requests, as of [`Mirror`](flatout_proxy::Mirror).
    pub(super) numerator: u32,
    pub(super) denominator: u32,
}

/// A level in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Top,
    Site,
    Route,
    Upstream,
    When,
}

/// An address of the server or of a site.
#[derive(Debug, Clone)]
pub(super) struct ListenSetting {
    /// As it is written.
    pub(super) text: String,
    pub(super) address: ListenAddress,
    /// Without TLS, also where there is a certificate.
    pub(super) is_plain: bool,
    /// Whether its connections start with a PROXY protocol header, if configured.
    pub(super) proxy_header: Option<ProxyHeader>,
    /// The site also gets requests for host names that no site has there.
    pub(super) is_default: bool,
}

/// An access log. Settings that it lacks come from the settings next to it.
#[derive(Debug, Clone)]
pub(super) struct AccessLog {
    pub(super) path: PathBuf,
    pub(super) format: Option<Format>,
    pub(super) buffer_bytes: Option<usize>,
    pub(super) flush: Option<Duration>,
    pub(super) only: Vec<log::Condition>,
    pub(super) sample: Option<u32>,
    /// The bit of the requests that it leaves out.
    pub(super) skip: Option<u8>,
}

/// Variables of sites in all access logs.
const LOG_NAMES_MAX: usize = 64;

/// The longest time before a line appears in a standard stream, unless the log says otherwise.
const STREAM_FLUSH: Duration = Duration::from_millis(200);

impl AccessLog {
    /// Its plan, for these requests.
    pub(super) fn plan(self, usual: &log::Plan, scope: log::Scope) -> log::Plan {
        let AccessLog { path, format, buffer_bytes, flush, only, sample, skip } = self;
        let stream = StandardStream::of(&path);
        let is_for_people =
            usual.format == Format::combined() && stream.is_some_and(StandardStream::is_terminal);
        let of_stream = || match is_for_people {
            true => Format::short(std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())),
            false => usual.format.clone(),
        };
        log::Plan {
            path,
            format: format.unwrap_or_else(of_stream),
            buffer_bytes: buffer_bytes.unwrap_or(usual.buffer_bytes),
            // Somebody may be watching.
            flush: flush.unwrap_or(if stream.is_some() {
                usual.flush.min(STREAM_FLUSH)
            } else {
                usual.flush
            }),
            only: usual.only.iter().cloned().chain(only).collect(),
            sample: sample.unwrap_or(usual.sample),
            scope,
            skip,
        }
    }
}

/// State shared by all levels.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) rates: Vec<Rate>,
    pub(super) concurrency: Vec<Concurrency>,
    pub(super) maps: Vec<Map>,
    /// The names of variables of sites in access logs.
    pub(super) log_names: Vec<String>,
    /// Values of variables.
    pub(super) sets: Vec<SetVariable>,
    /// Names of the routes that have logs of their own, and these logs.
    pub(super) route_logs: Vec<(String, Vec<log::Plan>)>,
    /// Named groups of regular expressions: which of them a text may use depends on its route, and is checked when it
    /// is used.
    pub(super) groups: Vec<String>,
    /// Upstreams by index, including those made for addresses.
    pub(super) upstreams: Vec<Upstream>,
    /// Upstreams by their name in the file.
    pub(super) known: Vec<String>,
    /// The names of sites with rendered pages.
    pub(super) rendered: Vec<String>,
}

impl ServeOptions {
    /// The defaults. File names are relative to `base`.
    pub(super) fn new(base: &Path) -> ServeOptions {
        ServeOptions {
            level: Level::Top,
            server: Plan::default(),
            secure: ServerPlan::default(),
            refuses_tls: false,
            issue: Issue::default(),
            tls_passthrough: None,
            https_redirect: None,
            listens: Vec::new(),
            trust: Trust::default(),
            names_client_address: false,
            files: files::Plan::default(),
            upstream: Upstream::new("", Vec::new()),
            tls: Tls::default(),
            forward: Forward::to(0),
            mirrors: Vec::new(),
            push: push::Plan::default(),
            push_limits: push::Limits::default(),
            bus: None,
            rules: Rules::default(),
            paths: None,
            methods: Vec::new(),
            try_files: None,
            try_files_final: false,
            files_at: String::new(),
            rewrites: Vec::new(),
            pages_here: 0,
            logs: Vec::new(),
            log_conditions: Vec::new(),
            message_level: Severity::Info,
            log: log::Plan::new(""),
            admin: Vec::new(),
            admin_public: false,
            cache: cache::Plan::default(),
            cache_dir: None,
            cache_size: 10 << 30,
            resolver: Resolver::System,
            spool: SpoolPlan { folder: Some(PathBuf::from("/var/tmp")), ..SpoolPlan::default() },
            prerender: PrerenderOptions::default(),
            renderer: flatout_prerender::Plan::default(),
            crawler_addresses: Vec::new(),
            cache_time: None,
            caching: Cached::default(),
            compress: Compress { levels: Vec::new(), ..Compress::default() },
            base: base.to_owned(),
            conditions: Vec::new(),
            whens: Vec::new(),
            blocks_inherited: 0,
            variables: Vec::new(),
            begun: Vec::new(),
            shared: Rc::default(),
        }
    }

    /// The initial options of a nested level.
    pub(super) fn within(&self, level: Level) -> ServeOptions {
        let mut within = self.clone();
        within.level = level;
        within.begun.clear();
        within.rewrites.clear();
        within.pages_here = 0;
        within.blocks_inherited = within.rules.when.len();
        within.logs.clear();
        within.listens.clear();
        within.names_client_address = false;
        within
    }

    /// Decides which of its addresses expect the PROXY protocol, from their own settings and `client-address`.
    ///
    /// # Errors
    /// Two sources of the client's address, or no trusted proxies; with the setting at fault.
    pub(super) fn settle_proxy_protocol(&mut self) -> Result<(), (&'static str, &'static str)> {
        let is_usual = self.trust.from == AddressFrom::ProxyProtocol;
        self.server.handed_over_proxy_header = is_usual;
        for listen in &mut self.listens {
            listen.proxy_header.get_or_insert(if is_usual {
                ProxyHeader::Trusted
            } else {
                ProxyHeader::None
            });
        }
        let is_on = self.listens.iter().any(|listen| listen.proxy_header == Some(ProxyHeader::Trusted));
        if !(is_on || is_usual && self.level == Level::Top) {
            return Ok(());
        }
        if !is_usual && self.names_client_address {
            let reason = "a listener has proxy-protocol=on, so this must be proxy-protocol or be left out: only one \
                          source of the client's address is trusted";
            return Err(("client-address", reason));
        }
        self.trust.from = AddressFrom::ProxyProtocol;
        if self.trust.proxies.is_empty() {
            let reason = "the PROXY protocol is accepted from `trusted-proxies` only, and there are none: every connection \
                          would be closed";
            return Err(("listen", reason));
        }
        Ok(())
    }

    /// Whether it has a certificate, or gets one, or needs none to refuse all handshakes.
    pub(super) fn has_certificate(&self) -> bool {
        !self.secure.identities.is_empty() || self.issue.is_any() || self.refuses_tls
    }

    /// The TLS settings of a site, if they differ from those of the server.
    pub(super) fn profile(&self, top: &ServeOptions) -> Option<Profile> {
        if self.refuses_tls {
            return Some(Profile { refuses: true, ..Profile::default() });
        }
        let ServerPlan { identities, min_version, clients, .. } = &self.secure;
        let has_own = *identities != top.secure.identities;
        let identities = if has_own { identities.clone() } else { Vec::new() };
        let (min_version, clients) = (*min_version, clients.clone());
        let differs = has_own || min_version != top.secure.min_version || clients != top.secure.clients;
        differs.then_some(Profile { identities, min_version, clients, ..Profile::default() })
    }

    /// Whether both sites are served at the same address, as far as their own addresses tell.
    pub(super) fn shares_address(&self, other: &ServeOptions) -> bool {
        let has = |address: &ListenAddress| other.listens.iter().any(|listen| listen.address == *address);
        match (self.listens.is_empty(), other.listens.is_empty()) {
            (true, true) => true,
            (false, false) => self.listens.iter().any(|listen| has(&listen.address)),
            _ => false,
        }
    }

    /// Its addresses. `is_secure`: those for TLS can have it.
    pub(super) fn placed(&self, is_secure: bool) -> Vec<SiteListen> {
        let placed = |setting: &ListenSetting| SiteListen {
            listen: Listen {
                is_plain: setting.is_plain || !is_secure,
                proxy_header: setting.proxy_header.unwrap_or_default(),
                ..setting.address.clone().into()
            },
            is_default: setting.is_default,
        };
        self.listens.iter().map(placed).collect()
    }

    /// A file or folder named in a site file.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        self.base.join(text)
    }

    /// Notes the logs of a route, by its name in the file.
    ///
    /// # Errors
    /// Too many routes have logs of their own.
    pub(super) fn own_logs(&mut self, route: String) -> Result<(), String> {
        let logs = std::mem::take(&mut self.logs);
        if logs.is_empty() || self.rules.logs == RequestLogs::None {
            return Ok(());
        }
        let mut shared = self.shared.borrow_mut();
        let number = u16::try_from(shared.route_logs.len()).unwrap_or(u16::MAX);
        if usize::from(number) >= ROUTE_LOGS_MAX {
            return Err(format!("access-log: at most {ROUTE_LOGS_MAX} routes can have logs of their own"));
        }
        let scope = log::Scope::Route(number);
        let plans = logs.into_iter().map(|log| log.plan(&self.log, scope)).collect();
        shared.route_logs.push((route, plans));
        self.rules.logs = RequestLogs::Route(number);
        Ok(())
    }

    /// The format of an access log, which may have variables of sites.
    ///
    /// # Errors
    /// An unknown variable, or too many.
    pub(super) fn log_format(&self, text: &str) -> Result<Format, String> {
        let found = RefCell::new(Vec::new());
        let is_known = |name: &str| {
            let is_known = self.log_value(name).is_some();
            found.borrow_mut().extend(is_known.then(|| name.to_owned()));
            is_known
        };
        let format = Format::parse_with(text, &is_known)?;
        let mut shared = self.shared.borrow_mut();
        for name in found.into_inner() {
            if !shared.log_names.contains(&name) {
                shared.log_names.push(name);
            }
        }
        match shared.log_names.len() {
            ..=LOG_NAMES_MAX => Ok(format),
            _ => Err(format!("at most {LOG_NAMES_MAX} variables of sites can be in access logs")),
        }
    }

    /// The values of variables in access logs for requests of this level: it may have given them other values.
    pub(super) fn log_values(&self) -> Vec<(String, Template)> {
        let names = self.shared.borrow().log_names.clone();
        names.into_iter().filter_map(|name| self.log_value(&name).map(|value| (name, value))).collect()
    }

    /// The value of a variable, which is no group of an expression: not all routes have those.
    fn log_value(&self, name: &str) -> Option<Template> {
        let is_group = |piece: &Piece| {
            matches!(piece, Piece::Variable(Variable::Capture(_) | Variable::NamedCapture(_)))
        };
        let value = Template::parse(&format!("${{{name}}}"), |name| self.variable(name)).ok()?;
        (!value.0.iter().any(is_group)).then_some(value)
    }

    /// The bit of an access log whose requests meet a condition: others have it in their notes.
    ///
    /// # Errors
    /// The condition has a mistake, or there are too many.
    pub(super) fn log_condition(&mut self, text: &str) -> Result<u8, String> {
        let others = self.condition(&format!("!({text})"));
        // A mistake is that of the text alone.
        self.condition(text).map_err(|fault| fault.reason)?;
        let others = others.map_err(|fault| fault.reason)?;
        let known = self.log_conditions.iter().position(|known| *known == others);
        let bit = known.unwrap_or(self.log_conditions.len());
        if bit >= LOG_CONDITIONS_MAX {
            return Err(format!(
                "at most {LOG_CONDITIONS_MAX} conditions of access logs can apply to a request"
            ));
        }
        if known.is_none() {
            self.log_conditions.push(others.clone());
            let rules = Rules { log_skips: 1 << bit, ..Rules::default() };
            self.rules.when.push(WhenBlock { conditions: vec![others], rules });
        }
        Ok(u8::try_from(bit).unwrap_or(u8::MAX))
    }

    /// Whether this list is set for the first time at this level: inherited entries are then dropped.
    pub(super) fn begins(&mut self, list: &'static str) -> bool {
        let begins = !self.begun.contains(&list);
        if begins {
            self.begun.push(list);
        }
        begins
    }

    /// Parses a text with variables, which may be those of the file, maps and named groups.
    pub(super) fn template(&self, text: &str) -> Result<Template, String> {
        Template::parse(text, |name| self.variable(name)).map_err(|bad| match &bad {
            BadTemplate::Unknown { name, .. } => {
                let others = self.variable_names();
                let others = others.iter().map(String::as_str);
                let known: Vec<&str> = VARIABLES
                    .iter()
                    .map(|(name, _)| *name)
                    .chain(["http_user_agent"])
                    .chain(others)
                    .collect();
                let guess = flatout_config::closest(name, &known);
                let guess = guess.map_or_else(String::new, |guess| format!("; did you mean `${guess}`?"));
                format!("unknown variable `${name}`{guess}")
            }
            BadTemplate::Dollar { .. } => bad.to_string(),
        })
    }

    /// A variable of the file, a map or a named group.
    fn variable(&self, name: &str) -> Option<Variable> {
        let shared = self.shared.borrow();
        let set = self.variables.iter().rev().find(|(known, _)| known == name);
        let map = || {
            let at = shared.maps.iter().position(|map| map.name == name)?;
            let is_of_response = shared.maps.get(at).is_some_and(Map::is_of_response);
            Some(if is_of_response { Variable::ResponseMap(at) } else { Variable::Map(at) })
        };
        let group = || shared.groups.iter().any(|group| group == name);
        set.map(|(_, at)| Variable::Set(*at))
            .or_else(map)
            .or_else(|| group().then(|| Variable::NamedCapture(name.to_owned())))
    }

    fn variable_names(&self) -> Vec<String> {
        let shared = self.shared.borrow();
        let maps = shared.maps.iter().map(|map| map.name.clone());
        maps.chain(self.variables.iter().map(|(name, _)| name.clone())).collect()
    }

    /// Parses where a request continues: `@NAME`, or a path with variables.
    pub(super) fn reroute(&self, text: &str) -> Result<Reroute, String> {
        match text {
            text if text.starts_with('@') && text.len() > 1 => Ok(Reroute::Named(text.to_owned())),
            text if text.starts_with(['/', '$']) => self.template(text).map(Reroute::Path),
            _ => Err(format!("got `{text}`, need @NAME of a route, or a path that begins with /")),
        }
    }

    /// Parses a condition.
    pub(super) fn condition(&self, text: &str) -> Result<Condition, ExpressionFault> {
        let others = self.variable_names();
        Condition::parse(text, &Vocabulary { other: &|name| self.variable(name), others: &others })
    }

    /// Parses an expression.
    pub(super) fn expression(&self, text: &str) -> Result<Expression, ExpressionFault> {
        let others = self.variable_names();
        Expression::parse(text, &Vocabulary { other: &|name| self.variable(name), others: &others })
    }

    /// The key by which a limit groups requests: `client`, `everyone`, or a text with variables.
    pub(super) fn limited(&self, text: &str) -> Result<Limited, String> {
        match text {
            "client" => Ok(Limited::Client { ipv6_bits: 64 }),
            "everyone" => Ok(Limited::Everyone),
            text if text.contains('$') => self.template(text).map(Limited::Text),
            text => Err(format!(
                "got `{text}`, need client, everyone, or a text with variables such as $http_x_api_key"
            )),
        }
    }

    /// A server of an upstream, with the current TLS settings.
    pub(super) fn server_at(&self, address: Address, is_tls: bool) -> Server {
        Server { tls: is_tls.then(|| self.tls.clone()), ..Server::new(address) }
    }

    /// Any upstream: its name is made for each request.
    pub(super) fn first_upstream(&self) -> Result<usize, String> {
        match self.shared.borrow().known.is_empty() {
            true => Err("the file has no upstream whose name this could be".to_owned()),
            false => Ok(0),
        }
    }

    /// The upstream with this name, whose servers are named by requests.
    pub(super) fn named_upstream(&self, name: &str) -> Result<usize, String> {
        let index = self.upstream_of(name)?;
        let shared = self.shared.borrow();
        match shared.upstreams.get(index).is_some_and(|upstream| upstream.named.is_some()) {
            true => Ok(index),
            false => Err(format!("others= needs an upstream with named-servers; `{name}` has none")),
        }
    }

    /// The index of the upstream with this name; for an address, of a new one with a single server, or with those of a service.
    pub(super) fn upstream_of(&self, text: &str) -> Result<usize, String> {
        let mut shared = self.shared.borrow_mut();
        if let Some(index) = shared.known.iter().position(|name| name == text) {
            return Ok(index);
        }
        if !text.contains([':', '/']) {
            let known: Vec<&str> = shared.known.iter().map(String::as_str).collect();
            let guess = flatout_config::closest(text, &known);
            return Err(match guess {
                Some(guess) => format!("there is no upstream `{text}`; did you mean `{guess}`?"),
                None => format!(
                    "there is no upstream `{text}`; need the name of an upstream in this file, or an address such as http://127.0.0.1:8000 or unix:/run/app.sock"
                ),
            });
        }
        let mut upstream = Upstream { name: text.to_owned(), ..self.upstream.clone() };
        match flatout_proxy::service(text) {
            Some(place) => upstream.sources = vec![ServerSource { place: place?, tls: self.tls.clone() }],
            None => {
                let (address, is_tls) = super::parse::server(text)?;
                upstream.servers = vec![self.server_at(address, is_tls)];
            }
        }
        upstream.check()?;
        shared.known.push(text.to_owned());
        shared.upstreams.push(upstream);
        Ok(shared.upstreams.len() - 1)
    }
}
