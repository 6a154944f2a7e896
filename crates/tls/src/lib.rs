//! TLS over one connection of the lane, as server or client.
//!
//! A [`Channel`] has the interface of a plain socket. An [`Acceptor`] creates them for a server, whose certificates
//! are chosen by name and can change while it runs; a [`Connector`] creates them for a client.
#![forbid(unsafe_code)]
// The data path: input from a peer or a file must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod alternatives;
mod certificate;
mod channel;
mod client;
mod clients;
mod counts;
mod early;
mod fault;
mod hello;
mod key;
mod names;
mod profile;
mod proofs;
mod property;
mod server;
mod session;
mod sessions;
mod staple;
mod tickets;

use std::sync::{Arc, OnceLock};

pub use alternatives::SubjectName;
pub use certificate::Certificate;
pub use channel::{Channel, Shake};
pub use client::{ClientPlan, Connector, client_config, unverified_client_config};
pub use clients::{ClientCertificates, PeerCertificate};
pub use counts::{Counted, Counts};
pub use fault::Fault;
pub use hello::{HELLO_BYTES_MAX, Hello, HelloFault, read_hello};
pub use profile::{Profile, Selector};
pub use proofs::{Proof, Proofs};
pub use property::Property;
pub use server::{Acceptor, Awaited, Identity, MinVersion, Prepared, ServerPlan, server_config};
pub use staple::Staple;
pub use tickets::Tickets;

/// The algorithms of signatures.
fn signatures() -> rustls::crypto::WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// The algorithms.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    static PROVIDER: OnceLock<Arc<rustls::crypto::CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())).clone()
}
