//! Serve HTTP as fast as one Linux machine can.
//!
//! ```no_run
//! use flatout::{App, Json, Path};
//!
//! #[derive(serde::Serialize)]
//! struct Hello { message: &'static str }
//!
//! fn main() -> flatout::Result<()> {
//!     App::new()
//!         .get("/json", || Json(Hello { message: "Hello, World!" }))
//!         .get("/quotes/{symbol}", async |Path(symbol): Path<String>| format!("{symbol}: 42"))
//!         .listen("0.0.0.0:8080")
//!         .run()
//! }
//! ```
//!
//! A handler is a function. Its arguments are made from the request ([`Extract`]): [`Path`], [`Query`], [`Json`],
//! [`Form`], [`Headers`], `String`, `Vec<u8>`, [`Streamed`], [`State`], [`Local`], [`Extension`], [`ClientIp`] and
//! others. Its return value is the response ([`Respond`]). A sync handler responds directly where the request was read;
//! while an async handler waits, its worker serves other connections. Errors are [`Problem`]s.
//!
//! A worker is one thread on one CPU: futures need not be `Send`, and a handler that blocks, blocks all connections of
//! its worker. [`test::Client`] calls an application without a socket.
#![forbid(unsafe_code)]

#[cfg(feature = "admin")]
mod admin;
mod app;
mod arguments;
mod blocking;
mod chain;
mod collect;
mod context;
mod error;
mod extract;
mod fallback;
#[cfg(feature = "files")]
mod files;
mod handler;
mod lifetime;
pub mod middleware;
mod mount;
#[cfg(feature = "openapi")]
mod openapi;
#[cfg(feature = "otlp")]
mod otlp;
mod problem;
#[cfg(feature = "push")]
pub mod push;
mod ready;
mod respond;
#[cfg(feature = "proxy")]
mod reverse_proxy;
mod route_check;
mod routes;
mod scope;
mod server;
pub mod test;
mod websocket;

// Compiles the programs in the README and in `docs/` as doctests. A package does not contain these pages.
#[cfg(all(doctest, feature = "compression", feature = "openapi"))]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../README.md")]
    struct CrateReadme;
    #[doc = include_str!("../../../docs/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../../../docs/coming-from-axum.md")]
    struct ComingFromAxum;
    #[doc = include_str!("../../../docs/coming-from-actix.md")]
    struct ComingFromActix;
}

#[cfg(feature = "admin")]
pub use admin::Admin;
pub use app::App;
pub use blocking::{Blocking, BlockingEndpoint, blocking};
pub use bytes::Bytes;
pub use chain::Answered;
pub use context::Context;
#[cfg(feature = "cookies")]
pub use cookie;
pub use error::{Error, Result, exit};
#[cfg(feature = "garde")]
pub use extract::Validated;
pub use extract::{
    BodyUse, ClientIp, EarlyHints, Extension, Extract, ExtractAsync, Form, Headers, Host, Json, Local, Path,
    Peer, Query, Shutdown, State, Streamed,
};
#[cfg(feature = "cookies")]
pub use extract::{Cookies, PrivateCookies, SignedCookies};
#[cfg(feature = "multipart")]
pub use extract::{Multipart, Part};
#[cfg(feature = "files")]
pub use files::Files;
pub use flatout_engine::MailboxFull;
pub use flatout_engine::websocket::{Message, Socket, SocketSender, WebSocketPlan};
pub use flatout_engine::{self as engine, BodyStream, Limits, Plan, Response};
#[cfg(feature = "admin")]
pub use flatout_observe::metrics;
pub use flatout_wire::condition::Decision;
pub use flatout_wire::{Head, Method, Status, Version};
pub use handler::{Endpoint, Handler, Shape};
pub use http::{Extensions, HeaderMap, Uri};
pub use mount::Body;
#[cfg(feature = "otlp")]
pub use otlp::Otlp;
pub use problem::Problem;
pub use respond::{
    Accept, Attachment, Choice, Conditional, Conditions, Event, Html, LastEventId, Redirect, Respond, Sse,
    Streaming, Validators,
};
#[cfg(feature = "proxy")]
pub use reverse_proxy::Proxy;
pub use route_check::RouteCheck;
pub use server::Server;
#[cfg(feature = "openapi")]
pub use utoipa;
pub use websocket::{UpgradeResponse, WebSocketUpgrade};
#[cfg(feature = "proxy")]
pub use {flatout_cache as cache, flatout_proxy as proxy};
