//! All objects that are read, by kind, namespace and name.
//!
//! ```text
//! folder of YAML ──┐                                    ┌─> Translation: plan, servers, statuses
//!                  ├─ JSON of one object ──> Objects ───┤
//! API server ──────┘    read: kind, version, fields     └─> (the folder and the API server know nothing of each other)
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::kinds::core::{ConfigMap, EndpointSlice, Namespace, Secret, Service};
use crate::kinds::gateway::{Gateway, GatewayClass, ListenerSet};
use crate::kinds::grant::ReferenceGrant;
use crate::kinds::ingress::{Ingress, IngressClass};
use crate::kinds::own_policy::{CachePolicy, LimitPolicy, OWN_GROUP};
use crate::kinds::policy::BackendTlsPolicy;
use crate::kinds::route::{GrpcRoute, HttpRoute, TlsRoute};
use crate::kinds::{GATEWAY_GROUP, ObjectKey};

/// Objects of one kind, by their place.
pub type Table<T> = BTreeMap<ObjectKey, T>;

/// The label of a slice with the name of its service.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The namespace of objects in files that name none.
const NAMESPACE_DEFAULT: &str = "default";

/// A kind of objects that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Its name in URLs.
    pub plural: &'static str,
    /// Its group; empty for the core.
    pub group: &'static str,
    /// The version that is watched. All of [`Kind::versions`] have the same fields.
    pub version: &'static str,
    /// The versions that files may have.
    pub versions: &'static [&'static str],
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

macro_rules! kinds {
    ($($field:ident: $type:ty = ($name:literal, $plural:literal, $group:expr, $version:literal, $versions:expr, $namespaced:literal),)*) => {
        /// All kinds that are read.
        pub const KINDS: &[Kind] = &[$(Kind {
            name: $name,
            plural: $plural,
            group: $group,
            version: $version,
            versions: $versions,
            is_namespaced: $namespaced,
        }),*];

        /// All objects that are read.
        #[derive(Debug, Clone, Default)]
        pub struct Objects {
            $(#[doc = concat!("Objects of the kind ", $name, ".")]
            pub $field: Table<$type>,)*
            /// What has changed since it was taken last.
            pub(crate) changed: ObjectChanges,
        }

        impl Objects {
            fn put(&mut self, kind: &str, key: ObjectKey, value: Value) -> Result<bool, String> {
                match kind {
                    $($name => put(&mut self.$field, key, value),)*
                    _ => Ok(false),
                }
            }

            fn take(&mut self, kind: &Kind, key: &ObjectKey) -> bool {
                match kind.name {
                    $($name => self.$field.remove(key).is_some(),)*
                    _ => false,
                }
            }

            /// The places of all objects of a kind.
            pub fn keys(&self, kind: &Kind) -> Vec<ObjectKey> {
                match kind.name {
                    $($name => self.$field.keys().cloned().collect(),)*
                    _ => Vec::new(),
                }
            }

            /// How many objects there are.
            pub fn count(&self) -> usize {
                0 $(+ self.$field.len())*
            }
        }
    };
}

kinds! {
    namespaces: Namespace = ("Namespace", "namespaces", "", "v1", &["v1"], false),
    services: Service = ("Service", "services", "", "v1", &["v1"], true),
    secrets: Secret = ("Secret", "secrets", "", "v1", &["v1"], true),
    config_maps: ConfigMap = ("ConfigMap", "configmaps", "", "v1", &["v1"], true),
    slices: EndpointSlice = ("EndpointSlice", "endpointslices", "discovery.k8s.io", "v1", &["v1"], true),
    ingress_classes: IngressClass = ("IngressClass", "ingressclasses", "networking.k8s.io", "v1", &["v1"], false),
    ingresses: Ingress = ("Ingress", "ingresses", "networking.k8s.io", "v1", &["v1"], true),
    gateway_classes: GatewayClass = ("GatewayClass", "gatewayclasses", GATEWAY_GROUP, "v1", &["v1", "v1beta1"], false),
    gateways: Gateway = ("Gateway", "gateways", GATEWAY_GROUP, "v1", &["v1", "v1beta1"], true),
    listener_sets: ListenerSet = ("ListenerSet", "listenersets", GATEWAY_GROUP, "v1", &["v1"], true),
    http_routes: HttpRoute = ("HTTPRoute", "httproutes", GATEWAY_GROUP, "v1", &["v1", "v1beta1"], true),
    grpc_routes: GrpcRoute = ("GRPCRoute", "grpcroutes", GATEWAY_GROUP, "v1", &["v1"], true),
    tls_routes: TlsRoute = ("TLSRoute", "tlsroutes", GATEWAY_GROUP, "v1", &["v1"], true),
    grants: ReferenceGrant = ("ReferenceGrant", "referencegrants", GATEWAY_GROUP, "v1beta1", &["v1", "v1beta1"], true),
    tls_policies: BackendTlsPolicy = ("BackendTLSPolicy", "backendtlspolicies", GATEWAY_GROUP, "v1", &["v1"], true),
    cache_policies: CachePolicy = ("CachePolicy", "cachepolicies", OWN_GROUP, "v1alpha1", &["v1alpha1"], true),
    limit_policies: LimitPolicy = ("LimitPolicy", "limitpolicies", OWN_GROUP, "v1alpha1", &["v1alpha1"], true),
}

/// What has changed in objects: endpoints come and go all the time, routes often, everything else is rare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectChanges {
    /// Objects that any other one may depend on.
    pub(crate) is_other: bool,
    /// Objects that are looked at in each translation, such as gateways, certificates and Ingresses: what depends on them finds that out.
    pub(crate) is_seen: bool,
    /// The services whose endpoints have changed.
    pub(crate) services: BTreeSet<ObjectKey>,
    /// The services that have changed themselves.
    pub(crate) definitions: BTreeSet<ObjectKey>,
    /// The routes that have changed, with the names of their kinds.
    pub(crate) routes: BTreeSet<(&'static str, ObjectKey)>,
}

impl Default for ObjectChanges {
    /// Of objects that nobody has read yet.
    fn default() -> ObjectChanges {
        ObjectChanges { is_other: true, ..ObjectChanges::none() }
    }
}

impl ObjectChanges {
    /// Nothing.
    pub(crate) fn none() -> ObjectChanges {
        let (services, definitions) = (BTreeSet::new(), BTreeSet::new());
        ObjectChanges { is_other: false, is_seen: false, services, definitions, routes: BTreeSet::new() }
    }

    /// Whether only endpoints have changed.
    pub(crate) fn are_endpoints(&self) -> bool {
        let is_more =
            self.is_other || self.is_seen || !self.definitions.is_empty() || !self.routes.is_empty();
        !is_more && !self.services.is_empty()
    }

    /// These changes, and later ones.
    pub(crate) fn add(&mut self, later: ObjectChanges) {
        self.is_other |= later.is_other;
        self.is_seen |= later.is_seen;
        self.services.extend(later.services);
        self.definitions.extend(later.definitions);
        self.routes.extend(later.routes);
    }
}

/// What was done with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insertion {
    /// It was added, or differs from the one that was there.
    Changed(&'static Kind, ObjectKey),
    /// The same was there already.
    Same(&'static Kind, ObjectKey),
    /// It is of a kind that is not read.
    Ignored(String),
}

impl Objects {
    /// Adds or replaces an object, given as the API server or a file has it.
    ///
    /// # Errors
    /// It has no kind or name, or a field of another type.
    pub fn insert(&mut self, mut value: Value) -> Result<Insertion, String> {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (version, kind_name) = (text("/apiVersion"), text("/kind").to_owned());
        let kind_name = kind_name.as_str();
        if kind_name.is_empty() || version.is_empty() {
            return Err("an object without `kind` and `apiVersion`; need both".to_owned());
        }
        let Some(kind) = find_kind(version, kind_name) else {
            return Ok(Insertion::Ignored(format!("{kind_name} of {version}")));
        };
        let name = text("/metadata/name");
        if name.is_empty() {
            return Err(format!("{kind_name}: an object without a name; need metadata.name"));
        }
        let namespace = match (kind.is_namespaced, text("/metadata/namespace")) {
            (false, _) => "",
            (true, "") => NAMESPACE_DEFAULT,
            (true, namespace) => namespace,
        };
        let key = ObjectKey::new(namespace, name);
        if let Some(Value::Object(metadata)) = value.get_mut("metadata") {
            metadata.insert("namespace".to_owned(), Value::String(key.namespace.clone()));
        }
        let former = self.service_of(kind, &key);
        let changed = self.put(kind.name, key.clone(), value);
        let changed = changed.map_err(|why| match kind_name {
            // The reason could have a value of it.
            "Secret" => format!("{kind_name} {key}: malformed; need texts in `data` and `stringData`"),
            _ => format!("{kind_name} {key}: {why}"),
        })?;
        if !changed {
            return Ok(Insertion::Same(kind, key));
        }
        self.note(kind, &key, [former, self.service_of(kind, &key)]);
        Ok(Insertion::Changed(kind, key))
    }

    /// Removes an object. Returns whether there was one.
    pub fn remove(&mut self, kind: &Kind, key: &ObjectKey) -> bool {
        let former = self.service_of(kind, key);
        let was_there = self.take(kind, key);
        if was_there {
            self.note(kind, key, [former, None]);
        }
        was_there
    }

    /// The service of a slice of endpoints.
    fn service_of(&self, kind: &Kind, key: &ObjectKey) -> Option<ObjectKey> {
        let slice = (kind.name == "EndpointSlice").then(|| self.slices.get(key)).flatten()?;
        let service = slice.metadata.labels.get(SERVICE_LABEL)?;
        Some(ObjectKey::new(&slice.metadata.namespace, service))
    }

    /// Notes a change of an object, with the services that it was and is of.
    fn note(&mut self, kind: &Kind, key: &ObjectKey, services: [Option<ObjectKey>; 2]) {
        match kind.name {
            "EndpointSlice" => self.changed.services.extend(services.into_iter().flatten()),
            "HTTPRoute" | "GRPCRoute" | "TLSRoute" => {
                self.changed.routes.insert((kind.name, key.clone()));
            }
            "Service" => drop(self.changed.definitions.insert(key.clone())),
            "Namespace" | "ReferenceGrant" => self.changed.is_other = true,
            _ => self.changed.is_seen = true,
        }
    }
}

/// The kind of this name, in one of its versions.
pub fn find_kind(api_version: &str, name: &str) -> Option<&'static Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    KINDS.iter().find(|it| it.name == name && it.group == group && it.versions.contains(&version))
}

fn put<T: DeserializeOwned + PartialEq>(
    table: &mut Table<T>,
    key: ObjectKey,
    value: Value,
) -> Result<bool, String> {
    let object: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if table.get(&key) == Some(&object) {
        return Ok(false);
    }
    table.insert(key, object);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_read_by_kind_and_version() {
        let mut objects = Objects::default();
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": null}});
        let key = ObjectKey::new("default", "a");
        let kind = find_kind("v1", "Service").unwrap();
        assert_eq!(objects.insert(service.clone()), Ok(Insertion::Changed(kind, key.clone())));
        assert_eq!(objects.insert(service), Ok(Insertion::Same(kind, key.clone())));
        assert_eq!(objects.count(), 1);
        assert!(objects.remove(kind, &key));
        assert!(!objects.remove(kind, &key));
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        assert_eq!(objects.insert(pod), Ok(Insertion::Ignored("Pod of v1".to_owned())));
    }

    #[test]
    fn changes_of_endpoints_are_noted_by_service() {
        let mut objects = Objects::default();
        assert!(objects.changed.is_other, "of objects that are new, nothing is known");
        objects.changed = ObjectChanges::none();
        let slice = |service: &str| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                   "metadata": {"name": "x", "labels": {"kubernetes.io/service-name": service}}})
        };
        let services = |objects: &mut Objects| {
            let ObjectChanges { is_other, services, .. } =
                std::mem::replace(&mut objects.changed, ObjectChanges::none());
            (is_other, services.iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(" "))
        };
        objects.insert(slice("a")).unwrap();
        assert_eq!(services(&mut objects), (false, "a".to_owned()));
        objects.insert(slice("a")).unwrap();
        assert_eq!(services(&mut objects), (false, String::new()), "it is the same");
        objects.insert(slice("b")).unwrap();
        assert_eq!(services(&mut objects), (false, "a b".to_owned()));
        objects.remove(
            find_kind("discovery.k8s.io/v1", "EndpointSlice").unwrap(),
            &ObjectKey::new("default", "x"),
        );
        assert_eq!(services(&mut objects), (false, "b".to_owned()));
        objects.insert(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})).unwrap();
        assert_eq!(services(&mut objects), (true, String::new()));
        objects.insert(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}})).unwrap();
        assert_eq!(objects.changed.definitions, [ObjectKey::new("default", "a")].into());
        objects.insert(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})).unwrap();
        assert!(objects.changed.is_seen && !objects.changed.are_endpoints());
        assert_eq!(services(&mut objects), (false, String::new()));
        let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"}});
        objects.insert(route.clone()).unwrap();
        assert_eq!(objects.changed.routes, [("HTTPRoute", ObjectKey::new("default", "r"))].into());
        assert_eq!(services(&mut objects), (false, String::new()), "a route is not just anything");
        objects.insert(route).unwrap();
        assert_eq!(objects.changed, ObjectChanges::none(), "it is the same");
    }

    #[test]
    fn malformed_objects_are_refused_with_their_name() {
        let mut objects = Objects::default();
        for (value, reason) in [
            (json!({"kind": "Service"}), "without `kind` and `apiVersion`"),
            (json!({"apiVersion": "v1", "kind": "Service"}), "Service: an object without a name"),
            (
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 70000}]}}),
                "Service default/a: invalid value",
            ),
        ] {
            let why = objects.insert(value).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
        assert_eq!(objects.count(), 0);
    }
}
