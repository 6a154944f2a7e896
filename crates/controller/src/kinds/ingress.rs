//! `Ingress` and `IngressClass`.

use serde::Deserialize;

use super::{Object, null_as_default};

/// Routes by host and path.
pub type Ingress = Object<IngressSpec>;

/// A class of [`Ingress`]es, and who serves them.
pub type IngressClass = Object<IngressClassSpec>;

/// The specification of an [`IngressClass`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    /// The controller that serves it.
    pub controller: String,
}

/// The specification of an [`Ingress`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSpec {
    /// Its class; none: the default class.
    pub ingress_class_name: Option<String>,
    /// Where requests go that match no rule.
    pub default_backend: Option<IngressBackend>,
    /// Certificates.
    #[serde(deserialize_with = "null_as_default")]
    pub tls: Vec<IngressTls>,
    /// Its rules.
    #[serde(deserialize_with = "null_as_default")]
    pub rules: Vec<IngressRule>,
}

/// A certificate for some hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressTls {
    /// The hosts.
    #[serde(deserialize_with = "null_as_default")]
    pub hosts: Vec<String>,
    /// The Secret with the certificate.
    pub secret_name: Option<String>,
}

/// The paths of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// The host, perhaps `*.example.org`; empty: all.
    pub host: String,
    /// Its paths.
    pub http: Option<IngressPaths>,
}

/// Paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressPaths {
    /// The paths.
    #[serde(deserialize_with = "null_as_default")]
    pub paths: Vec<IngressPath>,
}

/// A path, and where its requests go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressPath {
    /// The path; empty: all.
    pub path: String,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: String,
    /// Where its requests go.
    pub backend: IngressBackend,
}

impl IngressPath {
    /// All paths that no other rule has.
    pub(crate) fn rest(backend: IngressBackend) -> IngressPath {
        IngressPath { path: "/".to_owned(), path_type: "Prefix".to_owned(), backend }
    }
}

/// Where requests go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressBackend {
    /// The service.
    pub service: Option<IngressService>,
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressService {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: IngressPort,
}

/// A port of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressPort {
    /// By its name.
    pub name: String,
    /// By its number.
    pub number: u16,
}
