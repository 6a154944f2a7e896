//! Packet filters: the chains that packets pass, and rules that exempt one port.

use crate::change::{Change, Content};
use crate::error::Unknown;
use crate::host::Host;
use crate::netlink::{Fault, nftables};
use crate::settings::{IptablesRule, NftRule, NftTable, RULE_COMMENT};

/// Our table, in which the served port is not tracked.
pub(crate) const TABLE: &str = "flatout_notrack";

/// Base chains that are named on one line.
const PLACES_MAX: usize = 4;

/// All filters that packets pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    /// nftables' base chains, except ours.
    pub(crate) chains: Vec<Chain>,
    /// Rules in all nftables tables, except ours.
    pub(crate) rules_count: usize,
    /// Whether a rule uses the state of connections.
    pub(crate) asks_state: bool,
    /// Legacy iptables tables that are in use.
    pub(crate) old_tables: Vec<OldTable>,
}

/// A legacy iptables table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldTable {
    pub(crate) v6: bool,
    pub(crate) name: String,
}

/// A base chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) family: &'static str,
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) hook: &'static str,
    pub(crate) priority: i32,
    /// Whether it contains a rule, or its policy is to drop.
    pub(crate) is_used: bool,
}

impl Filters {
    /// Reads both kinds of filters. If neither can be read, the result is unknown.
    pub(crate) fn read(host: &Host) -> Result<Filters, Unknown> {
        let old_tables = [old_tables(host, false), old_tables(host, true)].concat();
        match read_nftables(host) {
            Ok(filters) => Ok(Filters { old_tables, ..filters }),
            Err(_) if !old_tables.is_empty() => Ok(Filters { old_tables, ..Filters::default() }),
            Err(fault) => Err(Unknown(fault.describe("listing nftables' rules"))),
        }
    }

    /// Whether packets pass any rule.
    pub(crate) fn is_any(&self) -> bool {
        !self.old_tables.is_empty() || self.chains.iter().any(|chain| chain.is_used)
    }

    /// Whether addresses are translated (NAT): such packets must be tracked.
    pub(crate) fn translates(&self) -> bool {
        self.old_tables.iter().any(|table| table.name == "nat")
            || self.chains.iter().any(|chain| chain.kind == "nat" && chain.is_used)
    }

    /// As one line.
    pub(crate) fn line(&self) -> String {
        let old: Vec<&str> = self.old_tables.iter().map(|table| table.name.as_str()).collect();
        let old = (!old.is_empty()).then(|| format!("iptables {}", old.join(" ")));
        let mut places: Vec<String> = self.chains.iter().map(Chain::place).take(PLACES_MAX).collect();
        places.extend((self.chains.len() > PLACES_MAX).then(|| "…".to_owned()));
        let new = (!places.is_empty())
            .then(|| format!("{} nftables rules from {}", self.rules_count, places.join(", ")));
        let both: Vec<String> = new.into_iter().chain(old).collect();
        if both.is_empty() { "no rules".to_owned() } else { both.join(", ") }
    }

    /// Why rules cannot be written here: `nft` is not installed. An operator reviews them as its text.
    pub(crate) fn cannot_write(&self, host: &Host) -> Option<String> {
        let program = if self.is_only_old() { "iptables" } else { "nft" };
        host.lacks(program)
    }

    /// Changes that stop the tracking of the port's packets.
    pub(crate) fn untrack(&self, port: u16) -> Vec<Change> {
        if self.is_only_old() {
            return self.old_rules(
                "raw",
                [("PREROUTING", "dport"), ("OUTPUT", "sport")],
                port,
                "CT --notrack",
            );
        }
        let text = format!(
            "table inet {TABLE} {{\n\
             \tchain prerouting {{\n\t\ttype filter hook prerouting priority raw; policy accept;\n\
             \t\ttcp dport {port} notrack\n\t}}\n\n\
             \tchain output {{\n\t\ttype filter hook output priority raw; policy accept;\n\
             \t\ttcp sport {port} notrack\n\t}}\n}}\n"
        );
        vec![Change::text(NftTable { table: TABLE.to_owned() }, text)]
    }

    /// Changes that accept the port's packets at the first rule of every filter.
    pub(crate) fn accept(&self, port: u16) -> Vec<Change> {
        if self.is_only_old() {
            return self.old_rules("filter", [("INPUT", "dport"), ("OUTPUT", "sport")], port, "ACCEPT");
        }
        let filters = self.chains.iter().filter(|chain| chain.kind == "filter" && chain.is_used);
        filters
            .filter_map(|chain| {
                let side = match chain.hook {
                    "prerouting" | "input" => "dport",
                    "output" | "postrouting" => "sport",
                    _ => return None,
                };
                let (family, table) = (chain.family.to_owned(), chain.table.clone());
                let rule = NftRule { family, table, chain: chain.name.clone() };
                Some(Change::text(rule, format!("tcp {side} {port} accept comment \"{RULE_COMMENT}\"")))
            })
            .collect()
    }

    /// Rules of legacy iptables, in the tables of this name that are in use: merely listing a table creates it, and
    /// its cost stays until the next boot.
    fn old_rules(&self, table: &str, chains: [(&str, &str); 2], port: u16, target: &str) -> Vec<Change> {
        let tables = self.old_tables.iter().filter(|old| old.name == table);
        let rules = tables.flat_map(|old| chains.map(|(chain, side)| (old.v6, chain, side)));
        rules
            .map(|(v6, chain, side)| {
                let rule = format!("-p tcp --{side} {port} -j {target}");
                let (table, chain) = (table.to_owned(), chain.to_owned());
                Change::text(IptablesRule { v6, table, chain, rule: rule.clone() }, rule)
            })
            .collect()
    }

    fn is_only_old(&self) -> bool {
        self.chains.is_empty() && !self.old_tables.is_empty()
    }
}

impl Chain {
    /// Where packets pass it, such as `inet input 0`: lower numbers come first.
    fn place(&self) -> String {
        format!("{} {} {}", self.family, self.hook, self.priority)
    }
}

/// Removes changes that are already in effect.
pub(crate) fn missing(host: &Host, changes: Vec<Change>) -> Result<Vec<Change>, Unknown> {
    let mut missing = Vec::new();
    for change in changes {
        if change.setting.kind().read(host)? == Content::Absent {
            missing.push(change);
        }
    }
    Ok(missing)
}

fn old_tables(host: &Host, v6: bool) -> Vec<OldTable> {
    let path = if v6 { "/proc/net/ip6_tables_names" } else { "/proc/net/ip_tables_names" };
    let names = host.text(path).unwrap_or_default();
    names.lines().map(|name| OldTable { v6, name: name.to_owned() }).collect()
}

fn read_nftables(host: &Host) -> Result<Filters, Fault> {
    let ours = |table: &str| table == TABLE;
    let mut rules = nftables::rules(host)?;
    rules.retain(|rule| !ours(&rule.table));
    let holds = |chain: &nftables::NftChain, rule: &nftables::Rule| {
        (rule.family, &rule.table, &rule.chain) == (chain.family, &chain.table, &chain.name)
    };
    let mut chains = Vec::new();
    for chain in nftables::chains(host)?.into_iter().filter(|chain| !ours(&chain.table)) {
        let (Some(family), Some(base)) = (family(chain.family), &chain.base) else { continue };
        let Some(hook) = HOOKS.get(base.hook as usize) else { continue };
        chains.push(Chain {
            family,
            kind: base.kind.clone(),
            hook,
            priority: base.priority,
            is_used: base.drops || rules.iter().any(|rule| holds(&chain, rule)),
            table: chain.table,
            name: chain.name,
        });
    }
    Ok(Filters {
        chains,
        rules_count: rules.len(),
        asks_state: rules.iter().any(|rule| rule.asks_state),
        old_tables: Vec::new(),
    })
}

/// Families whose chains see an IP server's packets.
fn family(number: u8) -> Option<&'static str> {
    match number {
        nftables::FAMILY_INET => Some("inet"),
        nftables::FAMILY_IP => Some("ip"),
        nftables::FAMILY_IP6 => Some("ip6"),
        _ => None,
    }
}

/// Hooks of these families, by the kernel's numbers.
const HOOKS: &[&str] = &["prerouting", "input", "forward", "output", "postrouting", "ingress"];
