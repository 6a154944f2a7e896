//! The server's side: its certificates, and client authentication.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::server::Accepted;

use crate::certificate::Certificate;
use crate::channel::Channel;
use crate::clients::ClientCertificates;
use crate::counts::{Counted, Counts};
use crate::early::SessionStore;
use crate::fault::Fault;
use crate::names::Names;
use crate::profile::{Common, OpenProfile, Profile, Rules, Selector};
use crate::proofs::Proofs;
use crate::session::Session;
use crate::staple::{self, Staple};
use crate::tickets::Tickets;

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
    /// Whether the name that a client asks for is known afterwards ([`Channel::server_name`]).
    pub keeps_names: bool,
    /// Other certificates and rules for some names; which, a [`Selector`] decides.
    pub profiles: Vec<Profile>,
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
            keeps_names: false,
            profiles: Vec::new(),
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// A file with passwords, one a line, if the key is encrypted (PKCS #8).
    pub passwords: Option<PathBuf>,
}

impl Identity {
    /// With a key that is not encrypted.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Identity {
        Identity { certificate: certificate.into(), key: key.into(), passwords: None }
    }
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

/// The configuration for another crate's server with this certificate, without ALPN and client certificates. It is read anew each time.
///
/// # Errors
/// Which file has which problem, and what to do.
pub fn server_config(identity: &Identity) -> Result<Arc<rustls::ServerConfig>, String> {
    let certificate = Certificate::of(identity)?;
    let shown = Arc::new(rustls::sign::SingleCertAndKey::from(certificate.certified));
    let builder = rustls::ServerConfig::builder_with_provider(crate::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| format!("TLS cannot be configured: {error}"))?;
    Ok(Arc::new(builder.with_no_client_auth().with_cert_resolver(shown)))
}

/// Starts the server's side of connections. Clones share it.
#[derive(Clone)]
pub struct Acceptor(Arc<Inner>);

struct Inner {
    live: ArcSwap<Live>,
    counts: Arc<Counts>,
    tickets: Tickets,
    proofs: Proofs,
    rules: Rules,
}

/// Another plan of an [`Acceptor`], whose files were read. Dropping it changes nothing.
#[must_use]
pub struct Prepared(Arc<Live>);

/// The current configuration for new connections.
pub(crate) struct Live {
    /// The server's own, and those of the plan's profiles.
    profiles: Vec<OpenProfile>,
    selector: Selector,
    certificates: Vec<Certificate>,
    plan: ServerPlan,
    /// The modification time, size and mode of each file.
    stamps: Vec<Stamp>,
    /// The files with these stamps could not be used.
    is_refused: bool,
}

type Stamp = Option<(SystemTime, u64, u32)>;

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file has which problem, and what to do.
    pub fn open(plan: ServerPlan) -> Result<Acceptor, String> {
        Acceptor::open_with(plan, Selector::default())
    }

    /// The same for a plan with profiles.
    ///
    /// # Errors
    /// As [`Acceptor::open`].
    pub fn open_with(plan: ServerPlan, selector: Selector) -> Result<Acceptor, String> {
        let (tickets, proofs, rules) = (Tickets::new()?, Proofs::default(), Rules::default());
        let live = Live::load(plan, selector, (&tickets, &proofs, &rules), &[])?;
        let live = ArcSwap::from_pointee(live);
        Ok(Acceptor(Arc::new(Inner { live, counts: Arc::default(), tickets, proofs, rules })))
    }

    /// Starts a connection to the listener of this number.
    ///
    /// # Errors
    /// The configuration is not usable; it was checked when it was opened.
    pub fn accept(&self, socket: OwnedFd, listener: u16) -> Result<Channel, Fault> {
        let live = self.0.live.load();
        let session = match &live.profiles[..] {
            [only] if !live.plan.keeps_names => Session::server(only, None).map_err(Fault::Protocol)?,
            _ => Session::undecided(live.clone(), listener),
        };
        Ok(Channel::new(socket, session, Some(self.0.counts.clone())))
    }

    /// Reads the files of another plan; not if it is the present one and no file has changed: the process may no longer
    /// have the right to read them.
    ///
    /// # Errors
    /// As [`Acceptor::open`]; then nothing changes.
    pub fn prepare(&self, plan: ServerPlan, selector: Selector) -> Result<Prepared, String> {
        let live = self.0.live.load_full();
        if live.plan == plan && live.stamps == stamps(&plan) && !live.is_refused {
            return Ok(Prepared(Arc::new(Live { selector, ..live.copy() })));
        }
        self.load(plan, selector, &live).map(|live| Prepared(Arc::new(live)))
    }

    fn load(&self, plan: ServerPlan, selector: Selector, former: &Live) -> Result<Live, String> {
        let sessions = former.profiles.iter().filter_map(|profile| profile.sessions.clone());
        let Inner { tickets, proofs, rules, .. } = &*self.0;
        Live::load(plan, selector, (tickets, proofs, rules), &sessions.collect::<Vec<_>>())
    }

    /// The number of the rules of a profile: those of connections are compared with it ([`Channel::rules`]).
    pub fn rules(&self, profile: usize) -> Option<u16> {
        self.0.live.load().rules(profile)
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
        let loaded = self.load(before.plan.clone(), before.selector.clone(), &before);
        let live = loaded.as_ref().map(|_| ()).map_err(String::clone);
        let next = loaded.unwrap_or_else(|_| Live { stamps, is_refused: true, ..before.copy() });
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

impl Prepared {
    /// The number of the rules of a profile.
    pub fn rules(&self, profile: usize) -> Option<u16> {
        self.0.rules(profile)
    }
}

impl Live {
    fn load(
        plan: ServerPlan,
        selector: Selector,
        (tickets, proofs, rules): (&Tickets, &Proofs, &Rules),
        former: &[SessionStore],
    ) -> Result<Live, String> {
        // Taken before the files are read, so that a write meanwhile is detected as a change.
        let stamps = stamps(&plan);
        let load_all = |all: &[Identity]| all.iter().map(Certificate::of).collect::<Result<Vec<_>, _>>();
        let mut certificates = load_all(&plan.identities)?;
        let (there, missing): (Vec<&Awaited>, Vec<&Awaited>) =
            plan.awaited.iter().partition(|awaited| awaited.path.exists());
        for Awaited { path, .. } in there {
            certificates.push(Certificate::load(path, path)?);
        }
        let has_own = |profile: &Profile| profile.refuses || !profile.identities.is_empty();
        let is_served = plan.profiles.is_empty() || !plan.profiles.iter().all(has_own);
        if certificates.is_empty() && plan.awaited.is_empty() && is_served {
            return Err("no certificate: need at least one, with its key".to_owned());
        }
        let common = Common { plan: &plan, tickets, rules, former };
        let usual = || {
            let missing = missing.iter().flat_map(|awaited| &awaited.names);
            Names::new(&certificates, missing, proofs.clone())
        };
        let own =
            Profile { min_version: plan.min_version, clients: plan.clients.clone(), ..Profile::default() };
        let mut profiles = vec![common.open(&own, usual())?];
        let mut others = Vec::new();
        for profile in &plan.profiles {
            let certificates = load_all(&profile.identities)?;
            let names = match certificates.is_empty() && !profile.refuses {
                true => usual(),
                false => Names::new(&certificates, std::iter::empty(), proofs.clone()),
            };
            profiles.push(common.open(profile, names)?);
            others.extend(certificates);
        }
        certificates.extend(others);
        Ok(Live { profiles, selector, certificates, plan, stamps, is_refused: false })
    }

    /// A copy, which shares what was read.
    fn copy(&self) -> Live {
        let Live { profiles, selector, certificates, plan, stamps, is_refused } = self;
        let (profiles, selector) = (profiles.clone(), selector.clone());
        Live {
            profiles,
            selector,
            certificates: certificates.clone(),
            plan: plan.clone(),
            stamps: stamps.clone(),
            is_refused: *is_refused,
        }
    }

    fn rules(&self, profile: usize) -> Option<u16> {
        self.profiles.get(profile).map(|profile| profile.rules)
    }

    /// The profile for a ClientHello at this listener.
    pub(crate) fn profile(&self, listener: u16, hello: &Accepted) -> Option<&OpenProfile> {
        let at = self.selector.select(listener, hello);
        self.profiles.get(at).or_else(|| self.profiles.first())
    }

    pub(crate) fn keeps_names(&self) -> bool {
        self.plan.keeps_names
    }

    fn has_expired_staple(&self, now: SystemTime) -> bool {
        let has_expired = |it: &Certificate| matches!(it.staple, Staple::Until(Some(until)) if until <= now);
        self.certificates.iter().any(has_expired)
    }
}

fn stamps(plan: &ServerPlan) -> Vec<Stamp> {
    let of_profiles = plan.profiles.iter().filter_map(|profile| profile.clients.as_ref());
    let authorities = plan.clients.iter().chain(of_profiles).flat_map(ClientCertificates::files);
    let identities = || plan.identities.iter().chain(plan.profiles.iter().flat_map(|it| &it.identities));
    let own = identities().flat_map(|it| [&it.certificate, &it.key].into_iter().chain(&it.passwords));
    let files = own.chain(plan.awaited.iter().map(|it| &it.path)).chain(authorities).cloned();
    // Not for awaited certificates: they do not require stapling.
    let staples = identities().map(|it| staple::path(&it.certificate));
    files
        .chain(staples)
        .map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len(), metadata.permissions().mode()))
        })
        .collect()
}
