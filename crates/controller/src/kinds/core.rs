//! `Service`, `EndpointSlice`, `Secret`, `Namespace`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Metadata, Object, null_as_default};

/// A service.
pub type Service = Object<ServiceSpec>;

/// The specification of a [`Service`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its ports.
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ServicePort>,
}

/// A port of a [`Service`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Its name; empty if it is the only one.
    pub name: String,
    /// Its number.
    pub port: u16,
    /// The protocol of the application.
    pub app_protocol: Option<String>,
}

/// A namespace: only its labels are used.
pub type Namespace = Object<Value>;

/// Endpoints of a service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// What all objects have. A label names the service.
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// The endpoints.
    #[serde(deserialize_with = "null_as_default")]
    pub endpoints: Vec<Endpoint>,
    /// Their ports.
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<EndpointPort>,
}

/// One endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Its addresses, of which the first counts.
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<String>,
    /// Its state.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
}

/// The state of an endpoint; what is not known counts as true, except for `terminating`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// It serves, and does not end.
    pub ready: Option<bool>,
    /// It serves.
    pub serving: Option<bool>,
    /// It ends.
    pub terminating: Option<bool>,
}

/// A port of endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the service's port.
    pub name: Option<String>,
    /// Its number.
    pub port: Option<u16>,
}

/// Values that are not secret. Only those that are used are read: clusters have many of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// What all objects have.
    pub metadata: Metadata,
    /// Its values.
    #[serde(deserialize_with = "null_as_default")]
    pub data: ConfigValues,
}

/// The values of a [`ConfigMap`] that are read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConfigValues {
    /// CA certificates (PEM).
    #[serde(rename = "ca.crt")]
    pub authorities: Option<String>,
}

/// Secret values.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Secret {
    /// What all objects have.
    pub metadata: Metadata,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Values in Base64.
    #[serde(deserialize_with = "null_as_default")]
    pub data: BTreeMap<String, String>,
    /// Values as they are.
    #[serde(deserialize_with = "null_as_default")]
    pub string_data: BTreeMap<String, String>,
}

impl std::fmt::Debug for Secret {
    /// Without its values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("metadata", &self.metadata.key()).finish_non_exhaustive()
    }
}
