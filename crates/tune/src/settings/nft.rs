//! nftables: our own table, or our rule in an existing chain. Other rules are never changed, so undoing means
//! removing ours.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;

/// Marks our rule in an existing chain.
pub(crate) const RULE_COMMENT: &str = "flatout tune";

/// A whole table in the family `inet`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NftTable {
    /// Its name.
    pub table: String,
}

/// A rule at the head of a chain, identified by its comment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NftRule {
    /// The family, such as `inet`.
    pub family: String,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

impl Kind for NftTable {
    fn name(&self) -> String {
        format!("nftables table inet {}", self.table)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let line = format!("table inet {}", self.table);
        if !host.run("nft", &["list", "tables"])?.lines().any(|table| table.trim() == line) {
            return Ok(Content::Absent);
        }
        host.run("nft", &["-s", "list", "table", "inet", &self.table]).map(Content::Text)
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        Ok(vec![match to {
            // In one transaction: add it so that it exists, delete it so that it is empty, then fill it.
            Content::Text(text) => Step::Run {
                program: "nft",
                arguments: vec!["-f".to_owned(), "-".to_owned()],
                input: format!("table inet {0}\ndelete table inet {0}\n{text}", self.table),
            },
            _ => Step::command("nft", &["delete", "table", "inet", &self.table]),
        }])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }

    /// Nobody else uses this table name; the output of `nft` differs between versions.
    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        matches!((now, wanted), (Content::Text(_), Content::Text(_))) || now == wanted
    }
}

impl Kind for NftRule {
    fn name(&self) -> String {
        format!("nftables chain {} {} {}", self.family, self.table, self.chain)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        let chain = host.run("nft", &["-s", "list", "chain", &self.family, &self.table, &self.chain])?;
        let ours = chain.lines().find(|line| line.contains(&format!("comment \"{RULE_COMMENT}\"")));
        Ok(ours.map_or(Content::Absent, |line| Content::Text(line.trim().to_owned())))
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(rule) = to else { return Ok(vec![self.removal()]) };
        let input = format!("insert rule {} {} {} {rule}\n", self.family, self.table, self.chain);
        Ok(vec![Step::Run { program: "nft", arguments: vec!["-f".to_owned(), "-".to_owned()], input }])
    }

    fn lasting(&self, to: &Content) -> Lasting {
        Lasting::by_unit(self.steps(to))
    }

    /// Nobody else uses this comment; the output of `nft` differs between versions.
    fn holds(&self, now: &Content, wanted: &Content) -> bool {
        matches!((now, wanted), (Content::Text(_), Content::Text(_))) || now == wanted
    }

    fn gone(&self, host: &Host) -> Option<String> {
        let there = host.agrees("nft", &["list", "chain", &self.family, &self.table, &self.chain]);
        matches!(there, Ok(false)).then(|| format!("{} no longer exists", self.name()))
    }
}

impl NftRule {
    /// A rule is removed by its handle, which only a listing shows; the names are arguments, never part of the
    /// program.
    fn removal(&self) -> Step {
        let program = format!(
            "nft -a list chain \"$1\" \"$2\" \"$3\" | sed -n 's/.*comment \"{RULE_COMMENT}\".*# handle //p' | \
             while read -r handle; do nft delete rule \"$1\" \"$2\" \"$3\" handle \"$handle\" || exit 1; done"
        );
        Step::command("sh", &["-c", &program, "nft", &self.family, &self.table, &self.chain])
    }
}
