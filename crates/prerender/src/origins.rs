//! Origins that the operator allows.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "browser")]
use http::Uri;

/// An origin that pages may fetch from: `https://api.example.com`, `http://example.com:8080`, or `https://*.example.com` for
/// every name below one. Addresses, and names that resolve to private addresses, are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedOrigin {
    is_https: bool,
    /// In lower case, without the `*.`.
    host: String,
    port: u16,
    is_below: bool,
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedOrigin, String> {
        let wrong = || {
            format!(
                "got `{text}`, need an origin such as https://api.example.com or https://*.example.com, without a path"
            )
        };
        let (is_https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let (is_below, name) = rest.strip_prefix("*.").map_or((false, rest), |name| (true, name));
        let (host, port) = match name.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (name, if is_https { 443 } else { 80 }),
        };
        let is_name = host.contains('.')
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            && host
                .rsplit('.')
                .next()
                .is_some_and(|last| last.bytes().any(|byte| byte.is_ascii_alphabetic()));
        match is_name {
            true => Ok(AllowedOrigin { is_https, host: host.to_ascii_lowercase(), port, is_below }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        let below = if self.is_below { "*." } else { "" };
        write!(f, "{scheme}://{below}{}", self.host)?;
        match (self.is_https, self.port) {
            (true, 443) | (false, 80) => Ok(()),
            (_, port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(feature = "browser")]
impl AllowedOrigin {
    /// Whether a URL belongs to it.
    pub(crate) fn has(&self, url: &Uri) -> bool {
        let Some((is_https, host, port)) = origin_of(url) else { return false };
        let is_host = match self.is_below {
            true => host
                .strip_suffix(self.host.as_str())
                .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1),
            false => host == self.host,
        };
        is_https == self.is_https && port == self.port && is_host
    }
}

/// Scheme, host in lower case and port of a URL; `None` if it is not of http or https, has no host, or has credentials.
#[cfg(feature = "browser")]
pub(crate) fn origin_of(url: &Uri) -> Option<(bool, String, u16)> {
    let is_https = match url.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let authority = url.authority()?;
    if authority.as_str().contains('@') {
        return None;
    }
    let host = url.host()?.trim_end_matches('.').to_ascii_lowercase();
    let port = match authority.port() {
        Some(_) => authority.port_u16()?,
        None if is_https => 443,
        None => 80,
    };
    (!host.is_empty()).then_some((is_https, host, port))
}

#[cfg(test)]
#[cfg(feature = "browser")]
mod tests {
    use super::*;

    fn has(origin: &str, url: &str) -> bool {
        let origin: AllowedOrigin = origin.parse().unwrap();
        assert_eq!(origin.to_string().parse(), Ok(origin.clone()));
        origin.has(&url.parse().unwrap())
    }

    #[test]
    fn only_the_origin_itself_is_allowed() {
        for (url, expected) in [
            ("https://api.example.com/x?y", true),
            ("https://API.example.com:443/", true),
            ("https://api.example.com./", true),
            ("http://api.example.com/", false),
            ("https://api.example.com:8443/", false),
            ("https://example.com/", false),
            ("https://xapi.example.com/", false),
            ("https://api.example.com.evil.test/", false),
            ("https://api.example.com@evil.test/", false),
            ("https://evil@api.example.com/", false),
        ] {
            assert_eq!(has("https://api.example.com", url), expected, "{url}");
        }
        assert!(has("http://a.test:8080", "http://a.test:8080/"));
        assert!(has("https://*.example.com", "https://a.b.example.com/"));
        assert!(!has("https://*.example.com", "https://example.com/"));
        assert!(!has("https://*.example.com", "https://notexample.com/"));
    }

    #[test]
    fn origins_that_are_no_names_are_refused() {
        for text in [
            "",
            "*",
            "example.com",
            "https://",
            "https://*",
            "ftp://a.test",
            "https://a.test/",
            "https://a.test/x",
            "https://127.0.0.1",
            "https://[::1]",
            "https://2130706433",
            "https://localhost",
            "https://a@b.test",
            "https://a.test:",
            "https://a.test:99999",
            "https://10.0.0.1:80",
            "file:///etc/passwd",
        ] {
            let error = text.parse::<AllowedOrigin>().unwrap_err();
            assert!(error.contains("need an origin"), "{text}: {error}");
        }
    }
}
