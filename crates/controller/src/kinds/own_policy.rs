//! `CachePolicy` and `LimitPolicy`: what the Gateway API has no fields for.

use serde::Deserialize;

use super::policy::PolicyTarget;
use super::{Object, null_as_default};

/// The group of these kinds.
pub const OWN_GROUP: &str = "flatout.dev";

/// How responses for routes are cached.
pub type CachePolicy = Object<CacheSpec>;

/// The specification of a [`CachePolicy`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheSpec {
    /// HTTPRoutes of the same namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub target_refs: Vec<PolicyTarget>,
    /// How long a response 200 without a freshness of its own is fresh; none: such responses are not stored.
    pub valid_for: Option<String>,
    /// For how long a stale response may be served instead of an error of a backend.
    pub stale_for: Option<String>,
    /// For how long a stale response may be served while a new one is fetched.
    pub updating_for: Option<String>,
}

/// Limits of requests for routes.
pub type LimitPolicy = Object<LimitSpec>;

/// The specification of a [`LimitPolicy`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitSpec {
    /// HTTPRoutes and GRPCRoutes of the same namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub target_refs: Vec<PolicyTarget>,
    /// Requests of each client.
    pub requests: Option<RequestLimit>,
    /// Bytes of the body of a request.
    pub body_bytes: Option<u64>,
}

/// How many requests a client may send.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RequestLimit {
    /// Requests that are allowed in a window.
    pub count: u32,
    /// The length of the window; none: one second.
    pub window: Option<String>,
    /// Requests above that rate that are served without delay.
    pub burst: u32,
}
