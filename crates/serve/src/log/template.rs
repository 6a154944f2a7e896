//! How a line looks: a template with nginx's variables, taken apart once.

use super::escape::Escape;
use super::variable::{Early, Late, Variable};

/// How a line looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub(super) parts: Vec<Part>,
    pub(super) escape: Escape,
}

/// Parts of a line, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// What is known when the request begins: text and values that are written together.
    Early(Vec<Piece>),
    /// The same for every request.
    Text(Box<[u8]>),
    /// What is known when it has ended.
    Late(Late),
}

/// A piece of an early part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Box<[u8]>),
    Value(Early),
}

/// Parts that one format may have.
const PARTS_MAX: usize = 200;

const COMMON: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";

const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                        \"$http_referer\" \"$http_user_agent\"";

const JSON: &str = "{\"time\":\"$time_iso8601\",\"remote_addr\":\"$remote_addr\",\"remote_user\":\"$remote_user\",\
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

    /// One JSON object a line.
    pub fn json() -> Format {
        Format::built_in(JSON, Escape::Json)
    }

    fn built_in(text: &str, escape: Escape) -> Format {
        // That the texts above can be read is a test's to show.
        read(text, escape).unwrap_or(Format { parts: Vec::new(), escape })
    }

    /// `common`, `combined`, `json`, or a template: text with variables as nginx names them, `$status` or `${status}`. One
    /// that begins with `{` is taken for JSON, and its values are escaped for that.
    ///
    /// # Errors
    /// A variable that is not known.
    pub fn parse(text: &str) -> Result<Format, String> {
        match text {
            "common" => Ok(Format::common()),
            "combined" => Ok(Format::combined()),
            "json" => Ok(Format::json()),
            _ if !text.contains('$') => {
                Err(format!("got `{text}`, need common, combined, json, or a template with $variables"))
            }
            _ if text.chars().any(char::is_control) => {
                Err("a log template must not have control characters; a line ends by itself".to_owned())
            }
            _ => read(text, if text.trim_start().starts_with('{') { Escape::Json } else { Escape::Text }),
        }
    }
}

/// Takes a template apart.
fn read(text: &str, escape: Escape) -> Result<Format, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        push_text(&mut pieces, before);
        let (name, after) = name(behind)?;
        pieces.push(Found::Value(Variable::named(name)?));
        rest = after;
        if pieces.len() > PARTS_MAX {
            return Err(format!("a log template has at most {PARTS_MAX} variables"));
        }
    }
    push_text(&mut pieces, rest);
    push_text(&mut pieces, "\n");
    Ok(Format { parts: gather(pieces), escape })
}

enum Found {
    Text(Vec<u8>),
    Value(Variable),
}

fn push_text(pieces: &mut Vec<Found>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Found::Text(before)) => before.extend_from_slice(text.as_bytes()),
        _ => pieces.push(Found::Text(text.into())),
    }
}

/// The name at the start of `text`, with or without braces, and what follows it.
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

/// Joins what is written at the same time. Text between two late values is copied once, text beside an early one twice.
fn gather(found: Vec<Found>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for piece in found {
        let piece = match piece {
            Found::Value(Variable::Late(late)) => {
                parts.push(Part::Late(late));
                continue;
            }
            Found::Value(Variable::Early(early)) => Piece::Value(early),
            Found::Text(text) => Piece::Text(text.into()),
        };
        match (parts.last_mut(), piece) {
            (Some(Part::Early(pieces)), piece) => pieces.push(piece),
            (Some(Part::Text(text)), piece @ Piece::Value(_)) => {
                let text = Piece::Text(std::mem::take(text));
                parts.pop();
                parts.push(Part::Early(vec![text, piece]));
            }
            (_, Piece::Text(text)) => parts.push(Part::Text(text)),
            (_, piece @ Piece::Value(_)) => parts.push(Part::Early(vec![piece])),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_formats_can_be_read() {
        for (text, escape) in [(COMMON, Escape::Text), (COMBINED, Escape::Text), (JSON, Escape::Json)] {
            assert!(!read(text, escape).unwrap().parts.is_empty());
        }
        assert_eq!(Format::parse("combined"), Ok(Format::combined()));
        assert_eq!(Format::parse(COMMON), Ok(Format::common()));
        assert_eq!(Format::parse(JSON), Ok(Format::json()));
    }

    #[test]
    fn what_belongs_together_is_joined() {
        let format = Format::parse("a $request_method${status}b${host}c").unwrap();
        let text = |text: &str| Piece::Text(text.as_bytes().into());
        assert_eq!(format.parts.len(), 3, "{format:?}");
        assert!(matches!(&format.parts[0], Part::Early(pieces) if pieces[0] == text("a ")));
        assert!(matches!(&format.parts[1], Part::Late(_)));
        assert!(matches!(&format.parts[2], Part::Early(pieces) if pieces[2] == text("c\n")), "{format:?}");
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            ("combind", "need common, combined, json"),
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
