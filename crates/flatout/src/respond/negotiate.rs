//! Content negotiation: choosing a representation for the client (RFC 9110 section 12.5.1).

use flatout_engine::Response;
use flatout_wire::Status;

use super::Respond;
use crate::extract::Extract;
use crate::{Context, Problem};

/// The media types that the client accepts: an argument with which a handler chooses a representation.
///
/// ```
/// use flatout::{Accept, App, Html, Json, test::Client};
///
/// let item = |accept: Accept| {
///     accept.choose().or("application/json", || Json("ada")).or("text/html", || Html("<b>ada</b>"))
/// };
/// let client = Client::new(App::new().get("/", item))?;
/// assert_eq!(client.get("/").send().text(), "\"ada\"");
/// assert_eq!(client.get("/").header("Accept", "text/*, */*;q=0.1").send().text(), "<b>ada</b>");
/// assert_eq!(client.get("/").header("Accept", "image/png").send().status().code(), 406);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accept(Vec<Range>);

/// A media range and its weight in thousandths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    kind: String,
    subtype: String,
    weight: u16,
}

/// Maximum number of ranges that are read.
const RANGES_MAX: usize = 100;

/// A choice of representations; among equally preferred ones, the first is used. Only the chosen one is made.
///
/// ```
/// use flatout::{Accept, App, Html, Json, Status, test::Client};
///
/// let hello = |accept: Accept| {
///     if accept.weight("application/json") == 0 && accept.weight("text/html") == 0 {
///         return Err(Status::NOT_ACCEPTABLE);
///     }
///     Ok(accept.choose().or("text/html", || Html("<p>hello")).or("application/json", || Json("hello")))
/// };
/// let client = Client::new(App::new().get("/", hello))?;
/// assert_eq!(client.get("/").header("Accept", "application/json").send().text(), "\"hello\"");
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct Choice<'m> {
    accept: Accept,
    best: Option<(u16, WriteRepresentation<'m>)>,
}

/// Makes a representation.
type WriteRepresentation<'m> = Box<dyn FnOnce(&mut Response) + 'm>;

impl Accept {
    /// The client's preference for this type, in thousandths; 0 means not acceptable. The most specific matching range
    /// applies. Ranges with parameters other than the weight match nothing.
    pub fn weight(&self, media_type: &str) -> u16 {
        if self.0.is_empty() {
            return 1000;
        }
        let Some((kind, subtype)) = media_type.split_once('/') else { return 0 };
        let rank = |range: &Range| match (range.kind.as_str(), range.subtype.as_str()) {
            ("*", "*") => Some(0),
            (known, "*") if known.eq_ignore_ascii_case(kind) => Some(1),
            (known, sub) if known.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subtype) => Some(2),
            _ => None,
        };
        let matching = self.0.iter().filter_map(|range| rank(range).map(|rank| (rank, range.weight)));
        matching.max_by_key(|(rank, weight)| (*rank, *weight)).map_or(0, |(_, weight)| weight)
    }

    /// Starts a choice.
    pub fn choose<'m>(self) -> Choice<'m> {
        Choice { accept: self, best: None }
    }

    fn read(value: &[u8], ranges: &mut Vec<Range>) {
        let text = String::from_utf8_lossy(value);
        for range in text.split(',').take(RANGES_MAX.saturating_sub(ranges.len())) {
            ranges.extend(Range::read(range));
        }
    }
}

impl Range {
    fn read(text: &str) -> Option<Range> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let weight = match parts.next() {
            None => 1000,
            Some(part) => {
                let (name, weight) = part.split_once('=')?;
                name.eq_ignore_ascii_case("q").then(|| thousandths(weight))?
            }
        };
        Some(Range { kind: kind.to_owned(), subtype: subtype.to_owned(), weight })
    }
}

/// A weight (RFC 9110 section 12.4.2); anything else counts as 0.
fn thousandths(text: &str) -> u16 {
    let weight = text.parse::<f32>().ok().filter(|weight| (0.0..=1.0).contains(weight));
    weight.map_or(0, |weight| (weight * 1000.0).round() as u16)
}

impl<'m> Choice<'m> {
    /// Adds a representation.
    pub fn or<T: Respond>(mut self, media_type: &str, make: impl FnOnce() -> T + 'm) -> Choice<'m> {
        let weight = self.accept.weight(media_type);
        if weight > self.best.as_ref().map_or(0, |(best, _)| *best) {
            self.best = Some((weight, Box::new(move |response| make().respond(response))));
        }
        self
    }
}

impl Extract for Accept {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let mut ranges = Vec::new();
        let mut has_field = false;
        for value in context.head().field_all("accept") {
            has_field |= !value.trim_ascii().is_empty();
            Accept::read(value, &mut ranges);
        }
        if has_field && ranges.is_empty() {
            return Err(Problem::new(Status::BAD_REQUEST)
                .detail("Accept has no media range that the server supports"));
        }
        Ok(Accept(ranges))
    }
}

/// The most preferred representation, or 406. `Vary` tells caches that the response depends on `Accept`.
impl Respond for Choice<'_> {
    fn respond(self, response: &mut Response) {
        match self.best {
            Some((_, make)) => make(response),
            None => Problem::new(Status::NOT_ACCEPTABLE).respond(response),
        }
        crate::middleware::vary(response, "Accept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> Accept {
        let mut ranges = Vec::new();
        Accept::read(value.as_bytes(), &mut ranges);
        Accept(ranges)
    }

    #[test]
    fn the_most_specific_range_counts() {
        let mixed = accept("text/*;q=0.3, text/html;q=0.7, text/css;level=1, */*;q=0.5, image/png;q=0");
        for (media_type, weight) in
            [("text/html", 700), ("text/css", 300), ("image/jpeg", 500), ("Image/PNG", 0), ("nonsense", 0)]
        {
            assert_eq!(mixed.weight(media_type), weight, "{media_type}");
        }
        assert_eq!(accept("").weight("a/b"), 1000);
        for bad in ["a/b;q=2", "a/b;q=-1", "a/b;q=x", "a/b;q=NaN", "c/d"] {
            assert_eq!(accept(bad).weight("a/b"), 0, "{bad}");
        }
        assert_eq!(accept(&"a/b,".repeat(10_000)).0.len(), RANGES_MAX);
    }

    #[test]
    fn the_first_of_equally_preferred_types_is_chosen() {
        let chosen = |value: &str| {
            let mut response = Response::new();
            accept(value).choose().or("text/a", || "a").or("text/b", || "b").respond(&mut response);
            assert_eq!(response.field("vary"), Some(&b"Accept"[..]));
            (response.status().code(), response.body_bytes().unwrap_or_default().to_vec())
        };
        assert_eq!(chosen(""), (200, b"a".to_vec()));
        assert_eq!(chosen("*/*"), (200, b"a".to_vec()));
        assert_eq!(chosen("text/a;q=0.5, text/b"), (200, b"b".to_vec()));
        assert_eq!(chosen("text/c").0, 406);
    }
}
