//! Conditions and values over facts, in the syntax of the [Common Expression Language](https://cel.dev): text → syntax →
//! checked and typed → evaluated.
//!
//! ```text
//! text ── token ──> syntax (Pratt parser, spans) ── check ──> Test, Text, Number, Address ── evaluate ──> bool, bytes
//!                                                    ↑ Names: the owner's facts and their types    ↑ Facts: their values
//! ```
//!
//! The facts belong to the owner of an expression: this crate knows neither requests nor responses.
//!
//! # Why not the crate `cel`
//! It was weighed first (0.15). It needs the ANTLR runtime, `nom`, `chrono` with all time zones, 40 crates in all. Its values are dynamic, and cloned
//! for each step. Mistakes in types and names appear when an expression runs, which for a server is during a request. 100 nested
//! parentheses overflow the stack of a debug build and end the process. Its regular expressions have no limit that we could set. So
//! the syntax is CEL's, which people know from Kubernetes, Envoy and Caddy, and the parser is ours: a few hundred lines without
//! dependencies.
//!
//! # Differences from CEL
//! - Everything is checked when the expression is read: types, names, constant conditions. An evaluation cannot fail.
//! - A missing entry of a table is an empty text; `has(header["x"])` and `"x" in header` tell whether it is there. `int(text)` of a
//!   text that is no number is 0.
//! - `$name` is a variable's text, also `$1` for a group of a regular expression.
//! - Texts are bytes. There are no maps, messages, macros, timestamps, `null` or unsigned numbers. Lists are lists of constants
//!   behind `in`.
//! - Whole numbers and fractions can be mixed. A divisor is a constant.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod check;
mod compiled;
mod date;
mod evaluate;
mod file;
mod functions;
mod guess;
mod network;
mod possible;
mod regex;
pub mod structure;
mod syntax;
#[cfg(test)]
mod tests;
mod token;
mod visit;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

pub use compiled::{Condition, Expression};
pub use file::FileTest;
pub use regex::Regex;

/// The longest expression.
pub const EXPRESSION_BYTES_MAX: usize = 8 << 10;

/// Nested parts of an expression. Each takes a frame of the stack when it is parsed, checked, evaluated and dropped.
pub const DEPTH_MAX: usize = 48;

/// Parts of an expression.
pub const TERMS_MAX: usize = 1024;

/// Memory that one compiled regular expression may take.
pub const REGEX_BYTES_MAX: usize = 1 << 20;

/// Regular expressions of one expression.
pub const REGEXES_MAX: usize = 32;

/// The longest text that an expression makes; a longer one is cut.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// The type of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// True or false.
    Bool,
    /// A whole number, up to 2^53.
    Int,
    /// A number with a fraction.
    Double,
    /// Bytes.
    Text,
    /// An IP address, or none.
    Address,
}

/// The names of an owner's facts.
pub trait Names {
    /// What the owner calls a fact.
    type Fact;

    /// The fact of this name: `method`, `tls.version`, or `$name` with its `$`.
    fn fact(&self, name: &str) -> Option<(Self::Fact, Type)>;

    /// The text in a table of facts: `header["accept"]` is the entry `accept` of `header`.
    fn entry(&self, table: &str, key: &str) -> Option<Self::Fact>;

    /// All names of facts and tables, to suggest one.
    fn all(&self) -> Vec<String>;
}

/// The values of facts. Each is called only for facts of its type.
pub trait Facts<F> {
    /// The text of a fact.
    fn text<'a>(&'a self, fact: &'a F) -> Cow<'a, [u8]>;

    /// The number of a fact.
    fn number(&self, fact: &F) -> f64;

    /// The address of a fact.
    fn address(&self, fact: &F) -> Option<IpAddr>;

    /// Whether a fact is true.
    fn is_true(&self, fact: &F) -> bool;

    /// Whether an entry of a table exists.
    fn has(&self, fact: &F) -> bool;

    /// The result of a file test. Conditions of one request often share it, and it is a system call: facts can remember it.
    fn file(&self, test: FileTest, path: &[u8]) -> bool {
        test.holds(path)
    }
}

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The bytes of the expression.
    pub at: Range<usize>,
    /// What is wrong, in one line.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at.start, self.reason)
    }
}

impl std::error::Error for Fault {}

/// A fault at these bytes.
fn fault<T>(at: &Range<usize>, reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at: at.clone(), reason: reason.into() })
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Bool => "a condition",
            Type::Int | Type::Double => "a number",
            Type::Text => "a text",
            Type::Address => "an address",
        })
    }
}
