//! Readable numbers: three digits and a unit.

/// A time in nanoseconds: `999ns`, `1.23ms`, `4.56s`.
pub fn time(nanoseconds: f64) -> String {
    let units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3)];
    match units.into_iter().find(|(_, size)| nanoseconds >= *size) {
        Some((unit, size)) => format!("{:.2}{unit}", nanoseconds / size),
        None => format!("{nanoseconds:.0}ns"),
    }
}

/// A round time, for the marks of an axis: `200µs`, `2.5ms`.
pub fn round_time(nanoseconds: f64) -> String {
    let text = time(nanoseconds);
    let unit = text.trim_start_matches(|char: char| char.is_ascii_digit() || char == '.').to_owned();
    let number = text.trim_end_matches(&*unit);
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{unit}")
}

/// A number of bytes: `999B`, `1.23KiB`.
pub fn bytes(bytes: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >= f64::from(1 << shift)) {
        Some((unit, shift)) => format!("{:.2}{unit}", bytes / f64::from(1 << shift)),
        None => format!("{bytes:.0}B"),
    }
}

/// A whole number with thousands separators: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!((time(999.0), time(1_234.0)), ("999ns".to_owned(), "1.23µs".to_owned()));
        assert_eq!((time(1.5e6), time(2e9)), ("1.50ms".to_owned(), "2.00s".to_owned()));
        assert_eq!(
            [200.0, 2e5, 2.5e6, 1e10].map(round_time),
            ["200ns", "200µs", "2.5ms", "10s"].map(str::to_owned)
        );
        assert_eq!((bytes(1023.0), bytes(1536.0)), ("1023B".to_owned(), "1.50KiB".to_owned()));
        assert_eq!(
            (count(7), count(1234), count(1_234_567)),
            ("7".into(), "1,234".into(), "1,234,567".into())
        );
    }
}
