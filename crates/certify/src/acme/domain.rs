//! Domain names for certificates, and whether a public CA can validate them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The longest name (RFC 1035), and its longest label.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Endings that nobody can register on the internet (RFC 2606, RFC 6761, RFC 6762, RFC 8375, and ICANN's resolution
/// on `.internal`).
const PRIVATE_ENDINGS: [&str; 7] =
    ["localhost", "local", "test", "example", "invalid", "internal", "home.arpa"];

/// Parses a domain, in lower case, with an optional `*.` in front.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Err(format!("got `{text}`, need a domain; certificates for addresses are not supported"));
    }
    if !name.is_ascii() {
        return Err(format!("got `{text}`, need its ASCII form, which begins with xn--"));
    }
    let rest = name.strip_prefix("*.").unwrap_or(&name);
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    match rest.len() <= NAME_BYTES_MAX && rest.split('.').all(is_label) {
        true => Ok(name),
        false => Err(format!("got `{text}`, need a domain such as example.org")),
    }
}

/// Why no public CA issues a certificate for this name, if so.
pub(super) fn why_private(domain: &str) -> Option<String> {
    let ends_so = |ending: &&&str| {
        domain.strip_suffix(**ending).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    match PRIVATE_ENDINGS.iter().find(ends_so) {
        Some(ending) => Some(format!("names that end in `{ending}` are reserved")),
        None if !domain.contains('.') => Some("it has no top-level domain".to_owned()),
        None => None,
    }
}

/// Why a public CA cannot reach a host with these addresses, if so.
pub(super) fn why_unreachable(addresses: &[IpAddr]) -> Option<String> {
    let first = addresses.first()?;
    let is_reachable = addresses.iter().any(|address| is_public(*address));
    (!is_reachable).then(|| format!("its address is {first}, which is not public"))
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => is_public_v4(address),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    // RFC 6598: carrier-grade NAT.
    let is_shared = first == 100 && (64..128).contains(&second);
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_unspecified()
        || address.is_documentation()
        || address.is_broadcast()
        || address.is_multicast()
        || is_shared)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Global unicast, except the documentation prefix.
    let [first, second, ..] = address.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0xdb8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_read() {
        for (text, expected) in [
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("*.example.org", "*.example.org"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected));
        }
        let long = format!("{}.org", "a.".repeat(130));
        let label = format!("{}.org", "a".repeat(64));
        for text in [
            "",
            ".",
            "a..b",
            "-a.org",
            "a-.org",
            "a b.org",
            "a/b",
            "../x",
            "*",
            "*.*.a.org",
            "a.*.org",
            "1.2.3.4",
            "[::1]",
            "bücher.example",
            "a.org:80",
            &long,
            &label,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_addresses_that_are_not_public_are_known() {
        for name in ["localhost", "a.local", "x.test", "server", "a.home.arpa"] {
            assert!(why_private(name).is_some(), "{name}");
        }
        for name in ["example.org", "mylocal.org", "test.de"] {
            assert_eq!(why_private(name), None);
        }
        let addresses = |text: &str| text.split(' ').map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
        for private in
            ["127.0.0.1", "10.1.2.3 192.168.0.1", "100.64.0.1", "::1", "fd00::1 fe80::1", "::ffff:10.0.0.1"]
        {
            assert!(why_unreachable(&addresses(private)).is_some(), "{private}");
        }
        for public in ["9.9.9.9", "10.0.0.1 9.9.9.9", "2620:fe::fe", "::ffff:9.9.9.9"] {
            assert_eq!(why_unreachable(&addresses(public)), None, "{public}");
        }
        assert_eq!(why_unreachable(&[]), None);
    }
}
