//! CORS: which pages of other origins may use the responses (Fetch standard, section 3.2).

use flatout_engine::Response;
use flatout_wire::{Head, Method, Status};

use super::fault::{Fault, Place};
use super::plan::{self, Origins};

/// The rules of one route. Lines that are the same for every request are encoded in advance.
#[derive(Debug, Clone)]
pub(crate) struct CompiledCors {
    origins: Origins,
    /// For every response that another origin may use.
    shared: Vec<u8>,
    methods: String,
    headers: String,
    /// Browsers do not take `*` for these if there are credentials: the response repeats what was asked for.
    takes_all_methods: bool,
    takes_all_headers: bool,
    age_max: Option<String>,
}

impl CompiledCors {
    /// # Errors
    /// Every origin together with credentials, or invalid field values.
    pub(crate) fn new(plan: &plan::Cors, place: Place) -> Result<CompiledCors, Fault> {
        if plan.origins == Origins::Any && plan.credentials {
            return Err(place.fault("cors: credentials need a list of origins; otherwise any page could send requests as its visitors"));
        }
        if let Origins::These(origins) = &plan.origins
            && let Some(origin) = origins.iter().find(|origin| !is_origin(origin))
        {
            return Err(
                place.fault(format!("cors: got `{origin}`, need an origin such as https://app.example.org"))
            );
        }
        let names = [&plan.methods, &plan.headers, &plan.expose].into_iter().flatten();
        for name in names {
            if name != "*" && !flatout_wire::field::is_token(name.as_bytes()) {
                return Err(place.fault(format!("cors: `{name}` is not a valid name of a method or field")));
            }
        }
        let mut shared = String::new();
        if plan.credentials {
            shared.push_str("Access-Control-Allow-Credentials: true\r\n");
        }
        if !plan.expose.is_empty() {
            shared.push_str(&format!("Access-Control-Expose-Headers: {}\r\n", plan.expose.join(", ")));
        }
        Ok(CompiledCors {
            origins: plan.origins.clone(),
            shared: shared.into_bytes(),
            methods: plan.methods.join(", "),
            takes_all_methods: plan.credentials && plan.methods.iter().any(|name| name == "*"),
            takes_all_headers: plan.headers.iter().any(|name| name == "*"),
            headers: plan.headers.join(", "),
            age_max: plan.age_max.map(|time| time.as_secs().to_string()),
        })
    }

    /// Writes the response to a preflight, if the request is one.
    pub(crate) fn preflight(&self, head: &Head<'_>, response: &mut Response) -> bool {
        let Some(method) = preflight_method(head) else { return false };
        response.set_status(Status::NO_CONTENT);
        if !self.names(head.field("origin")) {
            return true;
        }
        match self.takes_all_methods {
            true => response.header("Access-Control-Allow-Methods", method),
            false => response.header("Access-Control-Allow-Methods", &self.methods),
        };
        match head.field("access-control-request-headers") {
            Some(asked) if self.takes_all_headers => {
                response.header("Access-Control-Allow-Headers", asked);
            }
            _ if !self.headers.is_empty() => {
                response.header("Access-Control-Allow-Headers", &self.headers);
            }
            _ => {}
        }
        if let Some(time) = &self.age_max {
            response.header("Access-Control-Max-Age", time);
        }
        response.encoded_fields(b"Vary: Access-Control-Request-Method, Access-Control-Request-Headers\r\n");
        true
    }

    /// Adds the fields that let the page of an origin use a response. The upstream's fields of the same names are
    /// replaced, because browsers reject duplicates.
    pub(crate) fn apply(&self, origin: Option<&[u8]>, response: &mut Response) {
        for name in [
            "access-control-allow-origin",
            "access-control-allow-credentials",
            "access-control-expose-headers",
        ] {
            if response.field(name).is_some() {
                response.remove_header(name);
            }
        }
        if self.origins == Origins::Any {
            response.encoded_fields(b"Access-Control-Allow-Origin: *\r\n").encoded_fields(&self.shared);
            return;
        }
        // Caches need it in every response, with or without an origin.
        response.encoded_fields(b"Vary: Origin\r\n");
        if let Some(origin) = origin.filter(|origin| self.names(Some(origin))) {
            response.header("Access-Control-Allow-Origin", origin).encoded_fields(&self.shared);
        }
    }

    fn names(&self, origin: Option<&[u8]>) -> bool {
        let Some(origin) = origin else { return false };
        match &self.origins {
            Origins::Any | Origins::Echoed => true,
            Origins::These(origins) => origins.iter().any(|this| is_covered(this, origin)),
        }
    }
}

/// The method that a preflight asks about.
pub(crate) fn preflight_method<'b>(head: &Head<'b>) -> Option<&'b [u8]> {
    if head.method != Method::Options {
        return None;
    }
    head.field("origin")?;
    head.field("access-control-request-method")
}

/// Whether an origin of the list is this one, or has a wildcard for its host.
fn is_covered(listed: &str, origin: &[u8]) -> bool {
    let Some((scheme, suffix)) = listed.split_once('*') else {
        return listed.as_bytes().eq_ignore_ascii_case(origin);
    };
    let Some(labels) = origin.len().checked_sub(scheme.len() + suffix.len()).filter(|bytes| *bytes > 0)
    else {
        return false;
    };
    let (start, rest) = origin.split_at(scheme.len());
    let (labels, end) = rest.split_at(labels);
    start.eq_ignore_ascii_case(scheme.as_bytes())
        && end.eq_ignore_ascii_case(suffix.as_bytes())
        && labels.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
}

/// `scheme://host[:port]`, where the host may begin with `*.`, or `null`.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return text == "null" };
    let is_scheme = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let host = host.strip_prefix("*.").unwrap_or(host);
    let is_host = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\\"<>".contains(&byte));
    is_scheme && is_host
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};
    use std::time::Duration;

    fn plan(origins: Origins, credentials: bool) -> plan::Cors {
        plan::Cors {
            origins,
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            headers: vec!["X-One".to_owned()],
            expose: vec!["X-Seen".to_owned()],
            credentials,
            age_max: Some(Duration::from_secs(600)),
        }
    }

    fn these() -> Origins {
        Origins::These(vec!["https://app.example.org".to_owned()])
    }

    fn preflight_of(cors: &plan::Cors, method: &str, fields: &str) -> (bool, String) {
        let cors = CompiledCors::new(cors, Place::Plan).unwrap();
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut spans = Vec::new();
        let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let mut response = Response::new();
        let is_preflight = cors.preflight(&head, &mut response);
        cors.apply(head.field("origin"), &mut response);
        let mut lines = Vec::new();
        response.write_fields(&mut lines);
        (is_preflight, String::from_utf8(lines).unwrap())
    }

    #[test]
    fn an_origin_of_the_list_may_use_responses() {
        let (is_preflight, lines) =
            preflight_of(&plan(these(), true), "GET", "Origin: https://app.example.org\r\n");
        assert!(!is_preflight);
        assert_eq!(
            lines,
            "Vary: Origin\r\nAccess-Control-Allow-Origin: https://app.example.org\r\n\
             Access-Control-Allow-Credentials: true\r\nAccess-Control-Expose-Headers: X-Seen\r\n"
        );
        for origin in
            ["", "Origin: https://evil.example\r\n", "Origin: https://app.example.org.evil.example\r\n"]
        {
            assert_eq!(preflight_of(&plan(these(), true), "GET", origin).1, "Vary: Origin\r\n", "{origin}");
        }
    }

    #[test]
    fn a_preflight_is_answered_at_once() {
        let fields = "Origin: https://app.example.org\r\nAccess-Control-Request-Method: PUT\r\n";
        let (is_preflight, lines) = preflight_of(&plan(these(), false), "OPTIONS", fields);
        assert!(is_preflight);
        for line in [
            "Access-Control-Allow-Origin: https://app.example.org\r\n",
            "Access-Control-Allow-Methods: GET, PUT\r\n",
            "Access-Control-Allow-Headers: X-One\r\n",
            "Access-Control-Max-Age: 600\r\n",
        ] {
            assert!(lines.contains(line), "{lines}");
        }
        let fields = "Origin: https://evil.example\r\nAccess-Control-Request-Method: PUT\r\n";
        let (is_preflight, lines) = preflight_of(&plan(these(), false), "OPTIONS", fields);
        assert!(is_preflight && !lines.contains("Access-Control-Allow"), "{lines}");
        assert!(!preflight_of(&plan(these(), false), "OPTIONS", "Origin: https://app.example.org\r\n").0);
    }

    #[test]
    fn a_wildcard_is_every_host_below_a_name() {
        let wildcard = Origins::These(vec!["https://*.example.org".to_owned()]);
        for (origin, may_read) in [
            ("https://a.example.org", true),
            ("https://a.b.Example.org", true),
            ("https://example.org", false),
            ("https://.example.org", false),
            ("http://a.example.org", false),
            ("https://aexample.org", false),
            ("https://evil.example/.example.org", false),
            ("https://a.example.org:8443", false),
        ] {
            let lines =
                preflight_of(&plan(wildcard.clone(), true), "GET", &format!("Origin: {origin}\r\n")).1;
            assert_eq!(
                lines.contains(&format!("Access-Control-Allow-Origin: {origin}\r\n")),
                may_read,
                "{origin}"
            );
        }
    }

    #[test]
    fn an_origin_and_a_method_are_repeated_if_all_may_send_credentials() {
        let mut all = plan(Origins::Echoed, true);
        all.methods = vec!["*".to_owned()];
        let fields = "Origin: https://a.example\r\nAccess-Control-Request-Method: PATCH\r\n";
        let lines = preflight_of(&all, "OPTIONS", fields).1;
        for line in [
            "Access-Control-Allow-Methods: PATCH\r\n",
            "Access-Control-Allow-Origin: https://a.example\r\n",
            "Vary: Origin\r\n",
            "Access-Control-Allow-Credentials: true\r\n",
        ] {
            assert!(lines.contains(line), "{lines}");
        }
    }

    #[test]
    fn an_upstreams_own_lines_are_replaced() {
        let cors = CompiledCors::new(&plan(Origins::Any, false), Place::Plan).unwrap();
        let mut response = Response::new();
        response.header("Access-Control-Allow-Origin", "https://other.example");
        cors.apply(Some(b"https://x.example"), &mut response);
        assert_eq!(response.field("access-control-allow-origin"), Some(&b"*"[..]));
        assert_eq!(response.fields().filter(|(name, _)| *name == b"Access-Control-Allow-Origin").count(), 1);
    }

    #[test]
    fn unsafe_settings_are_refused() {
        assert!(CompiledCors::new(&plan(Origins::Any, true), Place::Plan).is_err());
        for origin in
            ["app.example.org", "https://a/", "https://*", "https://a.*.org", "https://", "https://a\r\nb: c"]
        {
            assert!(
                CompiledCors::new(&plan(Origins::These(vec![origin.to_owned()]), false), Place::Plan)
                    .is_err(),
                "{origin}"
            );
        }
        let mut bad = plan(these(), false);
        bad.expose.push("a b".to_owned());
        assert!(CompiledCors::new(&bad, Place::Plan).is_err());
    }
}
