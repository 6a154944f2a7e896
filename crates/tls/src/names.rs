//! Chooses the certificate for a client by the requested name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::proofs::{PROTOCOL, Proofs};

/// Certificates by name. A name may have several, with different types of keys.
#[derive(Debug)]
pub(crate) struct Names {
    /// Wildcards are stored literally: `*.example.org`.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// Names whose certificate does not exist yet.
    missing: HashSet<String>,
    /// For clients that request no name, or an unknown one: the first certificate.
    usual: Vec<Arc<CertifiedKey>>,
    /// The certificates for CAs that validate a name.
    proofs: Proofs,
}

impl Names {
    pub(crate) fn new<'n>(
        certificates: &[Certificate],
        missing: impl Iterator<Item = &'n String>,
        proofs: Proofs,
    ) -> Names {
        let mut by_name: HashMap<String, Vec<_>> = HashMap::new();
        for certificate in certificates {
            for name in &certificate.names {
                by_name.entry(name.clone()).or_default().push(certificate.certified.clone());
            }
        }
        let names = certificates.first().map(|first| &first.names);
        let is_usual = |certificate: &&Certificate| Some(&certificate.names) == names;
        let usual = certificates.iter().filter(is_usual).map(|it| it.certified.clone()).collect();
        Names { by_name, missing: missing.map(|name| name.to_ascii_lowercase()).collect(), usual, proofs }
    }

    /// The certificates for a name; none if its own does not exist yet.
    fn find(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let Some(name) = name.map(str::to_ascii_lowercase) else { return &self.usual };
        let wildcard = name.split_once('.').map(|(_, above)| format!("*.{above}"));
        let names = || std::iter::once(&name).chain(&wildcard);
        match names().find_map(|name| self.by_name.get(name)) {
            Some(found) => found,
            None if names().any(|name| self.missing.contains(name)) => &[],
            None => &self.usual,
        }
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if hello.alpn().is_some_and(|mut protocols| protocols.any(|protocol| protocol == PROTOCOL)) {
            return self.proofs.find(hello.server_name());
        }
        let found = self.find(hello.server_name());
        let suits = |it: &&Arc<CertifiedKey>| it.key.choose_scheme(hello.signature_schemes()).is_some();
        found.iter().find(suits).or(found.first()).cloned()
    }
}
