//! The client's side: trust in servers, and its own certificate.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, WantsVerifier,
};

use crate::alternatives::{Alternatives, SubjectName};
use crate::certificate::{Certificate, authorities, revocations};
use crate::channel::Channel;
use crate::clients::unusable_list;
use crate::fault::Fault;
use crate::server::Identity;
use crate::session::{Session, suite_name};
use crate::sessions::Sessions;

/// The settings of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPlan {
    /// Certificates of trusted CAs (PEM); `None` uses the system's.
    pub authorities: Option<PathBuf>,
    /// Lists of revoked certificates (PEM), for these authorities: one for each CA of a chain, that is not expired.
    pub revoked: Option<PathBuf>,
    /// Whether the server's certificate is verified. Without that, a man in the middle can read and change
    /// everything.
    pub verify: bool,
    /// Names of which the server's certificate must have one, instead of the server's own; empty: its own.
    pub alternatives: Vec<SubjectName>,
    /// The client certificate, if a server requests one.
    pub identity: Option<Identity>,
    /// The supported protocols (ALPN), in order of preference.
    pub protocols: Vec<Vec<u8>>,
    /// The number of sessions kept for resumption; 0 makes every handshake a full one.
    pub sessions_max: usize,
    /// The only cipher suite to offer, such as `TLS_AES_128_GCM_SHA256`; `None` offers all secure ones.
    pub cipher: Option<String>,
    /// The only key exchange to offer, such as `X25519`; `None` offers all secure ones.
    pub key_exchange: Option<String>,
}

impl Default for ClientPlan {
    fn default() -> Self {
        ClientPlan {
            authorities: None,
            revoked: None,
            verify: true,
            alternatives: Vec::new(),
            identity: None,
            protocols: vec![b"http/1.1".to_vec()],
            sessions_max: 256,
            cipher: None,
            key_exchange: None,
        }
    }
}

/// Starts the client's side of connections to one server. Clones share it with its sessions.
#[derive(Debug, Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Connector {
    /// To a server of this name or address.
    ///
    /// # Errors
    /// The name is invalid; or which file has which problem, and what to do.
    pub fn open(plan: &ClientPlan, name: &str) -> Result<Connector, String> {
        let named = ServerName::try_from(name.trim_matches(['[', ']']).to_owned())
            .map_err(|_| format!("server name: got `{name}`, need a host name or an address"))?;
        let unusable = |error| format!("TLS cannot be configured: {error}");
        let provider = algorithms(plan)?;
        let has = |version| provider.cipher_suites.iter().any(|suite| suite.version().version == version);
        let versions: Vec<_> = [&TLS13, &TLS12].into_iter().filter(|it| has(it.version)).collect();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(unusable)?;
        let builder = match (plan.verify, &plan.authorities) {
            (false, _) => builder.dangerous().with_custom_certificate_verifier(Arc::new(OwnVerifier(None))),
            (true, path) => {
                let roots = match path {
                    Some(path) => Arc::new(authorities(path)?),
                    None => system_authorities()?,
                };
                match (&plan.alternatives[..], path, &plan.revoked) {
                    ([], Some(path), Some(revoked)) => {
                        let verifier = WebPkiServerVerifier::builder_with_provider(roots, crate::provider());
                        let verifier =
                            verifier.with_crls(revocations(revoked)?).enforce_revocation_expiration();
                        let unusable = |error| match error {
                            VerifierBuilderError::InvalidCrl(error) => unusable_list(revoked, &error),
                            error => format!("certificate {}: {error}", path.display()),
                        };
                        builder.with_webpki_verifier(verifier.build().map_err(unusable)?)
                    }
                    ([], ..) => builder.with_root_certificates(roots),
                    (_, _, Some(_)) => {
                        return Err(
                            "revocation lists are not supported beside other names of a server".to_owned()
                        );
                    }
                    (names, ..) => {
                        let named = Arc::new(OwnVerifier(Some(Alternatives::new(roots, names))));
                        builder.dangerous().with_custom_certificate_verifier(named)
                    }
                }
            }
        };
        let mut config = match &plan.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let certificate = Certificate::of(identity)?;
                let shown = rustls::sign::SingleCertAndKey::from(certificate.certified);
                builder.with_client_cert_resolver(Arc::new(shown))
            }
        };
        config.alpn_protocols = plan.protocols.clone();
        config.resumption = match plan.sessions_max {
            0 => Resumption::disabled(),
            count => Resumption::store(Arc::new(Sessions::new(count))),
        };
        Ok(Connector { config: Arc::new(config), name: named })
    }

    /// Starts a connection over a socket that is, or will be, connected.
    ///
    /// # Errors
    /// The configuration is not usable.
    pub fn connect(&self, socket: OwnedFd) -> Result<Channel, Fault> {
        let session = Session::client(self.config.clone(), self.name.clone()).map_err(Fault::Protocol)?;
        Ok(Channel::new(socket, session, None))
    }
}

/// The algorithms that a client offers.
fn algorithms(plan: &ClientPlan) -> Result<Arc<CryptoProvider>, String> {
    let all = crate::provider();
    if plan.cipher.is_none() && plan.key_exchange.is_none() {
        return Ok(all);
    }
    let mut chosen = (*all).clone();
    let suites = chosen.cipher_suites.iter().map(|suite| suite_name(suite.suite())).collect();
    let groups = chosen.kx_groups.iter().map(|group| format!("{:?}", group.name())).collect();
    if let Some(at) = choose("cipher suite", plan.cipher.as_deref(), suites)? {
        chosen.cipher_suites = vec![chosen.cipher_suites[at]];
    }
    if let Some(at) = choose("key exchange", plan.key_exchange.as_deref(), groups)? {
        chosen.kx_groups = vec![chosen.kx_groups[at]];
    }
    Ok(Arc::new(chosen))
}

/// The index of a name in a list.
fn choose(what: &str, wanted: Option<&str>, names: Vec<String>) -> Result<Option<usize>, String> {
    let Some(wanted) = wanted else { return Ok(None) };
    match names.iter().position(|name| name.eq_ignore_ascii_case(wanted)) {
        Some(at) => Ok(Some(at)),
        None => Err(format!("{what}: got `{wanted}`, need one of {}", names.join(", "))),
    }
}

/// The configuration for another crate's client that trusts these CAs, or the system's, without ALPN and client
/// certificate.
///
/// # Errors
/// Which problem the file has, and what to do.
pub fn client_config(trusted: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let roots = match trusted {
        Some(path) => Arc::new(authorities(path)?),
        None => system_authorities()?,
    };
    Ok(Arc::new(config_builder()?.with_root_certificates(roots).with_no_client_auth()))
}

/// The same for a client that trusts every server: for comparing servers, whose responses are not relied on.
///
/// # Errors
/// TLS cannot be configured.
pub fn unverified_client_config() -> Result<Arc<ClientConfig>, String> {
    let builder = config_builder()?.dangerous().with_custom_certificate_verifier(Arc::new(OwnVerifier(None)));
    Ok(Arc::new(builder.with_no_client_auth()))
}

fn config_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(crate::provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| format!("TLS cannot be configured: {error}"))
}

/// The system's CAs, read once.
fn system_authorities() -> Result<Arc<RootCertStore>, String> {
    static STORE: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let store = STORE.get_or_init(|| {
        let mut store = RootCertStore::empty();
        // Some of the system's certificates may be too old to be usable.
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(store)
    });
    if store.is_empty() {
        return Err(
            "this system has no CA certificates; install ca-certificates, or name a file with trusted ones"
                .to_owned(),
        );
    }
    Ok(store.clone())
}

/// Verifies certificates by other names than the server's, or accepts every certificate. The handshake's signature is always verified, so
/// the peer has the certificate's key.
#[derive(Debug)]
struct OwnVerifier(Option<Alternatives>);

impl ServerCertVerifier for OwnVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.as_ref().map_or(Ok(()), |names| names.check(certificate, intermediates, now))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &crate::signatures())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &crate::signatures())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crate::signatures().supported_schemes()
    }
}
