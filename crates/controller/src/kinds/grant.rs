//! `ReferenceGrant`.

use serde::Deserialize;

use super::{Object, null_as_default};

/// Allows objects of other namespaces to refer to objects of its namespace.
pub type ReferenceGrant = Object<GrantSpec>;

/// The specification of a [`ReferenceGrant`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantSpec {
    /// The objects that may refer.
    #[serde(deserialize_with = "null_as_default")]
    pub from: Vec<GrantFrom>,
    /// To these.
    #[serde(deserialize_with = "null_as_default")]
    pub to: Vec<GrantTo>,
}

/// Objects that may refer to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Their group.
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// Their namespace.
    pub namespace: String,
}

/// Objects that others may refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// Their group; empty: the core.
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// Only the one of this name.
    pub name: Option<String>,
}
