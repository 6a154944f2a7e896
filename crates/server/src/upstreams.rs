//! The state of the current upstreams, for metrics and the admin listener.

use flatout_admin as admin;
use flatout_admin::upstreams::{RendererSnapshot, ServerSnapshot, UpstreamSnapshot};
use flatout_cache as cache;
use flatout_observe::metrics::{Family, Kind, Source, Value};
use flatout_proxy::{Failure, Figures, ServerState, ServerStatus, SpoolFigures};

use crate::live::Live;
use crate::prerender;

/// The current upstreams and their counters.
pub struct Upstreams {
    live: Live,
    figures: Figures,
}

impl Upstreams {
    /// The upstreams of `live`, whose workers count in `figures`.
    pub fn new(live: Live, figures: Figures) -> Upstreams {
        Upstreams { live, figures }
    }
}

impl admin::UpstreamSource for Upstreams {
    fn upstreams(&self) -> Vec<UpstreamSnapshot> {
        let states = self.live.opened().proxy.states();
        let of = |upstream: flatout_proxy::UpstreamState| {
            let server = |it: ServerStatus| {
                let figures = self.figures.server(&upstream.name, &it.label);
                ServerSnapshot {
                    address: it.label,
                    state: it.state,
                    why: it.ejection.map(|reason| reason.to_string()),
                    ejections: it.ejections,
                    is_checked: upstream.is_checked,
                    figures,
                }
            };
            let servers = upstream.servers.into_iter().map(server).collect();
            UpstreamSnapshot {
                figures: self.figures.upstream(&upstream.name),
                servers,
                sources: upstream.sources,
                name: upstream.name,
            }
        };
        states.into_iter().map(of).collect()
    }

    fn cache(&self) -> Option<cache::Figures> {
        self.live.opened().cache.as_ref().map(cache::Cache::figures)
    }

    fn renderer(&self) -> Option<RendererSnapshot> {
        self.live.opened().prerender.as_ref().map(prerender::snapshot)
    }
}

impl Source for Upstreams {
    fn collect(&self, into: &mut Vec<Family>) {
        families(&admin::UpstreamSource::upstreams(self), into);
        spool_families(&self.live.opened().proxy.spooled(), into);
    }
}

/// The name of a state as a label.
fn label(state: ServerState) -> &'static str {
    match state {
        ServerState::Up => "up",
        ServerState::SlowStart => "slow_start",
        ServerState::Down => "down",
        ServerState::NoAddress => "no_address",
        ServerState::Draining => "draining",
        ServerState::SetDown => "set_down",
        ServerState::Ejected => "ejected",
    }
}

fn spool_families(spooled: &SpoolFigures, into: &mut Vec<Family>) {
    let one = |kind, name, help, labelled: &[(&'static str, u64)]| {
        let mut family = Family::new(name, kind, help);
        for (place, count) in labelled {
            let labels = [("place", *place)];
            let labels = if place.is_empty() { &[][..] } else { &labels[..] };
            family.add(labels, Value::Count(*count));
        }
        family
    };
    into.extend([
        one(
            Kind::Gauge,
            "flatout_spooled_bytes",
            "Bytes of responses that are kept because their clients are slow, and of requests that are taken whole",
            &[("memory", spooled.memory_bytes), ("file", spooled.file_bytes)],
        ),
        one(Kind::Gauge, "flatout_spooling_responses", "Responses that are kept now", &[("", spooled.now)]),
        one(
            Kind::Counter,
            "flatout_spooled_responses",
            "Responses that were kept because their clients were slow",
            &[("", spooled.responses)],
        ),
        one(Kind::Counter, "flatout_spool_errors", "Errors of the folder for them", &[("", spooled.errors)]),
    ]);
}

fn families(upstreams: &[UpstreamSnapshot], into: &mut Vec<Family>) {
    let gauge = |name, help| Family::new(name, Kind::Gauge, help);
    let counter = |name, help| Family::new(name, Kind::Counter, help);
    let mut states =
        gauge("flatout_upstream_server_state", "1 for the current state of a server, 0 for the others");
    let mut ejections = counter(
        "flatout_upstream_ejections",
        "How often a server paused because it stood out from its siblings, by reason",
    );
    let mut active = gauge("flatout_upstream_active_requests", "Requests that a server is serving");
    let mut connections = gauge("flatout_upstream_connections", "Open connections to a server");
    let mut requests = counter("flatout_upstream_requests", "Requests sent to a server");
    let mut failures =
        counter("flatout_upstream_failures", "Requests and attempts to connect that failed at a server");
    let mut retries = counter("flatout_upstream_retries", "Requests retried after a failure at a server");
    let mut times = Family::new(
        "flatout_upstream_response_duration_seconds",
        Kind::Histogram,
        "Time from the start of an attempt to the end of its response",
    );
    let mut queued = gauge("flatout_upstream_queued_requests", "Requests that wait for a connection");
    let mut refused =
        counter("flatout_upstream_refused_requests", "Requests not sent to any server, by reason");
    let mut ended = counter(
        "flatout_upstream_failed_requests",
        "Requests that ended without the complete response of a server, by reason",
    );
    let mut no_budget =
        counter("flatout_upstream_refused_retries", "Retries not made because the budget was used up");
    let mut valid = gauge(
        "flatout_upstream_source_valid",
        "1 if the servers of a file are current, 0 if those read before are in use, because it has a mistake or cannot be read",
    );
    let mut source_servers =
        gauge("flatout_upstream_source_servers", "Servers in the last good list of a source");
    let mut problems = counter(
        "flatout_upstream_source_problems",
        "How often a list of servers was not used because it had a mistake or could not be read",
    );
    let mut changes = counter(
        "flatout_upstream_source_changes",
        "How often a source has changed the servers of its upstream",
    );
    for upstream in upstreams {
        let name = upstream.name.as_str();
        for it in &upstream.sources {
            let place = it.source.place.to_string();
            let labels = [("upstream", name), ("source", place.as_str())];
            valid.add(&labels, Value::Count(u64::from(it.problem.is_none())));
            source_servers.add(&labels, Value::Count(it.servers_count as u64));
            problems.add(&labels, Value::Count(it.problems));
            changes.add(&labels, Value::Count(it.changes));
        }
        for server in &upstream.servers {
            let labels = [("upstream", name), ("server", server.address.as_str())];
            let [of_upstream, of_server] = labels;
            for state in ServerState::ALL {
                let is_it = Value::Count(u64::from(server.state == state));
                states.add(&[of_upstream, of_server, ("state", label(state))], is_it);
            }
            let counts = server.ejections;
            for (reason, count) in [("errors", counts.errors), ("time", counts.time)] {
                ejections.add(&[of_upstream, of_server, ("reason", reason)], Value::Count(count));
            }
            let figures = &server.figures;
            let busy = figures.open.saturating_sub(figures.idle);
            for (state, count) in [("active", busy), ("idle", figures.idle)] {
                connections.add(&[of_upstream, of_server, ("state", state)], Value::Count(count));
            }
            active.add(&labels, Value::Count(figures.active));
            requests.add(&labels, Value::Count(figures.requests));
            failures.add(&labels, Value::Count(figures.failures));
            retries.add(&labels, Value::Count(figures.retries));
            times.add(&labels, Value::Latency(Box::new(figures.responses.clone())));
        }
        let figures = &upstream.figures;
        queued.add(&[("upstream", name)], Value::Count(figures.queued));
        let reasons = [
            ("queue_full", figures.queue_full),
            ("queue_time", figures.queue_time),
            ("no_server", figures.no_server),
        ];
        for (reason, count) in reasons {
            refused.add(&[("upstream", name), ("reason", reason)], Value::Count(count));
        }
        for (failure, count) in Failure::ALL.into_iter().zip(figures.ended) {
            ended.add(&[("upstream", name), ("reason", failure.label())], Value::Count(count));
        }
        no_budget.add(&[("upstream", name)], Value::Count(figures.no_budget));
    }
    into.extend([
        states,
        ejections,
        active,
        connections,
        requests,
        failures,
        retries,
        times,
        queued,
        refused,
        ended,
        no_budget,
    ]);
    if upstreams.iter().any(|it| !it.sources.is_empty()) {
        into.extend([valid, source_servers, problems, changes]);
    }
}
