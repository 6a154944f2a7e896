//! Sets how long clients may use responses.

use flatout_engine::Response;
use flatout_lane::clock;
use flatout_wire::date;

use super::fault::Fault;
use super::late::{FieldValue, Making};
use super::plan::{Expires, ExpiresFrom, Template, Validity};
use super::render::Text;

/// The end of `max`: 2037-12-31T23:55:55Z, before the last second of 32 bits.
const MAX_END: u64 = 2_145_916_555;

/// The seconds of `max`.
const MAX_S: i64 = 315_360_000;

const DAY_S: u64 = 86_400;

/// How long clients may use the responses of a route.
#[derive(Debug, Clone)]
pub(crate) enum CompiledExpires {
    Fixed(Validity),
    Text(Text, ExpiresFrom),
}

impl CompiledExpires {
    /// # Errors
    /// Those of a text.
    pub(crate) fn new(
        expires: &Expires,
        text: impl FnOnce(&Template) -> Result<Text, Fault>,
    ) -> Result<CompiledExpires, Fault> {
        Ok(match expires {
            Expires::Fixed(validity) => CompiledExpires::Fixed(*validity),
            Expires::Text(template, from) => CompiledExpires::Text(text(template)?, *from),
        })
    }

    /// Its text, whose value each request has after those of the field rules.
    pub(crate) fn text(&self) -> Option<&Text> {
        match self {
            CompiledExpires::Fixed(_) => None,
            CompiledExpires::Text(text, _) => Some(text),
        }
    }

    /// Sets both fields of a successful response, in place of others of their name: browsers and caches of any age read one of them.
    pub(crate) fn apply(&self, value: Option<&FieldValue>, making: Making<'_>, response: &mut Response) {
        if !matches!(response.status().code(), 200 | 201 | 204 | 206 | 301..=304 | 307 | 308) {
            return;
        }
        let validity = match self {
            CompiledExpires::Fixed(validity) => Some(*validity),
            CompiledExpires::Text(_, from) => {
                let text = value.map(|value| value.complete(making, response)).unwrap_or_default();
                let text = str::from_utf8(&text).unwrap_or_default();
                Validity::parse(text, *from).ok().flatten()
            }
        };
        if let Some(validity) = validity {
            set(validity, clock::unix_milliseconds() / 1000, response);
        }
    }
}

fn set(validity: Validity, now: u64, response: &mut Response) {
    let end = |from: u64, seconds: i64| from.saturating_add_signed(seconds);
    let (end, seconds) = match validity {
        Validity::Never => (0, -1),
        Validity::Max => (MAX_END, MAX_S),
        Validity::Seconds(seconds, ExpiresFrom::Now) => (end(now, seconds), seconds),
        Validity::Seconds(seconds, ExpiresFrom::Modified) => {
            let modified = response.field("last-modified").and_then(date::parse).unwrap_or(now);
            let end = end(modified, seconds);
            (end, end.cast_signed().saturating_sub(now.cast_signed()))
        }
        Validity::Daily(second) => {
            let today = now - now % DAY_S + u64::from(second);
            let end = if today > now { today } else { today + DAY_S };
            (end, (end - now).cast_signed())
        }
    };
    response.remove_header("expires").remove_header("cache-control");
    match seconds {
        0.. => response.header("Cache-Control", format!("max-age={seconds}")),
        _ => response.header("Cache-Control", "no-cache"),
    };
    response.header("Expires", date::format(end));
}

#[cfg(test)]
mod tests {
    use super::super::compiled::ResponseRules;
    use super::super::fault::Place;
    use super::super::maps::TableCounts;
    use super::*;

    #[test]
    fn both_fields_agree() {
        let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
        let at = 784_111_777;
        for (validity, expected) in [
            (Validity::Never, ("no-cache", "Thu, 01 Jan 1970 00:00:00 GMT")),
            (Validity::Max, ("max-age=315360000", "Thu, 31 Dec 2037 23:55:55 GMT")),
            (Validity::Seconds(0, ExpiresFrom::Now), ("max-age=0", "Sun, 06 Nov 1994 08:49:47 GMT")),
            (Validity::Seconds(-10, ExpiresFrom::Now), ("no-cache", modified)),
            (Validity::Seconds(20, ExpiresFrom::Modified), ("max-age=10", "Sun, 06 Nov 1994 08:49:57 GMT")),
            (Validity::Seconds(1, ExpiresFrom::Modified), ("no-cache", "Sun, 06 Nov 1994 08:49:38 GMT")),
            (Validity::Daily(31_788), ("max-age=1", "Sun, 06 Nov 1994 08:49:48 GMT")),
            (Validity::Daily(31_787), ("max-age=86400", "Mon, 07 Nov 1994 08:49:47 GMT")),
        ] {
            let mut response = Response::new();
            response.header("Last-Modified", modified).header("Cache-Control", "private");
            set(validity, at + 10, &mut response);
            let field = |name| String::from_utf8_lossy(response.field(name).unwrap()).into_owned();
            assert_eq!((&*field("cache-control"), &*field("expires")), expected, "{validity:?}");
        }
    }

    #[test]
    fn text_of_attempts_wants_their_notes() {
        let text = |text: &str| {
            let template = Template::parse(text, |_| None).unwrap();
            let counts = TableCounts { maps: 0, sets: 0 };
            let text = Text::of_response(&template, None, counts, Place::Plan).unwrap();
            Some(CompiledExpires::Text(text, ExpiresFrom::Now))
        };
        for (template, expected) in [("$upstream_status", true), ("$upstream_addr", true), ("$status", false)]
        {
            let rules = ResponseRules { expires: text(template), ..ResponseRules::default() };
            assert_eq!(rules.uses_attempts(), expected, "{template}");
        }
    }
}
