//! Rules for the fields of requests and responses.

use flatout_engine::Response;
use flatout_expression::Regex;
use flatout_wire::Head;
use flatout_wire::chunk::is_forbidden_trailer;
use flatout_wire::field::{is_field_value, is_token};

use super::fault::{Fault, Place};
use super::late::{FieldValue, Making};
use super::maps::TableCounts;
use super::plan::{FieldChange, FieldRule, Template, Variable, When};
use super::render::{Paths, Text, View};
use flatout_gateway::PARAM;

/// Fields of the connection and of framing, which belong to the engine and the proxy.
const NOT_OURS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The rules of one route, in one direction.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldRules {
    rules: Vec<Rule>,
    /// Names that a request's own fields lose, in lower case.
    dropped: Vec<String>,
}

#[derive(Debug, Clone)]
struct Rule {
    name: String,
    change: Change,
    when: When,
}

#[derive(Debug, Clone)]
enum Change {
    Set(Text),
    Add(Text),
    Default(Text),
    Remove,
    Trailer(Text),
}

impl FieldRules {
    /// # Errors
    /// Names that are invalid or that a rule must not change, or invalid values.
    pub(crate) fn new(
        rules: &[FieldRule],
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<FieldRules, Fault> {
        FieldRules::with(rules, |template| Text::new(template, expression, counts, place), place)
    }

    /// The same for rules of responses, whose values may depend on the response.
    ///
    /// # Errors
    /// See [`FieldRules::new`].
    pub(crate) fn of_responses(
        rules: &[FieldRule],
        expression: Option<&Regex>,
        counts: TableCounts,
        place: Place,
    ) -> Result<FieldRules, Fault> {
        if let Some(param) = rules.iter().find(|rule| rule.name.starts_with(PARAM)) {
            return Err(place.fault(format!("`{}` is not a valid field name", param.name)));
        }
        FieldRules::with(rules, |template| Text::of_response(template, expression, counts, place), place)
    }

    fn with(
        rules: &[FieldRule],
        text: impl Fn(&Template) -> Result<Text, Fault>,
        place: Place,
    ) -> Result<FieldRules, Fault> {
        let mut all = FieldRules::default();
        for rule in rules {
            let name = &rule.name;
            if !is_token(name.strip_prefix(PARAM).unwrap_or(name).as_bytes()) {
                return Err(place.fault(format!("`{name}` is not a valid field name")));
            }
            if NOT_OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
                return Err(place.fault(format!(
                    "`{name}` is a field of the connection and cannot be changed by a rule"
                )));
            }
            let text = |template| {
                let text = text(template)?;
                match text.constant() {
                    Some(value) if !is_field_value(value.as_bytes()) => {
                        Err(place.fault(format!("`{name}`: {value:?} is not a valid field value")))
                    }
                    _ => Ok(text),
                }
            };
            let change = match &rule.change {
                FieldChange::Set(template) => Change::Set(text(template)?),
                FieldChange::Add(template) => Change::Add(text(template)?),
                FieldChange::Default(template) => Change::Default(text(template)?),
                FieldChange::Remove => Change::Remove,
                FieldChange::Trailer(_) if is_forbidden_trailer(name.as_bytes()) => {
                    return Err(place.fault(format!(
                        "`{name}` is read before the body, so it cannot be a trailer field; use response-header"
                    )));
                }
                FieldChange::Trailer(template) => Change::Trailer(text(template)?),
            };
            if matches!(change, Change::Set(_) | Change::Remove) {
                all.dropped.push(name.to_ascii_lowercase());
            }
            all.rules.push(Rule { name: name.clone(), change, when: rule.when });
        }
        // The proxy looks for them at the start.
        all.rules.sort_by_key(|rule| !rule.name.starts_with(PARAM));
        Ok(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether all changes are the same for every request.
    pub(crate) fn is_constant(&self) -> bool {
        self.rules.iter().all(|rule| rule.text().is_none_or(|text| text.constant().is_some()))
    }

    /// Whether a value has the request's body in it.
    pub(crate) fn uses_body(&self) -> bool {
        let of_text = |text: &Text| text.variables().any(|variable| *variable == Variable::Body);
        self.rules.iter().filter_map(Rule::text).any(of_text)
    }

    /// Whether a value has what is known of the attempts at an upstream's servers.
    pub(crate) fn uses_attempts(&self) -> bool {
        self.rules.iter().filter_map(Rule::text).any(Text::uses_attempts)
    }

    pub(crate) fn uses_captures(&self) -> bool {
        self.rules.iter().any(|rule| rule.text().is_some_and(Text::uses_captures))
    }

    /// The names of fields that are removed from a request.
    pub(crate) fn dropped(&self) -> &[String] {
        &self.dropped
    }

    /// Writes the lines that are added to a request. A line with an invalid value is left out.
    pub(crate) fn request_lines(&self, head: &Head<'_>, view: &View<'_>, out: &mut Vec<u8>) {
        let mut value = Vec::new();
        for rule in &self.rules {
            let Some(text) = rule.text() else { continue };
            if matches!(rule.change, Change::Default(_)) && head.field(&rule.name).is_some() {
                continue;
            }
            value.clear();
            text.render(view, Paths::Decoded, &mut value);
            push_line(rule.name.as_bytes(), &value, out);
        }
    }

    /// The values of the rules that have one, in order.
    pub(crate) fn rendered(&self, view: &View<'_>) -> Vec<FieldValue> {
        self.rules.iter().filter_map(Rule::text).map(|text| FieldValue::of(text, view)).collect()
    }

    /// Changes a response. `values` are from [`rendered`](FieldRules::rendered), or empty if all values are constant.
    pub(crate) fn apply(&self, values: &[FieldValue], making: Making<'_>, response: &mut Response) {
        let is_success = matches!(response.status().code(), 200 | 201 | 204 | 206 | 301..=304 | 307 | 308);
        let mut values = values.iter();
        for rule in &self.rules {
            let constant = rule.text().and_then(Text::constant).map(str::as_bytes);
            let rendered =
                rule.text().and_then(|_| values.next()).map(|value| value.complete(making, response));
            let value = rendered.as_deref().or(constant).unwrap_or_default();
            if rule.when == When::Success && !is_success {
                continue;
            }
            if let Change::Trailer(_) = rule.change {
                if !value.is_empty() {
                    response.trailer(&rule.name, value);
                }
                continue;
            }
            let is_there = response.field(&rule.name).is_some();
            if is_there && matches!(rule.change, Change::Set(_) | Change::Remove) {
                response.remove_header(&rule.name);
            }
            let adds = match rule.change {
                Change::Set(_) | Change::Add(_) => true,
                Change::Default(_) => !is_there,
                Change::Remove | Change::Trailer(_) => false,
            };
            // A variable may produce an invalid value; that is no reason for a 500.
            if adds && !value.is_empty() && is_field_value(value) {
                response.header(&rule.name, value);
            }
        }
    }
}

impl Rule {
    fn text(&self) -> Option<&Text> {
        match &self.change {
            Change::Set(text) | Change::Add(text) | Change::Default(text) | Change::Trailer(text) => {
                Some(text)
            }
            Change::Remove => None,
        }
    }
}

/// Adds a field line; a line with an empty or invalid value is left out.
pub(crate) fn push_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let value = value.trim_ascii();
    if value.is_empty() || !is_field_value(value) {
        return;
    }
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Noted;
    use super::super::maps::Tables;
    use super::super::render::Captures;
    use super::*;
    use flatout_gateway::{Client, ResponseOrigin};
    use flatout_wire::Status;
    use flatout_wire::head::{HeadLimits, parse};

    fn template(text: &str) -> Template {
        Template::parse(text, |_| None).unwrap()
    }

    fn rule(name: &str, change: FieldChange) -> FieldRule {
        FieldRule { name: name.to_owned(), change, when: When::Always }
    }

    fn rules(rules: &[FieldRule]) -> FieldRules {
        FieldRules::of_responses(rules, None, TableCounts::default(), Place::Plan).unwrap()
    }

    fn with_view<T>(act: impl FnOnce(&Head<'_>, &View<'_>) -> T) -> T {
        let mut fields = Vec::new();
        let request = b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-Given: g\r\n\r\n";
        let head = parse(request, &mut fields, &HeadLimits::default()).unwrap().unwrap();
        let view = View {
            head: &head,
            path: b"/a",
            query: None,
            client: Client {
                address: Some([192, 0, 2, 1].into()),
                is_https: false,
                is_early: false,
                is_from_proxy: false,
            },
            peer: None,
            listener: (0, &[]),
            body: b"",
            user: b"a\r\nb",
            auth_fields: &[],
            limits: Default::default(),
            certificate: None,
            captured: &Captures::default(),
            tables: &Tables::default(),
            noted: &Noted::default(),
            request: None,
            site_name: "",
        };
        act(&head, &view)
    }

    #[test]
    fn request_fields_are_added_and_removed() {
        let rules = rules(&[
            rule("X-Real-IP", FieldChange::Set(template("$remote_addr"))),
            rule("X-Given", FieldChange::Default(template("other"))),
            rule("X-Not-Given", FieldChange::Default(template("other"))),
            rule("X-Also", FieldChange::Add(template("$http_x_given$host"))),
            rule("Cookie", FieldChange::Remove),
            rule("X-Empty", FieldChange::Set(template("$http_none"))),
            rule("X-Split", FieldChange::Set(template("$remote_user"))),
        ]);
        let mut lines = Vec::new();
        with_view(|head, view| rules.request_lines(head, view, &mut lines));
        assert_eq!(
            String::from_utf8(lines).unwrap(),
            "X-Real-IP: 192.0.2.1\r\nX-Not-Given: other\r\nX-Also: ga.example\r\n"
        );
        assert_eq!(rules.dropped(), ["x-real-ip", "cookie", "x-empty", "x-split"]);
    }

    #[test]
    fn responses_are_changed_in_order() {
        let success = |name: &str, value: &str| FieldRule {
            when: When::Success,
            ..rule(name, FieldChange::Add(template(value)))
        };
        let rules = rules(&[
            rule("Server", FieldChange::Set(template("mine"))),
            rule("X-Powered-By", FieldChange::Remove),
            rule("X-Host", FieldChange::Add(template("$host"))),
            success("X-Fine", "yes"),
            rule("X-Kept", FieldChange::Default(template("ours"))),
        ]);
        for (status, expected) in [
            (Status::OK, "X-Kept: theirs\r\nServer: mine\r\nX-Host: a.example\r\nX-Fine: yes\r\n"),
            (Status::BAD_GATEWAY, "X-Kept: theirs\r\nServer: mine\r\nX-Host: a.example\r\n"),
        ] {
            let mut response = Response::with_status(status);
            response.header("Server", "theirs").header("x-powered-by", "php").header("X-Kept", "theirs");
            let values = with_view(|_, view| rules.rendered(view));
            rules.apply(&values, Making { by: ResponseOrigin::Here, notes: None }, &mut response);
            let mut lines = Vec::new();
            response.write_fields(&mut lines);
            assert_eq!(String::from_utf8(lines).unwrap(), expected);
        }
    }

    #[test]
    fn trailer_fields_follow_the_body() {
        let trailer = |name: &str, value: &str| rule(name, FieldChange::Trailer(template(value)));
        let rules = rules(&[
            trailer("X-Sum", "$host"),
            trailer("X-Status", "$status"),
            trailer("X-Empty", "$http_none"),
            FieldRule { when: When::Success, ..trailer("X-Fine", "yes") },
        ]);
        for (status, expected) in [
            (Status::OK, "X-Sum: a.example\r\nX-Status: 200\r\nX-Fine: yes\r\n"),
            (Status::NOT_FOUND, "X-Sum: a.example\r\nX-Status: 404\r\n"),
        ] {
            let mut response = Response::with_status(status);
            response.header("X-Sum", "in the head");
            let values = with_view(|_, view| rules.rendered(view));
            rules.apply(&values, Making { by: ResponseOrigin::Here, notes: None }, &mut response);
            assert_eq!(String::from_utf8_lossy(response.trailers()), expected);
            assert_eq!(response.fields().count(), 1, "fields of the head stay as they are");
        }
        for name in ["Content-Type", "set-cookie", "Content-Length", "Vary"] {
            let refused = [trailer(name, "x")];
            let rules = FieldRules::of_responses(&refused, None, TableCounts::default(), Place::Plan);
            assert!(rules.is_err(), "{name}");
        }
    }

    #[test]
    fn rules_that_would_break_a_message_are_refused() {
        for (name, value) in [
            ("Connection", "close"),
            ("content-length", "1"),
            ("Host", "a"),
            ("a b", "c"),
            ("A", "b\r\nC: d"),
            ("", ""),
        ] {
            let refused = [rule(name, FieldChange::Set(Template::text(value)))];
            assert!(
                FieldRules::new(&refused, None, TableCounts::default(), Place::Plan).is_err(),
                "{name}: {value}"
            );
        }
    }
}
