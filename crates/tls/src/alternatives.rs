//! Servers that are known by other names than the one of their connections: by any of a list of names in their certificates.

use std::sync::Arc;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use crate::certificate::uris;

/// A name in a certificate (RFC 5280, section 4.2.1.6).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectName {
    /// A host name; a wildcard in the certificate covers it.
    Dns(String),
    /// A URI, such as a SPIFFE ID. It is compared as it is.
    Uri(String),
}

/// Verifies a certificate up to a trusted CA, and that it has one of some names.
#[derive(Debug)]
pub(crate) struct Alternatives {
    roots: Arc<RootCertStore>,
    hosts: Vec<ServerName<'static>>,
    uris: Vec<String>,
}

impl Alternatives {
    /// A host name that is none is in no certificate.
    pub(crate) fn new(roots: Arc<RootCertStore>, names: &[SubjectName]) -> Alternatives {
        let (mut hosts, mut uris) = (Vec::new(), Vec::new());
        for name in names {
            match name {
                SubjectName::Dns(name) => hosts.extend(ServerName::try_from(name.clone())),
                SubjectName::Uri(uri) => uris.push(uri.clone()),
            }
        }
        Alternatives { roots, hosts, uris }
    }

    pub(crate) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = crate::provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let has_host = self.hosts.iter().any(|name| verify_server_name(&parsed, name).is_ok());
        let has_uri = || uris(certificate).iter().any(|uri| self.uris.contains(uri));
        match has_host || !self.uris.is_empty() && has_uri() {
            true => Ok(()),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }
}
