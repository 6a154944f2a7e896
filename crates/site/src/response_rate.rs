//! The rate at which a response is sent, which may differ between requests.

use super::fault::Fault;
use super::plan::{ByteCount, Rules, Template};
use super::render::{Paths, Text, View};

/// The rate of a route's responses.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompiledSendRate {
    bytes_per_s: CompiledCount,
    after_bytes: CompiledCount,
}

/// The rate of one response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResponseRate {
    /// 0 is without a limit.
    pub(crate) bytes_per_s: u64,
    /// Bytes at the start that do not count.
    pub(crate) after_bytes: u64,
}

#[derive(Debug, Clone)]
enum CompiledCount {
    Fixed(u64),
    Text(Text),
}

impl Default for CompiledCount {
    fn default() -> CompiledCount {
        CompiledCount::Fixed(0)
    }
}

impl CompiledSendRate {
    /// # Errors
    /// Those of a text.
    pub(crate) fn new(
        rules: &Rules,
        text: impl Fn(&Template) -> Result<Text, Fault>,
    ) -> Result<CompiledSendRate, Fault> {
        let count = |count: &ByteCount| {
            Ok(match count {
                ByteCount::Fixed(bytes) => CompiledCount::Fixed(*bytes),
                ByteCount::Text(template) => CompiledCount::Text(text(template)?),
            })
        };
        Ok(CompiledSendRate {
            bytes_per_s: count(&rules.limit_rate)?,
            after_bytes: count(&rules.limit_rate_after)?,
        })
    }

    /// Whether it is the same for all requests.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed().is_some()
    }

    /// The rate of all responses; `None` if requests have their own.
    #[inline]
    pub(crate) fn fixed(&self) -> Option<ResponseRate> {
        match (&self.bytes_per_s, &self.after_bytes) {
            (CompiledCount::Fixed(bytes_per_s), CompiledCount::Fixed(after_bytes)) => {
                Some(ResponseRate { bytes_per_s: *bytes_per_s, after_bytes: *after_bytes })
            }
            _ => None,
        }
    }

    pub(crate) fn uses_captures(&self) -> bool {
        let uses = |count: &CompiledCount| matches!(count, CompiledCount::Text(text) if text.uses_captures());
        uses(&self.bytes_per_s) || uses(&self.after_bytes)
    }

    /// The rate of the response to a request.
    pub(crate) fn rendered(&self, view: &View<'_>) -> ResponseRate {
        let count = |count: &CompiledCount| match count {
            CompiledCount::Fixed(bytes) => *bytes,
            CompiledCount::Text(text) => {
                let mut value = Vec::new();
                text.render(view, Paths::Decoded, &mut value);
                bytes_of(&value).unwrap_or(0)
            }
        };
        ResponseRate { bytes_per_s: count(&self.bytes_per_s), after_bytes: count(&self.after_bytes) }
    }
}

/// The bytes that a text names, as nginx reads it: `4096`, `4k`, `1m`, `1g`, also as `4KiB`.
fn bytes_of(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_bytes() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("0", Some(0)),
            (" 4k ", Some(4096)),
            ("4K", Some(4096)),
            ("2m", Some(2 << 20)),
            ("1g", Some(1 << 30)),
            ("3MiB", Some(3 << 20)),
            ("", None),
            ("k", None),
            ("-1", None),
            ("1.5k", None),
            ("1kk", None),
            ("1 k", None),
            ("99999999999999999999", None),
            ("99999999999999999g", None),
            ("\u{661}", None),
        ] {
            assert_eq!(bytes_of(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(bytes_of(b"\xff"), None);
    }
}
