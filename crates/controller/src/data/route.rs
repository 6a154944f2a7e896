//! Routes: paths, conditions, rewrites, rules and actions.

use std::time::Duration;

use flatout_gateway::{Forward, Host, Mirror};
use flatout_site::plan::{
    Access, Action, BasicAuth, Cors, FieldChange, FieldRule, Origins, PathMatch, Peers, Piece, RateUse,
    Rewrite, RewriteFrom, Route, Rules, Template, Then, User, VARIABLES, Variable, Verdict, When,
};
use serde::{Deserialize, Serialize};

use super::FORMAT;
use crate::translate::parsed;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteData {
    name: String,
    path: PathData,
    /// Conditions, in the syntax of site files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    when: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rewrites: Vec<RewriteData>,
    #[serde(default, skip_serializing_if = "is_default")]
    rules: RulesData,
    action: ActionData,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PathData {
    Exact(String),
    Prefix { path: String, segments: bool, before_patterns: bool },
    Regex { pattern: String, ignore_case: bool },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RewriteData {
    from: RewriteFromData,
    to: Vec<PieceData>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RewriteFromData {
    Prefix(String),
    Regex { pattern: String, ignore_case: bool },
}

/// A piece of a text; variables have the names of site files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PieceData {
    Text(String),
    Variable(String),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RulesData {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_fields: Vec<FieldData>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_fields: Vec<FieldData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cors: Option<CorsData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_bytes_max: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    access: Vec<AccessData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    basic_auth: Option<BasicAuthData>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rates: Vec<RateUseData>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldData {
    name: String,
    change: ChangeData,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangeData {
    Set(Vec<PieceData>),
    Add(Vec<PieceData>),
    Remove,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CorsData {
    origins: OriginsData,
    methods: Vec<String>,
    headers: Vec<String>,
    expose: Vec<String>,
    credentials: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age_max_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginsData {
    Any,
    Echoed,
    These(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessData {
    is_allowed: bool,
    /// `all`, `unix`, or a network.
    peers: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BasicAuthData {
    realm: String,
    /// Names and hashes.
    users: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateUseData {
    rate: usize,
    burst: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay: Option<u32>,
    status: u16,
    fields: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ActionData {
    Proxy {
        upstream: usize,
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

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorData {
    upstream: usize,
    numerator: u32,
    denominator: u32,
}

impl RouteData {
    pub(super) fn of(route: &Route) -> Result<RouteData, String> {
        let no_place =
            || format!("route {}: the format {FORMAT} has no place for all of its settings", route.name);
        let data = RouteData::simple(route).ok_or_else(no_place)?;
        if data.route()? == *route { Ok(data) } else { Err(no_place()) }
    }

    /// The settings that there is a place for; the others are missing. `None` if there is none for a necessary one.
    fn simple(route: &Route) -> Option<RouteData> {
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
            rules: RulesData::of(&route.rules)?,
            action: ActionData::of(&route.action)?,
        })
    }

    pub(super) fn route(&self) -> Result<Route, String> {
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
            rules: self.rules.rules().map_err(in_route)?,
            ..Route::new(path, self.action.action().map_err(in_route)?)
        })
    }

    /// The upstreams that it refers to.
    pub(super) fn upstreams(&self) -> impl Iterator<Item = usize> {
        let (first, mirrors) = match &self.action {
            ActionData::Proxy { upstream, mirrors, .. } => (Some(*upstream), mirrors.as_slice()),
            _ => (None, Default::default()),
        };
        first.into_iter().chain(mirrors.iter().map(|mirror| mirror.upstream))
    }

    /// The rates that it refers to.
    pub(super) fn rates(&self) -> impl Iterator<Item = usize> {
        self.rules.rates.iter().map(|it| it.rate)
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

impl RulesData {
    fn of(rules: &Rules) -> Option<RulesData> {
        Some(RulesData {
            request_fields: rules.request_fields.iter().map(FieldData::of).collect::<Option<_>>()?,
            response_fields: rules.response_fields.iter().map(FieldData::of).collect::<Option<_>>()?,
            cors: rules.cors.as_ref().map(CorsData::of),
            body_bytes_max: rules.body.bytes_max,
            access: rules.access.iter().map(AccessData::of).collect(),
            basic_auth: rules.basic_auth.as_ref().map(|it| BasicAuthData {
                realm: it.realm.clone(),
                users: it.users.iter().map(|user| (user.name.clone(), user.hash.clone())).collect(),
            }),
            rates: rules.rates.iter().map(RateUseData::of).collect(),
        })
    }

    fn rules(&self) -> Result<Rules, String> {
        let fields = |list: &[FieldData]| list.iter().map(FieldData::rule).collect::<Result<Vec<_>, _>>();
        let user = |(name, hash): &(String, String)| User { name: name.clone(), hash: hash.clone() };
        let mut rules = Rules {
            request_fields: fields(&self.request_fields)?,
            response_fields: fields(&self.response_fields)?,
            cors: self.cors.as_ref().map(CorsData::cors),
            access: self.access.iter().map(AccessData::access).collect::<Result<_, _>>()?,
            basic_auth: self.basic_auth.as_ref().map(|it| BasicAuth {
                realm: it.realm.clone(),
                users: it.users.iter().map(user).collect(),
                user_file: None,
            }),
            rates: self.rates.iter().map(RateUseData::rate_use).collect(),
            ..Rules::default()
        };
        rules.body.bytes_max = self.body_bytes_max;
        Ok(rules)
    }
}

impl FieldData {
    fn of(rule: &FieldRule) -> Option<FieldData> {
        let change = match &rule.change {
            FieldChange::Set(value) => ChangeData::Set(pieces(value)?),
            FieldChange::Add(value) => ChangeData::Add(pieces(value)?),
            FieldChange::Remove => ChangeData::Remove,
            FieldChange::Default(_) => return None,
        };
        Some(FieldData { name: rule.name.clone(), change })
    }

    fn rule(&self) -> Result<FieldRule, String> {
        let change = match &self.change {
            ChangeData::Set(value) => FieldChange::Set(template(value)?),
            ChangeData::Add(value) => FieldChange::Add(template(value)?),
            ChangeData::Remove => FieldChange::Remove,
        };
        Ok(FieldRule { change, name: self.name.clone(), when: When::Always })
    }
}

impl CorsData {
    fn of(cors: &Cors) -> CorsData {
        CorsData {
            origins: match &cors.origins {
                Origins::Any => OriginsData::Any,
                Origins::Echoed => OriginsData::Echoed,
                Origins::These(list) => OriginsData::These(list.clone()),
            },
            methods: cors.methods.clone(),
            headers: cors.headers.clone(),
            expose: cors.expose.clone(),
            credentials: cors.credentials,
            age_max_s: cors.age_max.map(|age| age.as_secs()),
        }
    }

    fn cors(&self) -> Cors {
        Cors {
            origins: match &self.origins {
                OriginsData::Any => Origins::Any,
                OriginsData::Echoed => Origins::Echoed,
                OriginsData::These(list) => Origins::These(list.clone()),
            },
            methods: self.methods.clone(),
            headers: self.headers.clone(),
            expose: self.expose.clone(),
            credentials: self.credentials,
            age_max: self.age_max_s.map(Duration::from_secs),
        }
    }
}

impl AccessData {
    fn of(access: &Access) -> AccessData {
        let peers = match access.peers {
            Peers::All => "all".to_owned(),
            Peers::Unix => "unix".to_owned(),
            Peers::Net(net) => net.to_string(),
        };
        AccessData { is_allowed: access.verdict == Verdict::Allow, peers }
    }

    fn access(&self) -> Result<Access, String> {
        let peers = self.peers.parse().map_err(|bad| format!("`{}`: {bad}", self.peers))?;
        let verdict = if self.is_allowed { Verdict::Allow } else { Verdict::Deny };
        Ok(Access { verdict, peers })
    }
}

impl RateUseData {
    fn of(it: &RateUse) -> RateUseData {
        RateUseData { rate: it.rate, burst: it.burst, delay: it.delay, status: it.status, fields: it.fields }
    }

    fn rate_use(&self) -> RateUse {
        let RateUseData { rate, burst, delay, status, fields } = *self;
        RateUse { rate, burst, delay, status, fields }
    }
}

impl ActionData {
    fn of(action: &Action) -> Option<ActionData> {
        Some(match action {
            Action::Proxy(forward) => ActionData::Proxy {
                upstream: forward.upstream,
                host: match &forward.host {
                    Host::Kept => None,
                    Host::Set(host) => Some(host.clone()),
                    Host::Upstream => return None,
                },
                mirrors: forward
                    .mirrors
                    .iter()
                    .map(|it| MirrorData {
                        upstream: it.upstream,
                        numerator: it.numerator,
                        denominator: it.denominator,
                    })
                    .collect(),
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

    fn action(&self) -> Result<Action, String> {
        Ok(match self {
            ActionData::Proxy { upstream, host, mirrors } => {
                let mirror = |it: &MirrorData| Mirror {
                    upstream: it.upstream,
                    numerator: it.numerator,
                    denominator: it.denominator,
                };
                Action::Proxy(Forward {
                    host: host.clone().map_or(Host::Kept, Host::Set),
                    mirrors: mirrors.iter().map(mirror).collect(),
                    ..Forward::to(*upstream)
                })
            }
            ActionData::Redirect { status, to } => Action::Redirect { status: *status, to: template(to)? },
            ActionData::Respond { status, content_type, body } => {
                Action::Respond { status: *status, content_type: content_type.clone(), body: template(body)? }
            }
        })
    }
}

/// A template's pieces, if all of its variables have names.
fn pieces(template: &Template) -> Option<Vec<PieceData>> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => Some(PieceData::Text(text.clone())),
        Piece::Variable(variable) => variable_name(variable).map(PieceData::Variable),
    };
    template.0.iter().map(piece).collect()
}

fn template(pieces: &[PieceData]) -> Result<Template, String> {
    let piece = |piece: &PieceData| match piece {
        PieceData::Text(text) => Ok(Piece::Text(text.clone())),
        PieceData::Variable(name) => match Template::parse(&format!("${{{name}}}"), |_| None) {
            Ok(Template(mut found)) if found.len() == 1 => Ok(found.remove(0)),
            _ => Err(format!("unknown variable `{}`", name.escape_debug())),
        },
    };
    pieces.iter().map(piece).collect::<Result<_, _>>().map(Template)
}

/// The name of a variable in site files.
fn variable_name(variable: &Variable) -> Option<String> {
    let fixed = || VARIABLES.iter().find(|(_, it)| it == variable).map(|(name, _)| (*name).to_owned());
    match variable {
        Variable::Capture(number) => Some(number.to_string()),
        Variable::Header(name) => Some(format!("http_{}", name.replace('-', "_"))),
        Variable::Argument(name) => Some(format!("arg_{name}")),
        Variable::Cookie(name) => Some(format!("cookie_{name}")),
        _ => fixed(),
    }
}

fn is_default(rules: &RulesData) -> bool {
    *rules == RulesData::default()
}
