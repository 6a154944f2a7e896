//! Routes: paths, conditions, rewrites and actions.

use flatout_gateway::{Forward, Host, Mirror};
use flatout_site::plan::{Action, PathMatch, Rewrite, RewriteFrom, Route, Then};
use serde::{Deserialize, Serialize};

use super::FORMAT;
use super::names::{Indices, Names};
use super::rules::RulesData;
use super::text::{PieceData, pieces, template};
use crate::translate::parsed;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteData {
    name: String,
    path: PathData,
    /// Conditions, in the syntax of site files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    when: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rewrites: Vec<RewriteData>,
    #[serde(default, skip_serializing_if = "RulesData::is_default")]
    rules: RulesData,
    action: ActionData,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PathData {
    Exact(String),
    Prefix { path: String, segments: bool, before_patterns: bool },
    Regex { pattern: String, ignore_case: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RewriteData {
    from: RewriteFromData,
    to: Vec<PieceData>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RewriteFromData {
    Prefix(String),
    Regex { pattern: String, ignore_case: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ActionData {
    Proxy {
        /// The name of the upstream.
        upstream: String,
        /// The value of `Host`; none: the client's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mirrors: Vec<MirrorData>,
    },
    Redirect {
        status: u16,
        to: Vec<PieceData>,
    },
    Respond {
        status: u16,
        content_type: String,
        body: Vec<PieceData>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorData {
    upstream: String,
    numerator: u32,
    denominator: u32,
}

impl RouteData {
    pub(super) fn of(route: &Route, names: Names<'_>, indices: &Indices) -> Result<RouteData, String> {
        let no_place =
            || format!("route {}: the format {FORMAT} has no place for all of its settings", route.name);
        let data = RouteData::simple(route, names).ok_or_else(no_place)?;
        if data.route(indices)? == *route { Ok(data) } else { Err(no_place()) }
    }

    /// The settings that there is a place for; the others are missing. `None` if there is none for a necessary one.
    fn simple(route: &Route, names: Names<'_>) -> Option<RouteData> {
        Some(RouteData {
            name: route.name.clone(),
            path: match &route.path {
                PathMatch::Exact(path) => PathData::Exact(path.clone()),
                PathMatch::Prefix { path, segments, before_patterns } => PathData::Prefix {
                    path: path.clone(),
                    segments: *segments,
                    before_patterns: *before_patterns,
                },
                PathMatch::Regex { pattern, ignore_case } => {
                    PathData::Regex { pattern: pattern.clone(), ignore_case: *ignore_case }
                }
                PathMatch::Glob(_) => return None,
            },
            when: route.when.iter().map(|it| it.source().to_owned()).collect(),
            rewrites: route.rewrites.iter().map(RewriteData::of).collect::<Option<_>>()?,
            rules: RulesData::of(&route.rules, names)?,
            action: ActionData::of(&route.action, names)?,
        })
    }

    pub(super) fn route(&self, indices: &Indices) -> Result<Route, String> {
        let path = match &self.path {
            PathData::Exact(path) => PathMatch::Exact(path.clone()),
            PathData::Prefix { path, segments, before_patterns } => PathMatch::Prefix {
                path: path.clone(),
                segments: *segments,
                before_patterns: *before_patterns,
            },
            PathData::Regex { pattern, ignore_case } => {
                PathMatch::Regex { pattern: pattern.clone(), ignore_case: *ignore_case }
            }
        };
        let in_route = |why: String| format!("route {}: {why}", self.name);
        Ok(Route {
            name: self.name.clone(),
            when: parsed(&self.when).map_err(in_route)?,
            rewrites: self
                .rewrites
                .iter()
                .map(RewriteData::rewrite)
                .collect::<Result<_, _>>()
                .map_err(in_route)?,
            rules: self.rules.rules(indices).map_err(in_route)?,
            ..Route::new(path, self.action.action(indices).map_err(in_route)?)
        })
    }
}

impl RewriteData {
    fn of(rewrite: &Rewrite) -> Option<RewriteData> {
        let from = match &rewrite.from {
            RewriteFrom::Prefix(prefix) => RewriteFromData::Prefix(prefix.clone()),
            RewriteFrom::Regex { pattern, ignore_case } => {
                RewriteFromData::Regex { pattern: pattern.clone(), ignore_case: *ignore_case }
            }
        };
        Some(RewriteData { from, to: pieces(&rewrite.to)? })
    }

    fn rewrite(&self) -> Result<Rewrite, String> {
        let from = match &self.from {
            RewriteFromData::Prefix(prefix) => RewriteFrom::Prefix(prefix.clone()),
            RewriteFromData::Regex { pattern, ignore_case } => {
                RewriteFrom::Regex { pattern: pattern.clone(), ignore_case: *ignore_case }
            }
        };
        Ok(Rewrite { from, to: template(&self.to)?, then: Then::Stop, when: Vec::new() })
    }
}

impl ActionData {
    fn of(action: &Action, names: Names<'_>) -> Option<ActionData> {
        Some(match action {
            Action::Proxy(forward) => ActionData::Proxy {
                upstream: names.upstream(forward.upstream)?.to_owned(),
                host: match &forward.host {
                    Host::Kept => None,
                    Host::Set(host) => Some(host.clone()),
                    Host::Upstream => return None,
                },
                mirrors: forward.mirrors.iter().map(|it| MirrorData::of(it, names)).collect::<Option<_>>()?,
            },
            Action::Redirect { status, to } => ActionData::Redirect { status: *status, to: pieces(to)? },
            Action::Respond { status, content_type, body } => ActionData::Respond {
                status: *status,
                content_type: content_type.clone(),
                body: pieces(body)?,
            },
            _ => return None,
        })
    }

    fn action(&self, indices: &Indices) -> Result<Action, String> {
        Ok(match self {
            ActionData::Proxy { upstream, host, mirrors } => {
                let mirrors = mirrors.iter().map(|it| it.mirror(indices)).collect::<Result<_, _>>()?;
                Action::Proxy(Forward {
                    host: host.clone().map_or(Host::Kept, Host::Set),
                    mirrors,
                    ..Forward::to(indices.upstream(upstream)?)
                })
            }
            ActionData::Redirect { status, to } => Action::Redirect { status: *status, to: template(to)? },
            ActionData::Respond { status, content_type, body } => {
                Action::Respond { status: *status, content_type: content_type.clone(), body: template(body)? }
            }
        })
    }
}

impl MirrorData {
    fn of(it: &Mirror, names: Names<'_>) -> Option<MirrorData> {
        let upstream = names.upstream(it.upstream)?.to_owned();
        Some(MirrorData { upstream, numerator: it.numerator, denominator: it.denominator })
    }

    fn mirror(&self, indices: &Indices) -> Result<Mirror, String> {
        let upstream = indices.upstream(&self.upstream)?;
        Ok(Mirror { upstream, numerator: self.numerator, denominator: self.denominator })
    }
}
