//! The state of a server, sampled once a second: rates are differences between two samples.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flatout_bus as bus;
use flatout_cache as cache;
use flatout_engine::{RecentMessage, WorkerFigures, recent_messages};
use flatout_observe::metrics::{Process, SiteTotals, Totals};
use flatout_proxy::ServerState;
use flatout_push::{Counted, Hub};

use super::View;
use super::frame::{
    About, Bus, Cache, Frame, Message, Prerender, Push, Site, SiteFigures, Start, Upstream, UpstreamServer,
    Worker,
};
use crate::upstreams;

/// Seconds that are kept for clients that connect later.
const FRAMES_MAX: usize = 300;

/// Crawlers that are shown.
const CRAWLERS_MAX: usize = 8;

/// Sites whose figures are shown.
const SITES_MAX: usize = 100;

/// The current and recent state of a server.
pub(super) struct Board {
    pub(super) view: View,
    pub(super) about: About,
    state: Mutex<State>,
}

struct State {
    frames: VecDeque<Frame>,
    before: Sample,
}

/// A sample.
struct Sample {
    at: Instant,
    totals: SiteTotals,
    by_site: Totals,
    site_names: Vec<String>,
    sites: Vec<Site>,
    messages: Vec<RecentMessage>,
    process: Process,
    workers: Vec<WorkerFigures>,
    upstreams: Vec<upstreams::UpstreamSnapshot>,
    cache: Option<cache::Figures>,
    renderer: Option<upstreams::RendererSnapshot>,
    push: Counted,
    bus: Option<bus::Counted>,
}

impl Sample {
    fn of(view: &View) -> Sample {
        let by_site = view.metrics.totals();
        Sample {
            at: Instant::now(),
            totals: by_site.all(),
            by_site,
            site_names: view.metrics.sites(),
            sites: view.sites.as_ref().map(|sites| sites()).unwrap_or_default(),
            messages: recent_messages(),
            process: Process::read(),
            workers: view.handle.figures_of_workers(),
            upstreams: view.upstreams.as_ref().map(|upstreams| upstreams.upstreams()).unwrap_or_default(),
            cache: view.upstreams.as_ref().and_then(|upstreams| upstreams.cache()),
            renderer: view.upstreams.as_ref().and_then(|upstreams| upstreams.renderer()),
            push: view.push.as_ref().map(Hub::counted).unwrap_or_default(),
            bus: view.bus.as_ref().map(|relay| relay.counted()),
        }
    }
}

impl Board {
    pub(super) fn new(view: View) -> Board {
        let about = About {
            version: view.version.clone(),
            pid: std::process::id(),
            started_at: unix_seconds(),
            listen: view.handle.urls(),
            sites: view.metrics.sites(),
        };
        let state = State { frames: VecDeque::with_capacity(FRAMES_MAX), before: Sample::of(&view) };
        Board { view, about, state: Mutex::new(state) }
    }

    /// Whether the server accepts new requests.
    pub(super) fn is_serving(&self) -> bool {
        !*self.view.handle.draining().borrow()
    }

    /// The first event of a stream.
    pub(super) fn start(&self) -> Start {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A reload may have added sites and addresses.
        let (listen, sites) = (self.view.handle.urls(), self.view.metrics.sites());
        let about = About { listen, sites, ..self.about.clone() };
        let messages = state.before.messages.iter().map(message).collect();
        let sites = state.before.sites.clone();
        Start { about, frames: state.frames.iter().cloned().collect(), sites, messages }
    }

    /// Takes a sample: returns the frame since the previous one.
    pub(super) fn sample(&self) -> Frame {
        let now = Sample::of(&self.view);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frame = between(&state.before, &now, &self.view.thread_name);
        frame.at = unix_seconds();
        frame.messages = new_messages(&state.before.messages, &now.messages);
        frame.changed_sites = (state.before.sites != now.sites).then(|| now.sites.clone());
        frame.state = if self.is_serving() { "serving" } else { "draining" }.to_owned();
        state.before = now;
        if state.frames.len() == FRAMES_MAX {
            state.frames.pop_front();
        }
        // A start has all of them together.
        state.frames.push_back(Frame { messages: Vec::new(), changed_sites: None, ..frame.clone() });
        frame
    }
}

fn between(before: &Sample, now: &Sample, thread_name: &str) -> Frame {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let (totals, earlier) = (&now.totals, &before.totals);
    let requests = totals.requests().saturating_sub(earlier.requests());
    let latency = totals.latency.since(&earlier.latency);
    let has_requests = latency.count() > 0;
    let us = |ns: u64| ns as f64 / 1e3;
    let worker_ns = now.process.cpu_ns_of(thread_name).saturating_sub(before.process.cpu_ns_of(thread_name));
    let all_ns = |process: &Process| process.threads.iter().map(|thread| thread.cpu_ns).sum::<u64>();
    let class = |totals: &SiteTotals, at: usize| totals.classes.get(at).copied().unwrap_or(0);
    let states = now.workers.iter().fold([0u64; 6], |mut sum, worker| {
        let found = worker.states.iter().chain([&worker.taken]);
        sum.iter_mut().zip(found).for_each(|(sum, count)| *sum += *count as u64);
        sum
    });
    Frame {
        requests_per_s: requests as f64 / seconds,
        errors_per_s: rate(totals.errors(), earlier.errors()),
        statuses_per_s: std::array::from_fn(|at| rate(class(totals, at + 1), class(earlier, at + 1))),
        p50_us: has_requests.then(|| us(latency.percentile_ns(50.0))),
        p99_us: has_requests.then(|| us(latency.percentile_ns(99.0))),
        received_per_s: rate(totals.received_bytes, earlier.received_bytes),
        sent_per_s: rate(totals.sent_bytes, earlier.sent_bytes),
        connections: now.workers.iter().map(|worker| worker.figures.connections as u64).sum(),
        states,
        cpu_us_per_request: has_requests.then(|| us(worker_ns) / requests.max(1) as f64),
        cpus: all_ns(&now.process).saturating_sub(all_ns(&before.process)) as f64 / 1e9 / seconds,
        memory_bytes: now.process.resident_bytes,
        descriptors: now.process.descriptors,
        descriptors_max: now.process.descriptors_max,
        requests: totals.requests(),
        errors: totals.errors(),
        workers: workers(before, now, thread_name, seconds),
        upstreams: now.upstreams.iter().map(|it| upstream(&before.upstreams, it, seconds)).collect(),
        cache: now.cache.map(|now| cache(&before.cache.unwrap_or_default(), &now, seconds)),
        prerender: now.renderer.as_ref().map(|now| {
            let none = upstreams::RendererSnapshot::default();
            prerender(before.renderer.as_ref().unwrap_or(&none), now, seconds)
        }),
        push: push(&before.push, &now.push, seconds),
        bus: now.bus.map(|bus| Bus {
            state: bus.state.name().to_owned(),
            queued: bus.queued,
            dropped: bus.dropped,
            missed: bus.missed,
        }),
        sites: site_figures(before, now, seconds),
        ..Frame::default()
    }
}

/// Sites that have had a request.
fn site_figures(before: &Sample, now: &Sample, seconds: f64) -> Vec<SiteFigures> {
    let none = SiteTotals::default();
    let of = |(at, (totals, name)): (usize, (&SiteTotals, &String))| {
        let earlier = before.by_site.sites.get(at).unwrap_or(&none);
        let latency = totals.latency.since(&earlier.latency);
        let us = |percent| (latency.count() > 0).then(|| latency.percentile_ns(percent) as f64 / 1e3);
        SiteFigures {
            name: name.clone(),
            requests_per_s: totals.requests().saturating_sub(earlier.requests()) as f64 / seconds,
            errors_per_s: totals.errors().saturating_sub(earlier.errors()) as f64 / seconds,
            p50_us: us(50.0),
            p99_us: us(99.0),
            requests: totals.requests(),
            errors: totals.errors(),
        }
    };
    let all = now.by_site.sites.iter().zip(&now.site_names).enumerate().map(of);
    let mut found: Vec<SiteFigures> = all.filter(|site| site.requests > 0).collect();
    found.sort_by_key(|site| std::cmp::Reverse(site.requests));
    found.truncate(SITES_MAX);
    found
}

fn message(recent: &RecentMessage) -> Message {
    Message { at_ms: recent.unix_ms, level: recent.severity.name().to_owned(), text: recent.text.clone() }
}

/// Messages behind the last one of the sample before.
fn new_messages(before: &[RecentMessage], now: &[RecentMessage]) -> Vec<Message> {
    let known = before.last().and_then(|last| now.iter().rposition(|message| message == last));
    now.iter().skip(known.map_or(0, |at| at + 1)).map(message).collect()
}

/// The state of a server. One that no request was sent to and no check has looked at is not known to be up.
fn standing(server: &upstreams::ServerSnapshot) -> &'static str {
    let figures = &server.figures;
    match server.state {
        ServerState::Up if !server.is_checked && figures.requests + figures.failures + figures.open == 0 => {
            "not used yet"
        }
        state => state.name(),
    }
}

fn prerender(
    before: &upstreams::RendererSnapshot,
    now: &upstreams::RendererSnapshot,
    seconds: f64,
) -> Prerender {
    let count = |of: fn(&upstreams::RendererSnapshot) -> u64| of(now).saturating_sub(of(before));
    let rate = |of| count(of) as f64 / seconds;
    let rendered = count(|it| it.rendered);
    let page_ms = now.page_time.saturating_sub(before.page_time).as_secs_f64() * 1e3;
    Prerender {
        requests_per_s: rate(|it| it.requests),
        hits_per_s: rate(|it| it.requests.saturating_sub(it.misses)),
        renders_per_s: rate(|it| it.rendered),
        skipped_per_s: rate(|it| it.skipped),
        page_ms: (rendered > 0).then(|| page_ms / rendered as f64),
        active: now.active,
        waiting: now.waiting,
        memory_bytes: now.memory_bytes,
        warming: now.warming,
        crawlers: now.crawlers.iter().take(CRAWLERS_MAX).cloned().collect(),
    }
}

/// `None` if no channel was ever used.
fn push(before: &Counted, now: &Counted, seconds: f64) -> Option<Push> {
    let rate = |of: fn(&Counted) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
    (*now != Counted::default()).then(|| Push {
        subscribers: now.subscribers,
        channels: now.channels,
        published_per_s: rate(|it| it.published),
        delivered_per_s: rate(|it| it.delivered),
        keys_per_s: rate(|it| it.keys),
        lag_ms: now.lag_ms,
        dropped: now.dropped,
    })
}

fn workers(before: &Sample, now: &Sample, thread_name: &str, seconds: f64) -> Vec<Worker> {
    let cpu_ns = |look: &Sample, index: usize| {
        let mut found = look.process.workers(thread_name).filter(|(number, _)| *number == index);
        found.next().map_or(0, |(_, cpu_ns)| cpu_ns)
    };
    let of = |(index, worker): (usize, &WorkerFigures)| {
        let earlier = before.workers.get(index).map_or(0, |worker| worker.figures.requests);
        Worker {
            cpus: cpu_ns(now, index).saturating_sub(cpu_ns(before, index)) as f64 / 1e9 / seconds,
            requests_per_s: worker.figures.requests.saturating_sub(earlier) as f64 / seconds,
            connections: worker.figures.connections as u64,
        }
    };
    now.workers.iter().enumerate().map(of).collect()
}

fn upstream(
    before: &[upstreams::UpstreamSnapshot],
    now: &upstreams::UpstreamSnapshot,
    seconds: f64,
) -> Upstream {
    let before = before.iter().find(|it| it.name == now.name);
    let of = |server: &upstreams::ServerSnapshot| {
        let earlier = before.and_then(|it| it.servers.iter().find(|it| it.address == server.address));
        let earlier = earlier.map(|it| it.figures.clone()).unwrap_or_default();
        let figures = &server.figures;
        let responses = figures.responses.since(&earlier.responses);
        let us = |percent| (responses.count() > 0).then(|| responses.percentile_ns(percent) as f64 / 1e3);
        UpstreamServer {
            address: server.address.clone(),
            state: standing(server).to_owned(),
            why: server.why.clone(),
            requests_per_s: figures.requests.saturating_sub(earlier.requests) as f64 / seconds,
            p50_us: us(50.0),
            p99_us: us(99.0),
            active: figures.active,
            connections: figures.open,
            idle: figures.idle,
            requests: figures.requests,
            failures: figures.failures,
            retries: figures.retries,
        }
    };
    let figures = &now.figures;
    Upstream {
        name: now.name.clone(),
        queued: figures.queued,
        refused: figures.queue_full + figures.queue_time + figures.no_server,
        refused_retries: figures.no_budget,
        servers: now.servers.iter().map(of).collect(),
        problem: now
            .sources
            .iter()
            .find_map(|it| Some(format!("{}: {}", it.source.place, it.problem.as_ref()?))),
    }
}

fn cache(before: &cache::Figures, now: &cache::Figures, seconds: f64) -> Cache {
    let rate = |of: fn(&cache::Figures) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
    Cache {
        hits_per_s: rate(|figures| figures.hits),
        misses_per_s: rate(|figures| figures.misses),
        stale_per_s: rate(|figures| figures.stale),
        collapsed_per_s: rate(|figures| figures.collapsed),
        evicted_per_s: rate(|figures| figures.evicted),
        memory_entries: now.memory_entries,
        memory_bytes: now.memory_bytes,
        disk_entries: now.disk.map(|(entries, _)| entries),
        disk_bytes: now.disk.map(|(_, bytes)| bytes),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn renders_of_a_second_are_differences() {
        let of = |requests, misses, rendered| upstreams::RendererSnapshot {
            requests,
            misses,
            rendered,
            page_time: Duration::from_millis(100 * rendered),
            active: 2,
            crawlers: vec![Default::default(); 20],
            ..Default::default()
        };
        let shown = prerender(&of(100, 20, 10), &of(140, 24, 14), 2.0);
        assert_eq!((shown.requests_per_s, shown.hits_per_s, shown.renders_per_s), (20.0, 18.0, 2.0));
        assert_eq!((shown.page_ms, shown.active, shown.crawlers.len()), (Some(100.0), 2, CRAWLERS_MAX));
        assert_eq!(prerender(&of(9, 9, 9), &of(9, 9, 9), 1.0).page_ms, None);
    }

    #[test]
    fn new_messages_are_those_behind_the_last_one() {
        let of = |unix_ms| RecentMessage {
            unix_ms,
            severity: flatout_engine::Severity::Error,
            text: "x".to_owned(),
        };
        let at = |before: &[u64], now: &[u64]| -> Vec<u64> {
            let (before, now): (Vec<_>, Vec<_>) =
                (before.iter().copied().map(of).collect(), now.iter().copied().map(of).collect());
            new_messages(&before, &now).iter().map(|message| message.at_ms).collect()
        };
        assert_eq!(at(&[], &[1, 2]), [1, 2]);
        assert_eq!(at(&[1, 2], &[2, 3]), [3]);
        assert_eq!(at(&[1, 2], &[7, 8]), [7, 8], "all of them are new");
        assert_eq!(at(&[1], &[1]), [0; 0]);
    }

    #[test]
    fn a_server_without_requests_is_not_known_to_be_up() {
        let of = |state, requests, is_checked| {
            let figures = flatout_proxy::ServerFigures { requests, ..Default::default() };
            standing(&upstreams::ServerSnapshot {
                address: String::new(),
                state,
                why: None,
                ejections: Default::default(),
                is_checked,
                figures,
            })
        };
        assert_eq!(of(ServerState::Up, 0, false), "not used yet");
        assert_eq!((of(ServerState::Up, 1, false), of(ServerState::Up, 0, true)), ("up", "up"));
        assert_eq!(of(ServerState::Down, 0, false), "down");
    }

    #[test]
    fn channels_are_shown_once_they_are_used() {
        let before = Counted { published: 10, delivered: 1000, ..Counted::default() };
        let now = Counted { subscribers: [3, 2, 1], published: 14, delivered: 5000, dropped: 7, ..before };
        let shown = push(&before, &now, 2.0).unwrap();
        assert_eq!((shown.published_per_s, shown.delivered_per_s), (2.0, 2000.0));
        assert_eq!((shown.subscribers, shown.dropped), ([3, 2, 1], 7));
        assert_eq!(push(&Counted::default(), &Counted::default(), 1.0), None);
    }
}
