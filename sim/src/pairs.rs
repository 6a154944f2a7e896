//! Which pairs of properties of configurations and scenes have been in runs together.

use std::collections::BTreeMap;
use std::fmt;

use flatout_lane::poll::EVENTS_MAX;
use flatout_proxy::Balance;

use crate::scene::{Configuration, Occasion, Scene, TIME_MAX};

/// Properties, and whether they are there.
pub type Properties = Vec<(&'static str, bool)>;

/// Those of each configuration of a run, together with what is drawn once.
pub(crate) fn of_run(scene: &Scene) -> Vec<Properties> {
    let configurations = scene.configurations.iter();
    configurations.map(|it| of_configuration(it).into_iter().chain(of_scene(scene)).collect()).collect()
}

/// How many runs had each pair.
#[derive(Debug, Default, Clone)]
pub struct Pairs(BTreeMap<(&'static str, &'static str), u64>);

impl Pairs {
    /// Adds those of a run: each pair once, in however many of its configurations it is.
    pub fn add(&mut self, run: &[Properties]) {
        let mut pairs = BTreeMap::<_, u64>::new();
        for all in run {
            for (at, (name, is_there)) in all.iter().enumerate() {
                for (other, is_other_there) in &all[at + 1..] {
                    *pairs.entry((*name, *other)).or_default() |= u64::from(*is_there && *is_other_there);
                }
            }
        }
        for (pair, count) in pairs {
            *self.0.entry(pair).or_default() += count;
        }
    }
}

impl fmt::Display for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reached = self.0.values().filter(|count| **count > 0).count();
        let rarest = self.0.iter().filter(|(_, count)| **count > 0).min_by_key(|(_, count)| **count);
        write!(f, "{reached} of {} pairs of properties were in runs", self.0.len())?;
        if let Some(((one, other), count)) = rarest {
            write!(f, "; the rarest, {one} with {other}, in {count}")?;
        }
        for ((one, other), _) in self.0.iter().filter(|(_, count)| **count == 0) {
            write!(f, "\nnever: {one} with {other}")?;
        }
        Ok(())
    }
}

fn of_configuration(it: &Configuration) -> Properties {
    vec![
        ("authorization", it.has_authorization),
        ("rate limit", it.rate.is_some()),
        ("concurrency limit", it.concurrency.is_some()),
        ("stored requests", it.buffers_requests),
        ("upstream of HTTP/2", it.streams_max.is_some() && !it.is_fastcgi),
        ("upstream of FastCGI", it.is_fastcgi),
        ("one upstream connection", it.connections_max == 1),
        ("no idle upstream connections", it.idle_max == 0),
        ("request time", it.request_time_max.is_some()),
        ("retries", it.retries_max > 0),
        ("two servers", it.servers > 1),
        ("retries of any method", it.retry_on.non_idempotent),
        ("retries of statuses", !it.retry_on.statuses.is_empty()),
        ("stored responses in files", it.spools_to_files && it.buffer_response_bytes > 0),
        ("small bodies only", it.body_max < 1 << 20),
        ("a field for the upstream", it.adds_field),
        ("variables for the upstream", it.shows_request),
        ("fields of responses", it.changes_fields),
        ("other balancing", it.balance != Balance::RoundRobin),
        ("a backup", it.has_backup && it.servers > 1),
        ("few requests for each server", it.requests_max > 0),
        ("slow start", !it.slow_start.is_zero()),
        ("compression", it.compresses),
        ("request ids", it.sends_request_id),
        ("cache", it.cache.is_some()),
        ("limited rate", it.limit_rate.is_some()),
    ]
}

fn of_scene(it: &Scene) -> Properties {
    vec![
        ("several workers", it.workers > 1),
        ("reloads", it.reloads > 0),
        ("TLS", it.has_tls),
        ("PROXY protocol", it.has_proxy_header),
        ("log and metrics", it.is_observed),
        ("failing clients", it.clients_fail),
        ("failing upstreams", it.upstreams_fail),
        ("upstreams that fail mostly", it.upstreams_fail_mostly),
        ("least rate of clients", it.rate_min > 0),
        ("last requests of connections", it.requests_per_connection_max.is_some()),
        ("shared resources", it.shares_resources),
        ("purges", it.purges > 0),
        ("channels", it.channels.is_some()),
        ("messages of another server", it.channels.is_some_and(|channels| channels.has_bus)),
        ("messages that expire soon", it.channels.is_some_and(|channels| channels.age < TIME_MAX)),
        ("slow disk", it.disk.slow_of_256 > 0),
        ("full disk", it.disk.fills_up),
        ("torn writes", it.disk.tears),
        ("a folder of the cache", it.folder_bytes.is_some()),
        ("reads that block", it.disk.cold_of_256 > 0),
        ("crashes", it.crashes > 0),
        ("upgrades", it.upgrades > 0),
        ("changes of servers", it.server_changes > 0),
        ("connections that are passed on", it.passes_tls),
        ("steps of the clock", it.clock_steps > 0),
        ("failing accepts", it.accepts_per_failure.is_some()),
        ("few connections", it.connections_max.is_some()),
        ("little memory for bodies", it.bodies_memory_max.is_some()),
        ("short slices", it.slice_looks.is_some()),
        ("long bodies", it.has_long_bodies),
        ("few events at a time", it.events_max < EVENTS_MAX),
        ("small socket buffers", it.send_buffer_bytes.is_some()),
        ("small limits of buffers", it.limit_bytes.is_some()),
        ("latest values", it.channels.is_some_and(|channels| channels.is_latest)),
        ("messages over HTTP", it.channels.is_some_and(|channels| channels.is_over_http)),
        ("tokens of subscribers", it.channels.is_some_and(|channels| channels.has_tokens)),
        ("rules", it.has_rules),
        ("many rules", it.has_many_rules),
        ("a server that fails always", it.failing_server.is_some()),
        ("a busy channel", it.channels.is_some_and(|channels| channels.is_busy)),
        ("changes while bodies are on their way", it.changes == Occasion::BodyWaits),
    ]
}
