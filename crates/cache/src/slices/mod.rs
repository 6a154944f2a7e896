//! Ranges of large files, stored in slices: aligned pieces of the same size.
//!
//! ```text
//! request ── manifest: validator, length ──> body: one slice after the other ── store ──> client
//!                                                       └ missing: fill, one request for each slice
//! ```

mod body;
mod fill;
pub(crate) mod manifest;
mod request;
mod store;
