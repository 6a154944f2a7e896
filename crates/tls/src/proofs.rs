//! Certificates that prove to an authority who has a name (TLS-ALPN-01, RFC 8737): shown to who asks for the protocol
//! `acme-tls/1`, and to nobody else.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The protocol of authorities that check a name.
pub(crate) const PROTOCOL: &[u8] = b"acme-tls/1";

/// Proofs by name, while authorities ask for them. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Proofs(Arc<ArcSwap<HashMap<String, Arc<CertifiedKey>>>>);

/// A certificate for one name that has what the authority expects in it, and its key (DER).
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
    /// Takes the place of those before.
    ///
    /// # Errors
    /// A certificate or key that cannot be used; then nothing has changed.
    pub fn set(&self, proofs: &[Proof]) -> Result<(), String> {
        let certified = |proof: &Proof| {
            let unusable = |error: String| format!("a proof for {} cannot be used: {error}", proof.name);
            let key = PrivateKeyDer::try_from(proof.key.clone());
            let key = key.map_err(|error| unusable(error.to_owned()))?;
            let key = crate::provider().key_provider.load_private_key(key);
            let key = key.map_err(|error| unusable(error.to_string()))?;
            // It has a critical extension that no ordinary client knows: it is not checked against its key.
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
