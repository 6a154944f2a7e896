//! Certificates for one test, and both ends of a connection.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use flatout_tls::{Acceptor, Channel, ClientPlan, Connector, Identity, MinVersion, ServerPlan};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A folder with an authority and what it has signed; gone with its test.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("flatout-tls-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(&name);
        fs::create_dir(&path).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        fs::write(path.join("ca.pem"), authority.pem()).unwrap();
        Folder { path, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.path.join("ca.pem")
    }

    /// Signs a certificate for these names.
    pub(crate) fn sign(&self, file: &str, names: &[&str]) -> Identity {
        self.sign_with(file, names, |_| ())
    }

    pub(crate) fn sign_with(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity = Identity {
            certificate: self.path.join(format!("{file}.pem")),
            key: self.path.join(format!("{file}.key")),
        };
        write_private(&identity.key, &key.serialize_pem());
        fs::write(&identity.certificate, certificate.pem()).unwrap();
        identity
    }

    pub(crate) fn acceptor(&self) -> Acceptor {
        Acceptor::open(server(vec![self.sign("server", &["localhost"])])).unwrap()
    }

    pub(crate) fn trusting(&self) -> ClientPlan {
        ClientPlan { authorities: Some(self.authority()), ..ClientPlan::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).unwrap();
    }
}

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

pub(crate) fn server(identities: Vec<Identity>) -> ServerPlan {
    ServerPlan {
        identities,
        min_version: MinVersion::Tls12,
        clients: None,
        protocols: vec![b"http/1.1".to_vec()],
    }
}

/// Two ends of a connection, non-blocking.
pub(crate) fn pair() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// A server's and a client's end, before their handshake.
pub(crate) fn ends(acceptor: &Acceptor, connector: &Connector) -> (Channel, Channel) {
    let (one, other) = pair();
    (acceptor.accept(OwnedFd::from(one)).unwrap(), connector.connect(OwnedFd::from(other)).unwrap())
}

/// The same behind it: as far as it goes.
pub(crate) fn shaken(acceptor: &Acceptor, connector: &Connector) -> (Channel, Channel) {
    let (mut server, mut client) = ends(acceptor, connector);
    for _ in 0..6 {
        client.shake();
        server.shake();
    }
    (server, client)
}
