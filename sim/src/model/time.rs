//! Time limits that must end what takes too long.

use std::time::Duration;

use super::{Excuse, Got, Model};
use crate::scene::{Configuration, Scene};

/// How late a limit may be: requests are looked at from time to time, and the clock moves in steps.
const LATE_NS_MAX: u64 = 4_000_000_000;

/// The same of a limit of connections: each turn looks at an eighth of them, and the clock may move by a second between two turns.
const CONNECTION_LATE_NS_MAX: u64 = 10_000_000_000;

impl Model {
    /// A whole response of an upstream does not arrive after the time that a request may take, if nobody else keeps it from its client.
    pub(super) fn is_in_time(
        &self,
        id: u32,
        got: &Got<'_>,
        excuse: Excuse,
        now_ns: u64,
        scene: &Scene,
    ) -> Result<(), String> {
        let limits: Option<Vec<Duration>> =
            scene.configurations.iter().map(|it| it.request_time_max).collect();
        let most = limits.and_then(|limits| limits.into_iter().max());
        let (Some(most), Some(seen)) = (most, self.seen.get(&id).and_then(|seen| seen.last())) else {
            return Ok(());
        };
        let is_kept = excuse.client
            || excuse.is_slow
            || scene.disk.may_refuse()
            || scene.configurations.iter().any(|it| it.limit_rate.is_some());
        let took_ns = now_ns - seen.ns;
        if is_kept || !got.is_complete || took_ns <= most.as_nanos() as u64 + LATE_NS_MAX {
            return Ok(());
        }
        Err(format!(
            "request {id} has its response {} ms after an upstream had the request, which may take {} ms",
            took_ns / 1_000_000,
            most.as_millis()
        ))
    }
}

/// How long a server may wait for an upstream that has all of a request and sends nothing.
pub(crate) fn silence_ns_max(configurations: &[Configuration]) -> u64 {
    let most = configurations.iter().map(|it| it.read_time_max.as_nanos() as u64).max();
    most.unwrap_or(0) + CONNECTION_LATE_NS_MAX
}
