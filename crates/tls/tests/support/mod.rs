//! Certificates for one test, and both ends of a connection.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use flatout_tls::{
    Acceptor, Channel, ClientCertificates, ClientPlan, Connector, Identity, MinVersion, ServerPlan,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

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
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
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
        self.sign_all(file, names, KeyPair::generate().unwrap(), change)
    }

    /// The same for this key.
    pub(crate) fn sign_key(&self, file: &str, names: &[&str], key: KeyPair) -> Identity {
        self.sign_all(file, names, key, |_| ())
    }

    fn sign_all(
        &self,
        file: &str,
        names: &[&str],
        key: KeyPair,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity =
            Identity::new(self.path().join(format!("{file}.pem")), self.path().join(format!("{file}.key")));
        write_private(&identity.key, &key.serialize_pem());
        fs::write(&identity.certificate, certificate.pem()).unwrap();
        identity
    }

    /// Writes a list of revoked serial numbers that is current for some more days.
    pub(crate) fn revoke(&self, file: &str, serials: &[u64], days: i64) -> PathBuf {
        let now = OffsetDateTime::now_utc();
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now - Duration::days(9),
            next_update: now + Duration::days(days),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let path = self.path().join(format!("{file}.crl"));
        fs::write(&path, params.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        path
    }

    /// Clients with certificates of its authority.
    pub(crate) fn clients(&self, required: bool) -> ClientCertificates {
        ClientCertificates { authorities: Some(self.authority()), required, ..ClientCertificates::default() }
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
        keeps_names: false,
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
