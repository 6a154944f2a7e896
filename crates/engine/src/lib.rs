//! The HTTP server: workers, connections, limits, and the [`Service`] that answers.
//!
//! A worker is one thread pinned to one CPU, with its own listeners, connections and buffers; workers share
//! nothing while they serve. Inside a worker a plain connection is an entry in the lane (see `ARCHITECTURE.md`).
//! This crate knows nothing of files, upstreams or configuration text.
#![forbid(unsafe_code)]
// The data path: what a client, a file or a plan brings must not end a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod body;
mod connection;
mod error;
mod incoming;
mod output;
mod plan;
mod request;
mod response;
mod say;
mod server;
mod service;
mod serving;
mod shared;
mod streaming;
mod tasks;
mod worker;

pub use body::{BodyFault, BodyStream};
pub use error::Error;
pub use plan::{Address, DESCRIPTORS_RESERVED, HEAD_BYTES_MAX_CEILING, Limits, Locality, Plan, SocketPlan};
pub use request::{Request, RequestBody};
pub use response::{Body, BoxBody, BoxError, FileRange, Part, Response, Taken, Takeover};
pub use say::say;
pub use server::{Figures, Handle, Server, start};
pub use service::{BodyPlan, Reply, Service, Worker};
