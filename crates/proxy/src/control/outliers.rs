//! Compares the servers of an upstream periodically, and ejects those that stand out.

use std::sync::Arc;
use std::time::Duration;

use flatout_engine::say;
use tokio::time::{MissedTickBehavior, interval};

use crate::plan::Outliers;
use crate::select::outliers::{may_eject, outlier};
use crate::server::{LiveServer, ServerState};
use crate::table::UpstreamId;
use crate::upstream::{LiveUpstream, Upstreams};

/// How often returns of ejected servers are due, at most.
const TICK: Duration = Duration::from_secs(1);

/// Compares the servers of an upstream, for ever.
pub(crate) async fn watch(upstreams: Arc<Upstreams>, id: UpstreamId, plan: Outliers) {
    let upstream = upstreams.at(id);
    // What was counted before means nothing here.
    upstream.servers().iter().for_each(|server| {
        let _ = server.next_sample();
    });
    let tick = TICK.min(plan.interval);
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waited = Duration::ZERO;
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let servers = upstream.servers();
        for server in servers.iter().filter(|server| server.return_after_pause()) {
            say(format_args!(
                "upstream {}: server {} gets requests again after its pause",
                upstream.plan.name, server.name
            ));
        }
        waited += tick;
        if waited >= plan.interval {
            waited = Duration::ZERO;
            compare(upstream, &servers, &plan);
        }
    }
}

/// Ejects the server that stands out most, if enough others are left.
fn compare(upstream: &LiveUpstream, servers: &[Arc<LiveServer>], plan: &Outliers) {
    let group: Vec<&Arc<LiveServer>> =
        servers.iter().filter(|server| !server.is_leaving() && !server.plan.backup).collect();
    // Also of those that are out: it is what their siblings are compared from next time.
    let samples: Vec<_> = group.iter().map(|server| server.next_sample()).collect();
    let is_out = |server: &&&Arc<LiveServer>| {
        !matches!(server.state(upstream.plan.slow_start), ServerState::Up | ServerState::SlowStart)
    };
    let out = group.iter().filter(is_out).count();
    let found = outlier(&samples, plan).and_then(|(at, reason)| Some((*group.get(at)?, reason)));
    let Some((server, reason)) = found.filter(|(server, _)| server.ejection().is_none()) else { return };
    let name = &upstream.plan.name;
    match may_eject(group.len(), out) {
        true => {
            let pause = server.eject(reason, plan);
            say(format_args!(
                "upstream {name}: server {} is ejected for {} s: {reason}",
                server.name,
                pause.as_secs_f64()
            ));
        }
        false => say(format_args!(
            "upstream {name}: server {} stands out ({reason}), and stays: {out} of {} servers are out already",
            server.name,
            group.len()
        )),
    }
}
