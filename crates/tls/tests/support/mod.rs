//! Certificates for one test, and both ends of a connection.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use flatout_tls::{Acceptor, Channel, ClientPlan, Connector, Identity, MinVersion, ServerPlan};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A folder with an authority and what it has signed; gone with its test.
pub(crate) struct Folder {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, folder.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        Folder { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.path().join("ca.pem")
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
            certificate: self.path().join(format!("{file}.pem")),
            key: self.path().join(format!("{file}.key")),
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

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

pub(crate) fn server(identities: Vec<Identity>) -> ServerPlan {
    ServerPlan {
        identities,
        awaited: Vec::new(),
        proves_names: false,
        min_version: MinVersion::Tls12,
        clients: None,
        protocols: vec![b"http/1.1".to_vec()],
        early_data: false,
        profiles: Vec::new(),
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
    (acceptor.accept(OwnedFd::from(one), 0).unwrap(), connector.connect(OwnedFd::from(other)).unwrap())
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
