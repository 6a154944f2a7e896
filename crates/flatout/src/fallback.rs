//! Handlers for requests that match no route.

use std::sync::Arc;

use flatout_engine::{Reply, Response};
use flatout_wire::target::PathForm;
use flatout_wire::{Method, Status};
use matchit::{Params, Router};

use crate::app::Fallback;
use crate::extract::BodyUse;
use crate::handler::Endpoint;
use crate::route_check::{RouteCheck, reachable, refusal};
use crate::routes::{RouteEntry, outermost_first, twice};
use crate::scope::{Scope, ScopeList};
use crate::{Context, Error, Problem, Respond};

/// The fallbacks of an application and of those nested in it.
pub(crate) struct Fallbacks {
    /// Those of nested applications, by prefix.
    nested: Router<RouteEntry>,
    /// Segments of the longest of these prefixes.
    segments_max: usize,
    outermost: RouteEntry,
}

impl Fallbacks {
    /// # Errors
    /// A malformed prefix, one that no path can have, or one with two fallbacks; arguments that no request can fill.
    pub(crate) fn of(
        all: Vec<Fallback>,
        root: &Arc<Scope>,
        places: &mut ScopeList,
        form: PathForm,
    ) -> Result<Fallbacks, Error> {
        let mut nested = Router::new();
        let mut prefixes: Vec<String> = Vec::new();
        let mut outermost: Option<(bool, RouteEntry)> = None;
        for Fallback { prefix, endpoint, scopes } in all {
            let is_own = scopes.is_empty();
            let chain = places.of(outermost_first(root, scopes));
            let form_checked = if prefix.is_empty() { Ok(()) } else { reachable(&prefix, form) };
            form_checked
                .and_then(|()| endpoint.check(&RouteCheck::new(&prefix, &chain)))
                .map_err(|fault| Error::Route(format!("the fallback of `{prefix}/`: {fault}")))?;
            endpoint.placed(&prefix);
            let entry = RouteEntry::new(endpoint, chain, None);
            if prefix.is_empty() {
                match &outermost {
                    // The application's own fallback takes precedence over that of one nested at `/`.
                    Some((true, _)) if !is_own => {}
                    Some((false, _)) if !is_own => return Err(twice("/", "the fallback")),
                    _ => outermost = Some((is_own, entry)),
                }
                continue;
            }
            if prefixes.contains(&prefix) {
                return Err(twice(&prefix, "the fallback"));
            }
            let refused = |error| Error::Route(format!("the fallback of `{prefix}/`{}", refusal(&error)));
            nested.insert(prefix.as_str(), entry).map_err(refused)?;
            prefixes.push(prefix);
        }
        let outermost = match outermost {
            Some((_, entry)) => entry,
            None => RouteEntry::new(Arc::new(NotFound), places.of(outermost_first(root, Vec::new())), None),
        };
        let segments_max = prefixes.iter().map(|prefix| segments(prefix)).max().unwrap_or(0);
        Ok(Fallbacks { nested, segments_max, outermost })
    }

    /// The fallback of the longest prefix of the path, with the prefix's parameters. Costs a router lookup for each
    /// segment of the longest prefix.
    #[cold]
    pub(crate) fn find<'a>(&'a self, path: &'a str) -> (&'a RouteEntry, Params<'a, 'a>) {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        let mut found = None;
        // A shorter prefix is tried first, and a longer one replaces it.
        for end in ends.take(self.segments_max) {
            if let Ok(matched) = self.nested.at(&path[..end]) {
                found = Some((matched.value, matched.params));
            }
        }
        found.unwrap_or_else(|| (&self.outermost, Params::default()))
    }
}

fn segments(prefix: &str) -> usize {
    prefix.matches('/').count()
}

/// Handles requests that match no route.
struct NotFound;

impl Endpoint for NotFound {
    fn body_use(&self) -> BodyUse {
        BodyUse::None
    }

    fn call(&self, context: &mut Context<'_>, response: &mut Response) -> Reply {
        let status = match context.method() {
            Method::Other => Status::NOT_IMPLEMENTED,
            _ => Status::NOT_FOUND,
        };
        Problem::new(status).respond(response);
        Reply::Now
    }
}
