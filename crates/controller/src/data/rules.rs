//! Rules of routes: fields, CORS, access, logins, rates.

use std::time::Duration;

use flatout_site::plan::{
    Access, BasicAuth, Cors, FieldChange, FieldRule, ForwardAuth, Origins, Peers, RateUse, Rules, User,
    Verdict, When,
};
use serde::{Deserialize, Serialize};

use super::cache::CacheData;
use super::names::{Indices, Names};
use super::text::{PieceData, pieces, template};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RulesData {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_auth: Option<ForwardAuthData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheData>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldData {
    name: String,
    change: ChangeData,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChangeData {
    Set(Vec<PieceData>),
    Add(Vec<PieceData>),
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginsData {
    Any,
    Echoed,
    These(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessData {
    is_allowed: bool,
    /// `all`, `unix`, or a network.
    peers: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BasicAuthData {
    realm: String,
    /// Names and hashes.
    users: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateUseData {
    /// The name of the rate.
    rate: String,
    burst: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay: Option<u32>,
    status: u16,
    fields: bool,
}

/// A service that is asked about each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardAuthData {
    /// The name of the upstream.
    upstream: String,
    target: Vec<PieceData>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    response_fields: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sign_in: Option<Vec<PieceData>>,
}

impl RulesData {
    pub(super) fn is_default(&self) -> bool {
        *self == RulesData::default()
    }

    pub(super) fn of(rules: &Rules, names: Names<'_>) -> Option<RulesData> {
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
            rates: rules.rates.iter().map(|it| RateUseData::of(it, names)).collect::<Option<_>>()?,
            forward_auth: match &rules.forward_auth {
                Some(auth) => Some(ForwardAuthData::of(auth, names)?),
                None => None,
            },
            cache: match &rules.cache {
                Some(cached) => Some(CacheData::of(cached)?),
                None => None,
            },
        })
    }

    pub(super) fn rules(&self, indices: &Indices) -> Result<Rules, String> {
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
            rates: self.rates.iter().map(|it| it.rate_use(indices)).collect::<Result<_, _>>()?,
            forward_auth: self.forward_auth.as_ref().map(|it| it.forward_auth(indices)).transpose()?,
            cache: self.cache.as_ref().map(CacheData::cached).transpose()?,
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
            FieldChange::Default(_) | FieldChange::Trailer(_) => return None,
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
    fn of(it: &RateUse, names: Names<'_>) -> Option<RateUseData> {
        let rate = names.rate(it.rate).filter(|_| !it.is_dry_run)?.to_owned();
        Some(RateUseData { rate, burst: it.burst, delay: it.delay, status: it.status, fields: it.fields })
    }

    fn rate_use(&self, indices: &Indices) -> Result<RateUse, String> {
        let RateUseData { burst, delay, status, fields, .. } = *self;
        Ok(RateUse { rate: indices.rate(&self.rate)?, burst, delay, status, fields, is_dry_run: false })
    }
}

impl ForwardAuthData {
    fn of(auth: &ForwardAuth, names: Names<'_>) -> Option<ForwardAuthData> {
        Some(ForwardAuthData {
            upstream: names.upstream(auth.upstream)?.to_owned(),
            target: pieces(&auth.target)?,
            response_fields: auth.response_fields.clone(),
            sign_in: match &auth.sign_in {
                Some(to) => Some(pieces(to)?),
                None => None,
            },
        })
    }

    fn forward_auth(&self, indices: &Indices) -> Result<ForwardAuth, String> {
        Ok(ForwardAuth {
            upstream: indices.upstream(&self.upstream)?,
            target: template(&self.target)?,
            request_fields: Vec::new(),
            response_fields: self.response_fields.clone(),
            sign_in: self.sign_in.as_deref().map(template).transpose()?,
        })
    }
}
