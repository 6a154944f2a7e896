//! The objects that are read, with the fields that are used. Fields that this version does not know are ignored, as in every
//! client of Kubernetes; values that it does not know are refused where they are used.
//!
//! Why not the types of the crate `gateway-api` (0.22, November 2026):
//!
//! - Its enumerations are closed: a filter of a newer standard makes the whole HTTPRoute unreadable. Here, the other rules are served, and the
//!   status of the route says which one is not.
//! - It needs `kube` 4.2 and `k8s-openapi` 0.28, with schemas: 52 crates also where objects come from a folder, and in a cluster a second
//!   `kube` beside ours.
//! - Filters of rules and of backends are different types with the same fields, and so are references of each kind of route. All are one here.
//! - Retries are in its experimental channel only, which has all other kinds once more.

pub mod core;
pub mod gateway;
pub mod grant;
pub mod ingress;
pub mod own_policy;
pub mod policy;
pub mod route;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// The group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// An object without its kind and version.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Object<S> {
    /// What all objects have.
    pub metadata: Metadata,
    /// What somebody wants.
    pub spec: S,
}

/// What all objects have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its name, unique for its kind in its namespace.
    pub name: String,
    /// Its namespace; empty for kinds that have none.
    pub namespace: String,
    /// When it was made, in RFC 3339: the order of the texts is the order of the times.
    pub creation_timestamp: String,
    /// How often its specification has changed.
    pub generation: i64,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

/// Where an object of a known kind is.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its namespace; empty for kinds that have none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// An object in a namespace.
    pub fn new(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl Metadata {
    /// Where it is.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// The order in which conflicting objects win: the oldest, then by name.
    pub fn age(&self) -> (&str, &str, &str) {
        (&self.creation_timestamp, &self.namespace, &self.name)
    }
}

/// The places of objects of several kinds among all of them: see [`Metadata::age`].
pub(crate) struct Ages<'o>(Vec<(&'o str, &'o str, &'o str)>);

impl<'o> Ages<'o> {
    /// Those of objects in any order.
    pub(crate) fn of(objects: impl Iterator<Item = &'o Metadata>) -> Ages<'o> {
        let mut ages: Vec<_> = objects.map(Metadata::age).collect();
        ages.sort_unstable();
        Ages(ages)
    }

    /// The place of one of the objects, the oldest first.
    pub(crate) fn place(&self, object: &Metadata) -> usize {
        self.0.partition_point(|age| *age < object.age())
    }
}

/// The order in which conflicting objects win: see [`Metadata::age`].
pub(crate) fn oldest_first<T>(
    objects: impl Iterator<Item = T>,
    metadata: impl Fn(&T) -> &Metadata,
) -> Vec<T> {
    let mut sorted: Vec<T> = objects.collect();
    sorted.sort_by(|one, other| metadata(one).age().cmp(&metadata(other).age()));
    sorted
}

/// Programs in Go write empty lists and maps as `null`.
pub(crate) fn null_as_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}
