//! References to objects of other namespaces: only with a `ReferenceGrant` there.

use crate::kinds::grant::GrantTo;
use crate::kinds::{GATEWAY_GROUP, ObjectKey};
use crate::objects::Objects;

/// An object with a reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Referrer<'a> {
    pub(super) group: &'a str,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
}

impl<'a> Referrer<'a> {
    /// An object of the Gateway API.
    pub(super) fn of_gateway_api(kind: &'a str, namespace: &'a str) -> Referrer<'a> {
        Referrer { group: GATEWAY_GROUP, kind, namespace }
    }
}

/// Whether an object may refer to this one, of the kind `kind` in the core group.
pub(super) fn is_granted(objects: &Objects, from: Referrer<'_>, kind: &str, to: &ObjectKey) -> bool {
    if from.namespace == to.namespace {
        return true;
    }
    let fits = |it: &GrantTo| {
        it.group.is_empty()
            && it.kind == kind
            && it.name.as_ref().is_none_or(|name| name.is_empty() || *name == to.name)
    };
    objects.grants.values().filter(|grant| grant.metadata.namespace == to.namespace).any(|grant| {
        let is_from = grant
            .spec
            .from
            .iter()
            .any(|it| it.group == from.group && it.kind == from.kind && it.namespace == from.namespace);
        is_from && grant.spec.to.iter().any(fits)
    })
}
