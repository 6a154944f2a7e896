//! One route, checked and prepared.

use std::sync::Arc;

use flatout_expression::Regex;
use flatout_files::Listing;
use flatout_wire::Status;
use flatout_wire::field::{is_field_value, is_token};

use super::super::charset::CompiledCharset;
use super::super::cors::CompiledCors;
use super::super::expires::CompiledExpires;
use super::super::facts::Uses;
use super::super::fault::{Fault, Place};
use super::super::fields::FieldRules;
use super::super::late::FieldValue;
use super::super::maps::{TableCounts, Tables};
use super::super::pages::ErrorPages;
use super::super::plan::{
    self, Action, Condition, Hsts, PathPolicy, Piece, RouteEntry, Rules, SendfileFolder, Template, Variable,
};
use super::super::render::{Text, View};
use super::super::replace::Replacements;
use super::super::replaced::Replaced;
use super::super::reroute::CompiledReroute;
use super::super::response_rate::CompiledSendRate;
use super::super::rewrite::Rewrites;
use super::super::upstream_fields::UpstreamFields;
use super::Parts;
use super::blocks::{ResponseBlock, expires, resolved_for_requests, with_expires};
use super::guards::{Guards, status_of, within};
use flatout_compress as compress;
use flatout_gateway as gateway;
use flatout_observe::observed::{NO_SITE, RequestLogs};
use flatout_push as push;

#[derive(Debug, Clone)]
pub(crate) struct CompiledRoute {
    /// Its name, if fallbacks send requests here by it.
    pub(crate) name: Option<String>,
    /// Routes with the same number have the same rules and the same upstream.
    pub(crate) class: usize,
    /// It is chosen only if these are true.
    pub(crate) when: Vec<Condition>,
    pub(crate) entry: RouteEntry,
    /// Its requests may continue at another route.
    pub(crate) may_reroute: bool,
    /// What its rules under conditions depend on.
    pub(crate) blocks_use: Uses,
    pub(crate) paths: PathPolicy,
    pub(crate) rewrites: Rewrites,
    pub(crate) guards: Guards,
    pub(crate) request_fields: FieldRules,
    /// What its upstream gets in place of parts of the request.
    pub(crate) replaced: Option<Box<Replaced>>,
    pub(crate) response: ResponseRules,
    /// The route's expression, if a text uses its captures.
    pub(crate) captures: Option<Regex>,
    pub(crate) try_files: Option<usize>,
    /// The path at which the folder is, without a slash at the end.
    pub(crate) files_at: String,
    /// That folder, or the one of the action, has no index files and no listings: its folders are not there.
    pub(crate) tries_files_only: bool,
    /// What is in the folder of `try_files` is not for the action.
    pub(crate) try_files_final: bool,
    /// What is in front of the path in redirects of folders.
    pub(crate) redirect_origin: Option<Text>,
    /// The name of the upstream.
    pub(crate) upstream_name: Option<Text>,
    /// Another name is that of a server.
    pub(crate) names_server: bool,
    /// The upstreams that requests may name; `None`: all.
    pub(crate) named_upstreams: Option<Vec<String>>,
    pub(crate) action: CompiledAction,
    pub(crate) cache: Option<CompiledCached>,
}

/// How responses are cached.
#[derive(Debug, Clone)]
pub(crate) struct CompiledCached {
    pub(crate) rules: Arc<gateway::Rules>,
    pub(crate) key: Option<Text>,
    /// See [`plan::Site::cache_space`].
    pub(crate) space: Box<[u8]>,
    pub(crate) names_authorization: bool,
    /// The rules depend on nothing but the request head.
    pub(crate) repeats: bool,
    pub(crate) bypass: Vec<Text>,
    pub(crate) refresh: Vec<Text>,
    pub(crate) no_store: Vec<Text>,
    /// See [`plan::Cached::is_rendered`].
    pub(crate) is_rendered: bool,
}

/// The rules for a response.
#[derive(Debug, Clone)]
pub(crate) struct ResponseRules {
    /// The number of the site, for logs and metrics.
    pub(crate) site: u16,
    pub(crate) pages: ErrorPages,
    pub(crate) fields: FieldRules,
    /// The value of `Strict-Transport-Security`, over HTTPS.
    pub(crate) hsts: Option<String>,
    pub(crate) cors: Option<CompiledCors>,
    pub(crate) compress: Option<compress::Rules>,
    /// Under conditions.
    pub(crate) blocks: Vec<ResponseBlock>,
    /// `Location` and cookies of upstreams.
    pub(crate) upstream: UpstreamFields,
    /// The folders from which upstreams may have files sent.
    pub(crate) sendfile: Vec<SendfileFolder>,
    pub(crate) expires: Option<CompiledExpires>,
    pub(crate) rate: CompiledSendRate,
    pub(crate) logs: RequestLogs,
    /// Values that these may have in their lines, by the names of their variables.
    pub(crate) log_values: Vec<(String, Text)>,
    /// A field has the request's body in it.
    pub(crate) uses_body: bool,
    pub(crate) replacements: Option<Replacements>,
    pub(crate) charset: Option<CompiledCharset>,
    /// The text of the route has what is known of the attempts at an upstream's servers.
    pub(crate) body_uses_attempts: bool,
}

/// What answers.
#[derive(Debug, Clone)]
pub(crate) enum CompiledAction {
    Files(usize),
    Proxy(gateway::Forward),
    Push(Arc<push::Plan>),
    Redirect {
        status: Status,
        to: Text,
    },
    Respond {
        status: Status,
        content_type: String,
        body: Text,
    },
    /// The same with the status of an error, or what is known of the attempts at an upstream's servers, in the text.
    RespondLate {
        status: Status,
        content_type: String,
        body: Text,
    },
    Reroute(CompiledReroute),
    StubStatus,
    Close,
}

/// Checks the upstreams that get copies of requests.
fn check_mirrors(forward: &flatout_gateway::Forward, plan: &plan::Plan, place: Place) -> Result<(), Fault> {
    let is_cgi = |upstream: usize| plan.upstreams.get(upstream).is_some_and(|it| it.protocol.is_cgi());
    for mirror in &forward.mirrors {
        within(mirror.upstream, plan.upstreams.len(), "upstream", place)?;
        if mirror.denominator == 0 {
            return Err(place.fault("a share of copied requests of 0 parts"));
        }
        if is_cgi(mirror.upstream) || is_cgi(forward.upstream) {
            return Err(
                place.fault("requests over FastCGI, SCGI and uwsgi cannot be copied to another upstream")
            );
        }
    }
    Ok(())
}

/// Whether two routes give everybody the same access, so that it does not matter which of them a request takes.
pub(super) fn is_alike(one: &plan::Route, other: &plan::Route) -> bool {
    let has_same_upstream = match (&one.action, &other.action) {
        (Action::Proxy(one), Action::Proxy(other)) => {
            one.upstream == other.upstream && one.host == other.host && one.mirrors == other.mirrors
        }
        _ => false,
    };
    has_same_upstream
        && one.rules == other.rules
        && one.rewrites == other.rewrites
        && (one.try_files, one.try_files_final) == (other.try_files, other.try_files_final)
        && one.files_at == other.files_at
        && one.upstream_name == other.upstream_name
        && one.names_server == other.names_server
        && one.named_upstreams == other.named_upstreams
}

impl CompiledRoute {
    pub(super) fn new(
        parts: Parts<'_>,
        (place, class): (Place, usize),
        (site, route): (&plan::Site, &plan::Route),
        expression: Option<Regex>,
    ) -> Result<CompiledRoute, Fault> {
        let plan = parts.plan;
        let counts = TableCounts::of(plan);
        let text = |template: &Template| Text::new(template, expression.as_ref(), counts, place);
        if let Some(method) = route.methods.iter().find(|name| !is_token(name.as_bytes())) {
            return Err(place.fault(format!("`{method}` is not a valid method")));
        }
        let action = CompiledAction::new(&route.action, plan, expression.as_ref(), place)?;
        if let Some(folder) = route.try_files {
            within(folder, plan.folders.len(), "folder", place)?;
        }
        let own = match action {
            CompiledAction::Files(folder) => Some(folder),
            _ => None,
        };
        let tried = route.try_files.or(own).and_then(|folder| plan.folders.get(folder));
        let tries_files_only =
            tried.is_some_and(|folder| folder.index.is_empty() && folder.listing == Listing::Off);
        let rewrites = Rewrites::new(&route.rewrites, expression.as_ref(), parts.tables, place)?;
        let mut guards = Guards::new(parts, &route.rules, expression.as_ref(), place)?;
        if matches!(action, CompiledAction::Close) {
            // Do not let a request wait only to be closed: after waiting, it no longer has access to its connection.
            guards.remove_waits();
        }
        let when = resolved_for_requests(&route.when, expression.as_ref(), counts, place)?;
        if Uses::of_all(&when, parts.tables).has(Uses::USER) {
            return Err(place.fault(
                "its `when` depends on the user or on a field of the auth service, and routes are chosen before these are known; \
                 use them in a `when` without an action inside a route",
            ));
        }
        let request_fields =
            FieldRules::new(&route.rules.request_fields, expression.as_ref(), counts, place)?;
        let is_proxy = matches!(action, CompiledAction::Proxy(_));
        let replaced = Replaced::new(&route.rules.replaced, expression.as_ref(), counts, place)?;
        let replaced = replaced.filter(|_| is_proxy).map(Box::new);
        let mut response = ResponseRules::new(parts, &route.rules, expression.as_ref(), place)?;
        if let CompiledAction::RespondLate { body, .. } = &action {
            response.body_uses_attempts = body.uses_attempts();
        }
        if matches!(action, CompiledAction::Files(_)) {
            // Files were compressed beforehand.
            let decoded = route.rules.compress.clone().filter(|compress| compress.decodes);
            response.compress =
                decoded.map(|plan| compress::Rules::new(compress::Compress { levels: Vec::new(), ..plan }));
        }
        let cache = route.rules.cache.as_ref().filter(|_| is_proxy);
        let mut cache = cache.map(|rules| CompiledCached::new(rules, site, text)).transpose()?;
        if let Some(cache) = &mut cache {
            // Nothing may depend on addresses, the counters of limits, or files.
            cache.repeats = cache.has_plain_rules()
                && guards.is_open()
                && rewrites.is_empty()
                && request_fields.is_empty()
                && replaced.is_none()
                && response.is_constant()
                && route.try_files.is_none()
                && route.upstream_name.is_none()
                && site.trust.proxies.is_empty()
                && site.tls_rules.is_none();
        }
        let upstream_name = route.upstream_name.as_ref().map(text).transpose()?;
        let serves_files = route.try_files.is_some() || matches!(action, CompiledAction::Files(_));
        let redirect_origin = route.rules.redirect_origin.as_ref().filter(|_| serves_files);
        let redirect_origin = redirect_origin.map(text).transpose()?;
        let uses_captures = upstream_name.as_ref().is_some_and(Text::uses_captures)
            || redirect_origin.as_ref().is_some_and(Text::uses_captures)
            || rewrites.uses_captures()
            || guards.uses_captures()
            || request_fields.uses_captures()
            || replaced.as_ref().is_some_and(|replaced| replaced.uses_captures())
            || response.uses_captures(parts.tables)
            || Uses::of_all(&when, parts.tables).has(Uses::CAPTURES)
            || cache.as_ref().is_some_and(CompiledCached::uses_captures)
            || action.uses_captures();
        let blocks_use = guards.blocks.iter().fold(Uses::NOTHING, |all, block| all.and(block.uses));
        Ok(CompiledRoute {
            name: (route.entry == RouteEntry::Named).then(|| route.name.clone()),
            class,
            when,
            entry: route.entry,
            may_reroute: matches!(action, CompiledAction::Reroute(_)) || response.pages.has_routes(),
            blocks_use,
            paths: route.paths,
            rewrites,
            guards,
            request_fields,
            replaced,
            response,
            captures: expression.filter(|_| uses_captures),
            try_files: route.try_files,
            try_files_final: route.try_files_final,
            files_at: route.files_at.clone(),
            tries_files_only,
            redirect_origin,
            upstream_name,
            names_server: route.names_server,
            named_upstreams: route.named_upstreams.clone(),
            action,
            cache,
        })
    }
}

impl CompiledAction {
    fn new(
        action: &Action,
        plan: &plan::Plan,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<CompiledAction, Fault> {
        let text = |template: &Template| Text::new(template, expression, TableCounts::of(plan), place);
        Ok(match action {
            Action::Files(folder) => {
                CompiledAction::Files(within(*folder, plan.folders.len(), "folder", place)?)
            }
            Action::Proxy(forward) => {
                within(forward.upstream, plan.upstreams.len(), "upstream", place)?;
                check_mirrors(forward, plan, place)?;
                CompiledAction::Proxy(forward.clone())
            }
            Action::Push(plan) => CompiledAction::Push(Arc::new(push::Plan::clone(plan))),
            Action::Redirect { status, to } => CompiledAction::Redirect {
                status: status_of(*status, &[301, 302, 303, 307, 308], place)?,
                to: text(to)?,
            },
            Action::Respond { status, content_type, body } => {
                if !is_field_value(content_type.as_bytes()) {
                    return Err(place.fault(format!("{content_type:?} is not a valid Content-Type")));
                }
                let all: Vec<u16> = (200..600).collect();
                let status = status_of(*status, &all, place)?;
                let content_type = content_type.clone();
                let of_error = |variable: &Variable| {
                    matches!(variable, Variable::Status | Variable::UpstreamStatus | Variable::Upstream(_))
                };
                let has_error =
                    |piece: &Piece| matches!(piece, Piece::Variable(variable) if of_error(variable));
                if !body.0.iter().any(has_error) {
                    let body = text(body)?;
                    return Ok(CompiledAction::Respond { status, content_type, body });
                }
                let body = Text::of_response(body, expression, TableCounts::of(plan), place)?;
                let is_unknown = |variable: &&Variable| variable.is_of_response() && !of_error(variable);
                if body.variables().any(|variable| is_unknown(&variable)) {
                    let known = "$status, $upstream_status, $upstream_addr and the times of upstreams";
                    return Err(place.fault(format!("of the response, a text can only have {known}")));
                }
                CompiledAction::RespondLate { status, content_type, body }
            }
            Action::Reroute(to) => {
                CompiledAction::Reroute(CompiledReroute::new(to, plan, expression, place)?)
            }
            Action::StubStatus => CompiledAction::StubStatus,
            Action::Close => CompiledAction::Close,
        })
    }

    fn uses_captures(&self) -> bool {
        match self {
            CompiledAction::Redirect { to: text, .. }
            | CompiledAction::Respond { body: text, .. }
            | CompiledAction::RespondLate { body: text, .. } => text.uses_captures(),
            CompiledAction::Reroute(to) => to.uses_captures(),
            CompiledAction::Files(_)
            | CompiledAction::Proxy(_)
            | CompiledAction::Push(_)
            | CompiledAction::StubStatus
            | CompiledAction::Close => false,
        }
    }
}

impl CompiledCached {
    fn new(
        cached: &plan::Cached,
        site: &plan::Site,
        text: impl Fn(&Template) -> Result<Text, Fault>,
    ) -> Result<CompiledCached, Fault> {
        let texts = |templates: &[Template]| templates.iter().map(&text).collect::<Result<Vec<_>, Fault>>();
        let is_authorization = |piece: &Piece| match piece {
            Piece::Variable(Variable::Header(name)) => name.eq_ignore_ascii_case("authorization"),
            _ => false,
        };
        Ok(CompiledCached {
            key: cached.key.as_ref().map(&text).transpose()?,
            space: site.cache_space.as_bytes().into(),
            repeats: false,
            names_authorization: cached.key.iter().flat_map(|key| &key.0).any(is_authorization),
            bypass: texts(&cached.bypass)?,
            refresh: texts(&cached.refresh)?,
            no_store: texts(&cached.no_store)?,
            is_rendered: cached.is_rendered,
            rules: Arc::new(cached.rules.clone()),
        })
    }

    /// Whether no text decides about a request, and none is counted.
    fn has_plain_rules(&self) -> bool {
        self.key.is_none() && self.exceptions().next().is_none() && !self.is_rendered
    }

    fn uses_captures(&self) -> bool {
        self.key.iter().chain(self.exceptions()).any(Text::uses_captures)
    }

    /// The texts that decide about a request.
    fn exceptions(&self) -> impl Iterator<Item = &Text> {
        self.bypass.iter().chain(&self.refresh).chain(&self.no_store)
    }
}

impl Default for ResponseRules {
    fn default() -> Self {
        ResponseRules {
            site: NO_SITE,
            pages: ErrorPages::default(),
            fields: FieldRules::default(),
            hsts: None,
            cors: None,
            compress: None,
            blocks: Vec::new(),
            upstream: UpstreamFields::default(),
            sendfile: Vec::new(),
            expires: None,
            rate: CompiledSendRate::default(),
            logs: RequestLogs::Usual,
            log_values: Vec::new(),
            uses_body: false,
            replacements: None,
            charset: None,
            body_uses_attempts: false,
        }
    }
}

impl ResponseRules {
    /// Whether they are the same for all requests.
    fn is_constant(&self) -> bool {
        self.fields.is_constant()
            && self.upstream.is_constant()
            && self.blocks.is_empty()
            && !self.pages.has_routes()
            && self.expires.is_none()
            && self.replacements.is_none()
            && self.rate.is_fixed()
            && self.cors.is_none()
    }

    /// Whether the values of fields are the same for all requests.
    pub(crate) fn has_constant_values(&self) -> bool {
        self.fields.is_constant() && self.expires.as_ref().is_none_or(|expires| expires.text().is_none())
    }

    /// The values of the field rules, and after them that of `expires`.
    pub(crate) fn rendered(&self, view: &View<'_>) -> Vec<FieldValue> {
        with_expires(&self.fields, self.expires.as_ref(), view)
    }

    /// Whether a field has what is known of the attempts at an upstream's servers.
    pub(crate) fn uses_attempts(&self) -> bool {
        let of_expires = |expires: Option<&CompiledExpires>| {
            expires.and_then(CompiledExpires::text).is_some_and(Text::uses_attempts)
        };
        let of_block =
            |block: &ResponseBlock| block.fields.uses_attempts() || of_expires(block.expires.as_ref());
        self.body_uses_attempts
            || self.fields.uses_attempts()
            || self.log_values.iter().any(|(_, value)| value.uses_attempts())
            || of_expires(self.expires.as_ref())
            || self.blocks.iter().any(of_block)
    }

    /// Whether a text or a condition uses captures of the route.
    fn uses_captures(&self, tables: &Tables) -> bool {
        let of_expires = |expires: Option<&CompiledExpires>| {
            expires.and_then(CompiledExpires::text).is_some_and(Text::uses_captures)
        };
        let of_block = |block: &ResponseBlock| {
            block.fields.uses_captures()
                || of_expires(block.expires.as_ref())
                || Uses::of_all(&block.conditions, tables).has(Uses::CAPTURES)
        };
        self.fields.uses_captures()
            || of_expires(self.expires.as_ref())
            || self.upstream.uses_captures()
            || self.replacements.as_ref().is_some_and(Replacements::uses_captures)
            || self.rate.uses_captures()
            || self.log_values.iter().any(|(_, value)| value.uses_captures())
            || self.pages.uses_captures()
            || self.blocks.iter().any(of_block)
    }

    pub(super) fn new(
        parts: Parts<'_>,
        rules: &Rules,
        expression: Option<&Regex>,
        place: Place,
    ) -> Result<ResponseRules, Fault> {
        let plan = parts.plan;
        let site = match place {
            Place::Site(site) | Place::Route(site, _) => {
                plan.sites.get(site).map_or(NO_SITE, |site| site.number)
            }
            _ => NO_SITE,
        };
        let fields =
            FieldRules::of_responses(&rules.response_fields, expression, TableCounts::of(plan), place)?;
        // Responses of a cache are the same for all hosts, so that they need no values for each request.
        let origin = rules.redirect_origin.as_ref().filter(|_| rules.cache.is_none());
        let log_value = |(name, value): &(String, Template)| {
            Ok((name.clone(), Text::of_response(value, expression, TableCounts::of(plan), place)?))
        };
        Ok(ResponseRules {
            site,
            logs: rules.logs,
            log_values: rules.log_values.iter().map(log_value).collect::<Result<_, Fault>>()?,
            uses_body: fields.uses_body(),
            replacements: Replacements::new(
                &rules.replacements,
                &rules.replaced_types,
                |text| Text::new(text, expression, TableCounts::of(plan), place),
                place,
            )?,
            pages: ErrorPages::new(
                &rules.error_pages,
                |to| CompiledReroute::new(to, plan, expression, place),
                place,
            )?,
            fields,
            hsts: rules.hsts.map(hsts),
            upstream: UpstreamFields::new(
                (&rules.locations, origin),
                &rules.cookies,
                expression,
                TableCounts::of(plan),
                place,
            )?,
            sendfile: rules.sendfile.clone(),
            expires: expires(rules, expression, TableCounts::of(plan), place)?,
            rate: CompiledSendRate::new(rules, |text| {
                Text::new(text, expression, TableCounts::of(plan), place)
            })?,
            charset: CompiledCharset::new(rules, place)?,
            body_uses_attempts: false,
            cors: rules.cors.as_ref().map(|cors| CompiledCors::new(cors, place)).transpose()?,
            compress: rules.compress.clone().map(compress::Rules::new),
            blocks: rules
                .when
                .iter()
                .map(|block| ResponseBlock::new(parts, block, expression, place))
                .collect::<Result<_, Fault>>()?,
        })
    }
}

fn hsts(hsts: Hsts) -> String {
    let subdomains = if hsts.subdomains { "; includeSubDomains" } else { "" };
    let preload = if hsts.preload { "; preload" } else { "" };
    format!("max-age={}{subdomains}{preload}", hsts.max_age.as_secs())
}
