//! Rules for connections: which certificates are presented, and what is required of clients. A server has one set of them, and
//! perhaps others for some names; which, its user decides for the name in each ClientHello.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::ServerConfig;
use rustls::server::Accepted;
use rustls::version::{TLS12, TLS13};

use crate::clients::{ClientCertificates, Lenient};
use crate::early::{EARLY_BYTES_MAX, SessionStore};
use crate::names::Names;
use crate::proofs::PROTOCOL;
use crate::server::{Identity, MinVersion, ServerPlan};
use crate::tickets::{Bound, Tickets};

/// Certificates and rules for some names, instead of those of the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// Its certificates; empty: those of the server. The first is for names that are in none.
    pub identities: Vec<Identity>,
    /// Handshakes are refused (`unrecognized_name`), and it has no certificates.
    pub refuses: bool,
    /// The oldest allowed TLS version.
    pub min_version: MinVersion,
    /// Client authentication, if any.
    pub clients: Option<ClientCertificates>,
    /// Distinguishes its connections from those of other realms ([`Channel::rules`](crate::Channel::rules)), also if all else is the same.
    pub realm: String,
    /// What is inside its connections is unknown: no protocol is selected (ALPN), and there is no early data.
    pub is_opaque: bool,
}

/// Decides which profile a connection gets, by its listener and the name that its client requests: 0 is the server's own, `n` is
/// [`ServerPlan::profiles`]`[n - 1]`.
#[derive(Clone, Default)]
pub struct Selector(Option<Arc<Select>>);

type Select = dyn Fn(u16, Option<&str>) -> usize + Send + Sync;

impl Selector {
    /// Selects with this function.
    pub fn new(select: impl Fn(u16, Option<&str>) -> usize + Send + Sync + 'static) -> Selector {
        Selector(Some(Arc::new(select)))
    }

    /// The profile for a ClientHello.
    pub(crate) fn select(&self, listener: u16, hello: &Accepted) -> usize {
        self.0.as_ref().map_or(0, |select| select(listener, hello.client_hello().server_name()))
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selector").finish_non_exhaustive()
    }
}

/// A profile, ready for connections.
#[derive(Clone)]
pub(crate) struct OpenProfile {
    pub(crate) config: Arc<ServerConfig>,
    /// The number of its rules: equal for profiles that require the same of clients.
    pub(crate) rules: u16,
    /// Who knows which certificates are verified, if others are accepted too.
    pub(crate) lenient: Option<Arc<Lenient>>,
    /// The sessions, if early data is enabled.
    pub(crate) sessions: Option<SessionStore>,
}

impl Profile {
    /// What it requires of clients, by the names of files: their contents may change while it is in use.
    fn requirements(&self) -> String {
        format!("{:?}", (self.refuses, self.min_version, &self.clients, &self.realm, self.is_opaque))
    }
}

/// The numbers of all rules so far, which stay the same when a plan is replaced.
#[derive(Default)]
pub(crate) struct Rules(Mutex<HashMap<String, u16>>);

impl Rules {
    fn number(&self, requirements: String) -> Result<u16, String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = u16::try_from(known.len());
        if let Some(number) = known.get(&requirements) {
            return Ok(*number);
        }
        let number = next.map_err(|_| {
            format!("more than {} different rules for TLS since the start; restart the server", u16::MAX)
        })?;
        known.insert(requirements, number);
        Ok(number)
    }
}

/// What all profiles of a server share.
pub(crate) struct Common<'a> {
    pub(crate) plan: &'a ServerPlan,
    pub(crate) tickets: &'a Tickets,
    pub(crate) rules: &'a Rules,
    /// Sessions of the plan that is replaced.
    pub(crate) former: &'a [SessionStore],
}

impl Common<'_> {
    /// Makes a profile with these certificates.
    pub(crate) fn open(&self, profile: &Profile, names: Names) -> Result<OpenProfile, String> {
        let versions = match profile.min_version {
            MinVersion::Tls12 => &[&TLS13, &TLS12][..],
            MinVersion::Tls13 => &[&TLS13][..],
        };
        let unusable = |error| format!("TLS cannot be configured: {error}");
        let builder = ServerConfig::builder_with_provider(crate::provider())
            .with_protocol_versions(versions)
            .map_err(unusable)?;
        let mut trust = Context::new(&SHA256);
        let mut lenient = None;
        let builder = match &profile.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let clients = clients.open(&mut trust)?;
                lenient = clients.lenient;
                builder.with_client_cert_verifier(clients.verifier)
            }
        };
        if profile.refuses {
            // Connections for other names are not for its site.
            trust.update(b"refuses");
        }
        if profile.min_version == MinVersion::Tls13 {
            trust.update(b"1.3");
        }
        if !profile.realm.is_empty() {
            trust.update(b"realm ");
            trust.update(profile.realm.as_bytes());
        }
        if profile.is_opaque {
            trust.update(b"opaque");
        }
        let mut config = builder.with_cert_resolver(Arc::new(names));
        if !profile.is_opaque {
            config.alpn_protocols = self.plan.protocols.clone();
        }
        if self.plan.proves_names {
            // Last: clients that support another protocol get that one.
            config.alpn_protocols.push(PROTOCOL.to_vec());
        }
        let trust = trust.finish().as_ref().to_vec();
        let rules = self.rules.number(profile.requirements())?;
        let sessions = (self.plan.early_data && !profile.is_opaque).then(|| {
            let known = self.former.iter().find(|former| former.trust == trust);
            known.cloned().unwrap_or_else(|| SessionStore::new(trust.clone()))
        });
        match &sessions {
            Some(sessions) => {
                config.session_storage = Arc::new(sessions.clone());
                config.max_early_data_size = EARLY_BYTES_MAX;
                // The response must not wait for the end of the handshake either.
                config.send_half_rtt_data = true;
            }
            None => config.ticketer = Arc::new(Bound { tickets: self.tickets.clone(), trust }),
        }
        Ok(OpenProfile { config: Arc::new(config), rules, lenient, sessions })
    }
}
