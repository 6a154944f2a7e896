//! What a shared cache may do with a response (RFC 9111, with RFC 9213's targeted fields and RFC 5861's stale responses).
//!
//! ```text
//! response head ── store() ──> Policy: lifetime, age, what it allows ──┐
//! request head ─── RequestDirectives ───────────────────────────────────────────────┴─ Policy::judge(now) ──> Verdict
//! ```
//!
//! Times are arguments: milliseconds since 1970. A directive that restricts reuse counts even if it is malformed; one
//! that permits it counts only if it is well-formed.

mod age;
mod control;
mod keep;
mod reuse;
mod targeted;
mod update;
mod vary;

pub use age::{current_age, initial_age};
pub use control::{Argument, Control, Directive, RequestDirectives, directives};
pub use keep::{Exchange, Ignored, Reason, Rules, StorageDecision, is_never_stored, store};
pub use reuse::{Policy, Verdict};
pub use targeted::targeted;
pub use update::{is_kept_on_update, is_stored, withheld_by};
pub use vary::{is_any, names as vary_names, write_selected};

/// The largest number of seconds in a directive; larger ones count as this (RFC 9111 section 1.2.2).
pub const SECONDS_MAX: u32 = 1 << 31;
