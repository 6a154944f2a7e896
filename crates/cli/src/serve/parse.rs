//! Values that only a server has: addresses of peers and upstreams, rates, statuses, names of fields.

use std::ops::RangeInclusive;
use std::time::Duration;

use flatout_compress::{Compress, Level};
use flatout_proxy::{Address, Server};
use flatout_site::Regex;
use flatout_site::plan::{Host, Peers};

use crate::value::{number, time};

/// A peer: an address, a network, `unix` or `all`.
pub(super) fn peers(text: &str) -> Result<Peers, String> {
    text.parse().map_err(|bad| format!("got `{text}`: {bad}, or unix, or all"))
}

/// Several peers, separated by blanks.
pub(super) fn peers_list(text: &str) -> Result<Vec<Peers>, String> {
    text.split_whitespace().map(peers).collect()
}

/// A content coding, optionally with a level: `br`, `gzip=6`.
pub(super) fn level(text: &str) -> Result<Level, String> {
    let (name, level) = match text.split_once('=') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    let mut usual = Compress::default().levels.into_iter();
    let Some(usual) = usual.find(|level| level.coding.token() == name) else {
        return Err(format!("got `{text}`, need br, zstd or gzip, perhaps with a level such as gzip=6"));
    };
    let Some(digits) = level else { return Ok(usual) };
    let range = Level::range(usual.coding);
    match digits.parse() {
        Ok(level) if range.contains(&level) => Ok(Level { level, ..usual }),
        _ => Err(format!("got `{text}`, need a level from {} to {}", range.start(), range.end())),
    }
}

/// A content type, in which `*` matches any text.
pub(super) fn content_type(text: &str) -> Result<String, String> {
    let is_half = |half: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+*".contains(&byte);
        !half.is_empty() && half.matches('*').count() <= 1 && half.bytes().all(is_of_name)
    };
    let is_type = text.split('/').count() == 2 && text.split('/').all(is_half);
    match is_type {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("got `{text}`, need a content type without parameters, such as text/css or text/*"))
        }
    }
}

/// The address of an upstream's server, and whether it uses TLS.
pub(super) fn server(text: &str) -> Result<(Address, bool), String> {
    let server: Server = text.parse().map_err(|message: String| match message.ends_with("a path") {
        true => format!("{message}; use rewrite-prefix to change paths"),
        false => message,
    })?;
    Ok((server.address, server.tls.is_some()))
}

/// A host name of a site: `example.org`, `*.example.org`, `~` and a regular expression, nothing for requests without a host, or `*` for
/// all others.
pub(super) fn host(text: &str) -> Result<Host, String> {
    match text {
        "*" => return Ok(Host::Any),
        "" => return Ok(Host::Unnamed),
        _ => {}
    }
    if let Some(pattern) = text.strip_prefix('~') {
        return regex(pattern).map(|_| Host::Pattern(pattern.to_owned()));
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_address = name.starts_with('[') && name.ends_with(']');
    let is_name = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if !is_name && !is_address {
        return Err(format!(
            "got `{text}`, need a host name without a port: example.org, *.example.org, ~REGEX, or * for all others"
        ));
    }
    let name = name.to_ascii_lowercase();
    Ok(if text.starts_with("*.") { Host::Below(name) } else { Host::Exact(name) })
}

/// A protocol that may be tunnelled, in lower case.
pub(super) fn upgrade(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    match flatout_proxy::is_protocol_name(text.as_bytes()) {
        _ if flatout_proxy::carries_requests(name.as_bytes()) => Err(format!(
            "got `{text}`, need a protocol such as websocket: requests in a tunnel of {text} would get past all rules"
        )),
        _ if ["on", "off", "any"].contains(&&*name) => Err(format!("`{text}` stands alone")),
        true => Ok(name),
        false => Err(format!("got `{text}`, need the name of a protocol such as websocket, or off")),
    }
}

/// A count per time: `100/s`, `30/m`, `5/10s`.
pub(super) fn rate(text: &str) -> Result<(u32, Duration), String> {
    let wrong = || format!("got `{text}`, need a rate such as 100/s, 30/m or 5/10s");
    let (requests, window) = text.split_once('/').ok_or_else(wrong)?;
    let requests = requests.parse().ok().filter(|requests| *requests > 0).ok_or_else(wrong)?;
    let window = if window.starts_with(|char: char| char.is_ascii_digit()) {
        window.to_owned()
    } else {
        format!("1{window}")
    };
    let window = time(&window).ok().filter(|window| !window.is_zero()).ok_or_else(wrong)?;
    Ok((requests, window))
}

/// Statuses, one or a range: `404`, `500-599`; all of them within `allowed`.
pub(super) fn statuses(text: &str, allowed: RangeInclusive<u16>) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let fits = |text: &str| text.parse().ok().filter(|status| allowed.contains(status));
    let (least, most) = (allowed.start(), allowed.end());
    match (fits(first), fits(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!(
            "got `{text}`, need a status from {least} to {most}, or a range such as {least}-{most}"
        )),
    }
}

/// One status within `allowed`.
pub(super) fn status(text: &str, allowed: RangeInclusive<u16>) -> Result<u16, String> {
    let (least, most) = (*allowed.start(), *allowed.end());
    let status = text.parse().ok().filter(|status| allowed.contains(status));
    status.ok_or_else(|| format!("got `{text}`, need a status from {least} to {most}"))
}

/// A status of redirects.
pub(super) fn redirect_status(text: &str) -> Result<u16, String> {
    let status = text.parse().ok().filter(|status| [301, 302, 303, 307, 308].contains(status));
    status.ok_or_else(|| format!("got `{text}`, need 301, 302, 303, 307 or 308"))
}

/// A number that is at least 1.
pub(super) fn at_least_one<T: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let value: T = number(text)?;
    if value < T::from(1) { Err(format!("got `{text}`, need at least 1")) } else { Ok(value) }
}

/// Requests in progress at a server; 0 for `off`.
pub(super) fn requests_max(text: &str) -> Result<u32, String> {
    if text == "off" { Ok(0) } else { at_least_one(text) }
}

/// The name of a parameter for FastCGI, SCGI or uwsgi.
pub(super) fn param_name(name: &str) -> Result<&str, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match !name.is_empty() && name.bytes().all(is_name) {
        true => Ok(name),
        false => Err(format!("got `{name}`, need letters, digits and _")),
    }
}

/// The name of a field.
pub(super) fn field_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    if is_name { Ok(text.to_owned()) } else { Err(format!("got `{text}`, need the name of a header field")) }
}

/// Names separated by blanks or commas.
pub(super) fn names(text: &str) -> Vec<String> {
    text.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A regular expression.
pub(super) fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text, false)
        .map_err(|why| format!("got `{text}`, which is not a valid regular expression: {why}"))
}

/// The value of a field, or a part of one.
pub(super) fn field_value(text: &str) -> Result<&str, String> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("need a header value without control characters".to_owned());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_rates_and_statuses() {
        assert_eq!(host("*.Example.org"), Ok(Host::Below("example.org".to_owned())));
        assert_eq!(host("~^a[0-9]$"), Ok(Host::Pattern("^a[0-9]$".to_owned())));
        assert!(host("~(").is_err());
        assert_eq!(host("*"), Ok(Host::Any));
        assert_eq!(host(""), Ok(Host::Unnamed));
        assert!(host("a:80").is_err() && host(" ").is_err() && host("a*b").is_err());
        assert_eq!(rate("100/s"), Ok((100, Duration::from_secs(1))));
        assert_eq!(rate("5/10s"), Ok((5, Duration::from_secs(10))));
        assert!(rate("0/s").is_err() && rate("5").is_err() && rate("5/0s").is_err());
        assert_eq!(statuses("500-504", 400..=599), Ok(500..=504));
        assert!(statuses("200", 400..=599).is_err() && statuses("504-500", 400..=599).is_err());
    }
}
