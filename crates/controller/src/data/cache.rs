//! How responses of a route are cached.

use std::time::Duration;

use flatout_gateway as gateway;
use flatout_site::plan::Cached;
use serde::{Deserialize, Serialize};

use super::milliseconds;
use super::text::{PieceData, pieces, template};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheData {
    key: Vec<PieceData>,
    /// How long a response 200 is fresh that does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    valid_ms: Option<u64>,
    stale_ms: u64,
    /// Whether a stale response replaces errors of the upstream.
    replaces_errors: bool,
    updating_ms: u64,
}

impl CacheData {
    /// The settings that there is a place for; the others are missing. `None` if the key has no place.
    pub(super) fn of(cached: &Cached) -> Option<CacheData> {
        let rules = &cached.rules;
        Some(CacheData {
            key: pieces(cached.key.as_ref()?)?,
            valid_ms: rules.valid.first().map(|it| milliseconds(it.time)),
            stale_ms: milliseconds(rules.stale_time),
            replaces_errors: !rules.stale_statuses.is_empty(),
            updating_ms: milliseconds(rules.updating_time),
        })
    }

    pub(super) fn cached(&self) -> Result<Cached, String> {
        let valid = self.valid_ms.map(|time| gateway::Rules::fresh(Duration::from_millis(time)).valid);
        Ok(Cached {
            key: Some(template(&self.key)?),
            rules: gateway::Rules {
                valid: valid.unwrap_or_default(),
                stale_time: Duration::from_millis(self.stale_ms),
                stale_statuses: if self.replaces_errors { vec![500..=599] } else { Vec::new() },
                updating_time: Duration::from_millis(self.updating_ms),
                ..gateway::Rules::default()
            },
            ..Cached::default()
        })
    }
}
