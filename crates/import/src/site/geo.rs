//! `geo`: addresses and networks, or ranges of addresses, which become networks.

use std::net::IpAddr;

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
    let mut default = "";
    let mut networks: Vec<(String, &str)> = Vec::new();
    let mut ranges: Vec<(u32, u32, &str)> = Vec::new();
    for case in geo.inner() {
        let (key, to) = (case.name.as_str(), case.word(0));
        let unsupported = || format!("its line `{key}` is not supported");
        match key {
            "default" => default = to,
            "ranges" => {}
            "delete" if has_ranges => {
                let (first, last) = range(to).ok_or_else(unsupported)?;
                ranges.retain(|(low, high, _)| (*low, *high) != (first, last));
            }
            "delete" => networks.retain(|(other, _)| *other != network(to)),
            _ if to.contains('$') => return Err(unsupported()),
            _ if has_ranges => {
                let (first, last) = range(key).ok_or_else(unsupported)?;
                insert(&mut ranges, first, last, to);
            }
            _ if key.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok()) => {
                networks.retain(|(other, _)| *other != network(key));
                networks.push((network(key), to));
            }
            _ => return Err(unsupported()),
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
    Ok((name.to_owned(), format!("map {} {} by=address", value(name), text(source)), lines))
}

/// A network as text; the longest prefix of an address is left out.
fn network(text: &str) -> String {
    text.trim_end_matches("/32").to_owned()
}

/// `10.0.0.1-10.0.0.9`, or one address.
fn range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<std::net::Ipv4Addr>().ok().map(u32::from);
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
        let address = std::net::Ipv4Addr::from(u32::try_from(at).unwrap_or(u32::MAX));
        networks.push(if bits == 0 { address.to_string() } else { format!("{address}/{}", 32 - bits) });
        at += 1 << bits;
    }
    networks
}
