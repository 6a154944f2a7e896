//! TLS over one connection of the lane, in both roles: what is received and sent is encrypted on the way.
//!
//! A [`Channel`] has the shape of a plain socket. An [`Acceptor`] makes them for a server, with certificates that are chosen by
//! name and changed while it runs; a [`Connector`] makes them for a client.
#![forbid(unsafe_code)]
// The data path: what a peer or a file brings must not end a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod certificate;
mod channel;
mod client;
mod counts;
mod early;
mod fault;
mod names;
mod proofs;
mod server;
mod session;
mod sessions;
mod staple;
mod tickets;

use std::sync::{Arc, OnceLock};

pub use certificate::Certificate;
pub use channel::{Channel, Shake};
pub use client::{ClientPlan, Connector, client_config};
pub use counts::{Counted, Counts};
pub use fault::Fault;
pub use proofs::{Proof, Proofs};
pub use server::{Acceptor, ClientCertificates, Identity, MinVersion, ServerPlan};
pub use staple::Staple;
pub use tickets::Tickets;

/// The algorithms.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    static PROVIDER: OnceLock<Arc<rustls::crypto::CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())).clone()
}
