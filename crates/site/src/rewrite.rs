//! Rewrites of a request's path, before its action.

use std::borrow::Cow;

use flatout_expression::Regex;
use flatout_wire::target::forward_path;

use super::compiled::{all_hold, resolved_for_requests};
use super::facts::Uses;
use super::fault::{Fault, Place};
use super::maps::Tables;
use super::pattern;
use super::plan::{Condition, Piece, Rewrite, RewriteFrom, Template, Then, Variable};
use super::render::{Captures, Paths, Text, View, escape_unsafe};

/// A list of rewrites.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rewrites(Vec<CompiledRewrite>);

#[derive(Debug, Clone)]
struct CompiledRewrite {
    from: From,
    path: Text,
    /// The new query, and whether the old one is appended.
    query: Option<(Text, bool)>,
    then: Then,
    when: Vec<Condition>,
}

#[derive(Debug, Clone)]
enum From {
    Prefix(Vec<u8>),
    Regex(Box<Regex>),
}

/// The current path, in its normal form, and query of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Goal<'a> {
    pub(crate) path: Cow<'a, [u8]>,
    pub(crate) query: Option<Cow<'a, [u8]>>,
    /// It differs from what the client asked for.
    pub(crate) is_rewritten: bool,
}

impl Goal<'_> {
    pub(crate) fn into_owned(self) -> Goal<'static> {
        let Goal { path, query, is_rewritten } = self;
        Goal {
            path: Cow::Owned(path.into_owned()),
            query: query.map(|query| Cow::Owned(query.into_owned())),
            is_rewritten,
        }
    }
}

/// The result of a list of rewrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RewriteResult {
    /// The goal is final.
    Done,
    /// A route has to be chosen again.
    Route,
    /// The new path has no normal form.
    Bad,
}

impl Rewrites {
    /// `expression` is the route's own; rewrites of a prefix can use its groups.
    ///
    /// # Errors
    /// Invalid expressions, paths and templates, and those that depend on the user: routes are chosen before it is known.
    pub(crate) fn new(
        list: &[Rewrite],
        expression: Option<&Regex>,
        tables: &Tables,
        place: Place,
    ) -> Result<Rewrites, Fault> {
        let counts = tables.counts();
        let compile = |rewrite: &Rewrite| {
            let (from, own) = match &rewrite.from {
                RewriteFrom::Prefix(prefix) if prefix.starts_with('/') => {
                    (From::Prefix(prefix.clone().into_bytes()), None)
                }
                RewriteFrom::Prefix(prefix) => {
                    return Err(place.fault(format!("got `{prefix}`, need a path that begins with `/`")));
                }
                RewriteFrom::Regex { pattern, ignore_case } => {
                    let own = pattern::expression(pattern, *ignore_case, place)?;
                    (From::Regex(Box::new(own.clone())), Some(own))
                }
            };
            let (path, query) = split_at_question_mark(&rewrite.to);
            let text = |template: &Template| Text::new(template, own.as_ref().or(expression), counts, place);
            let query = match query {
                Some((query, keeps)) => Some((text(&query)?, keeps)),
                None => None,
            };
            let when = resolved_for_requests(&rewrite.when, expression, counts, place)?;
            let compiled = CompiledRewrite { from, path: text(&path)?, query, then: rewrite.then, when };
            if compiled.uses(tables).has(Uses::USER) {
                return Err(place.fault(
                    "a rewrite depends on the user or on a field of the auth service, and routes are chosen before these are known; \
                     use them in what is sent, such as `request-header set`, or in a `when` with another setting",
                ));
            }
            Ok(compiled)
        };
        Ok(Rewrites(list.iter().map(compile).collect::<Result<_, Fault>>()?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter().flat_map(|rewrite| &rewrite.when)
    }

    /// What the result depends on, apart from the path.
    pub(crate) fn uses(&self, tables: &Tables) -> Uses {
        self.0.iter().map(|rewrite| rewrite.uses(tables)).fold(Uses::NOTHING, Uses::and)
    }

    /// Whether a rewrite uses captures of the route's expression.
    pub(crate) fn uses_captures(&self) -> bool {
        let in_condition = |rewrite: &CompiledRewrite| {
            let mut facts = rewrite.when.iter().flat_map(Condition::facts);
            facts.any(|fact| matches!(fact, Variable::Capture(_) | Variable::Map(_) | Variable::Set(_)))
        };
        self.0.iter().any(|rewrite| {
            in_condition(rewrite)
                || matches!(rewrite.from, From::Prefix(_))
                    && (rewrite.path.uses_captures()
                        || rewrite.query.as_ref().is_some_and(|query| query.0.uses_captures()))
        })
    }

    /// Applies the list in order. `view` is the view of the request; path and query are taken from `goal`.
    pub(crate) fn apply(&self, goal: &mut Goal<'_>, view: &View<'_>) -> RewriteResult {
        for rewrite in &self.0 {
            if !rewrite.when.is_empty() {
                let view = View { path: &goal.path, query: goal.query.as_deref(), ..*view };
                if !all_hold(&rewrite.when, &view) {
                    continue;
                }
            }
            let captured = match &rewrite.from {
                From::Prefix(prefix) if goal.path.starts_with(prefix) => None,
                From::Prefix(_) => continue,
                From::Regex(expression) => match Captures::of(expression, &goal.path) {
                    Some(captured) => Some(captured),
                    None => continue,
                },
            };
            let Some((path, query)) = rewrite.written(goal, view, captured.as_ref()) else {
                return RewriteResult::Bad;
            };
            goal.path = Cow::Owned(path);
            if let Some(query) = query {
                goal.query = Some(Cow::Owned(query)).filter(|query: &Cow<'_, [u8]>| !query.is_empty());
            }
            goal.is_rewritten = true;
            match rewrite.then {
                Then::Next => {}
                Then::Stop => return RewriteResult::Done,
                Then::Route => return RewriteResult::Route,
            }
        }
        RewriteResult::Done
    }
}

/// A path, and the query if it is replaced.
type Written = (Vec<u8>, Option<Vec<u8>>);

impl CompiledRewrite {
    fn uses(&self, tables: &Tables) -> Uses {
        let texts = std::iter::once(&self.path).chain(self.query.as_ref().map(|(text, _)| text));
        texts.fold(Uses::of_all(&self.when, tables), |all, text| all.and(text.uses(tables)))
    }

    /// The new path in its normal form, and the new query.
    fn written(&self, goal: &Goal<'_>, view: &View<'_>, captured: Option<&Captures>) -> Option<Written> {
        let view = View {
            path: &goal.path,
            query: goal.query.as_deref(),
            captured: captured.unwrap_or(view.captured),
            ..*view
        };
        let mut path = Vec::new();
        self.path.render(&view, Paths::Decoded, &mut path);
        if let From::Prefix(prefix) = &self.from {
            path.extend_from_slice(goal.path.get(prefix.len()..).unwrap_or_default());
        }
        if path.first() != Some(&b'/') {
            path.insert(0, b'/');
        }
        let mut form = Vec::new();
        let path = forward_path(&path, &mut form).ok()?.to_vec();
        let query = self.query.as_ref().map(|(text, keeps)| {
            let mut query = Vec::new();
            text.render(&view, Paths::Query, &mut query);
            if let Some(old) = goal.query.as_deref().filter(|old| *keeps && !old.is_empty()) {
                if !query.is_empty() {
                    query.push(b'&');
                }
                query.extend_from_slice(old);
            }
            escape_unsafe(&mut query);
            query
        });
        Some((path, query))
    }
}

/// Splits a template at its first literal `?`. As in nginx, a `?` at the end drops the old query. A `?` from a
/// variable is part of the path.
pub(crate) fn split_at_question_mark(template: &Template) -> (Template, Option<(Template, bool)>) {
    let position = template.0.iter().enumerate().find_map(|(at, piece)| match piece {
        Piece::Text(text) => text.find('?').map(|within| (at, within)),
        Piece::Variable(_) => None,
    });
    let Some((at, within)) = position else { return (template.clone(), None) };
    let mut path = template.0.get(..at).unwrap_or_default().to_vec();
    let mut query = Vec::new();
    if let Some(Piece::Text(text)) = template.0.get(at) {
        let (before, behind) = text.split_at(within);
        path.push(Piece::Text(before.to_owned()));
        query.push(Piece::Text(behind.get(1..).unwrap_or_default().to_owned()));
    }
    query.extend_from_slice(template.0.get(at + 1..).unwrap_or_default());
    let is_empty = matches!(query.as_slice(), [Piece::Text(text)] if text.is_empty());
    let mut keeps = !is_empty;
    if let Some(Piece::Text(last)) = query.last_mut()
        && last.ends_with('?')
    {
        last.pop();
        keeps = false;
    }
    (Template(path), Some((Template(query), keeps)))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Noted;
    use super::*;
    use flatout_gateway::Client;
    use flatout_wire::head::{HeadLimits, parse};

    fn prefix(from: &str, to: &str) -> Rewrite {
        let to = Template::parse(to, |_| None).unwrap();
        Rewrite { from: RewriteFrom::Prefix(from.to_owned()), to, then: Then::Next, when: Vec::new() }
    }

    fn regex(from: &str, to: &str, then: Then) -> Rewrite {
        let to = Template::parse(to, |_| None).unwrap();
        Rewrite {
            from: RewriteFrom::Regex { pattern: from.to_owned(), ignore_case: false },
            to,
            then,
            when: Vec::new(),
        }
    }

    fn applied(list: &[Rewrite], path: &str, query: Option<&str>) -> (RewriteResult, String) {
        let rewrites = Rewrites::new(list, None, &Tables::default(), Place::Plan).unwrap();
        let mut fields = Vec::new();
        let head = parse(b"GET / HTTP/1.1\r\nHost: a\r\nX: %zz\r\n\r\n", &mut fields, &HeadLimits::default());
        let head = head.unwrap().unwrap();
        let client = Client { address: None, is_https: false, is_early: false, is_from_proxy: false };
        let mut goal = Goal {
            path: Cow::Borrowed(path.as_bytes()),
            query: query.map(|query| Cow::Borrowed(query.as_bytes())),
            is_rewritten: false,
        };
        let view = View {
            head: &head,
            path: b"",
            query: None,
            client,
            peer: None,
            listener: (0, &[]),
            user: b"",
            auth_fields: &[],
            limits: Default::default(),
            body: b"",
            certificate: None,
            captured: &Captures::default(),
            tables: &Tables::default(),
            noted: &Noted::default(),
            request: None,
            site_name: "",
        };
        let rewritten = rewrites.apply(&mut goal, &view);
        let query = goal.query.map_or(String::new(), |query| format!("?{}", String::from_utf8_lossy(&query)));
        (rewritten, format!("{}{query}", String::from_utf8_lossy(&goal.path)))
    }

    #[test]
    fn paths_are_rewritten_in_order() {
        use RewriteResult::*;
        for (list, path, query, expected) in [
            (vec![prefix("/api/", "/")], "/api/x", Some("a=1"), (Done, "/x?a=1")),
            (vec![prefix("/api", "/v2")], "/api", None, (Done, "/v2")),
            (vec![prefix("/api", "")], "/api", None, (Done, "/")),
            (vec![prefix("/api/", "/")], "/other", None, (Done, "/other")),
            (vec![prefix("/a/", "/b/"), prefix("/b/", "/c/")], "/a/x", None, (Done, "/c/x")),
            (
                vec![regex("^/u/(.*)$", "/user?id=$1", Then::Stop)],
                "/u/7",
                Some("x=1"),
                (Done, "/user?id=7&x=1"),
            ),
            (vec![regex("^/u/(.*)$", "/user?id=$1?", Then::Stop)], "/u/7", Some("x=1"), (Done, "/user?id=7")),
            (vec![regex("^/u/", "/user?", Then::Stop)], "/u/7", Some("x=1"), (Done, "/user")),
            (vec![regex("^/a", "/b", Then::Route), prefix("/b", "/c")], "/a", None, (Route, "/b")),
            (vec![regex("^/a", "/b", Then::Stop), prefix("/b", "/c")], "/a", None, (Done, "/b")),
            (vec![regex("^(.*)$", "/x/$1", Then::Next)], "/a%2Fb", None, (Done, "/x/a%2Fb")),
            (vec![regex("^/q/(.*)$", "/$1", Then::Next)], "/q/a?b", None, (Done, "/a?b")),
            (vec![regex("^/q", "/?a=b $http_x", Then::Next)], "/q", None, (Done, "/?a=b%20%zz")),
        ] {
            let (rewritten, goal) = applied(&list, path, query);
            assert_eq!((rewritten, goal.as_str()), expected, "{list:?} {path}");
        }
    }

    #[test]
    fn a_rewrite_cannot_depend_on_the_user() {
        use super::super::plan::{SetValue, SetVariable};
        let user = Template::parse("$remote_user", |_| None).unwrap();
        let set =
            SetVariable { name: "x".to_owned(), value: SetValue::Text(user), when: Vec::new(), before: None };
        let tables = Tables::new(&[], &[set], &[]).unwrap();
        let of_set = |name: &str| (name == "x").then_some(Variable::Set(0));
        for (to, is_refused) in [
            ("/$remote_user$uri", true),
            ("/a?u=$remote_user", true),
            ("/$auth_http_x_id", true),
            ("/$x", true),
            ("/$host", false),
        ] {
            let to_text = Template::parse(to, of_set).unwrap();
            let rewrite = Rewrite { to: to_text, ..regex("^", "", Then::Stop) };
            let compiled = Rewrites::new(&[rewrite], None, &tables, Place::Plan);
            let reason = compiled.err().map(|fault| fault.reason);
            assert_eq!(
                reason.is_some_and(|reason| reason.contains("depends on the user")),
                is_refused,
                "{to}"
            );
        }
    }

    #[test]
    fn a_new_path_is_brought_into_its_normal_form_or_refused() {
        assert_eq!(applied(&[prefix("/a", "//b/./")], "/a/c", None).1, "/b/c");
        assert_eq!(applied(&[prefix("/a/", "/../")], "/a/c", None).0, RewriteResult::Bad);
        assert_eq!(applied(&[regex("^/a$", "/$http_x", Then::Next)], "/a", None).0, RewriteResult::Bad);
    }
}
