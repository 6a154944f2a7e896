//! Where locations say what the client's address is. nginx decides that after their rewrites: what these decide by the address is closed.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::Lines;
use super::settings::of_process;
use super::values::variables;

/// Directives that decide what the client's address is.
const REAL_IP: [&str; 2] = ["real_ip_header", "set_real_ip_from"];

/// The client's address, and what has it.
const ADDRESSES: [&str; 3] = ["remote_addr", "binary_remote_addr", "proxy_add_x_forwarded_for"];

impl<'d> Import<'d> {
    /// Writes who is trusted in a location, if that is not as around it.
    pub(super) fn real_ip_of_route(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let own = of_locations(chain);
        if own.is_empty() {
            return;
        }
        let proxies = chain.list(&["set_real_ip_from"]);
        let is_own = |directive: &Directive| own.iter().any(|own| std::ptr::eq(*own, directive));
        let header = chain.find("real_ip_header");
        if !proxies.is_empty() && header.is_none() {
            // nginx's default.
            lines.setting("client-address \"X-Real-IP\"".to_owned());
        }
        for directive in proxies.into_iter().chain(header).filter(|it| is_own(it)) {
            match of_process(directive).flatten().filter(|_| is_convertible(directive)) {
                Some(text) => {
                    self.fates.carried(directive);
                    lines.setting(text);
                }
                None => self.leave(directive, "only addresses and networks are supported", lines),
            }
        }
    }

    /// The directive of a location that decides what the client's address is, if its requests are handled by that before nginx
    /// decides it, or if it cannot be converted and they are refused or limited by it.
    pub(super) fn real_ip_of_location(&self, chain: &Chain<'d>) -> Option<&'d Directive> {
        let own = of_locations(chain);
        let lost = own.iter().find(|directive| !is_convertible(directive));
        match lost {
            Some(lost) if has_address_rules(chain) || is_limited_by_address(chain) => Some(lost),
            _ => own.first().filter(|_| decides_by_address(chain)).copied(),
        }
    }
}

/// The directives of a location, and of the locations around it.
fn of_locations<'d>(chain: &Chain<'d>) -> Vec<&'d Directive> {
    let count = chain.levels().len().saturating_sub(3);
    let locations = chain.levels().iter().take(count).flat_map(|level| level.iter());
    locations.filter(|it| REAL_IP.contains(&it.name.as_str())).collect()
}

/// Whether it does not name a host: nginx looks up its addresses once.
fn is_convertible(directive: &Directive) -> bool {
    let word = directive.word(0);
    let address = word.split('/').next().unwrap_or_default();
    directive.name != "set_real_ip_from" || word == "unix:" || address.parse::<std::net::IpAddr>().is_ok()
}

/// Whether addresses are allowed or denied here, and not all of them.
fn has_address_rules(chain: &Chain<'_>) -> bool {
    chain.list(&["allow", "deny"]).iter().any(|rule| rule.word(0) != "all")
}

/// Directives that nginx applies before it decides what the client's address is.
const BEFORE: [&str; 4] = ["if", "return", "rewrite", "set"];

/// Whether a rule of this place that nginx applies before depends on the address.
fn decides_by_address(chain: &Chain<'_>) -> bool {
    let names = names_of_addresses(chain);
    let uses = |directive: &Directive| directive.texts().iter().any(|text| has_one(text, &names));
    let is_of_place = |depth: &usize| depth + 2 < chain.levels().len();
    let mut places = chain.levels().iter().enumerate().filter(|(depth, _)| is_of_place(depth));
    places.any(|(_, level)| level.iter().any(|it| BEFORE.contains(&it.name.as_str()) && uses(it)))
}

/// Whether a limit of this place depends on the address.
fn is_limited_by_address(chain: &Chain<'_>) -> bool {
    let names = names_of_addresses(chain);
    let uses = |directive: &Directive| directive.texts().iter().any(|text| has_one(text, &names));
    let limits = chain.list(&["limit_req"]).into_iter().chain(chain.list(&["limit_conn"]));
    let zones: Vec<&str> = limits.flat_map(|limit| limit.texts()).map(zone).collect();
    let is_used = |it: &Directive| {
        ["limit_req_zone", "limit_conn_zone"].contains(&it.name.as_str())
            && it.texts().iter().any(|text| text.starts_with("zone=") && zones.contains(&zone(text)))
    };
    chain.levels().iter().flat_map(|level| level.iter()).any(|it| is_used(it) && uses(it))
}

/// The name in `zone=NAME:SIZE`, or the word itself.
fn zone(text: &str) -> &str {
    text.strip_prefix("zone=").unwrap_or(text).split(':').next().unwrap_or_default()
}

/// The variables whose values depend on the address: those of tables and of `set`, too.
fn names_of_addresses(chain: &Chain<'_>) -> Vec<String> {
    let mut names: Vec<String> = ADDRESSES.iter().map(|name| (*name).to_owned()).collect();
    loop {
        let count = names.len();
        for level in chain.levels() {
            collect(level, &mut names);
        }
        if names.len() == count {
            return names;
        }
    }
}

fn collect(block: &[Directive], names: &mut Vec<String>) {
    for directive in block {
        let texts = directive.texts();
        let (name, sources) = match (directive.name.as_str(), &texts[..]) {
            // Without a source, it is the address.
            ("geo", [name]) => (*name, vec!["$remote_addr"]),
            ("geo" | "map" | "split_clients", [source, name]) => {
                let cases = directive.inner().iter().flat_map(Directive::texts);
                (*name, std::iter::once(*source).chain(cases).collect())
            }
            ("set", [name, to]) => (*name, vec![*to]),
            ("if" | "location", [..]) => {
                collect(directive.inner(), names);
                continue;
            }
            _ => continue,
        };
        let name = name.trim_start_matches('$');
        if sources.iter().any(|text| has_one(text, names)) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
}

/// Whether a text has one of these variables.
fn has_one(text: &str, names: &[String]) -> bool {
    variables(text).iter().any(|name| names.iter().any(|known| known == name))
}
