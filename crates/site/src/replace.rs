//! Replaces texts in the bodies of responses.
//!
//! ```text
//! pieces ──> held | piece ── longest text at each place that begins with it ──> out
//!            └─ the end, which may be the beginning of a text: fewer bytes than the longest has
//! ```

use bytes::Bytes;
use flatout_engine::{Body, BoxError, Filter, Response};
use flatout_wire::Status;

use super::fault::{Fault, Place};
use super::plan::{REPLACED_TYPE, Replacement, Template};
use super::render::{Paths, Text, View};

/// Replacements of one route.
const REPLACEMENTS_MAX: usize = 64;

/// The longest text that is looked for: as much of a body may be held back.
const FROM_BYTES_MAX: usize = 4 << 10;

/// The replacements of a route.
#[derive(Debug, Clone)]
pub(crate) struct Replacements {
    rules: Vec<ReplacementRule>,
    /// Content types, without parameters; `*/*` is all.
    types: Vec<String>,
}

#[derive(Debug, Clone)]
struct ReplacementRule {
    from: Text,
    to: Text,
    is_once: bool,
}

/// A rule for one request.
#[derive(Debug, Clone)]
pub(crate) struct RenderedReplacement {
    /// In lower case.
    from: Vec<u8>,
    to: Vec<u8>,
    is_once: bool,
}

impl Replacements {
    /// `None` if there are none.
    ///
    /// # Errors
    /// Too many of them, or a text that is empty or too long.
    pub(crate) fn new(
        plan: &[Replacement],
        types: &[String],
        text: impl Fn(&Template) -> Result<Text, Fault>,
        place: Place,
    ) -> Result<Option<Replacements>, Fault> {
        if plan.len() > REPLACEMENTS_MAX {
            return Err(
                place.fault(format!("got {} texts to replace, allowed {REPLACEMENTS_MAX}", plan.len()))
            );
        }
        let rule = |replacement: &Replacement| {
            let from = text(&replacement.from)?;
            let bytes = from.constant().map_or(1, str::len);
            if bytes == 0 || bytes > FROM_BYTES_MAX {
                let allowed = format!("allowed 1 to {FROM_BYTES_MAX}");
                return Err(place.fault(format!("got a text of {bytes} bytes to replace, {allowed}")));
            }
            Ok(ReplacementRule { from, to: text(&replacement.to)?, is_once: replacement.is_once })
        };
        let rules = plan.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        let types = if types.is_empty() { vec![REPLACED_TYPE.to_owned()] } else { types.to_vec() };
        Ok((!rules.is_empty()).then_some(Replacements { rules, types }))
    }

    /// The texts for a request, without those that are empty or too long for it.
    pub(crate) fn rendered(&self, view: &View<'_>) -> Vec<RenderedReplacement> {
        let one = |rule: &ReplacementRule| {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            rule.from.render(view, Paths::Decoded, &mut from);
            rule.to.render(view, Paths::Decoded, &mut to);
            from.make_ascii_lowercase();
            let is_possible = (1..=FROM_BYTES_MAX).contains(&from.len());
            is_possible.then_some(RenderedReplacement { from, to, is_once: rule.is_once })
        };
        self.rules.iter().filter_map(one).collect()
    }

    /// Whether a text uses captures of the route.
    pub(crate) fn uses_captures(&self) -> bool {
        self.rules.iter().any(|rule| rule.from.uses_captures() || rule.to.uses_captures())
    }

    /// Changes a response whose type is one of these and that is not encoded. Returns whether it did. A file that is sent from disk
    /// stays as it is.
    pub(crate) fn apply(&self, texts: &[RenderedReplacement], response: &mut Response) -> bool {
        if texts.is_empty() || !self.fits(response) {
            return false;
        }
        let mut replacer = Replacer::new(texts.to_vec());
        match response.body_bytes() {
            Some([]) => return false,
            Some(bytes) => {
                let replaced = replacer.feed(bytes, true);
                response.set_body(Body::Shared(replaced.into()));
            }
            None if matches!(response.body(), Body::Pushed | Body::Stream(_)) => {
                response.set_filter(Box::new(replacer));
            }
            None => return false,
        }
        // It is another representation.
        for name in [
            "ETag",
            "Last-Modified",
            "Accept-Ranges",
            "Content-MD5",
            "Digest",
            "Content-Digest",
            "Repr-Digest",
        ] {
            if response.field(name).is_some() {
                response.remove_header(name);
            }
        }
        true
    }

    fn fits(&self, response: &Response) -> bool {
        let status = response.status();
        let kind = response.field("content-type").unwrap_or_default();
        let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
        !status.is_bodyless()
            && status != Status::PARTIAL_CONTENT
            && response.field("content-encoding").is_none()
            && self.types.iter().any(|wanted| is_of_type(kind, wanted))
    }
}

/// Whether a content type without parameters is this one, or begins as `text/*` does; `*/*` is all.
pub(crate) fn is_of_type(kind: &[u8], wanted: &str) -> bool {
    wanted == "*/*"
        || wanted.as_bytes().eq_ignore_ascii_case(kind)
        || wanted.strip_suffix('*').is_some_and(|start| {
            kind.get(..start.len()).is_some_and(|this| this.eq_ignore_ascii_case(start.as_bytes()))
        })
}

/// Replaces texts in one body.
struct Replacer {
    /// What is still looked for.
    pending: Vec<RenderedReplacement>,
    /// The bytes that a text begins with.
    starts: [bool; 256],
    longest: usize,
    held: Vec<u8>,
}

impl Replacer {
    fn new(pending: Vec<RenderedReplacement>) -> Replacer {
        let mut replacer = Replacer { pending, starts: [false; 256], longest: 0, held: Vec::new() };
        replacer.look();
        replacer
    }

    /// Notes what is looked for now.
    fn look(&mut self) {
        self.longest = self.pending.iter().map(|pending| pending.from.len()).max().unwrap_or(0);
        self.starts = [false; 256];
        for first in self.pending.iter().filter_map(|pending| pending.from.first()) {
            self.starts[usize::from(*first)] = true;
            self.starts[usize::from(first.to_ascii_uppercase())] = true;
        }
    }

    /// Takes a piece, and returns what is decided.
    fn feed(&mut self, bytes: &[u8], is_last: bool) -> Vec<u8> {
        let mut data = std::mem::take(&mut self.held);
        data.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(data.len());
        let mut rest = &data[..];
        loop {
            // Up to the next place where a text may begin.
            let count = rest.iter().position(|byte| self.starts[usize::from(*byte)]).unwrap_or(rest.len());
            let (before, behind) = rest.split_at(count);
            out.extend_from_slice(before);
            rest = behind;
            if rest.is_empty() || (rest.len() < self.longest && !is_last) {
                break;
            }
            match self.found(rest) {
                Some(at) => {
                    let pending = &self.pending[at];
                    out.extend_from_slice(&pending.to);
                    rest = rest.get(pending.from.len()..).unwrap_or_default();
                    if pending.is_once {
                        self.pending.remove(at);
                        self.look();
                    }
                }
                None => {
                    out.extend(rest.first());
                    rest = rest.get(1..).unwrap_or_default();
                }
            }
        }
        self.held = rest.to_vec();
        out
    }

    /// The longest text that is here.
    fn found(&self, rest: &[u8]) -> Option<usize> {
        let is_here = |pending: &RenderedReplacement| {
            rest.get(..pending.from.len()).is_some_and(|this| this.eq_ignore_ascii_case(&pending.from))
        };
        let here = self.pending.iter().enumerate().filter(|(_, pending)| is_here(pending));
        // The first of several that are equal.
        here.max_by_key(|(at, pending)| (pending.from.len(), std::cmp::Reverse(*at))).map(|(at, _)| at)
    }
}

impl Filter for Replacer {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, BoxError> {
        if self.pending.is_empty() && self.held.is_empty() {
            return Ok(bytes);
        }
        Ok(self.feed(&bytes, false).into())
    }

    fn end(&mut self) -> Result<Bytes, BoxError> {
        Ok(self.feed(b"", true).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacer(rules: &[(&str, &str, bool)]) -> Replacer {
        let rule = |(from, to, is_once): &(&str, &str, bool)| RenderedReplacement {
            from: from.to_ascii_lowercase().into_bytes(),
            to: to.as_bytes().to_vec(),
            is_once: *is_once,
        };
        Replacer::new(rules.iter().map(rule).collect())
    }

    /// All ways to cut a body into two pieces give the same.
    fn replaced(rules: &[(&str, &str, bool)], body: &str) -> String {
        let whole = replacer(rules).feed(body.as_bytes(), true);
        for cut in 0..=body.len() {
            let mut parts = replacer(rules);
            let (one, other) = body.as_bytes().split_at(cut);
            let pieces =
                [parts.piece(Bytes::copy_from_slice(one)), parts.piece(Bytes::copy_from_slice(other))];
            let mut all: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
            all.extend_from_slice(&parts.end().unwrap());
            assert_eq!(String::from_utf8_lossy(&all), String::from_utf8_lossy(&whole), "cut at {cut}");
        }
        String::from_utf8(whole).unwrap()
    }

    #[test]
    fn texts_are_replaced_wherever_a_piece_ends() {
        for (rules, body, expected) in [
            (&[("foo", "bar", true)][..], "a foo b foo", "a bar b foo"),
            (&[("foo", "bar", false)], "a foo b FOO", "a bar b bar"),
            (&[("foo", "", false)], "foofoofo", "fo"),
            (&[("aab", "x", false)], "aaab aaaab", "ax aax"),
            (&[("ab", "1", false), ("abc", "2", false)], "abab abc", "11 2"),
            (&[("a", "b", false), ("b", "a", false)], "abba", "baab"),
            (&[("</head>", "<i></head>", true)], "<HEAD></HEAD></head>", "<HEAD><i></head></head>"),
            (&[("x", "y", true)], "", ""),
        ] {
            assert_eq!(replaced(rules, body), expected, "{body}");
        }
    }

    #[test]
    fn only_texts_of_the_types_are_changed() {
        let text = |text: &Template| Text::new(text, None, Default::default(), Place::Plan);
        let plan = [Replacement { from: Template::text("foo"), to: Template::text("bar"), is_once: false }];
        let texts = [RenderedReplacement { from: b"foo".to_vec(), to: b"bar".to_vec(), is_once: false }];
        let all = Replacements::new(&plan, &["text/html".to_owned()], text, Place::Plan).unwrap().unwrap();
        for (kind, encoding, status, expected) in [
            ("text/html; charset=utf-8", "", 200, "a bar"),
            ("TEXT/HTML", "", 404, "a bar"),
            ("text/plain", "", 200, "a foo"),
            ("text/html", "gzip", 200, "a foo"),
            ("text/html", "", 206, "a foo"),
        ] {
            let mut response = Response::with_status(Status::from_code(status).unwrap());
            response.header("Content-Type", kind).header("ETag", "\"1\"");
            if !encoding.is_empty() {
                response.header("Content-Encoding", encoding);
            }
            response.buffer().extend_from_slice(b"a foo");
            let is_changed = all.apply(&texts, &mut response);
            assert_eq!(response.body_bytes(), Some(expected.as_bytes()), "{kind} {encoding} {status}");
            assert_eq!(
                (is_changed, response.field("etag").is_none()),
                (expected == "a bar", expected == "a bar")
            );
        }
        let wrong = [Replacement { from: Template::default(), ..plan[0].clone() }];
        assert!(Replacements::new(&wrong, &[], text, Place::Plan).is_err());
    }
}
