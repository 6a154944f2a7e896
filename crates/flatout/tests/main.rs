//! The integration tests, in one program: it is linked once. `cargo test --test it NAME::` runs those of one file.
//! Those with a program of their own are in `Cargo.toml`.
#![allow(clippy::duplicate_mod, reason = "each file names the support that it needs, as it would alone")]

#[cfg(feature = "admin")]
#[path = "admin.rs"]
mod admin;
#[path = "app.rs"]
mod app;
#[path = "client.rs"]
mod client;
#[cfg(feature = "cookies")]
#[path = "cookies.rs"]
mod cookies;
#[path = "extract.rs"]
mod extract;
#[cfg(feature = "files")]
#[path = "files.rs"]
mod files;
#[path = "layers.rs"]
mod layers;
#[path = "lifetime.rs"]
mod lifetime;
#[path = "messages.rs"]
mod messages;
#[path = "middleware.rs"]
mod middleware;
#[path = "mounted.rs"]
mod mounted;
#[cfg(feature = "multipart")]
#[path = "multipart.rs"]
mod multipart;
#[path = "nest.rs"]
mod nest;
#[cfg(feature = "openapi")]
#[path = "openapi.rs"]
mod openapi;
#[cfg(feature = "proxy")]
#[path = "proxy.rs"]
mod proxy;
#[cfg(feature = "push")]
#[path = "push.rs"]
mod push;
#[path = "refused.rs"]
mod refused;
#[path = "responses.rs"]
mod responses;
#[path = "secured.rs"]
mod secured;
#[path = "server.rs"]
mod server;
#[path = "slashes.rs"]
mod slashes;
#[path = "start_errors.rs"]
mod start_errors;
#[cfg(all(feature = "proxy", feature = "push", feature = "upgrade"))]
#[path = "surrounded.rs"]
mod surrounded;
#[cfg(feature = "tracing")]
#[path = "tracing.rs"]
mod tracing;
#[cfg(feature = "garde")]
#[path = "validated.rs"]
mod validated;
#[cfg(feature = "upgrade")]
#[path = "websocket.rs"]
mod websocket;
