//! Finds the route of a path, and then among the routes with the same paths the one for the method.
//!
//! The path alone decides which rules apply. If the method chose too, a request could get past the rules of a protected
//! route by another method, to a route that is less specific.
//!
//! An exact path takes one table lookup. Prefixes have a table by text and a list of their lengths: one lookup for
//! each length that fits the path, the longest first. Globs and expressions are tried in order. Nothing is allocated.

use std::collections::HashMap;

use flatout_expression::Regex;
use foldhash::fast::RandomState;

use super::fault::{Fault, Place};
use super::pattern;
use super::plan::{PathMatch, Route, RouteEntry};

/// Routes of one site.
pub const ROUTES_MAX: usize = 4096;

/// The routes of a site by their paths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    exact: HashMap<Box<[u8]>, Vec<usize>, RandomState>,
    prefixes: HashMap<Box<[u8]>, Vec<Prefix>, RandomState>,
    /// Routes of `/`, which matches all paths, and is the only prefix of many sites.
    root: Vec<Prefix>,
    /// The lengths of prefixes, the longest first.
    lengths: Vec<usize>,
    patterns: Vec<(usize, Regex)>,
    methods: Vec<Methods>,
}

#[derive(Debug, Clone, Copy)]
struct Prefix {
    route: usize,
    ends_segment: bool,
    before_patterns: bool,
}

/// The methods of a route; empty means all.
#[derive(Debug, Clone, Default)]
struct Methods {
    names: Vec<String>,
    /// Whether it answers preflights for its methods.
    answers_preflights: bool,
    /// The other routes with the same paths, in their order.
    alike: Vec<usize>,
}

/// What the request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteQuery<'a> {
    /// The method as it was sent.
    pub(crate) method: &'a [u8],
    /// The method that a CORS preflight asks about.
    pub(crate) preflight: Option<&'a [u8]>,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Route(usize),
    /// This is the first route for the path. Neither it nor another one with the same paths has the method.
    WrongMethod(usize),
    Nothing,
}

impl Table {
    /// # Errors
    /// An invalid expression or path, or too many routes.
    pub(crate) fn new(routes: &[Route], site: usize) -> Result<Table, Fault> {
        if routes.len() > ROUTES_MAX {
            return Err(Place::Site(site).fault(format!("got {} routes, allowed {ROUTES_MAX}", routes.len())));
        }
        let mut table = Table::default();
        for (at, route) in routes.iter().enumerate() {
            let place = Place::Route(site, at);
            let is_alike = |(other, it): (usize, &Route)| {
                (other != at && it.path.is_same(&route.path) && is_by_path(it)).then_some(other)
            };
            table.methods.push(Methods {
                names: route.methods.clone(),
                answers_preflights: route.rules.cors.is_some(),
                // A route for all methods needs no other.
                alike: match route.methods.is_empty() {
                    true => Vec::new(),
                    false => routes.iter().enumerate().filter_map(is_alike).collect(),
                },
            });
            // Others are not found by their path.
            if !is_by_path(route) {
                continue;
            }
            match &route.path {
                PathMatch::Exact(path) => {
                    let path = checked(path, place)?;
                    table.exact.entry(path).or_default().push(at);
                }
                PathMatch::Prefix { path, segments, before_patterns } => {
                    let prefix = Prefix {
                        route: at,
                        // A trailing slash ends the segment already.
                        ends_segment: *segments && !path.ends_with('/'),
                        before_patterns: *before_patterns,
                    };
                    if path == "/" {
                        table.root.push(prefix);
                        continue;
                    }
                    let path = checked(path, place)?;
                    table.lengths.push(path.len());
                    table.prefixes.entry(path).or_default().push(prefix);
                }
                PathMatch::Glob(glob) => table.patterns.push((at, pattern::glob(glob, place)?)),
                PathMatch::Regex { pattern, ignore_case } => {
                    table.patterns.push((at, pattern::expression(pattern, *ignore_case, place)?));
                }
            }
        }
        table.lengths.sort_unstable_by(|a, b| b.cmp(a));
        table.lengths.dedup();
        Ok(table)
    }

    /// The route of a path in its normal form.
    #[inline]
    pub(crate) fn find(&self, path: &[u8], query: RouteQuery<'_>) -> Found {
        self.find_where(path, query, |_| true)
    }

    /// The same among the routes that `accept` accepts.
    #[inline]
    pub(crate) fn find_where(
        &self,
        path: &[u8],
        query: RouteQuery<'_>,
        accept: impl Fn(usize) -> bool,
    ) -> Found {
        let Some(first) = self.first_of(path, &accept) else { return Found::Nothing };
        let fits = |route: usize| self.methods[route].fit(query);
        if fits(first) {
            return Found::Route(first);
        }
        let mut alike = self.methods[first].alike.iter().copied();
        alike.find(|&route| fits(route) && accept(route)).map_or(Found::WrongMethod(first), Found::Route)
    }

    /// The methods of a route and of those with the same paths, for `Allow`.
    pub(crate) fn methods_of(&self, route: usize) -> String {
        let mut names: Vec<&str> = Vec::new();
        let own = &self.methods[route];
        let alike = own.alike.iter().map(|&at| &self.methods[at]);
        for name in std::iter::once(own).chain(alike).flat_map(|methods| &methods.names) {
            let implied = if name == "GET" { &["GET", "HEAD"][..] } else { &[name.as_str()] };
            for name in implied {
                if !names.contains(name) {
                    names.push(name);
                }
            }
        }
        names.join(", ")
    }

    /// The route that a path would have without this route and those with the same paths; `None` if there is none.
    pub(crate) fn behind(&self, path: &[u8], route: usize) -> Option<usize> {
        let alike = &self.methods[route].alike;
        self.first_of(path, |other| other != route && !alike.contains(&other))
    }

    /// What the groups of a route's expression match.
    pub(crate) fn expression(&self, route: usize) -> Option<&Regex> {
        self.patterns.iter().find(|(at, _)| *at == route).map(|(_, expression)| expression)
    }

    /// The first route, in order of precedence, that matches the path and that `accept` accepts.
    #[inline]
    fn first_of(&self, path: &[u8], accept: impl Fn(usize) -> bool) -> Option<usize> {
        if let Some(routes) = self.exact.get(path)
            && let Some(&route) = routes.iter().find(|&&route| accept(route))
        {
            return Some(route);
        }
        if self.patterns.is_empty() {
            return self.prefixes_of(path).find(|prefix| accept(prefix.route)).map(|prefix| prefix.route);
        }
        let longest = self.prefixes_of(path).find(|prefix| accept(prefix.route));
        if let Some(prefix) = longest.filter(|prefix| prefix.before_patterns) {
            return Some(prefix.route);
        }
        let mut patterns = self.patterns.iter().filter(|(_, pattern)| pattern.is_match(path));
        if let Some(&(route, _)) = patterns.find(|(route, _)| accept(*route)) {
            return Some(route);
        }
        longest.map(|prefix| prefix.route)
    }

    /// The prefixes of a path, the longest first.
    fn prefixes_of(&self, path: &[u8]) -> impl Iterator<Item = Prefix> {
        let fits = move |prefix: &&Prefix, length: usize| {
            !prefix.ends_segment || path.get(length).is_none_or(|&byte| byte == b'/')
        };
        let longer = self.lengths.iter().filter_map(move |&length| path.get(..length));
        let longer = longer.flat_map(move |beginning| {
            let prefixes = self.prefixes.get(beginning).map(Vec::as_slice).unwrap_or_default();
            prefixes.iter().filter(move |prefix| fits(prefix, beginning.len())).copied()
        });
        let root = if path.first() == Some(&b'/') { self.root.as_slice() } else { &[] };
        longer.chain(root.iter().copied())
    }
}

impl Methods {
    #[inline]
    fn fit(&self, query: RouteQuery<'_>) -> bool {
        if self.names.is_empty() || self.has(query.method) {
            return true;
        }
        self.answers_preflights && query.preflight.is_some_and(|method| self.has(method))
    }

    fn has(&self, method: &[u8]) -> bool {
        let method = if method == b"HEAD" && !self.lists(b"HEAD") { b"GET" } else { method };
        self.lists(method)
    }

    fn lists(&self, method: &[u8]) -> bool {
        self.names.iter().any(|name| name.as_bytes() == method)
    }
}

/// Whether a route is found by its path.
fn is_by_path(route: &Route) -> bool {
    matches!(route.entry, RouteEntry::Paths | RouteEntry::Internal)
}

/// Checks a path of a plan. It is compared with normal forms, so any other form would never match.
fn checked(path: &str, place: Place) -> Result<Box<[u8]>, Fault> {
    if !path.starts_with('/') {
        return Err(place.fault(format!("got `{path}`, need a path that begins with `/`")));
    }
    // These two stay escaped in the normal form.
    let escaped = path.replace('%', "%25").replace('\\', "%5C");
    let mut out = Vec::new();
    match flatout_wire::target::forward_path(escaped.as_bytes(), &mut out) {
        Ok(form) if form == escaped.as_bytes() => Ok(escaped.into_bytes().into()),
        _ => Err(place.fault(format!(
            "`{path}` can never match: paths are decoded and normalized, without `//`, `.`, `..` and control bytes"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Action;
    use super::*;

    fn table(paths: &[PathMatch]) -> Table {
        let action = || Action::Files(0);
        let routes: Vec<Route> = paths.iter().map(|path| Route::new(path.clone(), action())).collect();
        Table::new(&routes, 0).unwrap()
    }

    fn exact(path: &str) -> PathMatch {
        PathMatch::Exact(path.to_owned())
    }

    fn starts_with(path: &str, before_patterns: bool) -> PathMatch {
        PathMatch::Prefix { path: path.to_owned(), segments: false, before_patterns }
    }

    fn regex(pattern: &str) -> PathMatch {
        PathMatch::Regex { pattern: pattern.to_owned(), ignore_case: false }
    }

    const GET: RouteQuery<'static> = RouteQuery { method: b"GET", preflight: None };

    /// The example of nginx's manual for `location`, and more of the same.
    #[test]
    fn precedence_is_that_of_nginx() {
        let table = table(&[
            exact("/"),
            starts_with("/", false),
            starts_with("/documents/", false),
            starts_with("/images/", true),
            PathMatch::Regex { pattern: r"\.(gif|jpg|jpeg)$".to_owned(), ignore_case: true },
            regex(r"^/documents/1\.(x|JPG)$"),
            exact("/documents/2.jpg"),
        ]);
        for (path, route) in [
            ("/", 0),
            ("/index.html", 1),
            ("/documents/document.html", 2),
            ("/images/1.gif", 3),
            ("/documents/1.jpg", 4),
            ("/documents/1.JPG", 4),
            ("/documents/1.x", 5),
            ("/documents/2.jpg", 6),
        ] {
            assert_eq!(table.find(path.as_bytes(), GET), Found::Route(route), "{path}");
        }
    }

    #[test]
    fn a_prefix_ends_with_a_segment() {
        let table =
            table(&[PathMatch::prefix("/api"), PathMatch::prefix("/v1/"), starts_with("/open", false)]);
        for (path, found) in [
            ("/api", Found::Route(0)),
            ("/api/", Found::Route(0)),
            ("/api/x", Found::Route(0)),
            ("/apix", Found::Nothing),
            ("/api%2Fx", Found::Nothing),
            ("/v1/", Found::Route(1)),
            ("/v1/x", Found::Route(1)),
            ("/v1", Found::Nothing),
            ("/openx", Found::Route(2)),
            ("/", Found::Nothing),
            ("*", Found::Nothing),
        ] {
            assert_eq!(table.find(path.as_bytes(), GET), found, "{path}");
        }
    }

    #[test]
    fn percent_signs_and_backslashes_are_found() {
        let table = table(&[PathMatch::prefix("/100%"), starts_with("/a\\b", false), exact("/ \"<>")]);
        for (path, route) in [("/100%25/x", 0), ("/a%5Cbc", 1), ("/ \"<>", 2)] {
            assert_eq!(table.find(path.as_bytes(), GET), Found::Route(route), "{path}");
        }
    }

    #[test]
    fn methods_choose_only_among_routes_with_the_same_paths() {
        let with = |path: PathMatch, methods: &[&str]| Route {
            methods: methods.iter().map(|&name| name.to_owned()).collect(),
            ..Route::new(path, Action::Files(0))
        };
        let routes = [
            with(exact("/a"), &["POST"]),
            with(exact("/a"), &["GET"]),
            with(regex("^/a"), &["PUT"]),
            with(PathMatch::prefix("/a"), &["DELETE"]),
            with(PathMatch::prefix("/b"), &[]),
            with(regex("^/b/[0-9]"), &["GET"]),
            with(regex("^/b/[0-9]"), &["HEAD", "PUT"]),
            with(PathMatch::prefix("/"), &[]),
            with(PathMatch::prefix("/c"), &["GET"]),
            with(starts_with("/c", true), &["PUT"]),
        ];
        let table = Table::new(&routes, 0).unwrap();
        for (method, path, found) in [
            ("POST", "/a", Found::Route(0)),
            ("GET", "/a", Found::Route(1)),
            ("HEAD", "/a", Found::Route(1)),
            ("PUT", "/a", Found::WrongMethod(0)),
            ("DELETE", "/a", Found::WrongMethod(0)),
            ("get", "/a", Found::WrongMethod(0)),
            ("PUT", "/a/x", Found::Route(2)),
            ("DELETE", "/a/x", Found::WrongMethod(2)),
            ("PATCH", "/b", Found::Route(4)),
            ("GET", "/b/1", Found::Route(5)),
            ("HEAD", "/b/1", Found::Route(5)),
            ("PUT", "/b/1", Found::Route(6)),
            ("PATCH", "/b/1", Found::WrongMethod(5)),
            ("GET", "/c/1", Found::Route(8)),
            // Other paths than `/c` with whole segments, so another route.
            ("PUT", "/c/1", Found::WrongMethod(8)),
            ("PUT", "/c1", Found::Route(9)),
            ("GET", "/c1", Found::WrongMethod(9)),
            ("PATCH", "/d", Found::Route(7)),
        ] {
            let query = RouteQuery { method: method.as_bytes(), preflight: None };
            assert_eq!(table.find(path.as_bytes(), query), found, "{method} {path}");
        }
        assert_eq!(table.methods_of(0), "POST, GET, HEAD");
        assert_eq!(table.methods_of(5), "GET, HEAD, PUT");
        assert_eq!(table.behind(b"/a", 0), Some(2));
        assert_eq!(table.behind(b"/b/1", 5), Some(4));
        assert_eq!(table.behind(b"/d", 7), None);
    }

    #[test]
    fn paths_that_no_request_could_have_are_refused() {
        for path in ["", "a", "/a//b", "/a/../b", "/.", "/a\nb"] {
            let fault = Table::new(&[Route::new(exact(path), Action::Files(0))], 3).unwrap_err();
            assert_eq!(fault.place, Place::Route(3, 0), "{path}");
        }
        let percent = table(&[exact("/100%")]);
        assert_eq!(percent.find(b"/100%25", GET), Found::Route(0), "it is written decoded");
    }
}
