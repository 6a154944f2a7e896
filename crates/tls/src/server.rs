//! The server's side: its certificates, and what it asks of clients.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ProducesTickets, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};

use crate::certificate::{Certificate, authorities};
use crate::channel::Channel;
use crate::counts::{Counted, Counts};
use crate::fault::Fault;
use crate::names::Names;
use crate::session::Session;

/// What a server is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlan {
    /// Its certificates; at least one. The first is for clients that ask for no name, or for another.
    pub identities: Vec<Identity>,
    /// The oldest version that clients may use.
    pub min_version: MinVersion,
    /// Whether clients have to show certificates.
    pub clients: Option<ClientCertificates>,
    /// The protocols that it speaks (ALPN), those that it likes best first.
    pub protocols: Vec<Vec<u8>>,
}

impl Default for ServerPlan {
    fn default() -> Self {
        ServerPlan {
            identities: Vec::new(),
            min_version: MinVersion::default(),
            clients: None,
            protocols: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The server's certificate, and behind it those of authorities in between.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The oldest version that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Certificates of the authorities that sign them (PEM).
    pub authorities: PathBuf,
    /// Whether clients without one are refused.
    pub required: bool,
}

/// Begins the server's side of connections. Clones are the same.
#[derive(Clone)]
pub struct Acceptor(Arc<Inner>);

struct Inner {
    live: ArcSwap<Live>,
    counts: Arc<Counts>,
}

/// What connections begin with now.
struct Live {
    config: Arc<ServerConfig>,
    certificates: Vec<Certificate>,
    plan: ServerPlan,
    /// Of each file, when it was written to and how long it is.
    stamps: Vec<Stamp>,
}

type Stamp = Option<(SystemTime, u64)>;

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with which file, and what to do.
    pub fn open(plan: ServerPlan) -> Result<Acceptor, String> {
        let live = Live::load(plan, None)?;
        Ok(Acceptor(Arc::new(Inner { live: ArcSwap::from_pointee(live), counts: Arc::default() })))
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// The configuration cannot be used; it was tried when it was opened.
    pub fn accept(&self, socket: OwnedFd) -> Result<Channel, Fault> {
        let session = Session::server(self.0.live.load().config.clone()).map_err(Fault::Protocol)?;
        Ok(Channel::new(socket, session, Some(self.0.counts.clone())))
    }

    /// Takes on another plan for the connections to come; those that there are go on. Tickets stay good, unless clients have to
    /// show other certificates than before.
    ///
    /// # Errors
    /// As [`Acceptor::open`]; then everything stays as it was.
    pub fn replace(&self, plan: ServerPlan) -> Result<(), String> {
        let before = self.0.live.load();
        let tickets = (before.plan.clients == plan.clients).then(|| before.config.ticketer.clone());
        self.0.live.store(Arc::new(Live::load(plan, tickets)?));
        Ok(())
    }

    /// Reads the files anew if one of them has changed. Returns whether that was so.
    ///
    /// # Errors
    /// As [`Acceptor::open`]; then everything stays as it was, and the same is tried again only after another change.
    pub fn follow(&self) -> Result<bool, String> {
        let before = self.0.live.load_full();
        let stamps = stamps(&before.plan);
        if stamps == before.stamps {
            return Ok(false);
        }
        let loaded = Live::load(before.plan.clone(), Some(before.config.ticketer.clone()));
        let live = loaded.as_ref().map(|_| ()).map_err(String::clone);
        let next = loaded.unwrap_or_else(|_| Live {
            config: before.config.clone(),
            certificates: before.certificates.clone(),
            plan: before.plan.clone(),
            stamps,
        });
        self.0.live.store(Arc::new(next));
        live.map(|()| true)
    }

    /// The certificates that are shown now.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.0.live.load().certificates.clone()
    }

    /// Handshakes so far.
    pub fn counted(&self) -> Counted {
        self.0.counts.now()
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("plan", &self.0.live.load().plan).finish()
    }
}

impl Live {
    fn load(plan: ServerPlan, tickets: Option<Arc<dyn ProducesTickets>>) -> Result<Live, String> {
        // Before they are read: what is written meanwhile is a change.
        let stamps = stamps(&plan);
        let load = |it: &Identity| Certificate::load(&it.certificate, &it.key);
        let certificates = plan.identities.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        if certificates.is_empty() {
            return Err("no certificate: need at least one, with its key".to_owned());
        }
        let versions = match plan.min_version {
            MinVersion::Tls12 => &[&TLS13, &TLS12][..],
            MinVersion::Tls13 => &[&TLS13][..],
        };
        let unusable = |error| format!("TLS cannot be configured: {error}");
        let builder = ServerConfig::builder_with_provider(crate::provider())
            .with_protocol_versions(versions)
            .map_err(unusable)?;
        let builder = match &plan.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let roots = Arc::new(authorities(&clients.authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, crate::provider());
                let verifier = if clients.required { verifier } else { verifier.allow_unauthenticated() };
                let verifier = verifier
                    .build()
                    .map_err(|error| format!("certificate {}: {error}", clients.authorities.display()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Names::new(&certificates)));
        config.alpn_protocols = plan.protocols.clone();
        config.ticketer = match tickets {
            Some(tickets) => tickets,
            None => Ticketer::new().map_err(unusable)?,
        };
        Ok(Live { config: Arc::new(config), certificates, plan, stamps })
    }
}

fn stamps(plan: &ServerPlan) -> Vec<Stamp> {
    let authorities = plan.clients.iter().map(|clients| &clients.authorities);
    let files = plan.identities.iter().flat_map(|it| [&it.certificate, &it.key]).chain(authorities);
    files
        .map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
        .collect()
}
