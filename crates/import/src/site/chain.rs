//! Inheritance in nginx: a block's own directives, otherwise those of the enclosing block.

use crate::nginx::Directive;

/// A block with its enclosing blocks, the innermost first.
#[derive(Clone)]
pub(super) struct Chain<'d> {
    levels: Vec<&'d [Directive]>,
    /// The directive with each block. Contents do not identify it: all empty ones have the same address.
    owners: Vec<Option<&'d Directive>>,
}

impl<'d> Chain<'d> {
    pub(super) fn of(block: &'d [Directive]) -> Chain<'d> {
        Chain { levels: vec![block], owners: vec![None] }
    }

    /// The block of a directive inside this one.
    pub(super) fn inside(&self, directive: &'d Directive) -> Chain<'d> {
        self.with(directive.inner(), Some(directive))
    }

    /// A block inside this one that is not a directive's.
    pub(super) fn within(&self, block: &'d [Directive]) -> Chain<'d> {
        self.with(block, None)
    }

    fn with(&self, block: &'d [Directive], owner: Option<&'d Directive>) -> Chain<'d> {
        let (mut levels, mut owners) = (vec![block], vec![owner]);
        levels.extend(&self.levels);
        owners.extend(&self.owners);
        Chain { levels, owners }
    }

    /// The blocks from this depth on.
    pub(super) fn from(&self, depth: usize) -> Chain<'d> {
        let levels = self.levels.get(depth..).unwrap_or_default().to_vec();
        Chain { levels, owners: self.owners.get(depth..).unwrap_or_default().to_vec() }
    }

    /// The enclosing block.
    pub(super) fn outer(&self) -> Chain<'d> {
        self.from(1)
    }

    /// The location whose block has this depth.
    pub(super) fn location_at(&self, depth: usize) -> Option<&'d Directive> {
        self.owners.get(depth).copied().flatten().filter(|owner| owner.name == "location")
    }

    /// All blocks, the innermost first.
    pub(super) fn levels(&self) -> &[&'d [Directive]] {
        &self.levels
    }

    /// The block that has this directive.
    pub(super) fn level_of(&self, directive: &Directive) -> Option<&'d [Directive]> {
        self.levels.iter().copied().find(|level| level.iter().any(|it| std::ptr::eq(it, directive)))
    }

    /// Whether the block at this depth is a server: it is inside `http`, which is inside the file.
    pub(super) fn is_server(&self, depth: usize) -> bool {
        depth + 3 == self.levels.len()
    }

    /// Whether the block is a location, whose route has no others around it in the site file.
    pub(super) fn is_location(&self) -> bool {
        self.levels.len() > 3
    }

    /// The blocks that become this route: the block itself, and for a location those around it up to the server. The
    /// innermost is first. Routes are beside each other, so that each needs what nginx inherits from these.
    pub(super) fn of_route(&self) -> &[&'d [Directive]] {
        let count = self.levels.len().saturating_sub(3).max(1);
        self.levels.get(..count).unwrap_or_default()
    }

    /// The directive of this name in the innermost of these blocks that has it.
    pub(super) fn find_in_route(&self, name: &str) -> Option<&'d Directive> {
        self.of_route().iter().find_map(|level| level.iter().find(|directive| directive.name == name))
    }

    /// The server's own block with its enclosing ones.
    pub(super) fn at_server(&self) -> Chain<'d> {
        self.from(self.levels.len().saturating_sub(3))
    }

    /// The directives of the server.
    pub(super) fn server(&self) -> &'d [Directive] {
        self.at_server().own()
    }

    /// The directives of the block itself.
    pub(super) fn own(&self) -> &'d [Directive] {
        self.levels.first().copied().unwrap_or_default()
    }

    /// The first directive of this name in the block itself.
    pub(super) fn find_own(&self, name: &str) -> Option<&'d Directive> {
        self.own().iter().find(|directive| directive.name == name)
    }

    /// The directives of the block up to its first `break` or `return`, which is the last one: of those behind it, nginx runs no
    /// `rewrite`, `if`, `set`, `break` and `return`.
    pub(super) fn until_end(&self) -> &'d [Directive] {
        let own = self.own();
        let is_end = |directive: &Directive| ["break", "return"].contains(&directive.name.as_str());
        let end = own.iter().position(is_end).map_or(own.len(), |at| at + 1);
        own.get(..end).unwrap_or_default()
    }

    /// The directive of this name that applies.
    pub(super) fn find(&self, name: &str) -> Option<&'d Directive> {
        let named = |level: &&'d [Directive]| level.iter().rev().find(|directive| directive.name == name);
        self.levels.iter().find_map(named)
    }

    /// All of this name, of all blocks.
    pub(super) fn find_all(&self, name: &str) -> Vec<&'d Directive> {
        self.levels.iter().flat_map(|level| level.iter()).filter(|directive| directive.name == name).collect()
    }

    /// Its first word; empty if there is none.
    pub(super) fn word(&self, name: &str) -> &'d str {
        self.find(name).map_or("", |directive| directive.word(0))
    }

    /// Whether it is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.word(name) == "on"
    }

    /// Lists of these names: nginx uses those of the innermost block that has any of them.
    pub(super) fn list(&self, names: &[&str]) -> Vec<&'d Directive> {
        let of = |level: &&'d [Directive]| -> Vec<&'d Directive> {
            level.iter().filter(|directive| names.contains(&directive.name.as_str())).collect()
        };
        self.levels.iter().map(of).find(|list| !list.is_empty()).unwrap_or_default()
    }
}

/// Whether a block, or a nested one, has a directive of these names, not counting `own` itself.
pub(super) fn has_below(own: &[Directive], names: &[&str]) -> bool {
    own.iter().filter(|directive| ["server", "location"].contains(&directive.name.as_str())).any(|inner| {
        inner.inner().iter().any(|directive| names.contains(&directive.name.as_str()))
            || has_below(inner.inner(), names)
    })
}
