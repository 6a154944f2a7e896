//! Requests from an access log in the format `common` or `combined`; `vhost_combined` includes the host.

/// The request of a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The host, if the format includes it.
    pub host: Option<String>,
}

/// Parses a line; `None` if it has no request that can be repeated.
pub fn line(text: &str) -> Option<Line> {
    let (before, rest) = text.split_once('"')?;
    let request = rest.split('"').next()?;
    let mut words = request.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    // nginx writes unprintable bytes as \xHH: the exact request is not known.
    let is_target =
        target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if !is_method || !is_target || !version.starts_with("HTTP/") || words.next().is_some() {
        return None;
    }
    // `host:port address - user [time] "…"`
    let first = before.split(' ').next().unwrap_or_default();
    let has_host = before.split(' ').filter(|word| !word.is_empty()).count() >= 6;
    let host = first.rsplit_once(':').map_or(first, |(host, _)| host);
    Some(Line {
        method: method.to_owned(),
        target: target.to_owned(),
        host: has_host.then(|| host.to_owned()).filter(|host| !host.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_known_formats() {
        let common = "192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /a?b=%20c HTTP/1.1\" 200 2326";
        let expected = Line { method: "GET".to_owned(), target: "/a?b=%20c".to_owned(), host: None };
        assert_eq!(line(common), Some(expected.clone()));
        assert_eq!(line(&format!("{common} \"http://r/\" \"curl \\\"x\\\"\"")), Some(expected.clone()));
        let with_host = Line { host: Some("a.test".to_owned()), ..expected };
        assert_eq!(line(&format!("a.test:80 {common}")), Some(with_host));
        for text in [
            "",
            "192.0.2.1 - - [x] \"-\" 400 0",
            "192.0.2.1 - - [x] \"\\x16\\x03\" 400 0",
            "192.0.2.1 - - [x] \"GET /\\x20 HTTP/1.1\" 400 0",
            "192.0.2.1 - - [x] \"GET http://a/ HTTP/1.1\" 400 0",
            "192.0.2.1 - - [x] \"GET /\" 200 0",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }
}
