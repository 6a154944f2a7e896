//! `BackendTLSPolicy`.

use serde::Deserialize;

use super::gateway::ObjectRef;
use super::{Object, null_as_default};

/// TLS to the servers of services.
pub type BackendTlsPolicy = Object<BackendTlsSpec>;

/// The specification of a [`BackendTlsPolicy`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsSpec {
    /// The services.
    #[serde(deserialize_with = "null_as_default")]
    pub target_refs: Vec<PolicyTarget>,
    /// How their certificates are checked.
    pub validation: BackendValidation,
}

/// A service, or one of its ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    /// The group; empty: the core.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// Only the port of this name.
    pub section_name: Option<String>,
}

/// How certificates of servers are checked.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    /// ConfigMaps with CA certificates.
    #[serde(rename = "caCertificateRefs", deserialize_with = "null_as_default")]
    pub authorities: Vec<ObjectRef>,
    /// A set of CA certificates that everybody has.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<String>,
    /// The name for SNI, which certificates must have.
    pub hostname: String,
    /// The names of which certificates must have one, instead of `hostname`.
    #[serde(deserialize_with = "null_as_default")]
    pub subject_alt_names: Vec<AlternativeName>,
}

/// A name in a certificate. The field of its type is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AlternativeName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The host name.
    pub hostname: String,
    /// The URI.
    pub uri: String,
}
