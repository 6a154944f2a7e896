//! TLS of clients, by rustls over memory: what it encrypts is sent in drawn pieces, as everything else is.

use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use flatout_tls::{Acceptor, Identity, ServerPlan};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, SerialNumber};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::socket::draw_piece;

/// The name that the certificate is for.
const NAME: &str = "a.test";

/// What stands before a private key of Ed25519 in PKCS #8 (RFC 8410, section 7).
const ED25519_BEFORE_KEY: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// One certificate for all runs, also of other processes. Signatures with its key all have the same length: otherwise a run could not be
/// repeated.
struct Certificate {
    der: CertificateDer<'static>,
    pem: String,
    key_pem: String,
}

static CERTIFICATE: LazyLock<Certificate> = LazyLock::new(|| {
    let key = [&ED25519_BEFORE_KEY[..], &[1; 32]].concat();
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&key.into(), &PKCS_ED25519).expect("a key");
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).expect("a name");
    params.serial_number = Some(SerialNumber::from(1));
    let certificate = params.self_signed(&key).expect("a certificate");
    Certificate { der: certificate.der().clone(), pem: certificate.pem(), key_pem: key.serialize_pem() }
});

/// The server's side, with its certificate in this folder.
pub(crate) fn plan(folder: &Path) -> ServerPlan {
    let identity = Identity::new(folder.join("certificate.pem"), folder.join("key.pem"));
    ServerPlan { identities: vec![identity], ..ServerPlan::default() }
}

/// Opens it.
///
/// # Panics
/// The folder cannot be written, or the server does not take the certificate.
pub(crate) fn acceptor(folder: &Path) -> Acceptor {
    let plan = plan(folder);
    for Identity { certificate, key, .. } in &plan.identities {
        std::fs::write(certificate, &CERTIFICATE.pem).expect("a folder that can be written");
        std::fs::write(key, &CERTIFICATE.key_pem).expect("a folder that can be written");
        std::fs::set_permissions(key, Permissions::from_mode(0o600)).expect("a file of our own");
    }
    Acceptor::open(plan).expect("a certificate that the server takes")
}

/// What all clients of a run know: the certificate, and their sessions.
pub(crate) struct Clients {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Clients {
    pub(crate) fn new() -> Clients {
        Clients { http1: client_config(b"http/1.1"), http2: client_config(b"h2") }
    }

    pub(crate) fn config(&self, is_http2: bool) -> Arc<ClientConfig> {
        if is_http2 { self.http2.clone() } else { self.http1.clone() }
    }
}

fn client_config(protocol: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CERTIFICATE.der.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

/// The first record of a TLS connection to the test host. Nobody completes its handshake.
pub(crate) fn first_record() -> Vec<u8> {
    let name = ServerName::try_from(NAME).expect("a name");
    let mut session = ClientConnection::new(PASSED.clone(), name).expect("a session");
    let mut record = Vec::new();
    while session.wants_write() && session.write_tls(&mut record).is_ok() {}
    record
}

/// The settings of clients whose connections are passed on.
static PASSED: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| client_config(b"http/1.1"));

/// TLS of one connection.
pub(crate) struct Tls {
    session: ClientConnection,
    random: fastrand::Rng,
    /// Encrypted, and not sent yet.
    output: Vec<u8>,
    has_closed: bool,
    /// Decrypted by who had something to send.
    pub(crate) decrypted: Vec<u8>,
}

/// What was decrypted.
pub(crate) enum Decrypted {
    Bytes(usize),
    /// The server has said that nothing follows.
    End,
    /// It is no TLS, or ends in the middle.
    Broken,
}

impl Tls {
    pub(crate) fn new(config: Arc<ClientConfig>, random: fastrand::Rng) -> Tls {
        let name = ServerName::try_from(NAME).expect("a name");
        let session = ClientConnection::new(config, name).expect("a session");
        Tls { session, random, output: Vec::new(), has_closed: false, decrypted: Vec::new() }
    }

    /// Encrypts some of these bytes. Returns how many; 0: what was encrypted before has to be sent first.
    pub(crate) fn encrypt(&mut self, bytes: &[u8]) -> usize {
        self.take_output();
        if self.session.is_handshaking() || !self.output.is_empty() {
            return 0;
        }
        let count = self.session.writer().write(bytes).unwrap_or(0);
        self.take_output();
        count
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Whether something encrypted is still to be sent.
    pub(crate) fn has_output(&mut self) -> bool {
        self.take_output();
        !self.output.is_empty()
    }

    /// The next piece to be sent, or all.
    pub(crate) fn piece(&mut self, is_all: bool) -> &[u8] {
        self.take_output();
        let length = self.output.len();
        let length = if is_all { length } else { draw_piece(&mut self.random, length) };
        &self.output[..length]
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes);
    }

    /// Decrypts what was received; nothing at the end of the connection.
    pub(crate) fn decrypt(&mut self, mut received: &[u8], into: &mut Vec<u8>) -> Decrypted {
        if received.is_empty() && self.session.read_tls(&mut received).is_err() {
            return Decrypted::Broken;
        }
        while !received.is_empty() {
            if self.session.read_tls(&mut received).is_err() || self.session.process_new_packets().is_err() {
                return Decrypted::Broken;
            }
            if let Some(end) = self.read(into) {
                return end;
            }
        }
        let before = into.len();
        match self.read(into) {
            Some(end) => end,
            None => Decrypted::Bytes(into.len() - before),
        }
    }

    /// Reads what there is in clear.
    fn read(&mut self, into: &mut Vec<u8>) -> Option<Decrypted> {
        let mut buffer = [0; 16_384];
        loop {
            match self.session.reader().read(&mut buffer) {
                Ok(0) => return Some(Decrypted::End),
                Ok(bytes) => into.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Decrypted::Broken),
            }
        }
    }

    /// Says that nothing follows.
    pub(crate) fn close(&mut self) {
        if !std::mem::replace(&mut self.has_closed, true) {
            self.session.send_close_notify();
        }
        self.take_output();
    }

    fn take_output(&mut self) {
        while self.session.wants_write() && self.session.write_tls(&mut self.output).is_ok() {}
    }
}
