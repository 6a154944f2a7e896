//! Kubernetes objects in, the plan of a server out: Gateway API and Ingress.
//!
//! ```text
//! folder, API server ──> Objects ── translate ──> Translation ──┬── other servers only: the live upstreams of the server
//!                                                               ├── anything else: a reload
//!                                                               └── statuses ──> API server
//! ```
//!
//! The translation is served by the process that made it, or it travels as data:
//!
//! ```text
//! controller: Translation ── PlanData ── publish ──> TLS ──> follow ── PlanData ──> Translation: data plane ──> disk
//! ```
//!
//! The data path does not know where its plan comes from.
#![forbid(unsafe_code)]
// Objects are written by many hands: nothing in them may end the process.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod alias;
mod apply;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod condition;
mod convert;
mod data;
mod faults;
mod figures;
pub mod folder;
pub mod kinds;
mod leader;
pub mod objects;
mod run;
mod store;
mod stream;
pub mod translate;
pub mod yaml;

pub use apply::BasePlan;
pub use condition::{Condition, StatusUpdate};
pub use convert::{Converted, IngressRequest, convert, ingress_requests, yaml_documents};
pub use data::{DataPlaneSettings, FORMAT, PlanData};
pub use faults::log_faults;
pub use leader::{Leader, LeaderTerm, NotLeading};
pub use objects::{Insertion, Kind, Objects};
pub use run::{StatusWriter, serve};
pub use store::Store;
pub use stream::credentials::{ControllerCredentials, DataPlaneCredentials};
pub use stream::follow::{DataPlane, follow_controller};
pub use stream::plan_server::PlanListener;
pub use stream::publish::publish;
pub use translate::{CONTROLLER_NAME, Settings, Translation, translate};
