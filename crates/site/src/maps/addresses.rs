//! Files with the addresses of crawlers, as their operators publish them: JSON with prefixes, or one network a line.

use serde_json::Value;

use super::super::plan::{MapKey, MapKind};
use super::file::ENTRIES_MAX;

/// Reads a file of networks.
///
/// # Errors
/// What is wrong, after the file's name.
pub(super) fn networks(text: &str) -> Result<Vec<MapKey>, String> {
    if text.trim_start().starts_with('{') {
        return published(text).map_err(|reason| format!(": {reason}"));
    }
    let mut keys = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let network = line.split('#').next().unwrap_or_default().trim();
        if !network.is_empty() {
            let key = MapKey::parse(network, MapKind::Address);
            keys.push(key.map_err(|reason| format!(":{}: {reason}", at + 1))?);
        }
    }
    sized(keys).map_err(|reason| format!(": {reason}"))
}

/// The form of Google, Microsoft, Apple, OpenAI and others: `{"prefixes": [{"ipv4Prefix": "192.0.2.0/27"}, {"ipv6Prefix": …}]}`.
fn published(text: &str) -> Result<Vec<MapKey>, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let prefixes = json.get("prefixes").and_then(Value::as_array);
    let prefixes = prefixes.ok_or("got JSON without a list of `prefixes`")?;
    let keys = prefixes.iter().map(|prefix| {
        let network = ["ipv4Prefix", "ipv6Prefix"].iter().find_map(|name| prefix.get(name)?.as_str());
        let network =
            network.ok_or_else(|| format!("got `{prefix}`, need an ipv4Prefix or an ipv6Prefix"))?;
        MapKey::parse(network, MapKind::Address)
    });
    sized(keys.collect::<Result<_, String>>()?)
}

fn sized(keys: Vec<MapKey>) -> Result<Vec<MapKey>, String> {
    match keys.len() {
        0 => Err("it has no network".to_owned()),
        count if count > ENTRIES_MAX => Err(format!("got {count} networks, allowed are {ENTRIES_MAX}")),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_json_or_lines() {
        let json = r#"{"creationTime": "2026-11-20T15:00:00", "prefixes": [{"ipv6Prefix": "2001:4860:4801:10::/64"},
            {"ipv4Prefix": "66.249.64.0/27", "service": "x"}]}"#;
        let lines = "# DuckDuckBot\n2001:4860:4801:10::/64\n\n 66.249.64.0/27 # one of many\n";
        let found = networks(json).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(networks(lines), Ok(found));
        for (text, reason) in [
            ("", ": it has no network"),
            ("1.2.3.4\nnonsense", ":2: got `nonsense`"),
            ("{", ": EOF"),
            (r#"{"prefixes": {}}"#, ": got JSON without a list"),
            (r#"{"prefixes": []}"#, ": it has no network"),
            (r#"{"prefixes": [{"ipv4Prefix": 7}]}"#, ": got `{\"ipv4Prefix\":7}`, need"),
            (r#"{"prefixes": [{"ipv4Prefix": "66.249.64.0/33"}]}"#, ": got `66.249.64.0/33`"),
        ] {
            let error = networks(text).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
