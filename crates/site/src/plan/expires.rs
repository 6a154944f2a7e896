//! How long clients may use responses.

use super::template::Template;

/// The longest validity, in seconds: 68 years.
const VALIDITY_S_MAX: u32 = 1 << 31;

/// How long clients may use a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expires {
    /// As the plan says.
    Fixed(Validity),
    /// As a text says, in the words of [`Validity::parse`]. Another text sets nothing.
    Text(Template, ExpiresFrom),
}

/// How long a response is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Not without asking again: `Expires` is in 1970, and `Cache-Control` is `no-cache`.
    Never,
    /// For ten years; `Expires` is at the end of 2037.
    Max,
    /// For this many seconds. What is over already is `no-cache`.
    Seconds(i64, ExpiresFrom),
    /// Until this second of a day (UTC).
    Daily(u32),
}

/// The time from which a validity counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExpiresFrom {
    /// The request.
    #[default]
    Now,
    /// `Last-Modified` of the response, or the request if it has none.
    Modified,
}

impl Validity {
    /// Parses `off`, `never` (or `epoch`), `max`, a time such as `30d`, `1h30m` or `-1s`, or a time of the day such as `@15h30m`. A
    /// number without a unit is seconds.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str, from: ExpiresFrom) -> Result<Option<Validity>, String> {
        let need = || {
            format!(
                "got `{text}`, need off, never, max, a time such as 30d, or a time of the day such as @15h30m"
            )
        };
        let validity = match (text, from) {
            ("off", _) => return Ok(None),
            ("never" | "epoch", ExpiresFrom::Now) => Validity::Never,
            ("max", ExpiresFrom::Now) => Validity::Max,
            (text, from) => match (text.strip_prefix('@'), text.strip_prefix('-'), from) {
                (Some(time), _, ExpiresFrom::Now) => {
                    Validity::Daily(seconds(time).filter(|second| *second < 86_400).ok_or_else(need)?)
                }
                (None, Some(time), from) => {
                    Validity::Seconds(-i64::from(seconds(time).ok_or_else(need)?), from)
                }
                (None, None, from) => {
                    let time = text.strip_prefix('+').unwrap_or(text);
                    Validity::Seconds(seconds(time).ok_or_else(need)?.into(), from)
                }
                (Some(_), _, ExpiresFrom::Modified) => return Err(need()),
            },
        };
        Ok(Some(validity))
    }
}

/// A time of several units, the largest one first or not: `1h30m`, `90`.
fn seconds(text: &str) -> Option<u32> {
    let units: [(&str, u64); 7] = [
        ("s", 1),
        ("m", 60),
        ("h", 3600),
        ("d", 86_400),
        ("w", 604_800),
        ("M", 2_592_000),
        ("y", 31_536_000),
    ];
    let (mut rest, mut sum) = (text, 0u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, behind) = behind.split_at(letters);
        let length = match unit {
            "" => 1,
            unit => units.iter().find(|(name, _)| *name == unit)?.1,
        };
        sum = sum.checked_add(number.parse::<u32>().ok().map(u64::from)?.checked_mul(length)?)?;
        rest = behind;
    }
    let sum = u32::try_from(sum).ok()?;
    (!text.is_empty() && sum <= VALIDITY_S_MAX).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validities_are_read_as_in_nginx() {
        use ExpiresFrom::{Modified, Now};
        for (text, from, expected) in [
            ("off", Now, Some(None)),
            ("off", Modified, Some(None)),
            ("never", Now, Some(Some(Validity::Never))),
            ("epoch", Now, Some(Some(Validity::Never))),
            ("max", Now, Some(Some(Validity::Max))),
            ("2048", Now, Some(Some(Validity::Seconds(2048, Now)))),
            ("+1h30m", Modified, Some(Some(Validity::Seconds(5400, Modified)))),
            ("-1s", Now, Some(Some(Validity::Seconds(-1, Now)))),
            ("1y", Now, Some(Some(Validity::Seconds(31_536_000, Now)))),
            ("@15h30m33s", Now, Some(Some(Validity::Daily(55_833)))),
            ("@24h", Now, None),
            ("@1h", Modified, None),
            ("max", Modified, None),
            ("epoch", Modified, None),
            ("", Now, None),
            ("bad", Now, None),
            ("1x", Now, None),
            ("h", Now, None),
            ("99999999999", Now, None),
            ("4294967295y", Now, None),
        ] {
            assert_eq!(Validity::parse(text, from).ok(), expected, "{text}");
        }
    }
}
