//! Which requests are logged.

use std::str::FromStr;
use std::time::Duration;

/// A condition on a request: `status>=500`, `status=404`, `time>=1s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    what: Quantity,
    compare: Compare,
    /// A status, or nanoseconds.
    value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Status,
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Less,
    LessOrEqual,
    Equal,
    Unequal,
    GreaterOrEqual,
    Greater,
}

/// The longer ones first, because they are compared by prefix.
const COMPARES: [(&str, Compare); 6] = [
    ("<=", Compare::LessOrEqual),
    (">=", Compare::GreaterOrEqual),
    ("!=", Compare::Unequal),
    ("<", Compare::Less),
    (">", Compare::Greater),
    ("=", Compare::Equal),
];

impl Condition {
    /// Whether a request satisfies it: `status` is 0 if there was none.
    #[inline]
    pub(super) fn holds(self, status: u16, time_ns: u64) -> bool {
        let found = match self.what {
            Quantity::Status => u64::from(status),
            Quantity::Time => time_ns,
        };
        match self.compare {
            Compare::Less => found < self.value,
            Compare::LessOrEqual => found <= self.value,
            Compare::Equal => found == self.value,
            Compare::Unequal => found != self.value,
            Compare::GreaterOrEqual => found >= self.value,
            Compare::Greater => found > self.value,
        }
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Condition, String> {
        let need = || format!("got `{text}`, need a condition such as status>=500, status=404 or time>=1s");
        let packed: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let at = packed.find(['<', '>', '=', '!']).ok_or_else(need)?;
        let (name, rest) = packed.split_at(at);
        let (value, compare) = COMPARES
            .iter()
            .find_map(|(sign, compare)| Some((rest.strip_prefix(sign)?, *compare)))
            .ok_or_else(need)?;
        let (what, value) = match name {
            "status" => (Quantity::Status, value.parse::<u16>().ok().map(u64::from)),
            "time" => (Quantity::Time, time_ns(value)),
            _ => return Err(need()),
        };
        Ok(Condition { what, compare, value: value.ok_or_else(need)? })
    }
}

fn time_ns(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, Duration::from_millis(1)),
        None => (text.strip_suffix('s')?, Duration::from_secs(1)),
    };
    let count: u32 = digits.parse().ok()?;
    u64::try_from(unit.checked_mul(count)?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_and_hold() {
        for (text, status, time_ms, expected) in [
            ("status>=500", 500, 0, true),
            ("status >= 500", 499, 0, false),
            ("status=404", 404, 0, true),
            ("status!=200", 200, 0, false),
            ("status<400", 0, 0, true),
            ("time>=1s", 200, 1000, true),
            ("time>250ms", 200, 250, false),
        ] {
            let condition: Condition = text.parse().unwrap();
            assert_eq!(condition.holds(status, time_ms * 1_000_000), expected, "{text}");
        }
        for text in ["", "status", "status>=", "status>=x", "size>3", "time>=1", "status=>500"] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains("status>=500"), "{error}");
        }
    }
}
