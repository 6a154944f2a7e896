//! A chromium process, and the conversation with it.
//!
//! ```text
//! process: chromium in an empty network namespace ── two pipes ── devtools: commands, and events by session
//!     └── memory: kills the process of a page that grows too large
//! ```

mod devtools;
mod group;
mod memory;
mod process;

pub(crate) use devtools::{Devtools, DevtoolsEvent, DevtoolsFault, text};
pub(crate) use process::{Browser, BrowserPlan};
