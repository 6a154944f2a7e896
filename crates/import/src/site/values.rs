//! Converts nginx's values: sizes, times, rates, variables.

use std::borrow::Cow;

/// A size: `8k`, `1m`, `1g`, `1024`.
pub(super) fn size(text: &str) -> Option<String> {
    let (digits, unit) = match text.chars().last()?.to_ascii_lowercase() {
        'k' => (&text[..text.len() - 1], "KiB"),
        'm' => (&text[..text.len() - 1], "MiB"),
        'g' => (&text[..text.len() - 1], "GiB"),
        _ => (text, ""),
    };
    let number: u64 = digits.parse().ok()?;
    Some(format!("{number}{unit}"))
}

/// A size in bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A time: `10`, `10s`, `500ms`, `1m30s`, `1d`.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
        ("w", 604_800_000),
        ("M", 2_592_000_000),
        ("y", 31_536_000_000),
    ];
    let (mut rest, mut sum) = (text, 0u64);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_alphabetic()).len();
        let ms = match &rest[..unit] {
            "" => 1000,
            unit => units.iter().find(|(name, _)| *name == unit)?.1,
        };
        rest = &rest[unit..];
        sum = sum.checked_add(number.checked_mul(ms)?)?;
    }
    (!text.is_empty()).then_some(sum)
}

/// A time in the site file's form.
pub(super) fn time(text: &str) -> Option<String> {
    let ms = milliseconds(text)?;
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let unit = units.into_iter().find(|(_, length)| ms > 0 && ms % length == 0);
    Some(unit.map_or_else(|| format!("{ms}ms"), |(unit, length)| format!("{}{unit}", ms / length)))
}

/// The seconds of a time.
pub(super) fn seconds(text: &str) -> Option<u64> {
    milliseconds(text).map(|ms| ms / 1000)
}

/// A rate: `10r/s`, `30r/m`.
pub(super) fn rate(text: &str) -> Option<String> {
    let (number, unit) = text.strip_prefix("rate=").unwrap_or(text).split_once("r/")?;
    (number.parse::<u32>().is_ok() && ["s", "m"].contains(&unit)).then(|| format!("{number}/{unit}"))
}

/// Variables with the same name in both.
const VARIABLES: [&str; 52] = [
    "scheme",
    "host",
    "http_host",
    "request_method",
    "request_port",
    "is_request_port",
    "uri",
    "document_uri",
    "args",
    "query_string",
    "is_args",
    "request_uri",
    "remote_addr",
    "remote_port",
    "realip_remote_addr",
    "realip_remote_port",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "remote_user",
    "server_protocol",
    "server_name",
    "server_port",
    "content_type",
    "content_length",
    "https",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_session_reused",
    "ssl_early_data",
    "ssl_server_name",
    "connection",
    "http2",
    "hostname",
    "pid",
    "msec",
    "request_id",
    "random_id",
    "proxy_add_x_forwarded_for",
    "ssl_client_verify",
    "ssl_client_escaped_cert",
    "ssl_client_s_dn",
    "ssl_client_i_dn",
    "ssl_client_serial",
    "ssl_client_fingerprint",
    "ssl_client_cert",
    "ssl_client_s_dn_legacy",
    "ssl_client_i_dn_legacy",
    "ssl_client_v_start",
    "ssl_client_v_end",
    "ssl_client_v_remain",
];

/// Those that are known with the response.
const OF_RESPONSE: [&str; 10] = [
    "status",
    "upstream_status",
    "upstream_addr",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_response_time",
    "upstream_cache_status",
    "request_body",
    "limit_req_status",
    "limit_conn_status",
];

/// The variables of a text, without `$`.
pub(super) fn variables(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for part in text.split('$').skip(1) {
        let name = match part.strip_prefix('{') {
            Some(braced) => braced.split('}').next().unwrap_or_default(),
            None => {
                let digit = part.starts_with(|char: char| char.is_ascii_digit());
                let length = part.len()
                    - part.trim_start_matches(|char: char| char.is_ascii_alphanumeric() || char == '_').len();
                &part[..if digit { 1 } else { length }]
            }
        };
        found.push(name);
    }
    found
}

/// The first variable of a text that does not exist here; `maps` exist too.
pub(super) fn unknown_variable<'t>(text: &'t str, maps: &[String]) -> Option<&'t str> {
    let is_known = |name: &&str| {
        VARIABLES.contains(name)
            || (name.len() == 1 && name.starts_with(|char: char| char.is_ascii_digit()))
            || ["http_", "arg_", "cookie_", "auth_http_"]
                .iter()
                .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
            || maps.iter().any(|map| map == name)
    };
    variables(text).into_iter().find(|name| !is_known(name))
}

/// Why a text with this variable cannot be converted.
pub(super) fn unsupported(name: &str) -> String {
    format!("the variable ${name} is not supported")
}

/// The same for the text of a `return`, which may be the page of an error.
pub(super) fn unknown_in_page<'t>(text: &'t str, maps: &[String]) -> Option<&'t str> {
    // Of the error, without what only a response has.
    let is_of_error =
        |name: &&str| OF_RESPONSE.contains(name) && !["upstream_cache_status", "request_body"].contains(name);
    let mut names = variables(text).into_iter().filter(|name| !is_of_error(name));
    names.find(|name| unknown_variable(&format!("${name}"), maps).is_some())
}

/// The same for texts that are made when the response is known.
pub(super) fn unknown_in_response<'t>(text: &'t str, maps: &[String]) -> Option<&'t str> {
    let is_of_response = |name: &&str| {
        OF_RESPONSE.contains(name)
            || ["sent_http_", "upstream_http_", "upstream_cookie_"]
                .iter()
                .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix))
    };
    let mut names = variables(text).into_iter().filter(|name| !is_of_response(name));
    names.find(|name| unknown_variable(&format!("${name}"), maps).is_some())
}

/// A text without the body of the request: a `return` is run before nginx reads that, so that it has none.
pub(super) fn without_body(text: &str) -> Cow<'_, str> {
    if !variables(text).contains(&"request_body") || text.contains("request_body_") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace("${request_body}", "").replace("$request_body", ""))
}

/// The key by which a limit groups requests.
pub(super) fn key(text: &str, maps: &[String]) -> Option<String> {
    match text {
        "$binary_remote_addr" | "$remote_addr" => Some("client".to_owned()),
        "$server_name" => Some("everyone".to_owned()),
        _ => {
            let text = text.replace("$binary_remote_addr", "$remote_addr");
            (text.contains('$') && unknown_variable(&text, maps).is_none()).then_some(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_nginx() {
        assert_eq!(
            (size("8k").as_deref(), size("1024").as_deref(), size("x")),
            (Some("8KiB"), Some("1024"), None)
        );
        assert_eq!(bytes("1m"), Some(1 << 20));
        for (text, expected) in [
            ("10", Some("10s")),
            ("1m30s", Some("90s")),
            ("500ms", Some("500ms")),
            ("1d", Some("1d")),
            ("60m", Some("1h")),
            ("0", Some("0ms")),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(time(text).as_deref(), expected, "{text}");
        }
        assert_eq!((rate("rate=10r/s").as_deref(), rate("5r/h")), (Some("10/s"), None));
        assert_eq!(variables("a$host${uri}b$1x$$"), ["host", "uri", "1", "", ""]);
        assert_eq!(unknown_variable("$host$request_time", &[]), Some("request_time"));
        assert_eq!(unknown_variable("$http_x_a$map", &["map".to_owned()]), None);
        assert_eq!(without_body("a ${request_body}b$request_body c$uri"), "a b c$uri");
        assert_eq!(without_body("$request_body$request_body_file"), "$request_body$request_body_file");
    }
}
