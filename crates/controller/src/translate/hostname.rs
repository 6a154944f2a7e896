//! Host names of listeners and routes, and what both have in common.

use flatout_site::plan::Host;

/// A host name, perhaps with a wildcard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum HostName {
    /// Every name.
    Any,
    /// Every name below this one.
    Below(String),
    /// This one.
    Exact(String),
}

impl HostName {
    /// Reads one; none or an empty text is every name.
    ///
    /// # Errors
    /// It is neither a name nor a wildcard of one.
    pub(super) fn parse(text: Option<&str>) -> Result<HostName, String> {
        let text = text.unwrap_or_default();
        if text.is_empty() {
            return Ok(HostName::Any);
        }
        let lower = text.to_ascii_lowercase();
        let (name, is_wildcard) = match lower.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (lower.as_str(), false),
        };
        let is_label = |label: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && label.len() <= 63 && label.bytes().all(is_plain)
        };
        if name.len() > 253 || !name.split('.').all(is_label) {
            return Err(format!("got the host name `{text}`, need one such as example.org or *.example.org"));
        }
        Ok(if is_wildcard { HostName::Below(name.to_owned()) } else { HostName::Exact(name.to_owned()) })
    }

    /// The names that both have; none if there are none.
    pub(super) fn intersection(&self, other: &HostName) -> Option<HostName> {
        if self.contains(other) {
            Some(other.clone())
        } else if other.contains(self) {
            Some(self.clone())
        } else {
            None
        }
    }

    /// Whether it has all names of the other.
    pub(super) fn contains(&self, other: &HostName) -> bool {
        let is_below = |name: &str, above: &str| {
            name.strip_suffix(above).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
        };
        match (self, other) {
            (HostName::Any, _) => true,
            (HostName::Below(above), HostName::Below(name)) => name == above || is_below(name, above),
            (HostName::Below(above), HostName::Exact(name)) => is_below(name, above),
            (HostName::Exact(name), HostName::Exact(other)) => name == other,
            _ => false,
        }
    }

    /// As a site has it.
    pub(super) fn host(&self) -> Host {
        match self {
            HostName::Any => Host::Any,
            HostName::Below(name) => Host::Below(name.clone()),
            HostName::Exact(name) => Host::Exact(name.clone()),
        }
    }
}

impl std::fmt::Display for HostName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HostName::Any => f.write_str("*"),
            HostName::Below(name) => write!(f, "*.{name}"),
            HostName::Exact(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_intersect_by_the_more_specific_one() {
        let parse = |text: &str| HostName::parse(Some(text)).unwrap();
        for (one, other, both) in [
            ("", "example.org", Some("example.org")),
            ("", "", Some("*")),
            ("*.example.org", "a.example.org", Some("a.example.org")),
            ("*.example.org", "a.b.example.org", Some("a.b.example.org")),
            ("*.example.org", "*.b.example.org", Some("*.b.example.org")),
            ("*.example.org", "*.example.org", Some("*.example.org")),
            ("*.example.org", "example.org", None),
            ("*.example.org", "badexample.org", None),
            ("a.example.org", "A.Example.ORG", Some("a.example.org")),
            ("a.example.org", "b.example.org", None),
            ("*.com", "*.org", None),
        ] {
            let both = both.map(str::to_owned);
            let found =
                |one: &str, other: &str| parse(one).intersection(&parse(other)).map(|it| it.to_string());
            assert_eq!(found(one, other), both, "{one} {other}");
            assert_eq!(found(other, one), both, "{other} {one}");
        }
        for bad in ["*", "*.", "a..b", "a b", "http://a", "a:80", "*.*.a", &"a".repeat(64)] {
            assert!(HostName::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
