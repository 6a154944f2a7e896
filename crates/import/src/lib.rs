//! Brings a site over from another server: its configuration as a site file, with a comment where something does not come
//! along, and the question whether both answer the same.
//!
//! ```text
//! nginx.conf ── nginx ──> directives ── site ──> a site file, with comments and a count
//! ```
//!
//! It must never know how a site file is read or served, the command line, or how anything is printed.
#![forbid(unsafe_code)]

pub mod compare;
pub mod nginx;
mod site;

pub use site::{Imported, site_file};
