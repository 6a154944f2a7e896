//! The server's side: its certificates, and client authentication.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{Context, SHA256};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};

use crate::certificate::{Certificate, authorities, chain};
use crate::channel::Channel;
use crate::counts::{Counted, Counts};
use crate::early::{EARLY_BYTES_MAX, SessionStore};
use crate::fault::Fault;
use crate::names::Names;
use crate::proofs::{PROTOCOL, Proofs};
use crate::session::Session;
use crate::staple::{self, Staple};
use crate::tickets::{Bound, Tickets};

/// The settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlan {
    /// Its certificates. The first is for clients that request no name, or an unknown one.
    pub identities: Vec<Identity>,
    /// Certificates obtained and renewed separately.
    pub awaited: Vec<Awaited>,
    /// Whether the server presents its [proofs](Acceptor::proofs) to CAs that validate a name.
    pub proves_names: bool,
    /// The oldest allowed TLS version.
    pub min_version: MinVersion,
    /// Client authentication, if any.
    pub clients: Option<ClientCertificates>,
    /// The supported protocols (ALPN), in order of preference.
    pub protocols: Vec<Vec<u8>>,
    /// Whether returning clients may send early data (0-RTT, TLS 1.3), before the handshake is complete. An
    /// attacker could replay it: see [`Channel::is_early`]. Sessions are stored in memory and each is valid
    /// for one connection; the keys of [`Tickets`] are not used.
    pub early_data: bool,
}

impl Default for ServerPlan {
    fn default() -> Self {
        ServerPlan {
            identities: Vec::new(),
            awaited: Vec::new(),
            proves_names: false,
            min_version: MinVersion::default(),
            clients: None,
            protocols: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            early_data: false,
        }
    }
}

/// A certificate that may not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// The file for both the certificate and its key (PEM).
    pub path: PathBuf,
    /// The names it is for, perhaps `*.example.org`. Until it exists, handshakes for these names are refused, unless
    /// another certificate is valid for them.
    pub names: Vec<String>,
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The oldest allowed version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

/// Client authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Certificates of the CAs that issue them (PEM).
    pub authorities: PathBuf,
    /// Whether clients without one are refused.
    pub required: bool,
}

/// Starts the server's side of connections. Clones share it.
#[derive(Clone)]
pub struct Acceptor(Arc<Inner>);

struct Inner {
    live: ArcSwap<Live>,
    counts: Arc<Counts>,
    tickets: Tickets,
    proofs: Proofs,
}

/// Another plan of an [`Acceptor`], whose files were read. Dropping it changes nothing.
#[must_use]
pub struct Prepared(Arc<Live>);

/// The current configuration for new connections.
struct Live {
    config: Arc<ServerConfig>,
    certificates: Vec<Certificate>,
    plan: ServerPlan,
    /// The sessions, if early data is enabled.
    kept: Option<SessionStore>,
    /// The modification time and size of each file.
    stamps: Vec<Stamp>,
}

type Stamp = Option<(SystemTime, u64)>;

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file has which problem, and what to do.
    pub fn open(plan: ServerPlan) -> Result<Acceptor, String> {
        let (tickets, proofs) = (Tickets::new()?, Proofs::default());
        let live = ArcSwap::from_pointee(Live::load(plan, &tickets, &proofs, None)?);
        Ok(Acceptor(Arc::new(Inner { live, counts: Arc::default(), tickets, proofs })))
    }

    /// Starts a connection.
    ///
    /// # Errors
    /// The configuration is not usable; it was checked when it was opened.
    pub fn accept(&self, socket: OwnedFd) -> Result<Channel, Fault> {
        let session = Session::server(self.0.live.load().config.clone()).map_err(Fault::Protocol)?;
        Ok(Channel::new(socket, session, Some(self.0.counts.clone())))
    }

    /// Reads the files of another plan; not if it is the present one and no file has changed: the process may no longer
    /// have the right to read them.
    ///
    /// # Errors
    /// As [`Acceptor::open`]; then nothing changes.
    pub fn prepare(&self, plan: ServerPlan) -> Result<Prepared, String> {
        let live = self.0.live.load_full();
        if live.plan == plan && live.stamps == stamps(&plan) {
            return Ok(Prepared(live));
        }
        Live::load(plan, &self.0.tickets, &self.0.proofs, live.kept.clone())
            .map(|live| Prepared(Arc::new(live)))
    }

    /// Uses a prepared plan for new connections; existing ones continue. Tickets stay valid, unless the requirements
    /// for client certificates change.
    pub fn replace(&self, prepared: Prepared) {
        self.0.live.store(prepared.0);
    }

    /// Reads the files again if one of them has changed, or an OCSP response has expired. Returns whether a file had
    /// changed.
    ///
    /// # Errors
    /// See [`Acceptor::open`]; then nothing changes, and it tries again only after another change.
    pub fn follow(&self) -> Result<bool, String> {
        let before = self.0.live.load_full();
        let stamps = stamps(&before.plan);
        let has_changed = stamps != before.stamps;
        if !has_changed && !before.has_expired_staple(SystemTime::now()) {
            return Ok(false);
        }
        let loaded = Live::load(before.plan.clone(), &self.0.tickets, &self.0.proofs, before.kept.clone());
        let live = loaded.as_ref().map(|_| ()).map_err(String::clone);
        let next = loaded.unwrap_or_else(|_| Live {
            config: before.config.clone(),
            certificates: before.certificates.clone(),
            plan: before.plan.clone(),
            kept: before.kept.clone(),
            stamps,
        });
        // A new plan that was set meanwhile stays.
        self.0.live.compare_and_swap(&before, Arc::new(next));
        if has_changed { live.map(|()| true) } else { Ok(false) }
    }

    /// The current certificates.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.0.live.load().certificates.clone()
    }

    /// Its ticket keys.
    pub fn tickets(&self) -> &Tickets {
        &self.0.tickets
    }

    /// The proofs for CAs that validate a name, if its plan allows them.
    pub fn proofs(&self) -> &Proofs {
        &self.0.proofs
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
    fn load(
        plan: ServerPlan,
        tickets: &Tickets,
        proofs: &Proofs,
        kept: Option<SessionStore>,
    ) -> Result<Live, String> {
        // Taken before the files are read, so that a write meanwhile is detected as a change.
        let stamps = stamps(&plan);
        let load = |it: &Identity| Certificate::load(&it.certificate, &it.key);
        let mut certificates = plan.identities.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let (there, missing): (Vec<&Awaited>, Vec<&Awaited>) =
            plan.awaited.iter().partition(|awaited| awaited.path.exists());
        for Awaited { path, .. } in there {
            certificates.push(Certificate::load(path, path)?);
        }
        if certificates.is_empty() && plan.awaited.is_empty() {
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
        let mut trust = Context::new(&SHA256);
        let builder = match &plan.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                for certificate in chain(&clients.authorities)? {
                    trust.update(&certificate);
                }
                trust.update(&[u8::from(clients.required)]);
                let roots = Arc::new(authorities(&clients.authorities)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, crate::provider());
                let verifier = if clients.required { verifier } else { verifier.allow_unauthenticated() };
                let verifier = verifier
                    .build()
                    .map_err(|error| format!("certificate {}: {error}", clients.authorities.display()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let names =
            Names::new(&certificates, missing.iter().flat_map(|awaited| &awaited.names), proofs.clone());
        let mut config = builder.with_cert_resolver(Arc::new(names));
        config.alpn_protocols = plan.protocols.clone();
        if plan.proves_names {
            // Last: clients that support another protocol get that one.
            config.alpn_protocols.push(PROTOCOL.to_vec());
        }
        let trust = trust.finish().as_ref().to_vec();
        let kept = plan.early_data.then(|| match kept {
            Some(kept) if kept.trust == trust => kept,
            _ => SessionStore::new(trust.clone()),
        });
        match &kept {
            Some(kept) => {
                config.session_storage = Arc::new(kept.clone());
                config.max_early_data_size = EARLY_BYTES_MAX;
                // The response must not wait for the end of the handshake either.
                config.send_half_rtt_data = true;
            }
            None => config.ticketer = Arc::new(Bound { tickets: tickets.clone(), trust }),
        }
        Ok(Live { config: Arc::new(config), certificates, plan, kept, stamps })
    }

    fn has_expired_staple(&self, now: SystemTime) -> bool {
        let has_expired = |it: &Certificate| matches!(it.staple, Staple::Until(Some(until)) if until <= now);
        self.certificates.iter().any(has_expired)
    }
}

fn stamps(plan: &ServerPlan) -> Vec<Stamp> {
    let authorities = plan.clients.iter().map(|clients| &clients.authorities);
    let own = plan.identities.iter().flat_map(|it| [&it.certificate, &it.key]);
    let files = own.chain(plan.awaited.iter().map(|it| &it.path)).chain(authorities).cloned();
    // Not for awaited certificates: they do not require stapling.
    let staples = plan.identities.iter().map(|it| staple::path(&it.certificate));
    files
        .chain(staples)
        .map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
        .collect()
}
