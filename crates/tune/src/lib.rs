//! The machine's settings and their cost: inspects, advises, changes, keeps a journal, and undoes.
//!
//! ```text
//!  tunings/*   what there is: name, reason, risk, probe, advice, effect      (one file each, one shape)
//!     │ advice: a list of Change
//!     v
//!  session     lock ─> journal the old value (fsync) ─> write ─> read back   (and all of it backwards)
//!     │ Setting::read, Setting::write
//!     v
//!  settings/*  how a kind of thing is read and written: a file, an ethtool parameter, a qdisc, a rule
//!     │
//!     v
//!  netlink/*   what the kernel is asked in messages: ethtool, qdiscs, audit, nftables, NAPI
//!     │ Request, Message
//!     v
//!  host        the only door to files, commands and the kernel; a test or `--root` puts another machine behind it
//! ```
//!
//! A tuning never writes. It describes the wanted settings as data, so that applying, undoing, making persistent and
//! writing a script are each implemented once, for all of them.
//!
//! ```no_run
//! use flatout_tune::{ServerSelector, Host, Served, survey};
//!
//! let host = Host::live();
//! let served = Served::find(&host, &ServerSelector { port: Some(8080), pid: None, device: None })?;
//! for finding in survey(&host, &served) {
//!     println!("{}: {}", finding.about.name, finding.about.reason);
//! }
//! # Ok::<(), flatout_tune::Error>(())
//! ```
#![forbid(unsafe_code)]

mod boot;
mod card;
mod cgroup;
mod change;
mod counters;
mod cpus;
mod document;
mod error;
mod host;
mod journal;
mod namespaces;
mod netfilter;
mod netlink;
mod plan;
mod script;
pub mod sealed;
mod served;
mod server;
mod session;
mod settings;
mod system;
mod tree;
mod trust;
mod tuning;
mod tunings;

#[cfg(test)]
mod fake;

pub use boot::Boot;
pub use change::{Change, Content};
pub use document::Document;
pub use error::{Error, Unknown};
pub use host::Host;
pub use netlink::Protocol;
pub use plan::{Counts, Finding, Movement, Planned, counts, plan, survey, survey_since};
pub use script::{Part, quote, script};
pub use served::{Served, ServerSelector};
pub use session::{Begun, Fate, Session, Undone};
pub use settings::{Commands, Setting};
pub use system::{RunError, System};
pub use tuning::{About, Advice, Consent, Counter, Needs, Proof, Risk, Scope, Tuning};
pub use tunings::{Holder, TAPS, TUNINGS, find, holders, without_effect};

/// Default path of the journal: on disk, because it must survive a crash.
pub const STATE_DEFAULT: &str = "/var/lib/flatout/journal";
