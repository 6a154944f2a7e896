//! KDL text → a checked plan. A mistake is reported with its file, line and column, the line itself, and a guess of
//! what was meant.
//!
//! ```text
//! bytes ──> Source ──> kdl ──> read: each node against the Words ──> Plan, told in the file's order
//!             │                   └── a mistake ──┐
//!             └── line, column, the line itself ──┴──> Mistake
//! ```
//!
//! A mistake that only the whole plan shows is located by the [`Places`] that reading leaves.
//!
//! Files with blocks ([`read_tree`]) are checked against a [`Grammar`] in the same way, and become a [`Tree`].
//!
//! This crate does not know what a setting means: names come in [`Words`], values go out to a [`Plan`], which rejects
//! what it does not understand. So a file and the flags of a command mean the same. It must never know sockets or how
//! to run anything.
//!
//! ```
//! assert_eq!(flatout_config::closest("lsiten", &["listen", "log", "limit"]), Some("listen"));
//! assert_eq!(flatout_config::quoted("say \"hello\""), r#""say \"hello\"""#);
//! ```
#![forbid(unsafe_code)]

mod chunks;
mod closings;
mod format;
mod grammar;
mod guess;
mod habits;
mod mistake;
mod pieces;
mod places;
mod read;
mod source;
mod syntax;
mod tree;

pub use format::{formatted, quoted};
pub use grammar::{Grammar, Kind, Part, Scope, SiteWord, parts};
pub use guess::closest;
pub use mistake::Mistake;
pub use places::Places;
pub use read::{Plan, Takes, Word, Words, read};
pub use source::{Bounds, PLAN, SITE_FILE, Source};
pub use tree::{Node, Tree, Value, in_order, read_tree};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
