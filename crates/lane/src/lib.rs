//! Access to the kernel for one worker: sockets, readiness, clocks, CPU placement, the process, and stack samples.
//!
//! All `unsafe` of the project is in this crate, one SAFETY sentence each. It does not know HTTP: bytes go in and
//! out. The calls of the hot path are few and thin ([`poll`], [`socket`]); everything else runs once at start.
//!
//! ```
//! use flatout_lane::slab::Slab;
//!
//! let mut connections = Slab::new();
//! let key = connections.insert("a connection");
//! assert_eq!(connections.remove(key), Some("a connection"));
//! // A key of what is gone finds nothing, whatever has its place now.
//! connections.insert("another");
//! assert_eq!(connections.get_mut(key), None);
//! ```

// The data path: what a client, a file or a plan brings must not end a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod child;
pub mod clock;
pub mod connect;
pub mod cpu;
pub mod descriptors;
pub mod file;
#[cfg(feature = "simulation")]
pub mod jobs;
pub mod limit;
pub mod listener;
pub mod names;
pub mod namespace;
pub mod perf;
pub mod pipe;
pub mod poll;
pub mod process;
pub mod slab;
pub mod socket;
pub mod softirq;
pub mod tap;
