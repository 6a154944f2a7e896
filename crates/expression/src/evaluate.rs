//! Evaluates the typed form. Nothing can fail, and texts that facts lend are not copied.

use md5::Digest;
use std::borrow::Cow;
use std::net::IpAddr;

use crate::compiled::{Address, Change, Number, Order, Place, Test, Text};
use crate::date::cookie_date;
use crate::{Facts, TEXT_BYTES_MAX};

impl<F> Test<F> {
    pub(crate) fn holds(&self, facts: &impl Facts<F>) -> bool {
        match self {
            Test::Constant(value) => *value,
            Test::Fact(fact) => facts.is_true(fact),
            Test::Has(fact) => facts.has(fact),
            Test::Not(inner) => !inner.holds(facts),
            Test::All(all) => all.iter().all(|inner| inner.holds(facts)),
            Test::Any(all) => all.iter().any(|inner| inner.holds(facts)),
            Test::Texts(order, one, other) => order.fits(&one.value(facts), &other.value(facts)),
            Test::Numbers(order, one, other) => order.fits(&one.value(facts), &other.value(facts)),
            Test::Addresses(one, other) => one.value(facts) == other.value(facts),
            Test::Same(one, other) => one.holds(facts) == other.holds(facts),
            Test::OneText(text, list) => {
                let value = text.value(facts);
                list.binary_search_by(|entry| (**entry).cmp(&value)).is_ok()
            }
            Test::OneNumber(number, list) => list.contains(&number.value(facts)),
            Test::Networks(address, networks) => address
                .value(facts)
                .is_some_and(|address| networks.iter().any(|network| network.contains(address))),
            Test::Parts(place, text, part) => place.fits(&text.value(facts), &part.value(facts)),
            Test::Matches(text, expression) => expression.is_match(&text.value(facts)),
            Test::File(test, path) => facts.file(*test, &path.value(facts)),
            Test::Conditional(parts) => {
                let (condition, one, other) = &**parts;
                if condition.holds(facts) { one.holds(facts) } else { other.holds(facts) }
            }
        }
    }
}

impl Order {
    pub(crate) fn fits<T: PartialOrd + ?Sized>(self, one: &T, other: &T) -> bool {
        match self {
            Order::Equal => one == other,
            Order::Unequal => one != other,
            Order::Less => one < other,
            Order::LessOrEqual => one <= other,
            Order::Greater => one > other,
            Order::GreaterOrEqual => one >= other,
        }
    }
}

impl Place {
    fn fits(self, text: &[u8], part: &[u8]) -> bool {
        match self {
            Place::Start => text.starts_with(part),
            Place::End => text.ends_with(part),
            Place::Anywhere => is_within(text, part),
        }
    }
}

/// Whether `part` is in `text`.
fn is_within(text: &[u8], part: &[u8]) -> bool {
    first(text, part).is_some()
}

/// Where `part` begins in `text`. Searches for its first byte, as most parts are short.
fn first(text: &[u8], part: &[u8]) -> Option<usize> {
    let Some(&letter) = part.first() else { return Some(0) };
    let mut from = 0;
    while let Some(offset) = text.get(from..)?.iter().position(|&byte| byte == letter) {
        let at = from + offset;
        if text.get(at..)?.starts_with(part) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

impl<F> Text<F> {
    pub(crate) fn value<'a>(&'a self, facts: &'a impl Facts<F>) -> Cow<'a, [u8]> {
        match self {
            Text::Constant(text) => Cow::Borrowed(text),
            Text::Fact(fact) => facts.text(fact),
            Text::Joined(all) => {
                let mut out = Vec::new();
                for inner in all {
                    out.extend_from_slice(&inner.value(facts));
                    if out.len() > TEXT_BYTES_MAX {
                        out.truncate(TEXT_BYTES_MAX);
                        break;
                    }
                }
                Cow::Owned(out)
            }
            Text::Changed(change, inner) => change.of(inner.value(facts)),
            Text::Extracted(inner, expression, group) => within(inner.value(facts), |text| {
                let found = expression.captures(text)?.get(*group)?;
                Some(found.range())
            }),
            Text::Replaced(inner, from, to) => replaced(inner.value(facts), from, to),
            Text::Part(inner, from, to) => within(inner.value(facts), |text| {
                let to = to.unwrap_or(text.len()).min(text.len());
                Some((*from).min(to)..to)
            }),
            Text::OfNumber(number) => Cow::Owned(shown(number.value(facts)).into_bytes()),
            Text::Date(number) => Cow::Owned(cookie_date(number.value(facts)).into_bytes()),
            Text::OfAddress(address) => {
                let address = address.value(facts);
                Cow::Owned(address.map_or_else(Vec::new, |address| address.to_string().into_bytes()))
            }
            Text::OfTest(test) => Cow::Borrowed(if test.holds(facts) { b"true" } else { b"false" }),
            Text::Conditional(parts) => {
                let (condition, one, other) = &**parts;
                if condition.holds(facts) { one.value(facts) } else { other.value(facts) }
            }
        }
    }
}

/// A part of a text; nothing if `range` finds none.
fn within<'a>(
    text: Cow<'a, [u8]>,
    range: impl FnOnce(&[u8]) -> Option<std::ops::Range<usize>>,
) -> Cow<'a, [u8]> {
    let range = range(&text).unwrap_or(0..0);
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(range).unwrap_or_default()),
        Cow::Owned(text) => Cow::Owned(text.get(range).unwrap_or_default().to_vec()),
    }
}

fn replaced<'a>(text: Cow<'a, [u8]>, from: &[u8], to: &[u8]) -> Cow<'a, [u8]> {
    if !is_within(&text, from) || from.is_empty() {
        return text;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = first(rest, from).filter(|_| out.len() < TEXT_BYTES_MAX) {
        out.extend_from_slice(rest.get(..at).unwrap_or_default());
        out.extend_from_slice(to);
        rest = rest.get(at + from.len()..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out.truncate(TEXT_BYTES_MAX);
    Cow::Owned(out)
}

impl Change {
    fn of(self, text: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
        let is_changed = match self {
            Change::Lower => text.iter().any(u8::is_ascii_uppercase),
            Change::Upper => text.iter().any(u8::is_ascii_lowercase),
            Change::Md5 => return Cow::Owned(base64url(&md5::Md5::digest(&text))),
            Change::Trim => {
                return within(text, |text| {
                    let start = text.len() - text.trim_ascii_start().len();
                    Some(start..start + text.trim_ascii().len())
                });
            }
        };
        if !is_changed {
            return text;
        }
        let mut text = text.into_owned();
        if self == Change::Lower {
            text.make_ascii_lowercase()
        } else {
            text.make_ascii_uppercase()
        }
        Cow::Owned(text)
    }
}

/// Base64 for URLs without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let of_part = |part: &[u8]| {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift) as usize & 63]);
        digits.into_iter().take(part.len() + 1).collect::<Vec<u8>>()
    };
    bytes.chunks(3).flat_map(of_part).collect()
}

impl<F> Number<F> {
    pub(crate) fn value(&self, facts: &impl Facts<F>) -> f64 {
        match self {
            Number::Constant(value) => *value,
            Number::Fact(fact) => facts.number(fact),
            Number::Negative(inner) => -inner.value(facts),
            Number::Sum(one, other) => one.value(facts) + other.value(facts),
            Number::Product(one, other) => one.value(facts) * other.value(facts),
            Number::Divided(inner, by, is_whole) => {
                let value = inner.value(facts) / by;
                if *is_whole { value.trunc() } else { value }
            }
            Number::Remainder(inner, by) => inner.value(facts) % by,
            Number::Size(text) => text.value(facts).len() as f64,
            Number::OfText(text) => parsed(&text.value(facts)),
            Number::Whole(inner) => inner.value(facts).trunc(),
            Number::Conditional(parts) => {
                let (condition, one, other) = &**parts;
                if condition.holds(facts) { one.value(facts) } else { other.value(facts) }
            }
        }
    }
}

/// The number that a text is: digits, perhaps with a sign and a fraction; 0 for any other text.
fn parsed(text: &[u8]) -> f64 {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = digits.first().is_some_and(u8::is_ascii_digit)
        && digits.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.');
    let value = std::str::from_utf8(text).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
    value.unwrap_or(0.0)
}

/// A number as a text; whole numbers have no point.
pub(crate) fn shown(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 { format!("{value:.0}") } else { value.to_string() }
}

impl<F> Address<F> {
    pub(crate) fn value(&self, facts: &impl Facts<F>) -> Option<IpAddr> {
        match self {
            Address::Constant(address) => Some(*address),
            Address::Fact(fact) => facts.address(fact).map(|address| address.to_canonical()),
            Address::OfText(text) => {
                let text = text.value(facts);
                let text = std::str::from_utf8(&text).ok()?.trim();
                text.parse().ok().map(|address: IpAddr| address.to_canonical())
            }
            Address::Conditional(parts) => {
                let (condition, one, other) = &**parts;
                if condition.holds(facts) { one.value(facts) } else { other.value(facts) }
            }
        }
    }
}
