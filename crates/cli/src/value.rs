//! Parses values: `16KiB`, `10s`, `on`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// The largest file that is read completely: results with many stacks have several megabytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A number of bytes: `4096`, `16KiB`, `8MiB`, `1GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let units =
        [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("B", 0)];
    let found = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (digits, shift) = found.unwrap_or((text, 0));
    let number: Option<u64> = digits.trim().parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("got `{text}`, need a number of bytes such as 4096, 16KiB or 8MiB"))
}

/// A length of time: `500ms`, `10s`, `5m`, `1h`, `1d`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let found = units.into_iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let milliseconds = found.and_then(|(digits, ms)| digits.parse::<u64>().ok()?.checked_mul(ms));
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| format!("got `{text}`, need a time such as 500ms, 10s, 5m or 1h"))
}

/// A whole number.
pub(crate) fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("got `{text}`, need a whole number"))
}

/// `on` or `off`.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("got `{text}`, need on or off")),
    }
}

/// A header field: `Name: value`.
pub(crate) fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or_else(|| format!("got `{text}`, need `Name: value`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// A number above 0, whole or not.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("got `{text}`, need a number over 0"))
}

/// A percentage: `3%`, `0.5%`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|digits| positive(digits.trim()).ok());
    number.map(|percent| percent / 100.0).ok_or_else(|| format!("got `{text}`, need a share such as 3%"))
}

/// `2,3` or `0-3`, all of them CPUs that this process may use.
pub(crate) fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let allowed = flatout_load::allowed_cpus();
    let found = cpu_list(text)?;
    match found.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(format!("got CPU {cpu}, need some of {allowed:?}")),
        None => Ok(found),
    }
}

/// The largest number of a CPU and one more: what the kernel's interface has room for.
const CPUS_MAX: usize = 1024;

/// `2,3` or `0-3`, in ascending order, of any machine.
pub(crate) fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("got `{text}`, need CPUs such as 2,3 or 0-3");
    let mut found = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse().ok().filter(|&cpu| cpu < CPUS_MAX).ok_or_else(wrong);
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        found.extend(first..=last);
    }
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// Reads at most one byte more than `bytes_max`: that one shows that the file is too large, and limits endless files
/// such as devices.
pub(crate) fn contents(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    Ok(bytes)
}

/// The text of a file of results.
pub(crate) fn file(path: &str) -> Result<String, String> {
    let bytes = contents(Path::new(path), FILE_BYTES_MAX)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("`{path}` is larger than {} MiB", FILE_BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| format!("`{path}` is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_notations_are_parsed() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("16KiB"), Ok(16 << 10));
        assert_eq!(bytes("8 MiB"), Ok(8 << 20));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!((time("5m"), time("1d")), (Ok(Duration::from_secs(300)), Ok(Duration::from_secs(86_400))));
        assert_eq!(switch("off"), Ok(false));
        assert_eq!((positive("0.5"), percent("3%")), (Ok(0.5), Ok(0.03)));
        assert!(positive("0").is_err() && positive("inf").is_err() && percent("3").is_err());
        for text in ["", "x", "-1", "1.5MiB", "99999999999GiB", "10 parsecs"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["", "10", "s", "-1s", "99999999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert!(switch("yes").is_err() && number::<u16>("70000").is_err());
    }
}
