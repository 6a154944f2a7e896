//! `GatewayClass`, `Gateway`, `ListenerSet`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::route::ParentRef;
use super::{Metadata, Object, null_as_default};

/// A class of gateways, and who serves them.
pub type GatewayClass = Object<GatewayClassSpec>;

/// The specification of a [`GatewayClass`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// The controller that serves its gateways.
    pub controller_name: String,
    /// Parameters of the controller.
    pub parameters_ref: Option<Value>,
}

/// Listeners at an address.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Gateway {
    /// What all objects have.
    pub metadata: Metadata,
    /// What somebody wants.
    pub spec: GatewaySpec,
    /// What a controller wrote, perhaps this one before it was restarted.
    pub status: GatewayStatus,
}

/// The specification of a [`Gateway`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    /// Its class.
    pub gateway_class_name: String,
    /// Its listeners.
    #[serde(deserialize_with = "null_as_default")]
    pub listeners: Vec<Listener>,
    /// The addresses that are wanted.
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<GatewayAddress>,
    /// TLS to clients and backends.
    pub tls: Option<GatewayTls>,
    /// The `ListenerSets` that may add listeners. Without it, no ListenerSet may.
    pub allowed_listeners: Option<AllowedListeners>,
    /// What its infrastructure is made with.
    pub infrastructure: Option<Infrastructure>,
}

/// TLS of a gateway as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    /// To backends.
    pub backend: Option<BackendTls>,
    /// To clients, at all listeners where TLS ends for HTTPS.
    pub frontend: Option<FrontendTls>,
}

/// TLS of a gateway to backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTls {
    /// The Secret with the certificate that backends are shown.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// TLS of a gateway to clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendTls {
    /// At ports without rules of their own.
    pub default: PortTls,
    /// Ports with rules of their own.
    #[serde(deserialize_with = "null_as_default")]
    pub per_port: Vec<OnePortTls>,
}

/// TLS at a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PortTls {
    /// How certificates of clients are checked; none: clients are not asked for any.
    pub validation: Option<ClientValidation>,
}

/// A port, and its TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OnePortTls {
    /// The port.
    pub port: u16,
    /// Its TLS.
    pub tls: PortTls,
}

/// How certificates of clients are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// Objects with the CA certificates (PEM) that clients' certificates are checked against.
    #[serde(rename = "caCertificateRefs", deserialize_with = "null_as_default")]
    pub authorities: Vec<ObjectRef>,
    /// `AllowValidOnly` or `AllowInsecureFallback`; none is the former.
    pub mode: Option<String>,
}

/// The `ListenerSets` that may add listeners to a gateway.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// The namespaces whose ListenerSets may add listeners. Without it, no namespace may.
    pub namespaces: Option<AllowedNamespaces>,
}

/// What the infrastructure of a gateway is made with.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Parameters of the controller.
    pub parameters_ref: Option<Value>,
}

/// Further listeners of a gateway.
pub type ListenerSet = Object<ListenerSetSpec>;

/// The specification of a [`ListenerSet`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSetSpec {
    /// The gateway.
    pub parent_ref: ParentRef,
    /// The listeners.
    #[serde(deserialize_with = "null_as_default")]
    pub listeners: Vec<Listener>,
}

/// The part of a gateway's status that is read again.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayStatus {
    /// The addresses that it got.
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<GatewayAddress>,
}

/// An address of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GatewayAddress {
    /// `IPAddress` or `Hostname`; empty is the former.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address.
    pub value: String,
}

/// A listener of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    /// Its name, unique in the gateway.
    pub name: String,
    /// The host names it serves, perhaps `*.example.org`; none or empty: all.
    pub hostname: Option<String>,
    /// Its port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    /// TLS.
    pub tls: Option<ListenerTls>,
    /// The routes that may attach.
    pub allowed_routes: Option<AllowedRoutes>,
}

/// TLS of a listener.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`; none is the former.
    pub mode: Option<String>,
    /// The Secrets with its certificates.
    #[serde(deserialize_with = "null_as_default")]
    pub certificate_refs: Vec<ObjectRef>,
}

/// A reference to a Secret or a ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    /// The group; none or empty: the core.
    pub group: Option<String>,
    /// The kind; none: what is usual there.
    pub kind: Option<String>,
    /// The namespace; none: that of the object with the reference.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// The routes that may attach to a listener.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// From which namespaces.
    pub namespaces: Option<AllowedNamespaces>,
    /// Of which kinds; empty: all that fit the protocol.
    #[serde(deserialize_with = "null_as_default")]
    pub kinds: Vec<AllowedKind>,
}

/// The namespaces of routes that may attach.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedNamespaces {
    /// `All`, `Same`, `Selector` or `None`; none is `Same`.
    pub from: Option<String>,
    /// For `Selector`: their labels.
    pub selector: Option<LabelSelector>,
}

/// A kind of routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AllowedKind {
    /// The group; none: that of the Gateway API.
    pub group: Option<String>,
    /// The kind.
    pub kind: String,
}

/// Chooses objects by their labels; all conditions must be true.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with these values.
    #[serde(deserialize_with = "null_as_default")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions.
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// A condition for a label.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LabelRequirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For the first two: the values.
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Whether it chooses an object with these labels. Unknown operators choose nothing.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |it: &LabelRequirement| {
            let value = labels.get(&it.key);
            match it.operator.as_str() {
                "In" => value.is_some_and(|value| it.values.contains(value)),
                "NotIn" => value.is_none_or(|value| !it.values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        };
        self.match_labels.iter().all(|(name, value)| labels.get(name) == Some(value))
            && self.match_expressions.iter().all(holds)
    }
}
