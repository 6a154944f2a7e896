//! Annotations of ingress-nginx, as far as the Gateway API has something for them.

use serde_json::{Map, Value, json};

use crate::kinds::ingress::Ingress;
use crate::translate::{BURST_MULTIPLIER, bytes};

/// The prefix of all of them.
const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Annotations that protect something.
const PROTECTING: &[&str] = &[
    "auth-snippet",
    "auth-tls-secret",
    "auth-type",
    "auth-url",
    "configuration-snippet",
    "allowlist-source-range",
    "denylist-source-range",
    "enable-modsecurity",
    "modsecurity-snippet",
    "server-snippet",
    "whitelist-source-range",
];

/// Annotations that belong to others, which are read there.
const PARTS: &[&str] = &[
    "auth-realm",
    "auth-secret",
    "auth-secret-type",
    "canary",
    "canary-by-cookie",
    "canary-by-header",
    "canary-by-header-value",
    "canary-weight",
    "cors-allow-credentials",
    "cors-allow-headers",
    "cors-allow-methods",
    "cors-allow-origin",
    "cors-expose-headers",
    "cors-max-age",
    "enable-cors",
    "force-ssl-redirect",
    "limit-burst-multiplier",
    "limit-rpm",
    "limit-rps",
    "proxy-body-size",
    "rewrite-target",
    "server-alias",
    "ssl-redirect",
    "use-regex",
];

/// What an Ingress wants, apart from its rules.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Wanted {
    pub(super) aliases: Vec<String>,
    pub(super) redirects: bool,
    pub(super) redirects_always: bool,
    pub(super) use_regex: bool,
    pub(super) rewrite: Option<String>,
    pub(super) cors: Option<Value>,
    pub(super) canary: Option<WantedCanary>,
    /// What a LimitPolicy says, apart from its targets; empty without limits.
    pub(super) limits: Map<String, Value>,
}

/// Which requests go to a new version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WantedCanary {
    /// Those with this field and value.
    pub(super) header: Option<(String, String)>,
    /// Of the others so many of 100.
    pub(super) weight: u32,
}

impl Wanted {
    /// Reads the annotations of an Ingress. Returns also what is lost.
    ///
    /// # Errors
    /// One that protects something cannot be converted.
    pub(super) fn parse(ingress: &Ingress) -> Result<(Wanted, Vec<String>), String> {
        let all = &ingress.metadata.annotations;
        let get = |name: &str| value(ingress, name);
        let is_on = |name: &str| is_on(ingress, name);
        if let Some(name) = PROTECTING.iter().find(|name| get(name).is_some()) {
            return Err(format!(
                "the annotation {name} protects it, and the Gateway API has nothing for that; protect it otherwise first"
            ));
        }
        let mut lost = Vec::new();
        for name in all.keys().filter_map(|name| name.strip_prefix(PREFIX)) {
            match name {
                "backend-protocol" => lost.push(match get(name).unwrap_or_default() {
                    "HTTP" | "AUTO_HTTP" => continue,
                    "GRPC" => {
                        "backend-protocol GRPC: set appProtocol: kubernetes.io/h2c in the Service".to_owned()
                    }
                    other => format!("backend-protocol {other}: the Service needs a BackendTLSPolicy"),
                }),
                name if PARTS.contains(&name) => {}
                name => lost.push(format!("the annotation {name} has nothing like it in the Gateway API")),
            }
        }
        let canary = is_on("canary").then(|| {
            if get("canary-by-cookie").is_some() {
                lost.push("canary-by-cookie: the Gateway API does not match cookies".to_owned());
            }
            let header = canary_header(ingress);
            if header.is_some() && get("canary-by-header-value").is_none() {
                lost.push("canary-by-header: the value `never` is not told from others".to_owned());
            }
            let weight = get("canary-weight").and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
            WantedCanary { header, weight: weight.min(100) }
        });
        let limits = limits(&get, &mut lost);
        let wanted = Wanted {
            aliases: list(get("server-alias").unwrap_or_default()),
            redirects: get("ssl-redirect").is_none_or(|value| value.eq_ignore_ascii_case("true")),
            redirects_always: is_on("force-ssl-redirect"),
            use_regex: is_on("use-regex"),
            rewrite: get("rewrite-target").map(str::to_owned),
            cors: is_on("enable-cors").then(|| cors(&get)),
            canary,
            limits,
        };
        Ok((wanted, lost))
    }
}

impl Wanted {
    /// What an Ingress that is left out wants, as far as it says which requests are its own.
    pub(super) fn of_left_out(ingress: &Ingress) -> Wanted {
        Wanted {
            aliases: names(ingress, "server-alias"),
            redirects: true,
            use_regex: is_on(ingress, "use-regex"),
            rewrite: value(ingress, "rewrite-target").map(str::to_owned),
            ..Wanted::default()
        }
    }
}

/// The value of an annotation of ingress-nginx.
fn value<'i>(ingress: &'i Ingress, name: &str) -> Option<&'i str> {
    ingress.metadata.annotations.get(&format!("{PREFIX}{name}")).map(|value| value.trim())
}

/// Whether an annotation is `true`.
pub(super) fn is_on(ingress: &Ingress, name: &str) -> bool {
    value(ingress, name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The names in an annotation.
pub(super) fn names(ingress: &Ingress, name: &str) -> Vec<String> {
    list(value(ingress, name).unwrap_or_default())
}

/// The field of requests that a canary gets.
pub(super) fn canary_header(ingress: &Ingress) -> Option<(String, String)> {
    let name = value(ingress, "canary-by-header").filter(|_| is_on(ingress, "canary"))?;
    Some((name.to_owned(), value(ingress, "canary-by-header-value").unwrap_or("always").to_owned()))
}

fn cors<'a>(get: &impl Fn(&str) -> Option<&'a str>) -> Value {
    let texts = |name: &str, usual: &str| list(get(name).unwrap_or(usual));
    let origins = texts("cors-allow-origin", "*");
    // For every origin, credentials would open the site to any page: they are for those who name origins.
    let is_any = origins.iter().any(|it| it == "*");
    let credentials =
        !is_any && get("cors-allow-credentials").is_none_or(|it| it.eq_ignore_ascii_case("true"));
    let headers = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
    let mut cors = json!({
        "allowOrigins": origins,
        "allowMethods": texts("cors-allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS"),
        "allowHeaders": texts("cors-allow-headers", headers),
        "allowCredentials": credentials,
        "maxAge": get("cors-max-age").and_then(|text| text.parse::<u32>().ok()).unwrap_or(1_728_000),
    });
    if let Some(expose) = get("cors-expose-headers") {
        cors["exposeHeaders"] = json!(list(expose));
    }
    cors
}

/// Rates and sizes: the Gateway API has nothing for them, and a LimitPolicy of flatout does.
fn limits<'a>(get: &impl Fn(&str) -> Option<&'a str>, lost: &mut Vec<String>) -> Map<String, Value> {
    let mut limits = Map::new();
    let rate = |name: &str| get(name).and_then(|text| text.parse::<u32>().ok()).filter(|count| *count > 0);
    let multiplier =
        get("limit-burst-multiplier").and_then(|text| text.parse().ok()).unwrap_or(BURST_MULTIPLIER);
    let of = |count: u32, window: &str| json!({"count": count, "window": window, "burst": count.saturating_mul(multiplier)});
    match (rate("limit-rps"), rate("limit-rpm")) {
        (Some(count), rest) => {
            if rest.is_some() {
                lost.push("limit-rpm: a LimitPolicy has one rate, that of limit-rps".to_owned());
            }
            limits.insert("requests".to_owned(), of(count, "1s"));
        }
        (None, Some(count)) => drop(limits.insert("requests".to_owned(), of(count, "1m"))),
        (None, None) => {}
    }
    for name in
        ["limit-rps", "limit-rpm"].into_iter().filter(|name| get(name).is_some() && rate(name).is_none())
    {
        lost.push(format!("{name}: it is no number of at least 1"));
    }
    match get("proxy-body-size").map(bytes) {
        // No limit.
        None | Some(Ok(None | Some(u64::MAX))) => {}
        Some(Ok(Some(bytes))) => drop(limits.insert("bodyBytes".to_owned(), bytes.into())),
        Some(Err(why)) => lost.push(format!("proxy-body-size: {why}")),
    }
    limits
}

fn list(value: &str) -> Vec<String> {
    value.split(',').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect()
}
