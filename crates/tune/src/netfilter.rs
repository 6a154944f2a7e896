//! What there is to know of packet filters: which chains a packet meets, and how one port is let past them.

use serde_json::Value;

use crate::change::{Change, Content};
use crate::error::Unknown;
use crate::host::Host;
use crate::settings::{IptablesRule, NftRule, NftTable, RULE_COMMENT};

/// A table of ours, in which the served port is not tracked.
pub(crate) const TABLE: &str = "flatout_notrack";

/// All that packets meet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    /// nftables' base chains, but ours.
    pub(crate) chains: Vec<Chain>,
    /// Rules in all of nftables' tables, but ours.
    pub(crate) rules_count: usize,
    /// Whether a rule asks for the state of a connection.
    pub(crate) asks_state: bool,
    /// Tables of the older iptables that are in use.
    pub(crate) old_tables: Vec<OldTable>,
}

/// A table of the older iptables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldTable {
    pub(crate) v6: bool,
    pub(crate) name: String,
}

/// A chain that packets come to by themselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) family: String,
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) hook: String,
    /// Whether it holds a rule, or drops what no rule takes.
    pub(crate) is_used: bool,
}

impl Filters {
    /// Reads both kinds of filters. Where neither can be seen, it is not known whether there are any.
    pub(crate) fn read(host: &Host) -> Result<Filters, Unknown> {
        let old_tables = [old_tables(host, false), old_tables(host, true)].concat();
        match host.run("nft", &["-j", "list", "ruleset"]) {
            Ok(text) => Ok(Filters { old_tables, ..parse(&text)? }),
            Err(_) if !old_tables.is_empty() => Ok(Filters { old_tables, ..Filters::default() }),
            Err(unknown) => Err(unknown),
        }
    }

    /// Whether packets meet any rule.
    pub(crate) fn is_any(&self) -> bool {
        !self.old_tables.is_empty() || self.chains.iter().any(|chain| chain.is_used)
    }

    /// Whether addresses are translated: such packets must be tracked.
    pub(crate) fn translates(&self) -> bool {
        self.old_tables.iter().any(|table| table.name == "nat")
            || self.chains.iter().any(|chain| chain.kind == "nat" && chain.is_used)
    }

    /// In a line.
    pub(crate) fn line(&self) -> String {
        let old: Vec<&str> = self.old_tables.iter().map(|table| table.name.as_str()).collect();
        match (self.chains.len(), old.join(" ")) {
            (0, old) if old.is_empty() => "no rules".to_owned(),
            (0, old) => format!("iptables {old}"),
            (chains, old) if old.is_empty() => {
                format!("{} nftables rules, {chains} base chains", self.rules_count)
            }
            (_, old) => format!("{} nftables rules, iptables {old}", self.rules_count),
        }
    }

    /// What keeps the port's packets from being tracked.
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

    /// What lets the port's packets through every filter at its first rule.
    pub(crate) fn accept(&self, port: u16) -> Vec<Change> {
        if self.is_only_old() {
            return self.old_rules("filter", [("INPUT", "dport"), ("OUTPUT", "sport")], port, "ACCEPT");
        }
        let filters = self.chains.iter().filter(|chain| chain.kind == "filter" && chain.is_used);
        filters
            .filter_map(|chain| {
                let side = match chain.hook.as_str() {
                    "prerouting" | "input" => "dport",
                    "output" | "postrouting" => "sport",
                    _ => return None,
                };
                let (family, table) = (chain.family.clone(), chain.table.clone());
                let rule = NftRule { family, table, chain: chain.name.clone() };
                Some(Change::text(rule, format!("tcp {side} {port} accept comment \"{RULE_COMMENT}\"")))
            })
            .collect()
    }

    /// Rules of the older iptables, in the tables of this name that are in use: one that is only looked into is there,
    /// and costs, until the next boot.
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

/// Leaves out what is so already.
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

fn parse(text: &str) -> Result<Filters, Unknown> {
    let answer: Value = serde_json::from_str(text)
        .map_err(|error| Unknown(format!("`nft -j` answers what is no JSON: {error}")))?;
    let entries = answer["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let word = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let rules: Vec<&Value> = entries
        .iter()
        .map(|entry| &entry["rule"])
        .filter(|rule| rule.is_object() && rule["table"] != TABLE)
        .collect();
    let chains = entries.iter().map(|entry| &entry["chain"]).filter(|chain| {
        let meets_ip = matches!(chain["family"].as_str(), Some("ip" | "ip6" | "inet"));
        chain["hook"].is_string() && meets_ip && chain["table"] != TABLE
    });
    let holds = |chain: &Value, rule: &Value| {
        rule["family"] == chain["family"] && rule["table"] == chain["table"] && rule["chain"] == chain["name"]
    };
    Ok(Filters {
        chains: chains
            .map(|chain| Chain {
                family: word(chain, "family"),
                table: word(chain, "table"),
                name: word(chain, "name"),
                kind: word(chain, "type"),
                hook: word(chain, "hook"),
                is_used: chain["policy"] == "drop" || rules.iter().any(|rule| holds(chain, rule)),
            })
            .collect(),
        rules_count: rules.len(),
        // `ct state` and the older `-m state` both show as a key named ct, or as an extension of xtables.
        asks_state: rules.iter().any(|rule| {
            let text = rule["expr"].to_string();
            text.contains("\"ct\"") || text.contains("\"xt\"")
        }),
        old_tables: Vec::new(),
    })
}
