//! Client certificates: which of them are accepted, and which of these are verified.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::Context;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertRevocationListError, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    SignatureScheme,
};

use crate::certificate::{authorities, chain, is_self_issued, revocations};

/// Client authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientCertificates {
    /// Certificates of the CAs that issue them (PEM). `None`: no certificate is verified, which needs `takes_unknown`.
    pub authorities: Option<PathBuf>,
    /// Lists of revoked certificates (PEM): one for each CA of a chain, that is not expired.
    pub revoked: Option<PathBuf>,
    /// Whether clients without one are refused.
    pub required: bool,
    /// Whether certificates of other CAs are accepted too. They are not [verified](PeerCertificate::is_verified).
    pub takes_unknown: bool,
}

/// The certificate that a client has presented. It has its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The certificate (DER).
    pub der: Vec<u8>,
    /// Whether a CA of the server's plan has issued it.
    pub is_verified: bool,
}

/// Who decides about certificates, opened.
pub(crate) struct Clients {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// The same one, if it also accepts what it cannot verify.
    pub(crate) lenient: Option<Arc<Lenient>>,
}

impl ClientCertificates {
    /// The files that it reads.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.authorities.iter().chain(&self.revoked)
    }

    /// Reads the files. All that decides about certificates goes into the hash, so that sessions end when it changes.
    pub(crate) fn open(&self, trust: &mut Context) -> Result<Clients, String> {
        trust.update(&[u8::from(self.required)]);
        let known = self.known(trust)?;
        if !self.takes_unknown {
            let verifier = known.ok_or("client certificates: need the certificates of their CAs")?;
            return Ok(Clients { verifier, lenient: None });
        }
        trust.update(b"takes unknown");
        let lenient = Arc::new(Lenient { known, is_required: self.required });
        Ok(Clients { verifier: lenient.clone(), lenient: Some(lenient) })
    }

    fn known(&self, trust: &mut Context) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let Some(path) = &self.authorities else { return Ok(None) };
        for certificate in chain(path)? {
            trust.update(&certificate);
        }
        let roots = Arc::new(authorities(path)?);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, crate::provider());
        if let Some(path) = &self.revoked {
            let lists = revocations(path)?;
            lists.iter().for_each(|list| trust.update(list));
            verifier = verifier.with_crls(lists).enforce_revocation_expiration();
        }
        if !self.required {
            verifier = verifier.allow_unauthenticated();
        }
        verifier.build().map(Some).map_err(|error| match (&self.revoked, error) {
            (Some(lists), VerifierBuilderError::InvalidCrl(error)) => unusable_list(lists, &error),
            (_, error) => format!("certificate {}: {error}", path.display()),
        })
    }
}

/// Accepts certificates of unknown CAs too, but not those that are known to be bad. The handshake's signature is verified, so
/// the client has the certificate's key.
#[derive(Debug)]
pub(crate) struct Lenient {
    known: Option<Arc<dyn ClientCertVerifier>>,
    is_required: bool,
}

impl Lenient {
    /// Whether a known CA has issued this chain.
    pub(crate) fn has_verified(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((first, others)) = chain.split_first() else { return false };
        let verify = |known: &Arc<dyn ClientCertVerifier>| {
            known.verify_client_cert(first, others, UnixTime::now()).is_ok()
        };
        self.known.as_ref().is_some_and(verify)
    }
}

impl ClientCertVerifier for Lenient {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.known.as_ref().map_or(&[], |known| known.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(known) = &self.known else { return Ok(ClientCertVerified::assertion()) };
        known.verify_client_cert(certificate, others, now).or_else(|error| match error {
            // The second: a CA with the name of a known one.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                Ok(ClientCertVerified::assertion())
            }
            // A CA that shows its own certificate. In others, these are rules that a known CA's certificates violate.
            Error::InvalidCertificate(CertificateError::Other(_)) if is_self_issued(certificate) => {
                Ok(ClientCertVerified::assertion())
            }
            error => Err(error),
        })
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

/// The message for a file of revocation lists that cannot be used.
pub(crate) fn unusable_list(path: &Path, error: &CertRevocationListError) -> String {
    let shown = path.display();
    match error {
        CertRevocationListError::ParseError | CertRevocationListError::UnsupportedCrlVersion => format!(
            "revocation list {shown}: malformed, or of version 1; need version 2, which openssl makes with `crl_extensions` in its \
             configuration (RFC 5280, 5.1)"
        ),
        error => format!("revocation list {shown}: {error:?}"),
    }
}
