//! The format of a line: a template with nginx's variables, parsed once.

use std::sync::Arc;

use super::escape::Escape;
use super::text::Text;
use super::variable::{Late, Variable};

/// The format of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub(super) parts: Vec<Part>,
    pub(super) escape: Escape,
}

/// A piece of a line: text, followed by a value except in the last piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) text: Text,
    pub(super) value: Option<Variable>,
}

/// The most parts of one format.
const PARTS_MAX: usize = 200;

const COMMON: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";

const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                        \"$http_referer\" \"$http_user_agent\"";

const SHORT: &str = "$time_clock $status $request_method $host$request_uri $took $body_bytes_sent";

const COLOURED: &str = "$time_clock $status_colour $request_method $host$request_uri $took $body_bytes_sent";

const JSON: &str = "{\"time\":\"$time_iso8601_ms\",\"remote_addr\":\"$remote_addr\",\"remote_user\":\"$remote_user\",\
                    \"host\":\"$host\",\"method\":\"$request_method\",\"uri\":\"$request_uri\",\
                    \"protocol\":\"$server_protocol\",\"status\":$status,\"request_length\":$request_length,\
                    \"bytes_sent\":$bytes_sent,\"body_bytes_sent\":$body_bytes_sent,\"request_time\":$request_time,\
                    \"referer\":\"$http_referer\",\"user_agent\":\"$http_user_agent\",\
                    \"upstream_addr\":\"$upstream_addr\",\"upstream_status\":\"$upstream_status\",\
                    \"upstream_response_time\":\"$upstream_response_time\",\"outcome\":\"$outcome\"}";

impl Format {
    /// The Common Log Format of NCSA.
    pub fn common() -> Format {
        Format::built_in(COMMON, Escape::Text)
    }

    /// The same with `Referer` and `User-Agent`.
    pub fn combined() -> Format {
        Format::built_in(COMBINED, Escape::Text)
    }

    /// Short lines for people, with colours for a terminal.
    pub fn short(is_coloured: bool) -> Format {
        Format::built_in(if is_coloured { COLOURED } else { SHORT }, Escape::Text)
    }

    /// One JSON object a line.
    pub fn json() -> Format {
        Format::built_in(JSON, Escape::Json)
    }

    /// The same with values escaped in this way.
    pub fn with_escape(self, escape: Escape) -> Format {
        Format { escape, ..self }
    }

    /// Whether all of its values are known when a request begins.
    pub(super) fn is_early(&self) -> bool {
        self.parts.iter().all(|part| matches!(part.value, None | Some(Variable::Early(_))))
    }

    /// Both, one line after the other, with values escaped as in the second one.
    pub(super) fn before(&self, second: &Format) -> Format {
        Format { parts: [&self.parts[..], &second.parts[..]].concat(), escape: second.escape }
    }

    /// Whether it uses upstream values.
    pub(super) fn wants_upstreams(&self) -> bool {
        let is_of_upstream =
            |part: &Part| matches!(&part.value, Some(Variable::Late(late)) if late.is_of_upstream());
        self.parts.iter().any(is_of_upstream)
    }

    /// Whether it has the bodies of requests.
    pub(super) fn has_bodies(&self) -> bool {
        let is_body = |part: &Part| part.value == Some(Variable::Late(Late::RequestBody));
        self.parts.iter().any(is_body)
    }

    /// The variables of the service.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let name = |part: &Part| match &part.value {
            Some(Variable::Named(name)) => Some(name.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(name).collect()
    }

    fn built_in(text: &str, escape: Escape) -> Format {
        // A test shows that the texts above are valid.
        read(text, escape, &|_| false).unwrap_or(Format { parts: Vec::new(), escape })
    }

    /// `common`, `combined`, `short`, `json`, or a template: text with nginx's variables, `$status` or `${status}`. A template
    /// that starts with `{` is JSON, and its values are escaped for that.
    ///
    /// # Errors
    /// An unknown variable.
    pub fn parse(text: &str) -> Result<Format, String> {
        Format::parse_with(text, &|_| false)
    }

    /// The same, with variables of the service.
    ///
    /// # Errors
    /// An unknown variable.
    pub fn parse_with(text: &str, is_known: &dyn Fn(&str) -> bool) -> Result<Format, String> {
        match text {
            "common" => Ok(Format::common()),
            "combined" => Ok(Format::combined()),
            "short" => Ok(Format::short(false)),
            "json" => Ok(Format::json()),
            _ if !text.contains('$') => Err(format!(
                "got `{text}`, need common, combined, short, json, or a template with $variables"
            )),
            _ if text.chars().any(char::is_control) => {
                Err("a log template must not contain control characters; line ends are added automatically"
                    .to_owned())
            }
            _ => {
                let is_json = text.trim_start().starts_with('{');
                read(text, if is_json { Escape::Json } else { Escape::Text }, is_known)
            }
        }
    }
}

/// Parses a template. Names that are none of a log may be those of the service.
fn read(text: &str, escape: Escape, is_known: &dyn Fn(&str) -> bool) -> Result<Format, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        let (name, after) = name(behind)?;
        let value = Variable::named(name).or_else(|unknown| match is_known(name) {
            true => Ok(Variable::Named(name.into())),
            false => Err(unknown),
        });
        parts.push(Part { text: Text::new(before.as_bytes()), value: Some(value?) });
        rest = after;
        if parts.len() > PARTS_MAX {
            return Err(format!("a log template has at most {PARTS_MAX} variables"));
        }
    }
    parts.push(Part { text: Text::new(format!("{rest}\n").as_bytes()), value: None });
    Ok(Format { parts, escape })
}

/// Splits the name at the start of `text`, with or without braces, from the rest.
fn name(text: &str) -> Result<(&str, &str), String> {
    if let Some(inner) = text.strip_prefix('{') {
        return inner.split_once('}').ok_or_else(|| "a `${` in a log template has no `}`".to_owned());
    }
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    match text.split_at(end.unwrap_or(text.len())) {
        ("", _) => Err("a `$` in a log template must be followed by the name of a variable".to_owned()),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_formats_can_be_read() {
        let texts = [COMMON, COMBINED, SHORT, COLOURED].map(|text| (text, Escape::Text));
        for (text, escape) in texts.into_iter().chain([(JSON, Escape::Json)]) {
            assert!(!read(text, escape, &|_| false).unwrap().parts.is_empty());
        }
        assert_eq!(Format::parse("combined"), Ok(Format::combined()));
        assert_eq!(Format::parse(COMMON), Ok(Format::common()));
        assert_eq!(Format::parse(JSON), Ok(Format::json()));
    }

    #[test]
    fn templates_are_parsed() {
        let format = Format::parse("a $request_method${status}b${host}c").unwrap();
        let texts: Vec<Text> = format.parts.iter().map(|part| part.text.clone()).collect();
        assert_eq!(texts, ["a ", "", "b", "c\n"].map(|text| Text::new(text.as_bytes())));
        assert!(format.parts.iter().rev().skip(1).all(|part| part.value.is_some()));
    }

    #[test]
    fn variables_of_the_service_have_names_that_no_other_has() {
        let format = Format::parse_with("$country $status ${country} $shop", &|name| name != "none").unwrap();
        let names: Vec<Arc<str>> = ["country", "country", "shop"].map(Arc::from).to_vec();
        assert_eq!((format.names(), format.is_early()), (names, false));
        let unknown = Format::parse_with("$country $none", &|name| name != "none").unwrap_err();
        assert!(unknown.contains("unknown log variable `$none`"), "{unknown}");
    }

    #[test]
    fn mistakes_are_reported() {
        for (text, expected) in [
            ("combind", "need common, combined, short, json"),
            ("$statos", "unknown log variable `$statos`; did you mean `$status`?"),
            ("${status", "has no `}`"),
            ("costs $", "followed by the name"),
            ("$status\n$host", "control characters"),
        ] {
            let message = Format::parse(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        assert!(Format::parse(&"$status".repeat(PARTS_MAX + 1)).is_err());
    }
}
