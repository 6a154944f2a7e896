//! Routes of all kinds in one form.

use super::RETRIES_MAX;
use super::attach::RouteHead;
use super::backend::{Retry, UpstreamOptions};
use super::precedence::RequestMatch;
use super::rule::{CommonRule, duration};
use crate::kinds::route::{GrpcMatch, GrpcRule, HttpMatch, HttpRule, RouteRetry, RouteSpec, TlsRule};
use crate::kinds::{Object, oldest_first};
use crate::objects::Objects;

/// A route of a kind.
pub(super) enum AnyRoute<'o> {
    Http(&'o Object<RouteSpec<HttpRule>>),
    Grpc(&'o Object<RouteSpec<GrpcRule>>),
    Tls(&'o Object<RouteSpec<TlsRule>>),
}

/// All routes, the oldest first.
pub(super) fn all_routes(objects: &Objects) -> Vec<AnyRoute<'_>> {
    let http = objects.http_routes.values().map(AnyRoute::Http);
    let grpc = objects.grpc_routes.values().map(AnyRoute::Grpc);
    let tls = objects.tls_routes.values().map(AnyRoute::Tls);
    oldest_first(http.chain(grpc).chain(tls), |route| route.head().metadata)
}

impl AnyRoute<'_> {
    pub(super) fn head(&self) -> RouteHead<'_> {
        match self {
            AnyRoute::Http(route) => RouteHead {
                kind: "HTTPRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
            AnyRoute::Tls(route) => RouteHead {
                kind: "TLSRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
            AnyRoute::Grpc(route) => RouteHead {
                kind: "GRPCRoute",
                metadata: &route.metadata,
                parents: &route.spec.parent_refs,
                hostnames: &route.spec.hostnames,
            },
        }
    }

    pub(super) fn rules_count(&self) -> usize {
        match self {
            AnyRoute::Http(route) => route.spec.rules.len(),
            AnyRoute::Grpc(route) => route.spec.rules.len(),
            AnyRoute::Tls(route) => route.spec.rules.len(),
        }
    }

    /// Its rules in the form that all kinds for requests have in common, or what is not supported.
    pub(super) fn rules(&self) -> Vec<Result<CommonRule, String>> {
        let (kind, key) = (self.head().kind, self.head().metadata.key());
        let name = |at: usize| format!("{kind}/{key}/{at}");
        match self {
            AnyRoute::Http(route) => {
                route.spec.rules.iter().enumerate().map(|(at, rule)| http_rule(rule, name(at))).collect()
            }
            AnyRoute::Grpc(route) => {
                route.spec.rules.iter().enumerate().map(|(at, rule)| grpc_rule(rule, name(at))).collect()
            }
            AnyRoute::Tls(_) => Vec::new(),
        }
    }
}

fn http_rule(rule: &HttpRule, name: String) -> Result<CommonRule, String> {
    let any = [HttpMatch::default()];
    let matches = if rule.matches.is_empty() { &any[..] } else { &rule.matches };
    let timeouts = rule.timeouts.clone().unwrap_or_default();
    let time = |text: &Option<String>| text.as_deref().map_or(Ok(None), duration);
    let options = UpstreamOptions {
        // A request that reaches either limit is not repeated, so the shorter one counts.
        request_time: [time(&timeouts.request)?, time(&timeouts.backend_request)?]
            .into_iter()
            .flatten()
            .min(),
        retry: rule.retry.as_ref().map(retry).transpose()?,
        ..UpstreamOptions::default()
    };
    Ok(CommonRule {
        name,
        matches: matches.iter().map(RequestMatch::of_http).collect::<Result<_, _>>()?,
        filters: rule.filters.clone(),
        backends: rule.backend_refs.clone(),
        options,
    })
}

/// Which requests of a rule are sent again.
///
/// # Errors
/// A status that is no error, or too many attempts.
fn retry(retry: &RouteRetry) -> Result<Retry, String> {
    if let Some(code) = retry.codes.iter().find(|code| !(400..600).contains(*code)) {
        return Err(format!("retries for the status {code}; allowed are 400 to 599"));
    }
    if let Some(attempts) = retry.attempts.filter(|attempts| *attempts > RETRIES_MAX) {
        return Err(format!("{attempts} retries of a request; allowed are {RETRIES_MAX}"));
    }
    let mut statuses = retry.codes.clone();
    statuses.sort_unstable();
    statuses.dedup();
    Ok(Retry { statuses, attempts: retry.attempts })
}

fn grpc_rule(rule: &GrpcRule, name: String) -> Result<CommonRule, String> {
    let any = [GrpcMatch::default()];
    let matches = if rule.matches.is_empty() { &any[..] } else { &rule.matches };
    let of_backends = rule.backend_refs.iter().flat_map(|it| &it.filters);
    if rule.filters.iter().chain(of_backends).any(|filter| filter.kind == "RequestMirror") {
        return Err(
            "RequestMirror is not supported for gRPC: the length of its bodies is not known".to_owned()
        );
    }
    Ok(CommonRule {
        name,
        matches: matches.iter().map(RequestMatch::of_grpc).collect::<Result<_, _>>()?,
        filters: rule.filters.clone(),
        backends: rule.backend_refs.clone(),
        options: UpstreamOptions { is_h2c: true, ..UpstreamOptions::default() },
    })
}
