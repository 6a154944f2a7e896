//! Certificates that prove control of a name to a CA (TLS-ALPN-01, RFC 8737): used only for clients that request the
//! protocol `acme-tls/1`.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The protocol of CAs that validate a name.
pub(crate) const PROTOCOL: &[u8] = b"acme-tls/1";

/// Proofs by name, during their validation. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Proofs(Arc<ArcSwap<HashMap<String, Arc<CertifiedKey>>>>);

/// A certificate for one name with the content that the CA expects, and its key (DER).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The name.
    pub name: String,
    /// The certificate.
    pub certificate: Vec<u8>,
    /// Its key, as PKCS #8.
    pub key: Vec<u8>,
}

impl Proofs {
    /// Replaces the previous proofs.
    ///
    /// # Errors
    /// A certificate or key is unusable; then nothing has changed.
    pub fn set(&self, proofs: &[Proof]) -> Result<(), String> {
        let certified = |proof: &Proof| {
            let unusable = |error: String| format!("a proof for {} cannot be used: {error}", proof.name);
            let key = PrivateKeyDer::try_from(proof.key.clone());
            let key = key.map_err(|error| unusable(error.to_owned()))?;
            let key = crate::provider().key_provider.load_private_key(key);
            let key = key.map_err(|error| unusable(error.to_string()))?;
            // It has a critical extension unknown to ordinary clients, so it is not checked against its key.
            let chain = vec![CertificateDer::from(proof.certificate.clone())];
            Ok((proof.name.to_ascii_lowercase(), Arc::new(CertifiedKey::new(chain, key))))
        };
        let proofs: Result<HashMap<_, _>, String> = proofs.iter().map(certified).collect();
        self.0.store(Arc::new(proofs?));
        Ok(())
    }

    pub(crate) fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        self.0.load().get(&name?.to_ascii_lowercase()).cloned()
    }
}
