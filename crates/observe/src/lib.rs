//! Access logs and metrics: what is written and counted about each request.
//!
//! [`observed::Observers`] wraps the service of a worker. [`log`] writes lines when requests begin and end, [`metrics`] counts them on
//! the worker's own cache lines, and [`observed::Notes`] carries what the engine does not know: the site and the upstream.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod log;
pub mod metrics;
mod notes;
pub mod observed;
