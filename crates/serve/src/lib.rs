//! What a server can respond with, one module each.
//!
//! Every module has the same shape: a plain `Plan` of settings, a type that `open`s it and owns its control-plane
//! thread, and a `service` for each worker. The modules know the engine and HTTP semantics; they do not know where
//! their plans come from (flags, a config file, a test).
//!
//! ```no_run
//! use flatout_serve::files::{Plan, Site};
//!
//! let site = Site::open(Plan { root: "./public".into(), ..Plan::default() })?;
//! let plan = flatout_engine::Plan { listen: vec!["127.0.0.1:8080".parse()?], ..Default::default() };
//! flatout_engine::start(plan, move |_| site.service())?.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod admin;
pub mod bus;
pub mod cache;
pub mod compress;
pub mod files;
pub mod live;
pub mod log;
pub mod metrics;
mod notes;
pub mod observed;
pub mod proxy;
pub mod push;
pub mod secure;
pub mod site;
pub mod upgrade;
pub mod upstreams;
