//! `HTTPRoute`, `GRPCRoute` and `TLSRoute`.

use serde::{Deserialize, Serialize};

use super::{GATEWAY_GROUP, Object, ObjectKey, null_as_default};

/// Rules for HTTP requests.
pub type HttpRoute = Object<RouteSpec<HttpRule>>;

/// Rules for gRPC requests.
pub type GrpcRoute = Object<RouteSpec<GrpcRule>>;

/// Rules for connections with TLS that are passed on as they are.
pub type TlsRoute = Object<RouteSpec<TlsRule>>;

/// The specification of a route.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "R: Default + Deserialize<'de>"))]
pub struct RouteSpec<R> {
    /// The gateways or listeners it attaches to.
    #[serde(deserialize_with = "null_as_default")]
    pub parent_refs: Vec<ParentRef>,
    /// Its host names, perhaps `*.example.org`; empty: those of the listener.
    #[serde(deserialize_with = "null_as_default")]
    pub hostnames: Vec<String>,
    /// Its rules.
    #[serde(deserialize_with = "null_as_default")]
    pub rules: Vec<R>,
}

/// A gateway, or one of its listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// The group; none: that of the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; none: `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; none: that of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// Only the listener of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Only listeners of this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl ParentRef {
    /// The kind and the place of the parent; none if it is of another group. `own_namespace` is that of the object with the reference.
    pub(crate) fn target(&self, own_namespace: &str) -> Option<(&str, ObjectKey)> {
        let is_of_gateway_api = self.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP);
        let namespace = self.namespace.as_deref().unwrap_or(own_namespace);
        is_of_gateway_api
            .then(|| (self.kind.as_deref().unwrap_or("Gateway"), ObjectKey::new(namespace, &self.name)))
    }
}

/// A rule of an [`HttpRoute`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    /// The requests: those that match any of these; empty: all.
    #[serde(deserialize_with = "null_as_default")]
    pub matches: Vec<HttpMatch>,
    /// What is done with them.
    #[serde(deserialize_with = "null_as_default")]
    pub filters: Vec<HttpFilter>,
    /// Where they go.
    #[serde(deserialize_with = "null_as_default")]
    pub backend_refs: Vec<BackendRef>,
    /// Their time limits.
    pub timeouts: Option<Timeouts>,
    /// Which requests are sent again.
    pub retry: Option<RouteRetry>,
}

/// Which requests are sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RouteRetry {
    /// The statuses of responses that cause it.
    #[serde(deserialize_with = "null_as_default")]
    pub codes: Vec<u16>,
    /// How often.
    pub attempts: Option<u32>,
}

/// Conditions of requests; all must be true.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    /// The path; none: all.
    pub path: Option<ValueMatch>,
    /// Fields.
    #[serde(deserialize_with = "null_as_default")]
    pub headers: Vec<NamedMatch>,
    /// Parameters of the query.
    #[serde(deserialize_with = "null_as_default")]
    pub query_params: Vec<NamedMatch>,
    /// The method; none: all.
    pub method: Option<String>,
}

/// A condition of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The text.
    pub value: Option<String>,
}

/// A condition of a text with a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamedMatch {
    /// `Exact` or `RegularExpression`; none is the former.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// What is done with requests. The field of its type is set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpFilter {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Changes of fields of requests.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes of fields of responses.
    pub response_header_modifier: Option<HeaderModifier>,
    /// A redirect.
    pub request_redirect: Option<RequestRedirect>,
    /// Changes of path and host.
    pub url_rewrite: Option<UrlRewrite>,
    /// CORS.
    pub cors: Option<CorsFilter>,
    /// A copy of requests for another backend.
    pub request_mirror: Option<RequestMirror>,
}

/// A copy of requests for another backend.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMirror {
    /// The service that gets it.
    pub backend_ref: BackendRef,
    /// The share of requests, in percent; none: all.
    pub percent: Option<u32>,
    /// The share of requests, as a fraction; not beside `percent`.
    pub fraction: Option<Fraction>,
}

/// A part of something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// So many,
    pub numerator: u32,
    /// of so many; none: 100.
    pub denominator: Option<u32>,
}

/// Changes of fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Fields that are replaced.
    #[serde(deserialize_with = "null_as_default")]
    pub set: Vec<HeaderValue>,
    /// Fields that are added.
    #[serde(deserialize_with = "null_as_default")]
    pub add: Vec<HeaderValue>,
    /// Fields that are removed.
    #[serde(deserialize_with = "null_as_default")]
    pub remove: Vec<String>,
}

/// A field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderValue {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A redirect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestRedirect {
    /// `http` or `https`; none: the request's.
    pub scheme: Option<String>,
    /// The host; none: the request's.
    pub hostname: Option<String>,
    /// The change of the path.
    pub path: Option<PathModifier>,
    /// The port; none: that of the scheme, or the listener's.
    pub port: Option<u16>,
    /// The status; none: 302.
    pub status_code: Option<u16>,
}

/// Changes of path and host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UrlRewrite {
    /// The host for the backend; none: the client's.
    pub hostname: Option<String>,
    /// The change of the path.
    pub path: Option<PathModifier>,
}

/// A change of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The path.
    pub replace_full_path: Option<String>,
    /// What replaces the prefix that was matched.
    pub replace_prefix_match: Option<String>,
}

/// CORS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorsFilter {
    /// Origins, perhaps `*`.
    #[serde(deserialize_with = "null_as_default")]
    pub allow_origins: Vec<String>,
    /// Whether credentials may be sent.
    pub allow_credentials: Option<bool>,
    /// Methods.
    #[serde(deserialize_with = "null_as_default")]
    pub allow_methods: Vec<String>,
    /// Fields of requests.
    #[serde(deserialize_with = "null_as_default")]
    pub allow_headers: Vec<String>,
    /// Fields of responses.
    #[serde(deserialize_with = "null_as_default")]
    pub expose_headers: Vec<String>,
    /// Seconds.
    pub max_age: Option<u64>,
}

/// A service that requests go to.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// The group; none or empty: the core.
    pub group: Option<String>,
    /// The kind; none: `Service`.
    pub kind: Option<String>,
    /// The namespace; none: that of the route.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port of the service.
    pub port: Option<u16>,
    /// The share of requests, relative to the others; none: 1.
    pub weight: Option<u32>,
    /// What is done with its requests.
    #[serde(deserialize_with = "null_as_default")]
    pub filters: Vec<HttpFilter>,
}

/// Time limits of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// Of a request as a whole.
    pub request: Option<String>,
    /// Of one attempt of the backend.
    pub backend_request: Option<String>,
}

/// A rule of a [`TlsRoute`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsRule {
    /// Where the connections go.
    #[serde(deserialize_with = "null_as_default")]
    pub backend_refs: Vec<BackendRef>,
}

/// A rule of a [`GrpcRoute`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// The requests: those that match any of these; empty: all.
    #[serde(deserialize_with = "null_as_default")]
    pub matches: Vec<GrpcMatch>,
    /// What is done with them.
    #[serde(deserialize_with = "null_as_default")]
    pub filters: Vec<HttpFilter>,
    /// Where they go.
    #[serde(deserialize_with = "null_as_default")]
    pub backend_refs: Vec<BackendRef>,
}

/// Conditions of gRPC requests; all must be true.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    /// The method; none: all.
    pub method: Option<GrpcMethod>,
    /// Fields.
    #[serde(deserialize_with = "null_as_default")]
    pub headers: Vec<NamedMatch>,
}

/// A method of gRPC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrpcMethod {
    /// `Exact` or `RegularExpression`; none is the former.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The service with its package; none: all.
    pub service: Option<String>,
    /// The method; none: all.
    pub method: Option<String>,
}
