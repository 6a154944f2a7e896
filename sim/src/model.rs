//! What must be true, by a model that knows nothing of the server but its rules.

use std::collections::HashMap;

use crate::scene::{Configuration, DENIED, REFUSED, Scene};

/// A request as its client means it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) id: u32,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body_length: usize,
}

impl Planned {
    pub(crate) fn target(&self) -> String {
        format!("{}/{}?id={}", self.path, self.id % 7, self.id)
    }

    fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }
}

/// A response as its upstream means it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) status: u16,
    pub(crate) body_tag: u32,
    pub(crate) end: End,
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
    /// How often an upstream has begun to read each request.
    seen: HashMap<u32, u32>,
    sent: HashMap<u32, Vec<Sent>>,
    /// Requests that have ended, in any way that is allowed.
    pub(crate) ended: u64,
    /// Responses of upstreams that arrived whole.
    pub(crate) whole: u64,
}

/// What a client has received for a request.
#[derive(Debug)]
pub(crate) struct Got<'g> {
    pub(crate) status: u16,
    /// `X-Sent`: the request, and which response to it.
    pub(crate) sent: Option<&'g str>,
    pub(crate) body: &'g [u8],
    pub(crate) is_complete: bool,
}

/// What broke rules before, so that other responses than the upstream's are allowed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Excuse {
    /// The client of this request.
    pub(crate) client: bool,
    /// Any upstream.
    pub(crate) upstream: bool,
}

impl Model {
    /// A client is about to send a request.
    pub(crate) fn plan(&mut self, planned: Planned) {
        self.planned.insert(planned.id, planned);
    }

    /// An upstream has a request's head. Returns the request.
    pub(crate) fn head(
        &mut self,
        method: &str,
        target: &str,
        configurations: &[Configuration],
    ) -> Result<Planned, String> {
        let id = target.rsplit_once("?id=").and_then(|(_, id)| id.parse().ok());
        let id: u32 =
            id.ok_or_else(|| format!("an upstream got a request that nobody sent: {method} {target}"))?;
        let planned = self
            .planned
            .get(&id)
            .ok_or_else(|| format!("an upstream got request {id}, which nobody sent"))?;
        if planned.method != method || planned.target() != target {
            return Err(format!(
                "request {id} is {} {}, an upstream got {method} {target}",
                planned.method,
                planned.target()
            ));
        }
        if planned.path == DENIED {
            return Err(format!("request {id} is denied, but an upstream got it"));
        }
        let must_ask = configurations.iter().all(|configuration| configuration.has_authorization);
        if planned.path == REFUSED && must_ask {
            return Err(format!("the authorization service refuses request {id}, but an upstream got it"));
        }
        let seen = self.seen.entry(id).or_default();
        *seen += 1;
        // A connection at rest may have ended unnoticed: the request is sent on a new one, which is no retry.
        let times_max =
            configurations.iter().map(|configuration| 2 + configuration.retries_max).max().unwrap_or(1);
        if *seen > 1 && !planned.is_idempotent() || *seen > times_max {
            return Err(format!("an upstream got request {id} ({method}) {seen} times"));
        }
        Ok(planned.clone())
    }

    /// An upstream responds to a request. Returns the value of `X-Sent`.
    pub(crate) fn respond(&mut self, id: u32, sent: Sent) -> String {
        let all = self.sent.entry(id).or_default();
        all.push(sent);
        format!("{id}-{}", all.len() - 1)
    }

    /// A client has a response, or a part of one before its connection ended.
    pub(crate) fn response(
        &mut self,
        id: u32,
        got: &Got<'_>,
        excuse: Excuse,
        scene: &Scene,
    ) -> Result<(), String> {
        self.ended += 1;
        let planned = self.planned.get(&id).ok_or("a response without a request")?;
        let Some(sent) = got.sent else { return self.own_response(id, got, excuse, scene) };
        let (of, at) = sent.split_once('-').ok_or("a malformed X-Sent")?;
        if of != id.to_string() {
            return Err(format!("request {id} got the response to request {of}"));
        }
        let all = self.sent.get(&id).map(Vec::as_slice).unwrap_or_default();
        let sent = at.parse().ok().and_then(|at: usize| all.get(at)).ok_or("a response that nobody sent")?;
        if sent.status != got.status {
            return Err(format!(
                "request {id}: the upstream sent {}, the client got {}",
                sent.status, got.status
            ));
        }
        if !crate::message::begins_body(sent.body_tag, got.body) {
            return Err(format!("request {id}: other bytes than the upstream sent"));
        }
        let has_body = planned.method != "HEAD" && !matches!(got.status, 204 | 304);
        match (got.is_complete, sent.end) {
            (true, End::Cut) if has_body => {
                Err(format!("request {id}: half a response of the upstream became a complete one"))
            }
            (true, End::Whole(length)) if has_body && got.body.len() != length => {
                Err(format!("request {id}: {} bytes of a body of {length}", got.body.len()))
            }
            (true, _) => {
                self.whole += 1;
                Ok(())
            }
            (false, End::Whole(_)) if !excuse.client && !excuse.upstream && !has_time_limit(scene) => {
                Err(format!(
                    "request {id}: the connection ended in the middle of a response that the upstream has sent"
                ))
            }
            (false, _) => Ok(()),
        }
    }

    /// A response that the server has made itself.
    fn own_response(&self, id: u32, got: &Got<'_>, excuse: Excuse, scene: &Scene) -> Result<(), String> {
        let planned = &self.planned[&id];
        let any = |test: &dyn Fn(&Configuration) -> bool| scene.configurations.iter().any(test);
        let is_large = scene.is_too_large(planned.body_length);
        let allowed = match got.status {
            403 => planned.path == DENIED || planned.path == REFUSED && any(&|it| it.has_authorization),
            408 => excuse.client || scene.rate_min > 0,
            413 => is_large,
            429 => any(&|it| it.rate.is_some()),
            // The authorization service could not be asked in time.
            502 => excuse.upstream || any(&|it| it.has_authorization && it.connections_max < 4096),
            503 => excuse.upstream || any(&|it| it.concurrency.is_some() || it.connections_max < 4096),
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
        if !got.is_complete && !excuse.client {
            return Err(format!("request {id}: half a response of the server's own"));
        }
        Ok(())
    }

    /// A client's connection has ended before its response began.
    pub(crate) fn no_response(&mut self, id: u32, excuse: Excuse) -> Result<(), String> {
        self.ended += 1;
        if excuse.client {
            return Ok(());
        }
        Err(format!("request {id}: the connection ended without a response"))
    }
}

/// Whether a time limit may end a response that has begun.
fn has_time_limit(scene: &Scene) -> bool {
    scene.rate_min > 0
        || scene.configurations.iter().any(|configuration| configuration.request_time_max.is_some())
}
