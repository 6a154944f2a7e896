//! Converts the configuration of another server into a site file, with a comment for everything that could not be
//! converted, and compares the responses of both servers.
//!
//! ```text
//! nginx.conf ── nginx ──> directives ── site ──> a site file, with comments and a count
//! ```
//!
//! It must never know how a site file is read or served, the command line, or how anything is printed.
//!
//! ```no_run
//! use std::path::Path;
//! use flatout_import::{nginx, site_file};
//!
//! let imported = site_file(&nginx::read(Path::new("/etc/nginx/nginx.conf"))?);
//! println!("{}", imported.text);
//! eprintln!("{} directives converted, {} left as comments", imported.carried, imported.left);
//! # Ok::<(), String>(())
//! ```
#![forbid(unsafe_code)]

pub mod compare;
pub mod nginx;
mod site;

pub use site::{Imported, site_file};
