//! The rules of routes: each of their matches becomes a route of a site. With several backends it becomes several, which differ by
//! a random number that stays the same during a request: the shares of the backends.

use std::time::Duration;

use flatout_gateway::{Forward, Host, Mirror};
use flatout_site::plan::{Action, Route, Template};

use super::attach::RuleFaults;
use super::backend::{UpstreamOptions, Upstreams};
use super::filter::{self, ListenerOrigin};
use super::grant::Referrer;
use super::precedence::{RequestMatch, Specificity, parsed};
use crate::kinds::route::{BackendRef, HttpFilter};

/// A rule of any kind of route, in the form that all have in common.
#[derive(Clone)]
pub(super) struct CommonRule {
    /// Its name in logs.
    pub(super) name: String,
    pub(super) matches: Vec<RequestMatch>,
    pub(super) filters: Vec<HttpFilter>,
    pub(super) backends: Vec<BackendRef>,
    pub(super) options: UpstreamOptions,
}

/// Where the requests of a rule go: what is known before a listener is.
pub(super) struct ResolvedRule {
    rule: CommonRule,
    /// The upstream of each backend with a share, and the limit of its random numbers; none is 500.
    shares: Vec<Share>,
    /// What gets copies of all its requests.
    mirrors: Vec<Mirror>,
}

struct Share {
    upstream: Option<usize>,
    /// The part of all requests that goes to it and those before it.
    until: f64,
    filters: Vec<HttpFilter>,
    mirrors: Vec<Mirror>,
}

/// A route of a site, and how specific it is.
#[derive(Debug, Clone)]
pub(super) struct RankedRoute {
    pub(super) specificity: Specificity,
    pub(super) route: Route,
}

impl ResolvedRule {
    /// Finds the backends of a rule.
    pub(super) fn new(
        rule: CommonRule,
        from: Referrer<'_>,
        upstreams: &mut Upstreams<'_>,
        faults: &mut RuleFaults,
    ) -> ResolvedRule {
        let mirrors = mirrors(&rule.filters, (from, &rule.options), upstreams, faults);
        let weights = |it: &BackendRef| f64::from(it.weight.unwrap_or(1));
        let total: f64 = rule.backends.iter().map(weights).sum();
        let (mut shares, mut sum) = (Vec::new(), 0.0);
        for backend in &rule.backends {
            // One without a share is resolved too: a mistake in it is reported.
            let found = upstreams.of_reference(from, backend, &rule.options);
            let upstream = found.map_err(|why| faults.unresolved.get_or_insert(why).clone()).ok();
            let weight = weights(backend);
            if weight > 0.0 {
                sum += weight;
                let filters = backend.filters.clone();
                let mirrors = self::mirrors(&filters, (from, &rule.options), upstreams, faults);
                shares.push(Share { upstream, until: sum / total, filters, mirrors });
            }
        }
        ResolvedRule { rule, shares, mirrors }
    }

    /// The routes for a listener.
    ///
    /// # Errors
    /// A filter is not supported.
    pub(super) fn routes(&self, origin: ListenerOrigin) -> Result<Vec<RankedRoute>, String> {
        let mut routes = Vec::new();
        for (number, request) in self.rule.matches.iter().enumerate() {
            let base = |action: Action| Route {
                name: format!("{}.{number}", self.rule.name),
                when: request.conditions.clone(),
                ..Route::new(request.path.clone(), action)
            };
            let mut add = |route: Route| {
                routes.push(RankedRoute { specificity: request.specificity, route });
            };
            let is_redirect = self.rule.filters.iter().any(|it| it.kind == "RequestRedirect");
            if is_redirect || self.shares.is_empty() {
                let mut route = base(refusal());
                filter::apply(&self.rule.filters, origin, &mut route)?;
                add(route);
                continue;
            }
            for (at, share) in self.shares.iter().enumerate() {
                let mut route = match share.upstream {
                    Some(upstream) => base(Action::Proxy(forward(upstream))),
                    None => base(refusal()),
                };
                let of_rule = filter::apply(&self.rule.filters, origin, &mut route)?;
                let host = filter::apply(&share.filters, origin, &mut route)?.or(of_rule);
                if let Action::Proxy(forward) = &mut route.action {
                    forward.mirrors = self.mirrors.iter().chain(&share.mirrors).copied().collect();
                    forward.host = host.map_or(Host::Kept, Host::Set);
                }
                if at + 1 < self.shares.len() {
                    // It is chosen first, so the limits of those behind it need no lower one.
                    route.when.extend(parsed(&[format!("random < {:.9}", share.until)])?);
                }
                add(route);
            }
        }
        Ok(routes)
    }
}

/// The upstreams that get copies of requests by these filters. One that is not found gets none; the route's status says so.
fn mirrors(
    filters: &[HttpFilter],
    (from, options): (Referrer<'_>, &UpstreamOptions),
    upstreams: &mut Upstreams<'_>,
    faults: &mut RuleFaults,
) -> Vec<Mirror> {
    let given = filters.iter().filter(|filter| filter.kind == "RequestMirror");
    let mut found = Vec::new();
    for mirror in given.filter_map(|filter| filter.request_mirror.as_ref()) {
        match (upstreams.of_reference(from, &mirror.backend_ref, options), filter::mirrored_share(mirror)) {
            (Ok(upstream), Ok((numerator, denominator))) => {
                found.push(Mirror { upstream, numerator, denominator });
            }
            (Err(why), _) => drop(faults.unresolved.get_or_insert(why)),
            // The rule is refused for it.
            (Ok(_), Err(_)) => {}
        }
    }
    found
}

/// How requests are forwarded.
pub(super) fn forward(upstream: usize) -> Forward {
    Forward::to(upstream)
}

/// The response for requests without a backend.
pub(super) fn refusal() -> Action {
    Action::Respond {
        status: 500,
        content_type: "text/plain".to_owned(),
        body: Template::text("no backend for this request\n"),
    }
}

/// A route for the same requests, which refuses them.
pub(super) fn closed(route: &Route) -> Route {
    let (name, when) = (route.name.clone(), route.when.clone());
    Route { name, when, ..Route::new(route.path.clone(), refusal()) }
}

/// A duration of the Gateway API, such as `1h30m` or `500ms`; zero is no limit.
///
/// # Errors
/// It is none.
pub(super) fn duration(text: &str) -> Result<Option<Duration>, String> {
    let wrong = || format!("got the duration `{text}`, need one such as 10s, 500ms or 1h30m");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = rest.split_at(digits);
        let number: u64 = number.parse().ok().filter(|it| *it <= 99_999).ok_or_else(wrong)?;
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        let (unit, milliseconds) =
            units.iter().find(|(unit, _)| behind.starts_with(unit)).ok_or_else(wrong)?;
        sum += Duration::from_millis(number * milliseconds);
        rest = behind.get(unit.len()..).unwrap_or_default();
    }
    Ok(Some(sum).filter(|sum| !sum.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = |it: u64| Ok(Some(Duration::from_millis(it)));
        for (text, expected) in [
            ("10s", ms(10_000)),
            ("500ms", ms(500)),
            ("1h30m", ms(5_400_000)),
            ("1m1s1ms", ms(61_001)),
            ("0s", Ok(None)),
        ] {
            assert_eq!(duration(text), expected, "{text}");
        }
        for bad in ["", "10", "s", "1.5s", "1d", "-1s", "9999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
