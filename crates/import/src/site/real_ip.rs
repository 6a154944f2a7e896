//! Where locations say what the client's address is: a site has one for all of its routes. What decides by the address is closed there.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::values::variables;

/// Directives that decide what the client's address is.
const REAL_IP: [&str; 3] = ["real_ip_header", "real_ip_recursive", "set_real_ip_from"];

/// The client's address, and what has it.
const ADDRESSES: [&str; 3] = ["remote_addr", "binary_remote_addr", "proxy_add_x_forwarded_for"];

impl<'d> Import<'d> {
    /// The directive of a location that decides what the client's address is, if its requests are refused, limited or handled by that.
    pub(super) fn real_ip_of_location(&self, chain: &Chain<'d>) -> Option<&'d Directive> {
        let count = chain.levels().len().saturating_sub(3);
        let mut locations = chain.levels().iter().take(count).flat_map(|level| level.iter());
        let found = locations.find(|it| REAL_IP.contains(&it.name.as_str()))?;
        (has_address_rules(chain) || decides_by_address(chain)).then_some(found)
    }
}

/// Whether addresses are allowed or denied here, and not all of them.
fn has_address_rules(chain: &Chain<'_>) -> bool {
    chain.list(&["allow", "deny"]).iter().any(|rule| rule.word(0) != "all")
}

/// Whether an `if` or a limit of this place depends on the address.
fn decides_by_address(chain: &Chain<'_>) -> bool {
    let names = names_of_addresses(chain);
    let uses = |directive: &Directive| directive.texts().iter().any(|text| has_one(text, &names));
    let is_of_place = |depth: &usize| depth + 2 < chain.levels().len();
    let mut places = chain.levels().iter().enumerate().filter(|(depth, _)| is_of_place(depth));
    if places.any(|(_, level)| level.iter().any(|it| it.name == "if" && uses(it))) {
        return true;
    }
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
