//! One worker's talk with the kernel: sockets, readiness, clocks, CPU placement, the process around them, and samples
//! of what runs.
//!
//! All `unsafe` of the project is in this crate, one SAFETY sentence each. It knows nothing of HTTP: bytes go in and
//! out. The calls of the hot path are few and thin ([`poll`], [`socket`]); everything else runs once at start.

pub mod clock;
pub mod cpu;
pub mod listener;
pub mod perf;
pub mod poll;
pub mod process;
pub mod slab;
pub mod socket;
