//! Kubernetes objects in, the plan of a server out: Gateway API and Ingress.
//!
//! ```text
//! folder, API server ──> Objects ── translate ──> Translation ──┬── other servers only: the live upstreams of the server
//!                                                               ├── anything else: a reload
//!                                                               └── statuses ──> API server
//! ```
//!
//! The data path does not know where its plan comes from.
#![forbid(unsafe_code)]
// Objects are written by many hands: nothing in them may end the process.
#![warn(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "cluster")]
pub mod cluster;
pub mod condition;
mod convert;
mod faults;
pub mod folder;
pub mod kinds;
pub mod objects;
mod run;
mod store;
pub mod translate;
pub mod yaml;

pub use condition::{Condition, StatusUpdate};
pub use convert::{Converted, convert, yaml_documents};
pub use faults::log_faults;
pub use objects::{Insertion, Kind, Objects};
pub use run::{BasePlan, StatusWriter, serve};
pub use store::Store;
pub use translate::{CONTROLLER_NAME, Settings, Translation, translate};
