//! Loads certificates and keys from PEM files, with a specific error for each problem.

use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, SubjectAltName};

use crate::key::private_key;
use crate::server::Identity;
use crate::staple::{self, Staple};

/// Bytes of a file with certificates: a system's list of all authorities takes a quarter of a megabyte.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A certificate that a server or a client can show, with its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub(crate) certified: Arc<CertifiedKey>,
    /// The names in it, in lower case, including addresses.
    pub names: Vec<String>,
    /// The start of its validity.
    pub not_before: SystemTime,
    /// The end of its validity.
    pub not_after: SystemTime,
    /// How its CA identifies it, if it names the CA: the CA's key identifier and the certificate's serial
    /// number, encoded (RFC 9773, section 4.1).
    pub issued_as: Option<(Vec<u8>, Vec<u8>)>,
    /// The OCSP response that is sent with it, if it asks for one.
    pub staple: Staple,
}

impl Certificate {
    /// Loads a certificate, with the intermediate certificates, and its key.
    ///
    /// # Errors
    /// Which file has which problem, and what to do.
    pub fn load(certificate: &Path, key: &Path) -> Result<Certificate, String> {
        Certificate::of(&Identity::new(certificate, key))
    }

    /// The same, for a key that may be encrypted.
    ///
    /// # Errors
    /// As [`Certificate::load`].
    pub fn of(identity: &Identity) -> Result<Certificate, String> {
        let Identity { certificate, key, passwords } = identity;
        let chain = chain(certificate)?;
        let first = chain.first().ok_or_else(|| nothing_in(certificate))?;
        let described = describe(first)
            .ok_or_else(|| format!("certificate {}: cannot be read: malformed", certificate.display()))?;
        let key_der = private_key(key, passwords.as_deref())?;
        let certified = CertifiedKey::from_der(chain.clone(), key_der, &crate::provider());
        let mut certified = certified.map_err(|error| match error {
            Error::InconsistentKeys(_) => format!(
                "key {}: does not belong to the certificate in {}; the file must begin with the server's certificate, followed by intermediate ones",
                key.display(),
                certificate.display()
            ),
            error => format!("key {}: cannot be used: {error}", key.display()),
        })?;
        let Described { names, not_before, not_after, issued_as } = described;
        let (staple, response) = staple::load(certificate, first);
        certified.ocsp = response;
        Ok(Certificate { certified: Arc::new(certified), names, not_before, not_after, issued_as, staple })
    }

    /// Checks a certificate and its key, both in PEM, before they are written to files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(certificate: &[u8], key: &[u8]) -> Result<(), String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.map_err(|error| format!("the certificate is not PEM: {error}"))?;
        let first = chain.first().ok_or("there is no certificate; need PEM with `BEGIN CERTIFICATE`")?;
        describe(first).ok_or("the certificate is malformed")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("there is no usable private key in PEM: {error}"))?;
        CertifiedKey::from_der(chain, key, &crate::provider())
            .map(drop)
            .map_err(|error| format!("the key cannot be used with the certificate: {error}"))
    }

    /// Checks CA certificates in PEM before they are written to a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check_authorities(certificates: &[u8]) -> Result<(), String> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let all = all.map_err(|error| format!("the certificate is not PEM: {error}"))?;
        if all.is_empty() {
            return Err("there is no certificate; need PEM with `BEGIN CERTIFICATE`".to_owned());
        }
        let mut store = RootCertStore::empty();
        all.into_iter()
            .try_for_each(|certificate| store.add(certificate))
            .map_err(|error| format!("not usable as a CA certificate: {error}"))
    }

    /// The number of days until it expires; negative once it has expired.
    pub fn days_left(&self, now: SystemTime) -> i64 {
        const DAY: u64 = 24 * 3600;
        match self.not_after.duration_since(now) {
            Ok(left) => (left.as_secs() / DAY) as i64,
            Err(over) => -((over.duration().as_secs() / DAY) as i64) - 1,
        }
    }
}

/// The certificates in a file, in order.
pub(crate) fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(path, "certificate")?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|error| format!("certificate {}: not PEM: {error}", path.display()))?;
    match chain.is_empty() {
        true if contains(&bytes, b"PRIVATE KEY-----") => Err(format!(
            "certificate {}: it is a private key; the certificate is named first, then its key",
            path.display()
        )),
        true => Err(nothing_in(path)),
        false => Ok(chain),
    }
}

/// The CA certificates in a file.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in chain(path)? {
        store.add(certificate).map_err(|error| {
            format!("certificate {}: not usable as a CA certificate: {error}", path.display())
        })?;
    }
    Ok(store)
}

/// The revocation lists in a file.
pub(crate) fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let bytes = read(path, "revocation list")?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let lists = lists.map_err(|error| format!("revocation list {}: not PEM: {error}", path.display()))?;
    match lists.is_empty() {
        true => {
            Err(format!("revocation list {}: none in it; need PEM with `BEGIN X509 CRL`", path.display()))
        }
        false => Ok(lists),
    }
}

fn nothing_in(path: &Path) -> String {
    format!("certificate {}: no certificate in it; need PEM with `BEGIN CERTIFICATE`", path.display())
}

pub(crate) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

pub(crate) fn read(path: &Path, what: &str) -> Result<Vec<u8>, String> {
    read_at_most(path, what, FILE_BYTES_MAX)
}

pub(crate) fn read_at_most(path: &Path, what: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
    let refused = |error| format!("{what} {}: cannot be read: {error}", path.display());
    let file = fs::File::open(path).map_err(refused)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("{what} {}: larger than {bytes_max} bytes", path.display()));
    }
    Ok(bytes)
}

/// The parsed contents of a certificate.
struct Described {
    names: Vec<String>,
    not_before: SystemTime,
    not_after: SystemTime,
    issued_as: Option<(Vec<u8>, Vec<u8>)>,
}

fn describe(certificate: &CertificateDer<'_>) -> Option<Described> {
    let parsed = x509_cert::Certificate::from_der(certificate).ok()?.tbs_certificate;
    let validity = parsed.validity;
    let names = match parsed.get::<SubjectAltName>() {
        Ok(Some((_, names))) => names.0.iter().filter_map(name).collect(),
        _ => Vec::new(),
    };
    let authority = match parsed.get::<AuthorityKeyIdentifier>() {
        Ok(Some((_, authority))) => authority.key_identifier.map(|key| key.as_bytes().to_vec()),
        _ => None,
    };
    let time = |seconds: Duration| SystemTime::UNIX_EPOCH.checked_add(seconds);
    Some(Described {
        names,
        not_before: time(validity.not_before.to_unix_duration())?,
        not_after: time(validity.not_after.to_unix_duration())?,
        issued_as: authority.map(|authority| (authority, parsed.serial_number.as_bytes().to_vec())),
    })
}

/// Whether a certificate names itself as its issuer.
pub(crate) fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    let parsed = x509_cert::Certificate::from_der(certificate);
    parsed.is_ok_and(|it| it.tbs_certificate.issuer == it.tbs_certificate.subject)
}

/// The URIs among a certificate's names.
pub(crate) fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = x509_cert::Certificate::from_der(certificate) else { return Vec::new() };
    let uri = |name: &GeneralName| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str().to_owned()),
        _ => None,
    };
    match parsed.tbs_certificate.get::<SubjectAltName>() {
        Ok(Some((_, names))) => names.0.iter().filter_map(uri).collect(),
        _ => Vec::new(),
    }
}

fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        GeneralName::IpAddress(address) => match address.as_bytes() {
            bytes if bytes.len() == 4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string()),
            bytes => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        },
        _ => None,
    }
}
