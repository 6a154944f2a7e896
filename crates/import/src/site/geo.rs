//! `geo`: addresses and networks, or ranges of addresses, which become networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::nginx::Directive;

use super::out::{Lines, line, text, value};
use super::values;

/// Networks that the ranges of one table may become.
const NETWORKS_MAX: usize = 100_000;

/// A table: its name, the head of its block and the content.
type Table = (String, String, Lines);

/// # Errors
/// Why it cannot be converted.
pub(super) fn geo(geo: &Directive, maps: &[String]) -> Result<Table, String> {
    let (source, name) = match geo.texts()[..] {
        [name] => ("$remote_addr", name),
        [source, name] => (source, name),
        _ => return Err("its values are not supported".to_owned()),
    };
    if source != "$remote_addr" && values::unknown_variable(source, maps).is_some() {
        return Err("its source is not supported".to_owned());
    }
    let has_ranges = geo.inner().iter().any(|case| case.name == "ranges");
    let (mut default, mut is_recursive) = ("", false);
    let mut proxies: Vec<String> = Vec::new();
    let mut networks: Vec<(String, &str)> = Vec::new();
    let mut ranges: Vec<(u32, u32, &str)> = Vec::new();
    for case in geo.inner() {
        let (key, to) = (case.name.as_str(), case.word(0));
        let unsupported = || format!("its line `{key}` is not supported");
        match key {
            "default" => default = to,
            "ranges" => {}
            "proxy_recursive" => is_recursive = true,
            "proxy" => proxies.push(network(to).ok_or_else(unsupported)?),
            "delete" if has_ranges => {
                let (first, last) = range(to).ok_or_else(unsupported)?;
                ranges.retain(|(low, high, _)| (*low, *high) != (first, last));
            }
            "delete" => {
                let deleted = network(to).ok_or_else(unsupported)?;
                networks.retain(|(other, _)| *other != deleted);
            }
            _ if to.contains('$') => return Err(unsupported()),
            _ if has_ranges => {
                let (first, last) = range(key).ok_or_else(unsupported)?;
                insert(&mut ranges, first, last, to);
            }
            _ => {
                let network = network(key).ok_or_else(unsupported)?;
                networks.retain(|(other, _)| *other != network);
                networks.push((network, to));
            }
        }
    }
    for (first, last, to) in ranges {
        networks.extend(networks_of(first, last).into_iter().map(|network| (network, to)));
    }
    if networks.len() > NETWORKS_MAX {
        return Err("it has too many networks".to_owned());
    }
    let name = name.trim_start_matches('$');
    let mut lines = Lines::default();
    if !default.is_empty() {
        lines.setting(line("default", default));
    }
    for (network, to) in networks {
        lines.setting(format!("case {} {}", text(&network), value(to)));
    }
    let of_proxies = match (proxies.is_empty(), is_recursive) {
        (true, _) => String::new(),
        (false, false) => format!(" proxies={}", text(&proxies.join(" "))),
        (false, true) => format!(" proxies={} recursive=on", text(&proxies.join(" "))),
    };
    let head = format!("map {} {} by=address{of_proxies}", value(name), text(source));
    Ok((name.to_owned(), head, lines))
}

/// A network as text: without the bits behind its prefix, which nginx ignores, and without a prefix that is the whole address. `None` if
/// it is none.
fn network(text: &str) -> Option<String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let (address, width): (IpAddr, u32) = match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(address) => {
            let free = 32u32.checked_sub(bits.unwrap_or(32))?;
            let all = u32::MAX.checked_shl(free).unwrap_or(0);
            (Ipv4Addr::from(u32::from(address) & all).into(), 32)
        }
        IpAddr::V6(address) => {
            let free = 128u32.checked_sub(bits.unwrap_or(128))?;
            let all = u128::MAX.checked_shl(free).unwrap_or(0);
            (Ipv6Addr::from(u128::from(address) & all).into(), 128)
        }
    };
    Some(match bits.filter(|bits| *bits < width) {
        Some(bits) => format!("{address}/{bits}"),
        None => address.to_string(),
    })
}

/// `10.0.0.1-10.0.0.9`, or one address.
fn range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<Ipv4Addr>().ok().map(u32::from);
    Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last)
}

/// Adds a range: the later one replaces what it covers of others.
fn insert<'t>(ranges: &mut Vec<(u32, u32, &'t str)>, first: u32, last: u32, to: &'t str) {
    let mut all = Vec::with_capacity(ranges.len() + 2);
    for (low, high, other) in ranges.drain(..) {
        if high < first || low > last {
            all.push((low, high, other));
            continue;
        }
        if low < first {
            all.push((low, first - 1, other));
        }
        if high > last {
            all.push((last + 1, high, other));
        }
    }
    all.push((first, last, to));
    *ranges = all;
}

/// The networks that a range consists of.
fn networks_of(first: u32, last: u32) -> Vec<String> {
    let (mut at, last) = (u64::from(first), u64::from(last));
    let mut networks = Vec::new();
    while at <= last {
        // The largest network that starts here and fits.
        let aligned = if at == 0 { 32 } else { at.trailing_zeros().min(32) };
        let fits = (last - at + 1).ilog2();
        let bits = aligned.min(fits);
        let address = Ipv4Addr::from(u32::try_from(at).unwrap_or(u32::MAX));
        networks.push(if bits == 0 { address.to_string() } else { format!("{address}/{}", 32 - bits) });
        at += 1 << bits;
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::super::written::imported;
    use super::*;

    #[test]
    fn networks_are_written_as_they_are_read() {
        for (text, expected) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3/32", Some("10.1.2.3")),
            ("10.1.2.3", Some("10.1.2.3")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("1.2.3.4/0", Some("0.0.0.0/0")),
            ("2001:0db8::/32", Some("2001:db8::/32")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::1/128", Some("::1")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("::/129", None),
            ("10.0.0.0/x", None),
            ("example.org", None),
        ] {
            assert_eq!(network(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn proxies_name_the_address_that_is_looked_up() {
        let of = |inner: &str| {
            let server = "server { location / { add_header X-A $a; root /r; } }";
            imported(&format!("http {{ geo $a {{ {inner} }} {server} }}")).text
        };
        for (inner, expected) in [
            ("proxy 10.0.0.1; 192.0.2.0/24 a;", "map a \"$remote_addr\" by=address proxies=\"10.0.0.1\" {"),
            (
                "proxy 10.0.0.1/24; proxy ::1; proxy_recursive; 192.0.2.0/24 a;",
                "map a \"$remote_addr\" by=address proxies=\"10.0.0.0/24 ::1\" recursive=on {",
            ),
            (
                "proxy_recursive; 2001:db8::/32 a;",
                "map a \"$remote_addr\" by=address {\n    case \"2001:db8::/32\" a\n",
            ),
            (
                "ranges; proxy 10.0.0.1; 192.0.2.0-192.0.2.255 a;",
                "proxies=\"10.0.0.1\" {\n    case \"192.0.2.0/24\" a\n",
            ),
        ] {
            let site = of(inner);
            assert!(site.contains(expected) && !site.contains("not converted:"), "{inner}\n{site}");
        }
        let lost = of("proxy proxy.test; 192.0.2.0/24 a;");
        assert!(lost.contains("its line `proxy` is not supported"), "{lost}");
    }
}
