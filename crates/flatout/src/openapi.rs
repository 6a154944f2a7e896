//! The OpenAPI 3.1 description of an application, and an interactive page.
//!
//! The document comes from `utoipa`: its derives describe the types, its attribute the handlers, and it is independent of
//! the framework. `aide` needs handlers and extractors of axum.

use std::sync::Arc;

use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, PathItem};

use crate::handler::{Handler, Plain};
use crate::{App, Error, Html, Result};

/// The page: one file that loads nothing from other servers.
const PAGE: &str = include_str!("openapi.html");

/// A document and where it is served.
pub(crate) struct Document {
    json: bytes::Bytes,
    /// Method and path of each operation.
    operations: Vec<(&'static str, String)>,
}

impl Document {
    /// # Errors
    /// A document that cannot be serialized as JSON.
    pub(crate) fn new(document: &OpenApi) -> Result<Document> {
        let json = document.to_json().map_err(|error| Error::Usage(format!("OpenAPI: {error}")))?;
        let paths = document.paths.paths.iter();
        let operations = paths.flat_map(|(path, item)| methods(item).map(|method| (method, path.clone())));
        Ok(Document { operations: operations.collect(), json: json.into() })
    }

    /// The first operation that none of these routes (method and pattern) handles. A route without a method handles all.
    pub(crate) fn without_route<'r>(
        &self,
        routes: impl Iterator<Item = (Option<&'r str>, &'r str)> + Clone,
    ) -> Option<String> {
        let is_there = |(method, path): &&(&'static str, String)| {
            let mut routes = routes.clone();
            routes.any(|(known, pattern)| known.is_none_or(|known| known == *method) && same(pattern, path))
        };
        let missing = self.operations.iter().find(|operation| !is_there(operation));
        missing.map(|(method, path)| format!("{method} {path}"))
    }

    /// Adds the document and the page.
    pub(crate) fn routes(self: &Arc<Document>, app: App, path: &str) -> App {
        let (path, json) = (path.trim_end_matches('/'), self.json.clone());
        let as_json = move || ([("Content-Type", "application/json")], json.clone());
        let page = || Html(PAGE);
        app.route_endpoint(&format!("{path}/openapi.json"), Handler::<(), Plain>::into_endpoint(as_json))
            .route_endpoint(
                if path.is_empty() { "/" } else { path },
                Handler::<(), Plain>::into_endpoint(page),
            )
    }
}

fn methods(item: &PathItem) -> impl Iterator<Item = &'static str> + use<> {
    let all: [(&'static str, &Option<Operation>); 7] = [
        ("GET", &item.get),
        ("PUT", &item.put),
        ("POST", &item.post),
        ("DELETE", &item.delete),
        ("OPTIONS", &item.options),
        ("HEAD", &item.head),
        ("PATCH", &item.patch),
    ];
    let there: Vec<&'static str> =
        all.into_iter().filter_map(|(method, operation)| operation.as_ref().map(|_| method)).collect();
    there.into_iter()
}

/// Whether a pattern and a path template are equal except for the names of their parameters.
fn same(pattern: &str, template: &str) -> bool {
    let is_name = |segment: &str| segment.starts_with('{') && segment.ends_with('}');
    let alike = |(one, other): (&str, &str)| one == other || (is_name(one) && is_name(other));
    pattern.split('/').count() == template.split('/').count()
        && pattern.split('/').zip(template.split('/')).all(alike)
}
