//! What must be true, by a model that knows nothing of the server but its rules.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

pub(crate) mod cache;
mod heads;
pub(crate) mod log;
pub(crate) mod push;
pub(crate) mod ruled;
pub(crate) mod servers;
mod stored;
pub(crate) mod time;

use crate::scene::routes::{
    DEFAULT_FIELD, DISTANT, FIXED, MOVED, OLD, OPEN, READ_ONLY, REMOVED_FIELD, SET_FIELD, is_near,
};
use crate::scene::ruled::{RULED, SORRY};
use crate::scene::{Configuration, DENIED, REFUSED, Scene};
use crate::tunnel::Lengths;
use cache::{Moment, Removal, RequestDirectives, ResponseDirectives};

/// What a limited response may be ahead of its rate: a time slice that begins, and one that ends.
const RATE_SLACK_NS: u64 = 500_000_000;

/// How late a request may be that the server delays for its rate: the clock moves in steps.
const RATE_LATE_NS_MAX: u64 = 1_200_000_000;

/// A request as its client means it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) id: u32,
    /// The number in its head: of requests whose heads are the same, that of the first one.
    pub(crate) named: u32,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) host: &'static str,
    pub(crate) body_length: usize,
    /// It is for one of the resources whose responses may be stored.
    pub(crate) resource: Option<u8>,
    pub(crate) asks: RequestDirectives,
    /// `X-Request-Id`, if its client sends one.
    pub(crate) sends_id: bool,
    /// The longest body of its response: what a client of HTTP/2 gets in few turns, if its window stays small.
    pub(crate) response_bytes_max: usize,
    /// It asks for a tunnel, through which so many bytes go.
    pub(crate) tunnel: Option<Lengths>,
    /// The address of its client, if a proxy in front of the server has announced it.
    pub(crate) address: Option<IpAddr>,
}

impl Planned {
    pub(crate) fn target(&self) -> String {
        if let Some(resource) = self.resource {
            return resource_target(resource);
        }
        format!("{}/{}?id={}", self.path, self.id % 7, self.id)
    }

    /// The path and query of the request that the upstream gets.
    pub(crate) fn upstream_target(&self) -> String {
        if let Some(target) = self.rewritten_by_rule() {
            return target;
        }
        let target = self.target();
        match (self.path, target.strip_prefix(OLD)) {
            (OLD, Some(rest)) => format!("{OPEN}{rest}"),
            _ => target,
        }
    }

    /// The value of the field `X-Shown`, if the configuration adds that field.
    pub(crate) fn shown(&self) -> String {
        let target = self.upstream_target();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        format!("a.test {path} {query}").trim_end().to_owned()
    }

    /// Why no upstream may get the request; `None` if one may.
    fn why_no_upstream(&self) -> Option<&'static str> {
        match self.path {
            _ if self.resource.is_some() => None,
            DENIED => Some("is denied"),
            DISTANT if is_near(self.address) => Some("is denied because of its client's address"),
            FIXED | MOVED => Some("has a fixed response or a redirect"),
            READ_ONLY if !matches!(self.method, "GET" | "HEAD") => {
                Some("has a method that its route does not allow")
            }
            _ => self.why_rules_refuse(),
        }
    }

    /// For the trace.
    pub(crate) fn summary(&self) -> String {
        let fields = self.asks.lines().trim_end().replace("\r\n", "; ");
        match self.resource {
            Some(_) => format!("{} {} ({fields})", self.method, self.target()),
            None => format!("{} {} and {} bytes", self.method, self.target(), self.body_length),
        }
    }

    /// Whether its client accepts compressed responses.
    pub(crate) fn accepts_gzip(&self) -> bool {
        self.named.is_multiple_of(3)
    }

    /// The id that its client sends.
    pub(crate) fn own_id(&self) -> Option<String> {
        self.sends_id.then(|| format!("client-{}", self.id))
    }

    fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }
}

/// The target of a resource whose responses may be stored.
pub(crate) fn resource_target(resource: u8) -> String {
    format!("/stored/{resource}")
}

/// A response as its upstream means it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) status: u16,
    pub(crate) body_tag: u32,
    pub(crate) end: End,
    pub(crate) says: ResponseDirectives,
    pub(crate) responded: Moment,
}

/// How a response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With the last of this many bytes of its body.
    Whole(usize),
    /// Before its end, as its receiver can tell.
    Cut,
    /// With its connection: nobody can tell whether that was its end.
    Unknown,
}

/// All requests of a run, and what became of them.
#[derive(Debug, Default)]
pub(crate) struct Model {
    planned: HashMap<u32, Planned>,
    /// When the first byte of each request was sent.
    began: HashMap<u32, Moment>,
    /// When the connection of each request was opened.
    opened_ns: HashMap<u32, u64>,
    /// How many requests with the same head have begun.
    alike: HashMap<u32, u32>,
    /// When a bucket for the requests that upstreams got would be full, if a rate is limited.
    rate_is_full_ns: u64,
    /// How many requests will have a head, by the number in it.
    planned_alike: HashMap<u32, u32>,
    /// When an upstream has had the head of each request.
    seen: HashMap<u32, Vec<Moment>>,
    sent: HashMap<u32, Vec<Sent>>,
    /// Requests that an upstream has, and has not responded to.
    awaited: HashSet<u32>,
    /// When the first client had all of a response, by its name.
    whole_at: HashMap<String, Moment>,
    /// The last response of each resource that arrived whole.
    latest: HashMap<u8, String>,
    removals: Vec<Removal>,
    pub(crate) channels: push::Channels,
    pub(crate) heads: heads::Heads,
    pub(crate) servers: servers::Servers,
    /// The upstream that has got each request last.
    at_server: HashMap<u32, usize>,
    /// The ids of requests that the server has made, and which requests they are for.
    made_ids: HashMap<String, u32>,
    /// Resources with a request that may change them, or a response that may say that they have changed.
    changed: HashSet<u8>,
    /// Requests whose tunnels one end has broken off.
    broken_tunnels: HashSet<u32>,
    /// The first bytes of each connection that is passed on, and whether an upstream has received them.
    passed: HashMap<u32, (Vec<u8>, bool)>,
    /// Requests that a server had read before another one took over. The former server must still serve them.
    read_before_upgrade: HashSet<u32>,
    /// When the last upgrade happened.
    upgraded: Option<Moment>,
    /// The upstreams that the operator has set for the application, and the time of that change.
    serving: Option<(Vec<usize>, Moment)>,
    /// The whole responses that clients have, of whomever.
    whole_responses: HashMap<u32, log::Whole>,
    /// Requests that have ended, in any way that is allowed.
    pub(crate) ended: u64,
    /// Responses of upstreams that arrived whole.
    pub(crate) whole: u64,
    /// When the server was killed last, and how many stored responses from before a crash were served after it.
    crashed: Option<Moment>,
    pub(crate) survivors: u64,
}

/// What a client has received for a request.
#[derive(Debug)]
pub(crate) struct Got<'g> {
    pub(crate) status: u16,
    /// `X-Sent`: the request, and which response to it.
    pub(crate) sent: Option<&'g str>,
    /// `X-Confirmed`: the response by which an upstream has confirmed a stored one.
    pub(crate) confirmed: Option<&'g str>,
    pub(crate) age: Option<u32>,
    pub(crate) etag: Option<&'g str>,
    pub(crate) content_range: Option<&'g str>,
    pub(crate) location: Option<&'g str>,
    pub(crate) fields: ResponseFields<'g>,
    /// All fields, of responses to requests that rules look at.
    pub(crate) all: Vec<(&'g str, &'g str)>,
    /// Without its coding, and how many bytes were sent.
    pub(crate) body: &'g [u8],
    pub(crate) sent_bytes: usize,
    pub(crate) is_complete: bool,
}

/// The fields of a response that the site's rules set, remove, or add if missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseFields<'g> {
    set: Option<&'g str>,
    removed: Option<&'g str>,
    default: Option<&'g str>,
}

impl<'g> ResponseFields<'g> {
    pub(crate) fn of(field: impl Fn(&'static str) -> Option<&'g str>) -> ResponseFields<'g> {
        ResponseFields { set: field(SET_FIELD), removed: field(REMOVED_FIELD), default: field(DEFAULT_FIELD) }
    }
}

/// What broke rules before, so that other responses than the upstream's are allowed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Excuse {
    /// The client of this request.
    pub(crate) client: bool,
    /// It has paused in the middle of something, and may be slower than the server wants.
    pub(crate) is_slow: bool,
    /// Any upstream.
    pub(crate) upstream: bool,
    /// The connection may belong to a server that was replaced and drains.
    pub(crate) drains: bool,
}

impl Model {
    pub(crate) fn new(scene: &Scene) -> Model {
        let (channels, servers) = (push::Channels::of(scene), servers::Servers::of(scene));
        Model { channels, servers, ..Model::default() }
    }

    /// A client is about to send a request.
    pub(crate) fn plan(&mut self, planned: Planned) {
        if let Some(resource) = planned.resource
            && !matches!(planned.method, "GET" | "HEAD")
        {
            self.changed.insert(resource);
        }
        *self.planned_alike.entry(planned.named).or_default() += 1;
        self.planned.insert(planned.id, planned);
    }

    /// Whether no other request has the same head.
    pub(crate) fn has_own_head(&self, id: u32) -> bool {
        self.planned_alike.get(&self.planned[&id].named) == Some(&1)
    }

    /// The first byte of a request is sent, over a connection that was opened at this time.
    pub(crate) fn begin(&mut self, id: u32, now: Moment, opened_ns: u64) {
        self.opened_ns.insert(id, opened_ns);
        if self.began.insert(id, now).is_none() {
            *self.alike.entry(self.planned[&id].named).or_default() += 1;
        }
    }

    /// A purge of a resource is confirmed. It has begun and ended at this moment.
    pub(crate) fn purge(&mut self, resource: u8, is_soft: bool, now: Moment) {
        self.remove(resource_target(resource), is_soft, now);
    }

    /// Responses of another host are purged. A response that is in flight then may be left unstored, because the purge does not compare its
    /// URL.
    pub(crate) fn purge_others(&mut self, now: Moment) {
        self.remove(String::new(), false, now);
    }

    fn remove(&mut self, target: String, is_soft: bool, now: Moment) {
        let removal =
            Removal { target, before: now, is_purge: true, is_soft, confirmed: now, is_written: false };
        self.removals.push(removal);
    }

    /// Whether all purges so far are on disk.
    ///
    /// Returns whether some were not before.
    pub(crate) fn note_written_purges(&mut self, are_all: bool) -> bool {
        let purges = self.removals.iter_mut().filter(|removal| removal.is_purge && !removal.is_written);
        let unwritten: Vec<_> = purges.filter(|_| are_all).collect();
        let are_some = !unwritten.is_empty();
        unwritten.into_iter().for_each(|removal| removal.is_written = true);
        are_some
    }

    /// The server is killed, and starts again: what was not on disk is forgotten.
    pub(crate) fn crash(&mut self, now: Moment) {
        self.crashed = Some(now);
        self.removals.retain(|removal| removal.is_written);
        self.serving = None;
        self.awaited.clear();
    }

    /// A client is about to open a connection that is passed on. `first` is what the client sends first.
    pub(crate) fn pass_on(&mut self, id: u32, first: Vec<u8>) {
        self.passed.insert(id, (first, false));
    }

    /// An upstream has received the first bytes of a connection that was passed on.
    pub(crate) fn passed_on(&mut self, id: u32, first: &[u8]) -> Result<Planned, String> {
        match (self.passed.get_mut(&id), self.planned.get(&id)) {
            (Some((sent, is_seen)), Some(planned)) if sent == first => {
                *is_seen = true;
                Ok(planned.clone())
            }
            _ => Err(format!("an upstream got TLS connection {id}, which no client opened with these bytes")),
        }
    }

    /// Whether an upstream has received the first bytes of a connection that is passed on.
    pub(crate) fn is_passed_on(&self, id: u32) -> bool {
        self.passed.get(&id).is_some_and(|(_, is_seen)| *is_seen)
    }

    /// Another server takes over. The former one still serves the requests that it has read.
    pub(crate) fn upgrade(&mut self, now: Moment) {
        self.read_before_upgrade.extend(self.heads.surely_read());
        self.read_before_upgrade.extend(self.seen.keys().copied());
        self.upgraded = Some(now);
        self.channels.upgrade();
    }

    /// Whether a connection that was opened at this time may belong to a server that has been replaced since then. Both servers accept
    /// connections until the former one drains.
    pub(crate) fn may_be_of_former(&self, opened_ns: u64) -> bool {
        self.upgraded.is_some_and(|upgraded| opened_ns <= upgraded.ns)
    }

    /// Sets the upstreams that get the application's requests from now on. `None`: those of the configuration.
    pub(crate) fn serve_by(&mut self, serving: Option<Vec<usize>>, now: Moment) {
        self.serving = serving.map(|upstreams| (upstreams, now));
    }

    /// Whether an upstream may get a request. A removed upstream gets no request that began after its removal.
    pub(crate) fn may_get(&self, upstream: usize, id: u32) -> Result<(), String> {
        let Some((serving, since)) = &self.serving else { return Ok(()) };
        // While a former server drains, it uses the upstreams that it had.
        let is_later = self.began.get(&id).is_some_and(|began| began.ns > since.ns)
            && !self.opened_ns.get(&id).is_some_and(|opened_ns| self.may_be_of_former(*opened_ns));
        match is_later && !serving.contains(&upstream) {
            true => Err(format!("an upstream got request {id}, which began after the upstream was removed")),
            false => Ok(()),
        }
    }

    /// A resource whose upstream has a request and has not responded: that of the latest.
    pub(crate) fn awaited(&self) -> Option<u8> {
        let awaited = self.awaited.iter().filter_map(|id| Some((id, self.planned[id].resource?)));
        awaited.max().map(|(_, resource)| resource)
    }

    /// The entity tag of the last response of a resource.
    pub(crate) fn etag(&self, resource: u8) -> Option<&String> {
        self.latest.get(&resource)
    }

    /// An upstream has a request's head. Returns the request.
    pub(crate) fn head(
        &mut self,
        method: &str,
        target: &str,
        named: Option<&str>,
        now: Moment,
        scene: &Scene,
    ) -> Result<Planned, String> {
        let configurations = &scene.configurations;
        let id = named.or(target.rsplit_once("?id=").map(|(_, id)| id)).and_then(|id| id.parse().ok());
        let id: u32 =
            id.ok_or_else(|| format!("an upstream got a request that nobody sent: {method} {target}"))?;
        let planned = self
            .planned
            .get(&id)
            .ok_or_else(|| format!("an upstream got request {id}, which nobody sent"))?;
        let expected = planned.upstream_target();
        // FastCGI scripts get the target that the client sent.
        let is_script = configurations.iter().any(|configuration| configuration.is_fastcgi);
        let is_expected = expected == target || is_script && planned.target() == target;
        if planned.method != method || !is_expected {
            let sent = planned.method;
            return Err(format!("request {id} is {sent} {expected}, an upstream got {method} {target}"));
        }
        if let Some(why) = planned.why_no_upstream() {
            return Err(format!("request {id} {why}, but an upstream got it"));
        }
        let must_ask = self.configurations_of(id, scene).all(|configuration| configuration.has_authorization);
        if planned.path == REFUSED && must_ask {
            return Err(format!("the authorization service refuses request {id}, but an upstream got it"));
        }
        self.is_needed(planned, scene)?;
        if let (Some(resource), "HEAD") = (planned.resource, planned.method) {
            // Its response may say that the stored one is outdated (RFC 9111, section 4.3.5).
            self.changed.insert(resource);
        }
        self.heads.read_one(id);
        let seen = self.seen.entry(id).or_default();
        seen.push(now);
        let times = seen.len() as u32;
        // A connection at rest may have ended unnoticed: the request is sent on a new one, which is no retry.
        // A request that gets a stale response may be the one that validates it, after it was sent for itself.
        let most = configurations.iter().map(|it| 2 + it.retries_max + u32::from(it.cache.is_some()));
        let alike = self.alike.get(&id).copied().unwrap_or(1);
        let may_repeat = configurations.iter().any(|configuration| configuration.retry_on.non_idempotent);
        if times > 1 && !planned.is_idempotent() && !may_repeat || times > alike * most.max().unwrap_or(1) {
            return Err(format!("an upstream got request {id} ({method}) {times} times"));
        }
        let planned = planned.clone();
        self.awaited.insert(id);
        self.are_not_too_many(scene)?;
        if times == 1 && planned.body_length == 0 {
            self.are_not_too_fast(now, scene)?;
        }
        Ok(planned)
    }

    /// Upstreams get no more requests in a time than the rate and its burst allow. Only requests that the server sends on at once are counted,
    /// where nothing makes it wait but the rate itself.
    fn are_not_too_fast(&mut self, now: Moment, scene: &Scene) -> Result<(), String> {
        let [configuration] = scene.configurations.as_slice() else { return Ok(()) };
        let Some((requests, burst, _)) = configuration.rate else { return Ok(()) };
        let waits = configuration.has_authorization
            || configuration.concurrency.is_some()
            || configuration.connections_max < 4096
            || configuration.streams_max.is_some()
            || !scene.has_one_server()
            || !scene.accepts_at_once()
            || scene.send_buffer_bytes.is_some();
        if waits {
            return Ok(());
        }
        let step_ns = 1_000_000_000 / u64::from(requests);
        self.rate_is_full_ns = self.rate_is_full_ns.max(now.ns) + step_ns;
        let (ahead_ns, most_ns) =
            (self.rate_is_full_ns - now.ns, u64::from(burst + 1) * step_ns + RATE_LATE_NS_MAX);
        match ahead_ns <= most_ns {
            true => Ok(()),
            false => Err(format!(
                "upstreams get requests too fast: {requests}/s and a burst of {burst} are allowed, and they are {} ms ahead",
                ahead_ns / 1_000_000
            )),
        }
    }

    /// Upstreams have no more requests at once than the setting allows, as far as that can be told: who breaks off leaves a request that
    /// its upstream knows, and the server does not.
    fn are_not_too_many(&self, scene: &Scene) -> Result<(), String> {
        let [configuration] = scene.configurations.as_slice() else { return Ok(()) };
        let Some((most, _)) = configuration.concurrency else { return Ok(()) };
        let breaks_off =
            scene.clients_fail || scene.upstreams_fail || scene.rate_min > 0 || !scene.has_one_server();
        // A stored response may be validated when its request has ended.
        if breaks_off || configuration.request_time_max.is_some() || configuration.cache.is_some() {
            return Ok(());
        }
        // One that is refused while its body comes has ended too.
        let is_small = |id: &&u32| !scene.is_too_large(self.planned[id].body_length);
        match self.awaited.iter().filter(is_small).count() {
            count if count > most as usize => Err(format!(
                "upstreams have {count} requests at once, {most} are allowed: {:?}",
                self.awaited
            )),
            _ => Ok(()),
        }
    }

    /// The configurations that a request may be under.
    pub(crate) fn configurations_of<'s>(
        &self,
        id: u32,
        scene: &'s Scene,
    ) -> impl Iterator<Item = &'s Configuration> {
        let mask = self.heads.of(id, scene.configurations.len());
        let is_possible = move |at: &usize| mask & (1 << at) != 0;
        scene.configurations.iter().enumerate().filter(move |(at, _)| is_possible(at)).map(|(_, it)| it)
    }

    /// An upstream has a request with this `X-Request-Id`.
    pub(crate) fn request_id(
        &mut self,
        planned: &Planned,
        got: Option<&str>,
        scene: &Scene,
    ) -> Result<(), String> {
        let id = planned.id;
        let sends: Vec<bool> =
            self.configurations_of(id, scene).map(|configuration| configuration.sends_request_id).collect();
        match (planned.own_id(), got) {
            (Some(own), Some(got)) if own == got => Ok(()),
            (Some(own), got) => {
                Err(format!("request {id}: X-Request-Id is {got:?}, its client has sent {own}"))
            }
            (None, None) if !sends.contains(&false) => {
                Err(format!("request {id}: an upstream got no X-Request-Id"))
            }
            (None, None) => Ok(()),
            (None, Some(got)) => {
                let is_made = got.len() == 32 && got.bytes().all(|byte| byte.is_ascii_hexdigit());
                let other = self.made_ids.insert(got.to_owned(), id).filter(|other| *other != id);
                match (is_made && sends.contains(&true), other) {
                    (false, _) => Err(format!("request {id}: X-Request-Id is {got}, which nobody sent")),
                    (true, Some(other)) => Err(format!("requests {id} and {other} have the same id, {got}")),
                    (true, None) => Ok(()),
                }
            }
        }
    }

    /// An upstream responds to a request. Returns the value of `X-Sent`.
    pub(crate) fn respond(&mut self, id: u32, sent: Sent) -> String {
        self.awaited.remove(&id);
        let all = self.sent.entry(id).or_default();
        all.push(sent);
        format!("{id}-{}", all.len() - 1)
    }

    /// An upstream makes the connection of a request a tunnel.
    pub(crate) fn switch(&mut self, id: u32) {
        self.awaited.remove(&id);
    }

    /// One end of a tunnel breaks off.
    pub(crate) fn break_tunnel(&mut self, id: u32) {
        self.broken_tunnels.insert(id);
    }

    /// Whether a tunnel may end before all bytes have gone through it.
    pub(crate) fn may_end_tunnel(&self, id: u32, scene: &Scene) -> bool {
        self.broken_tunnels.contains(&id) || has_time_limit(scene, true)
    }

    /// A client has a response, or a part of one before its connection ended.
    pub(crate) fn response(
        &mut self,
        id: u32,
        got: &Got<'_>,
        excuse: Excuse,
        now: Moment,
        scene: &Scene,
    ) -> Result<(), String> {
        self.ended += 1;
        let planned = self.planned.get(&id).ok_or("a response without a request")?;
        // The head of a request that is too slow may not have come, and then nobody knows whose it is.
        if got.is_complete && got.status != 408 {
            let whole = log::Whole { status: got.status, body_bytes: got.sent_bytes as u64 };
            self.whole_responses.insert(id, whole);
        }
        self.is_not_too_fast(id, got, now, scene)?;
        let Some(sent) = got.sent else { return self.own_response(id, got, excuse, scene) };
        let changes: Vec<bool> = self.configurations_of(id, scene).map(|it| it.changes_fields).collect();
        check_fields(id, got, &changes)?;
        let (of, at) = sent.split_once('-').ok_or("a malformed X-Sent")?;
        let name = format!("{of}-{at}");
        let (of, at): (u32, usize) = (parsed(of)?, parsed(at)?);
        let all = self.sent.get(&of).map(Vec::as_slice).unwrap_or_default();
        let sent = all.get(at).ok_or("a response that nobody sent")?;
        // Of requests with the same head, an earlier one may have got it.
        let began = self.began.get(&id).copied().unwrap_or_default();
        let is_own = of == planned.named && began.order <= sent.responded.order;
        if !is_own || got.confirmed.is_some() {
            let of_cache = self.check_stored(&name, planned, got, (now, excuse.drains), scene);
            let confirmed = got.confirmed.map(|by| format!(" (confirmed by {by})")).unwrap_or_default();
            of_cache.map_err(|rule| format!("request {id} got the response {name}{confirmed}, {rule}"))?;
            let is_survivor = self
                .crashed
                .is_some_and(|crashed| sent.responded.order < crashed.order && crashed.order < began.order);
            self.survivors += u64::from(is_survivor && got.confirmed.is_none());
        }
        let mut page = None;
        if planned.path == RULED && planned.has_inputs() {
            page = ruled::check_response(planned, got, sent, self.configurations_of(id, scene))?;
        }
        let is_not_modified = got.status == 304 && planned.asks.if_none_match.as_ref() == Some(&name);
        let may_be_range = planned.asks.range.is_some() && sent.status == 200;
        let is_range = may_be_range && got.status == 206;
        if page.is_some() {
            self.whole += u64::from(got.is_complete);
            return Ok(());
        }
        let is_other = sent.status != got.status && !is_range && !is_not_modified;
        if is_other && (!may_be_range || got.status != 416) {
            return Err(format!(
                "request {id}: the upstream sent {}, the client got {}",
                sent.status, got.status
            ));
        }
        if got.status == 416 {
            return Ok(());
        }
        let first = if is_range { range_of(planned, sent, got)? } else { 0 };
        if !crate::message::is_part_of_body(sent.body_tag, first, got.body) {
            return Err(format!("request {id}: other bytes than the upstream sent"));
        }
        let has_body = planned.method != "HEAD" && !matches!(got.status, 204 | 304);
        let end = sent.end;
        match (got.is_complete, end) {
            (true, End::Cut) if has_body => {
                Err(format!("request {id}: half a response of the upstream became a complete one"))
            }
            (true, End::Whole(length)) if has_body && !is_range && got.body.len() != length => {
                Err(format!("request {id}: {} bytes of a body of {length}", got.body.len()))
            }
            (true, _) => {
                if is_own {
                    self.is_in_time(id, got, excuse, now.ns, scene)?;
                }
                self.whole += 1;
                let planned = planned.clone();
                self.arrived(&name, &planned, got.status, now);
                Ok(())
            }
            // The limit of a body of unknown length shows when the response may have begun.
            (false, End::Whole(_)) if scene.is_too_large(planned.body_length) => Ok(()),
            (false, End::Whole(_))
                if !excuse.client && !excuse.upstream && !has_time_limit(scene, excuse.is_slow) =>
            {
                Err(format!(
                    "request {id}: the connection ended in the middle of a response that the upstream has sent"
                ))
            }
            (false, _) => Ok(()),
        }
    }

    /// A response is not sent faster than the rate of its route; its first part may be.
    fn is_not_too_fast(&self, id: u32, got: &Got<'_>, now: Moment, scene: &Scene) -> Result<(), String> {
        let mut limits = self.configurations_of(id, scene).map(|configuration| configuration.limit_rate);
        let Some((rate, after)) = limits.try_fold((0, 0), |(rate, after), limit| {
            limit.map(|limit| (limit.bytes_per_s.max(rate), limit.after_bytes.max(after)))
        }) else {
            return Ok(());
        };
        let began = self.began.get(&id).copied().unwrap_or_default();
        let most = after + rate * (now.ns - began.ns + RATE_SLACK_NS) / 1_000_000_000;
        match got.sent_bytes as u64 {
            bytes if bytes > most => {
                let ms = (now.ns - began.ns) / 1_000_000;
                Err(format!("request {id}: {bytes} bytes within {ms} ms, at {rate} bytes/s after {after}"))
            }
            _ => Ok(()),
        }
    }

    /// A response that the server has made itself.
    fn own_response(&self, id: u32, got: &Got<'_>, excuse: Excuse, scene: &Scene) -> Result<(), String> {
        let planned = &self.planned[&id];
        let any = |test: &dyn Fn(&Configuration) -> bool| scene.configurations.iter().any(test);
        let is_large = scene.is_too_large(planned.body_length);
        let is_for_upstream = planned.resource.is_some() || !matches!(planned.path, FIXED | MOVED);
        if planned.has_inputs() && ruled::check_own(planned, got, self.configurations_of(id, scene))? {
            return self.is_page_explained(planned, got);
        }
        let allowed = match got.status {
            200 | 307 if !is_for_upstream => return fixed_response(planned, got),
            405 => planned.path == READ_ONLY && planned.why_no_upstream().is_some(),
            403 if planned.path == DISTANT && planned.why_no_upstream().is_some() => true,
            304 => return self.not_modified(planned, got),
            416 => planned.asks.range.is_some(),
            404 => planned.path == SORRY,
            403 => planned.path == DENIED || planned.path == REFUSED && any(&|it| it.has_authorization),
            408 => excuse.client,
            413 => is_large,
            429 => any(&|it| it.rate.is_some()),
            // The authorization service could not be asked in time.
            502 | 503 if any(&|it| !it.retry_on.statuses.is_empty()) => true,
            502 if any(&|it| it.has_authorization && it.request_time_max.is_some()) => true,
            502 => excuse.upstream || any(&|it| it.has_authorization && it.connections_max < 4096),
            503 if scene.bodies_memory_max.is_some() => true,
            // If the servers of a former configuration are removed, its waiting requests find no server (docs/internals/simulation.md).
            503 if scene.server_changes > 0 && scene.reloads > 0 => true,
            // A body that cannot be stored.
            503 if scene.disk.may_refuse() && any(&|it| it.buffers_requests) => true,
            503 if any(&|it| it.requests_max > 0) => true,
            503 => excuse.upstream || any(&|it| it.concurrency.is_some() || it.connections_max < 4096),
            504 if planned.asks.only_if_cached && any(&|it| it.cache.is_some()) => true,
            504 => excuse.upstream || excuse.client || any(&|it| it.request_time_max.is_some()),
            _ => false,
        };
        if !allowed {
            let text = String::from_utf8_lossy(got.body);
            return Err(format!(
                "request {id} {} {}: {} of the server's own: {}",
                planned.method,
                planned.target(),
                got.status,
                text.trim()
            ));
        }
        let shows_id = planned.own_id().is_none_or(|own| String::from_utf8_lossy(got.body).contains(&own));
        if planned.path == DENIED
            && got.status == 403
            && got.is_complete
            && planned.method != "HEAD"
            && !shows_id
        {
            return Err(format!("request {id}: an error page without the id that the client has sent"));
        }
        if !got.is_complete && !excuse.client {
            return Err(format!("request {id}: half a response of the server's own"));
        }
        Ok(())
    }

    /// The page of an upstream's error needs such an error.
    fn is_page_explained(&self, planned: &Planned, got: &Got<'_>) -> Result<(), String> {
        let responses = self.sent.get(&planned.id).map(Vec::as_slice).unwrap_or_default();
        match got.status != 500 || responses.iter().any(|sent| sent.status == 500) {
            true => Ok(()),
            false => {
                Err(format!("request {} got the page of an error that no upstream has sent", planned.id))
            }
        }
    }

    /// The server has told a client of HTTP/2 that it has not processed a request.
    pub(crate) fn not_processed(&mut self, id: u32) -> Result<(), String> {
        self.ended += 1;
        match self.seen.contains_key(&id) {
            true => Err(format!("request {id} was refused as not processed, but an upstream got it")),
            false => Ok(()),
        }
    }

    /// A client's connection has ended before its response began.
    pub(crate) fn no_response(&mut self, id: u32, excuse: Excuse, scene: &Scene) -> Result<(), String> {
        self.ended += 1;
        // A draining server closes idle connections. A request may just be on its way to it.
        if excuse.drains && !self.read_before_upgrade.contains(&id) {
            return Ok(());
        }
        // The request before it may have reached its time limit, although its client has the whole response.
        if excuse.client || (scene.has_separate_ends() && has_time_limit(scene, excuse.is_slow)) {
            return Ok(());
        }
        Err(format!("request {id}: the connection ended without a response"))
    }
}

/// Checks a fixed response or a redirect of the configuration.
fn fixed_response(planned: &Planned, got: &Got<'_>) -> Result<(), String> {
    let target = planned.target();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (status, location, body) = match planned.path {
        FIXED => (200, None, format!("fixed {} {path}", planned.method)),
        _ => (307, Some(format!("{OPEN}{path}?{query}")), String::new()),
    };
    let has_body = planned.method != "HEAD" && planned.path == FIXED;
    let is_body = !has_body || got.body == body.as_bytes() || !got.is_complete;
    match got.status == status && got.location == location.as_deref() && is_body {
        true => Ok(()),
        false => Err(format!(
            "request {} {target}: {} with Location {:?} and {:?}, instead of {status}, {location:?} and {body:?}",
            planned.id,
            got.status,
            got.location,
            String::from_utf8_lossy(got.body)
        )),
    }
}

/// Checks the fields of a response that the site's rules change. `changes`: whether each possible configuration has these rules.
fn check_fields(id: u32, got: &Got<'_>, changes: &[bool]) -> Result<(), String> {
    let fields = got.fields;
    let is_changed = fields.set == Some("DENY")
        && fields.removed.is_none()
        && matches!(fields.default, Some("site of a.test" | "application"));
    let is_unchanged = fields.set.is_none()
        && fields.removed == Some("yes")
        && matches!(fields.default, None | Some("application"));
    match is_changed && changes.contains(&true) || is_unchanged && changes.contains(&false) {
        true => Ok(()),
        false => Err(format!("request {id}: {fields:?}, against the rules of the site")),
    }
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("a malformed X-Sent: {text}"))
}

/// Checks `Content-Range`, and returns where the body begins.
fn range_of(planned: &Planned, sent: &Sent, got: &Got<'_>) -> Result<usize, String> {
    let (first, last) = planned.asks.range.ok_or("a part that nobody wanted")?;
    let length = match sent.end {
        End::Whole(length) => length,
        End::Cut => return Err(format!("request {}: a part of half a response", planned.id)),
        // Where its connection ended is its length.
        End::Unknown => return Ok(first),
    };
    let last = last.min(length.saturating_sub(1));
    let expected = format!("bytes {first}-{last}/{length}");
    let has_length = planned.method == "HEAD" || !got.is_complete || got.body.len() == last + 1 - first;
    match got.content_range == Some(expected.as_str()) && has_length {
        true => Ok(first),
        false => Err(format!(
            "request {}: Content-Range {:?} and {} bytes, instead of {expected}",
            planned.id,
            got.content_range,
            got.body.len()
        )),
    }
}

/// Whether a time limit may end a response that has begun.
fn has_time_limit(scene: &Scene, is_slow: bool) -> bool {
    (scene.rate_min > 0 && is_slow)
        || scene.configurations.iter().any(|configuration| configuration.request_time_max.is_some())
}
