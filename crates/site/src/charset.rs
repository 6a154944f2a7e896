//! The charset that the `Content-Type` of texts names.

use flatout_engine::Response;
use flatout_gateway::ResponseOrigin;

use super::fault::{Fault, Place};
use super::plan::{CHARSET_TYPES, Rules};
use super::replace::is_of_type;

/// What files and pages have by themselves.
const USUAL: &str = "utf-8";

/// The charset of a route's texts.
#[derive(Debug, Clone)]
pub(crate) struct CompiledCharset {
    name: String,
    /// Content types, without parameters; `text/*` and `*/*` are many.
    types: Vec<String>,
}

impl CompiledCharset {
    /// `None` without one.
    ///
    /// # Errors
    /// The name is no token (RFC 9110, 8.3.2).
    pub(crate) fn new(rules: &Rules, place: Place) -> Result<Option<CompiledCharset>, Fault> {
        let Some(name) = &rules.charset else { return Ok(None) };
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:+".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_letter) {
            return Err(place.fault(format!("got the charset `{name}`, need a name such as utf-8")));
        }
        let types = match &rules.charset_types[..] {
            [] => CHARSET_TYPES.map(str::to_owned).to_vec(),
            types => types.to_vec(),
        };
        Ok(Some(CompiledCharset { name: name.clone(), types }))
    }

    /// Adds the charset to a type that has none. Texts of this server have its name in place of the usual one.
    pub(crate) fn apply(&self, by: ResponseOrigin, response: &mut Response) {
        let Some(kind) = response.field("content-type") else { return };
        let mut parts = kind.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let essence = parts.next().unwrap_or_default();
        if !self.types.iter().any(|wanted| is_of_type(essence, wanted)) {
            return;
        }
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_at_checked("charset=".len())?;
            name.eq_ignore_ascii_case(b"charset=").then_some(value)
        });
        let is_replaced = |found: &[u8]| {
            by == ResponseOrigin::Here
                && found.eq_ignore_ascii_case(USUAL.as_bytes())
                && !self.name.eq_ignore_ascii_case(USUAL)
        };
        let before = match charset {
            None => kind,
            Some(found) if is_replaced(found) => essence,
            Some(_) => return,
        };
        let value = [before, b"; charset=", self.name.as_bytes()].concat();
        response.remove_header("content-type");
        response.header("Content-Type", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charset(name: &str, types: &[&str]) -> CompiledCharset {
        let types = types.iter().map(|kind| (*kind).to_owned()).collect();
        let rules = Rules { charset: Some(name.to_owned()), charset_types: types, ..Rules::default() };
        CompiledCharset::new(&rules, Place::Plan).unwrap().unwrap()
    }

    #[test]
    fn texts_have_the_charset_of_their_route() {
        use ResponseOrigin::{Here, Upstream};
        for (name, by, kind, expected) in [
            ("utf-8", Upstream, "text/html", "text/html; charset=utf-8"),
            ("utf-8", Upstream, "Text/HTML; q=1", "Text/HTML; q=1; charset=utf-8"),
            ("utf-8", Upstream, "text/html; Charset=koi8-r", "text/html; Charset=koi8-r"),
            ("utf-8", Upstream, "text/css", "text/css"),
            ("koi8-r", Upstream, "text/html; charset=utf-8", "text/html; charset=utf-8"),
            ("koi8-r", Here, "text/html; charset=utf-8", "text/html; charset=koi8-r"),
            ("koi8-r", Here, "text/html; charset=latin1", "text/html; charset=latin1"),
            ("utf-8", Here, "text/plain", "text/plain; charset=utf-8"),
            ("utf-8", Here, "image/png", "image/png"),
        ] {
            let mut response = Response::new();
            response.header("Content-Type", kind);
            charset(name, &[]).apply(by, &mut response);
            let found = String::from_utf8_lossy(response.field("content-type").unwrap()).into_owned();
            assert_eq!(found, expected, "{name} {kind}");
        }
        let mut none = Response::new();
        charset("utf-8", &[]).apply(Here, &mut none);
        assert_eq!(none.field("content-type"), None);
        let mut other = Response::new();
        other.header("Content-Type", "application/json");
        charset("utf-8", &["application/json"]).apply(Upstream, &mut other);
        assert_eq!(other.field("content-type"), Some(&b"application/json; charset=utf-8"[..]));
    }

    #[test]
    fn a_charset_is_a_name() {
        for name in ["", "utf 8", "a\r\nb", "x;y"] {
            let rules = Rules { charset: Some(name.to_owned()), ..Rules::default() };
            assert!(CompiledCharset::new(&rules, Place::Plan).is_err(), "{name}");
        }
    }
}
