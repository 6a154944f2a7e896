//! The annotations of ingress-nginx.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_site::plan::{
    Access, BasicAuth, Cors, Limited, Net, Origins, Peers, Rate, RateUse, Route, Template, User, Verdict,
};

use super::auth_service::AuthService;
use super::backend::UpstreamOptions;
use super::filter;
use super::precedence::quoted;
use super::route_policy::{CLIENTS_MAX, add_rate};
use crate::kinds::ObjectKey;
use crate::kinds::ingress::Ingress;
use crate::kinds::route::CorsFilter;
use crate::objects::Objects;

/// The prefix of all of them.
const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Requests above the rate that are accepted at once, as a multiple of it: the default of ingress-nginx.
pub(crate) const BURST_MULTIPLIER: u32 = 5;

/// Annotations that protect something, and that are not supported: without them, the Ingress would be open.
const REFUSED: &[(&str, &str)] = &[
    ("configuration-snippet", "it is a text of nginx's configuration"),
    ("server-snippet", "it is a text of nginx's configuration"),
    ("auth-snippet", "it is a text of nginx's configuration"),
    ("modsecurity-snippet", "it is a text of nginx's configuration"),
    ("stream-snippet", "it is a text of nginx's configuration"),
    ("auth-proxy-set-headers", "fields of requests to the service of auth-url are not supported"),
    ("auth-tls-secret", "certificates of clients are not supported here"),
    ("denylist-source-range", "use whitelist-source-range"),
    ("enable-modsecurity", "ModSecurity is not supported"),
    ("proxy-ssl-verify", "certificates of upstreams are verified by a BackendTLSPolicy"),
];

/// What the annotations of an Ingress say.
#[derive(Debug, Clone, Default)]
pub(super) struct Annotations {
    pub(super) aliases: Vec<String>,
    pub(super) redirects: bool,
    pub(super) redirects_always: bool,
    pub(super) use_regex: bool,
    pub(super) rewrite: Option<Template>,
    pub(super) options: UpstreamOptions,
    pub(super) canary: Option<Canary>,
    pub(super) rate: Option<IngressRate>,
    pub(super) auth_service: Option<AuthService>,
    /// Its requests get 500.
    pub(super) is_closed: bool,
    body_bytes_max: Option<u64>,
    access: Vec<Access>,
    basic_auth: Option<BasicAuth>,
    cors: Option<Cors>,
}

/// Requests for the new version of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Canary {
    header: Option<(String, Option<String>)>,
    cookie: Option<String>,
    /// In percent.
    weight: u32,
}

/// Requests of each client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IngressRate {
    requests: u32,
    window: Duration,
    burst: u32,
}

/// The rates of a plan, and those that Ingresses have in it.
pub(super) struct IngressRates<'p> {
    all: &'p mut Vec<Rate>,
    known: HashMap<ObjectKey, usize>,
}

impl<'p> IngressRates<'p> {
    pub(super) fn behind(all: &'p mut Vec<Rate>) -> IngressRates<'p> {
        IngressRates { all, known: HashMap::new() }
    }
}

impl Annotations {
    /// Reads those of an Ingress. What has no effect is noted.
    ///
    /// # Errors
    /// One that must not be left out is not supported, or has an invalid value.
    pub(super) fn parse(
        ingress: &Ingress,
        objects: &Objects,
        notes: &mut Vec<String>,
    ) -> Result<Annotations, String> {
        let mut found = Annotations { redirects: true, ..Annotations::default() };
        let mut canary = Canary::default();
        let (mut is_canary, mut has_cors, mut burst) = (false, false, BURST_MULTIPLIER);
        let mut cors = CorsFilter {
            allow_origins: vec!["*".to_owned()],
            allow_methods: list("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
            allow_headers: list(
                "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
            ),
            allow_credentials: Some(true),
            max_age: Some(1_728_000),
            ..CorsFilter::default()
        };
        let given = &ingress.metadata.annotations;
        let all: BTreeMap<&str, &str> = given
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.trim())))
            .collect();
        found.auth_service = AuthService::parse(&all, objects)?;
        for (&name, &value) in &all {
            let wrong = |why: String| format!("annotation {name}: {why}");
            let seconds = || number(value).map(|it| Some(Duration::from_secs(it))).map_err(wrong);
            match name {
                "rewrite-target" => found.rewrite = Some(rewrite_target(value).map_err(wrong)?),
                "ssl-redirect" => found.redirects = is_on(value),
                "force-ssl-redirect" => found.redirects_always = is_on(value),
                "use-regex" => found.use_regex = is_on(value),
                "server-alias" => found.aliases = list(value),
                "proxy-body-size" => found.body_bytes_max = bytes(value).map_err(wrong)?,
                "proxy-connect-timeout" => found.options.connect_time = seconds()?,
                "proxy-send-timeout" => found.options.send_time = seconds()?,
                "proxy-read-timeout" => found.options.read_time = seconds()?,
                "backend-protocol" => match value.to_ascii_uppercase().as_str() {
                    "HTTP" | "AUTO_HTTP" => {}
                    "HTTPS" => found.options.is_tls = true,
                    "GRPC" => found.options.is_h2c = true,
                    _ => return Err(wrong(format!("got `{value}`; there are HTTP, HTTPS and GRPC"))),
                },
                "affinity" if value == "cookie" => {
                    found.options.cookie.get_or_insert_with(|| "INGRESSCOOKIE".to_owned());
                }
                "session-cookie-name" if !is_token(value) => {
                    return Err(wrong(format!(
                        "got {value:?}, need a name as of RFC 6265, such as SERVERID"
                    )));
                }
                "session-cookie-name" if all.contains_key("affinity") => {
                    found.options.cookie = Some(value.to_owned());
                }
                "canary" => is_canary = is_on(value),
                "canary-weight" => canary.weight = number(value).map_err(wrong)?.min(100) as u32,
                "canary-by-header" => canary.header.get_or_insert_default().0 = value.to_ascii_lowercase(),
                "canary-by-header-value" => canary.header.get_or_insert_default().1 = Some(value.to_owned()),
                "canary-by-cookie" => canary.cookie = Some(value.to_owned()),
                "whitelist-source-range" | "allowlist-source-range" => {
                    found.access = allowed(value).map_err(wrong)?
                }
                "limit-rps" | "limit-rpm" => {
                    let requests =
                        number(value).ok().and_then(|it| u32::try_from(it).ok()).filter(|it| *it > 0);
                    let requests = requests
                        .ok_or_else(|| wrong(format!("got `{value}`, need a number of at least 1")))?;
                    let window = Duration::from_secs(if name == "limit-rps" { 1 } else { 60 });
                    found.rate = Some(IngressRate { requests, window, burst: 0 });
                }
                "limit-burst-multiplier" => burst = number(value).map_err(wrong)?.min(1000) as u32,
                "enable-cors" => has_cors = is_on(value),
                "cors-allow-origin" => cors.allow_origins = list(value),
                "cors-allow-methods" => cors.allow_methods = list(value),
                "cors-allow-headers" => cors.allow_headers = list(value),
                "cors-expose-headers" => cors.expose_headers = list(value),
                "cors-allow-credentials" => cors.allow_credentials = Some(is_on(value)),
                "cors-max-age" => cors.max_age = Some(number(value).map_err(wrong)?),
                "auth-type" if value == "basic" => {
                    found.basic_auth = Some(basic_auth(ingress, objects).map_err(wrong)?);
                }
                "auth-secret" | "auth-secret-type" | "auth-realm" if all.contains_key("auth-type") => {}
                "auth-url"
                | "auth-method"
                | "auth-response-headers"
                | "auth-signin"
                | "auth-signin-redirect-param"
                    if found.auth_service.is_some() => {}
                "auth-type" => return Err(wrong(format!("got `{value}`; there is only basic"))),
                "enable-modsecurity" | "proxy-ssl-verify" if !is_on(value) && value != "on" => {}
                _ => match REFUSED.iter().find(|(refused, _)| *refused == name) {
                    Some((_, why)) => return Err(wrong((*why).to_owned())),
                    None => notes.push(format!("annotation {name} has no effect here")),
                },
            }
        }
        if let Some(rate) = &mut found.rate {
            rate.burst = rate.requests.saturating_mul(burst);
        }
        found.canary = is_canary.then_some(canary);
        found.cors = has_cors.then(|| checked_cors(&cors)).transpose()?;
        Ok(found)
    }

    /// Those of an Ingress that is refused: which requests are its own. `None` for a canary, whose requests another Ingress has.
    pub(super) fn closed(ingress: &Ingress) -> Option<Annotations> {
        let aliases = list(value(ingress, "server-alias"));
        let closed = Annotations { aliases, redirects: true, is_closed: true, ..Annotations::default() };
        (!is_on(value(ingress, "canary"))).then_some(closed)
    }

    /// Whether some requests are refused.
    pub(super) fn protects(&self) -> bool {
        let has_users = self.basic_auth.is_some() || self.auth_service.is_some();
        has_users || !self.access.is_empty() || self.rate.is_some()
    }

    /// Applies what concerns a route.
    pub(super) fn apply(&self, route: &mut Route) {
        let rules = &mut route.rules;
        rules.body.bytes_max = self.body_bytes_max;
        rules.access.clone_from(&self.access);
        rules.basic_auth.clone_from(&self.basic_auth);
        rules.cors.clone_from(&self.cors);
    }
}

impl Canary {
    /// The conditions under which requests go to the new version, with the rank of each: the field decides before the cookie, and
    /// that before the share.
    pub(super) fn conditions(&self) -> Vec<(usize, Vec<String>)> {
        let mut all = Vec::new();
        let mut rest = vec![format!("random < {:.4}", f64::from(self.weight) / 100.0)];
        if let Some((header, value)) = &self.header {
            let entry = format!("header[{}]", quoted(header));
            all.push((3, vec![format!("{entry} == {}", quoted(value.as_deref().unwrap_or("always")))]));
            // With a value of its own, all others have no meaning.
            rest.extend(value.is_none().then(|| format!("{entry} != \"never\"")));
        }
        if let Some(cookie) = &self.cookie {
            let entry = format!("cookie[{}]", quoted(cookie));
            let mut conditions = vec![format!("{entry} == \"always\"")];
            conditions.extend(rest.iter().skip(1).cloned());
            all.push((2, conditions));
            rest.push(format!("{entry} != \"never\""));
        }
        if self.weight > 0 {
            all.push((1, rest));
        }
        all
    }
}

impl IngressRate {
    /// How a route uses it, in a plan that has it: each Ingress counts for itself.
    ///
    /// # Errors
    /// The plan has too many rates.
    pub(super) fn in_plan(
        &self,
        ingress: &ObjectKey,
        rates: &mut IngressRates<'_>,
    ) -> Result<RateUse, String> {
        let rate = match rates.known.get(ingress) {
            Some(at) => *at,
            None => {
                let (requests, window) = (self.requests, self.window);
                let key = Limited::Client { ipv6_bits: 64 };
                let rate = Rate { name: ingress.to_string(), key, requests, window, keys_max: CLIENTS_MAX };
                let at = add_rate(rates.all, rate)?;
                rates.known.insert(ingress.clone(), at);
                at
            }
        };
        Ok(RateUse { rate, burst: self.burst, delay: None, status: 503, fields: false, is_dry_run: false })
    }
}

/// Whether an Ingress with this path makes all paths of its host expressions, as in ingress-nginx.
pub(super) fn makes_expressions(ingress: &Ingress, path: &str) -> bool {
    let target = value(ingress, "rewrite-target");
    is_on(value(ingress, "use-regex")) || (!target.is_empty() && target != path)
}

/// The value of an annotation; empty if there is none.
fn value<'i>(ingress: &'i Ingress, name: &str) -> &'i str {
    ingress.metadata.annotations.get(&format!("{PREFIX}{name}")).map_or("", |value| value.trim())
}

fn is_on(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

/// Whether it is a token of RFC 9110, which names of fields and cookies are.
pub(super) fn is_token(value: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !value.is_empty() && value.bytes().all(is_allowed)
}

pub(super) fn list(value: &str) -> Vec<String> {
    value.split(',').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect()
}

fn number(value: &str) -> Result<u64, String> {
    let digits = value.strip_suffix('s').unwrap_or(value);
    digits
        .parse()
        .ok()
        .filter(|it| *it <= u64::from(u32::MAX))
        .ok_or_else(|| format!("got `{value}`, need a number"))
}

/// A size such as `8m`; 0 is no limit.
pub(crate) fn bytes(value: &str) -> Result<Option<u64>, String> {
    let wrong = || format!("got `{value}`, need a size such as 8m");
    let lower = value.to_ascii_lowercase();
    let units = [("k", 10), ("m", 20), ("g", 30)];
    let unit = units.iter().find_map(|(unit, shift)| Some((lower.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((&lower, 0));
    let number: u64 = digits.parse().ok().filter(|it| *it < 1 << 32).ok_or_else(wrong)?;
    Ok(Some(if number == 0 { u64::MAX } else { number << shift }))
}

/// A target with groups of the path's expression: `/$2`.
fn rewrite_target(value: &str) -> Result<Template, String> {
    if !value.starts_with('/') {
        return Err(format!("got `{value}`, need a path that begins with `/`"));
    }
    Template::parse(value, |_| None).map_err(|bad| bad.to_string())
}

fn allowed(value: &str) -> Result<Vec<Access>, String> {
    let net = |text: &String| text.parse::<Net>().map_err(|bad| format!("`{text}`: {bad}"));
    let nets: Vec<Net> = list(value).iter().map(net).collect::<Result<_, _>>()?;
    let allow = nets.into_iter().map(|net| Access { verdict: Verdict::Allow, peers: Peers::Net(net) });
    Ok(allow.chain([Access { verdict: Verdict::Deny, peers: Peers::All }]).collect())
}

/// The rules of CORS, with origins and names that responses can have.
fn checked_cors(filter: &CorsFilter) -> Result<Cors, String> {
    let mut cors = filter::cors(filter);
    if cors.origins == Origins::Echoed {
        // Credentials are allowed by default here: that nobody has set them must not open the site to any page.
        (cors.origins, cors.credentials) = (Origins::Any, false);
    }
    flatout_site::check_cors(&cors).map_err(|why| format!("annotation enable-cors: {why}"))?;
    Ok(cors)
}

/// Users from a Secret: a file of htpasswd with the key `auth`, or a key for each user.
fn basic_auth(ingress: &Ingress, objects: &Objects) -> Result<BasicAuth, String> {
    let annotation =
        |name: &str| ingress.metadata.annotations.get(&format!("{PREFIX}{name}")).map(|it| it.trim());
    let name = annotation("auth-secret").ok_or("auth-secret is missing")?;
    let (namespace, name) = name.split_once('/').unwrap_or((&ingress.metadata.namespace, name));
    if namespace != ingress.metadata.namespace {
        return Err(format!("the Secret {namespace}/{name} is in another namespace"));
    }
    let key = ObjectKey::new(namespace, name);
    let secret = objects.secrets.get(&key).ok_or_else(|| format!("there is no Secret {key}"))?;
    let decoded = |text: &String| {
        let bytes = STANDARD.decode(text).ok();
        bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| format!("the Secret {key} is not Base64"))
    };
    let mut lines = String::new();
    let is_map = annotation("auth-secret-type") == Some("auth-map");
    for (user, text) in &secret.data {
        match is_map {
            true => lines.push_str(&format!("{user}:{}\n", decoded(text)?.trim())),
            false if user == "auth" => lines.push_str(&decoded(text)?),
            false => {}
        }
    }
    if let Some(text) = secret.string_data.get("auth").filter(|_| !is_map) {
        lines.push_str(text);
    }
    let user = |line: &str| {
        let (name, hash) = line.trim().split_once(':')?;
        Some(User { name: name.to_owned(), hash: hash.to_owned() })
    };
    let users: Vec<User> = lines.lines().filter_map(user).collect();
    if users.is_empty() {
        return Err(format!("the Secret {key} has no users"));
    }
    let realm = annotation("auth-realm").unwrap_or("Authentication Required").to_owned();
    Ok(BasicAuth { realm, users, user_file: None })
}
