//! Formats parts of a plan in the syntax of a site file.

use std::ops::RangeInclusive;
use std::time::Duration;

use flatout_proxy::{Balance, Key};
use flatout_site::plan::{Access, Limited, Peers, Piece, Plan, Template, VARIABLES, Variable, Verdict};

/// Bytes, in the largest unit that divides them.
pub(super) fn bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |(_, shift): &(&str, u32)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// `500ms`, `10s`, `1m 30s`.
pub(super) fn time(time: Duration) -> String {
    let milliseconds = time.as_millis();
    if !milliseconds.is_multiple_of(1000) {
        return format!("{milliseconds}ms");
    }
    let mut left = time.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        if left >= seconds {
            parts.push(format!("{}{unit}", left / seconds));
            left %= seconds;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

pub(super) fn balance(balance: &Balance) -> String {
    match balance {
        Balance::RoundRobin => "round-robin".to_owned(),
        Balance::LeastConnections => "least-connections".to_owned(),
        Balance::LeastTime => "least-time".to_owned(),
        Balance::TwoChoices => "two-choices".to_owned(),
        Balance::Sticky { cookie } => format!("sticky, by the cookie {cookie}"),
        Balance::Hash(key) => match key {
            Key::Client => "hash of the client's address".to_owned(),
            Key::Path => "hash of the path".to_owned(),
            Key::Target => "hash of path and query".to_owned(),
            Key::Header(name) => format!("hash of the header field {name}"),
            Key::Cookie(name) => format!("hash of the cookie {name}"),
            Key::Argument(name) => format!("hash of the query's parameter {name}"),
        },
    }
}

/// The key by which a limit groups requests.
pub(super) fn limited(plan: &Plan, limited: &Limited) -> String {
    match limited {
        Limited::Everyone => "all clients together".to_owned(),
        Limited::Client { ipv6_bits } => format!("each client address (IPv6: /{ipv6_bits})"),
        Limited::Text(text) => format!("each {}", template(plan, text)),
    }
}

pub(super) fn access(access: &Access) -> String {
    let verdict = match access.verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    };
    match access.peers {
        Peers::All => format!("{verdict} all"),
        Peers::Unix => format!("{verdict} unix"),
        Peers::Net(net) => format!("{verdict} {net}"),
    }
}

pub(super) fn statuses(statuses: &[RangeInclusive<u16>]) -> String {
    let range = |range: &RangeInclusive<u16>| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    };
    statuses.iter().map(range).collect::<Vec<_>>().join(" ")
}

/// A text as written in a site file.
pub(super) fn template(plan: &Plan, template: &Template) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.replace('$', "$$"),
        Piece::Variable(variable) => format!("${}", variable_name(plan, variable)),
    };
    template.0.iter().map(piece).collect()
}

fn variable_name(plan: &Plan, variable: &Variable) -> String {
    let fixed = || VARIABLES.into_iter().find(|(_, fixed)| fixed == variable);
    let of_field = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    match variable {
        Variable::Argument(name) => format!("arg_{name}"),
        Variable::Header(name) => format!("http_{}", of_field(name)),
        Variable::Cookie(name) => format!("cookie_{name}"),
        Variable::AuthField(name) => format!("auth_http_{}", of_field(name)),
        Variable::Capture(group) => group.to_string(),
        Variable::NamedCapture(name) => name.clone(),
        Variable::Map(map) | Variable::ResponseMap(map) => {
            plan.maps.get(*map).map(|map| map.name.clone()).unwrap_or_default()
        }
        Variable::Set(set) => plan.sets.get(*set).map(|set| set.name.clone()).unwrap_or_default(),
        Variable::ResponseHeader(name) => format!("sent_http_{}", of_field(name)),
        _ => fixed().map(|(name, _)| name.to_owned()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (milliseconds, expected) in [
            (0, "0s"),
            (500, "500ms"),
            (1500, "1500ms"),
            (10_000, "10s"),
            (90_000, "1m 30s"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(time(Duration::from_millis(milliseconds)), expected);
        }
    }

    #[test]
    fn parsed_templates_are_printed_unchanged() {
        let plan = Plan::default();
        for text in
            ["$host-$http_x_api_key", "a$$b$1", "$remote_addr$uri$is_args$args$cookie_id$arg_q$request_uri"]
        {
            let read = Template::parse(text, |_| None).unwrap();
            assert_eq!(template(&plan, &read), text);
        }
    }
}
