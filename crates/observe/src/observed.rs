//! A service whose responses are logged and counted.

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::{Begun, BodyPlan, Ended, Reply, Request, Response, Service};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

use crate::log::{Lines, Log};
use crate::metrics::{Metrics, Recorder};
pub use crate::notes::{Attempt, NO_SITE, Notes, Sites, Upstream};

/// The logs and metrics of a server. Clones share them.
#[derive(Clone, Default)]
pub struct Observers {
    /// The logs, each with its own plan.
    pub logs: Vec<Log>,
    /// The metrics, if any.
    pub metrics: Option<Metrics>,
}

impl Observers {
    /// Wraps a worker's service, which `make` makes. Without logs and metrics the service is returned as it is, at no
    /// cost.
    pub fn wrap(&self, make: impl FnOnce(Rc<Notes>) -> Box<dyn Service>) -> Box<dyn Service> {
        let notes = Rc::new(Notes::new(self.logs.iter().any(Log::wants_upstreams)));
        let inner = make(notes.clone());
        if self.logs.is_empty() && self.metrics.is_none() {
            return inner;
        }
        Box::new(Observed {
            inner_wants_ended: inner.wants_ended(),
            inner_wants_begun: inner.wants_ended() && inner.wants_begun(),
            inner,
            lines: (!self.logs.is_empty()).then(|| Lines::new(&self.logs)),
            recorder: self.metrics.as_ref().map(Metrics::recorder),
            notes,
        })
    }
}

/// A service with its observers.
struct Observed {
    inner: Box<dyn Service>,
    inner_wants_ended: bool,
    inner_wants_begun: bool,
    lines: Option<Lines>,
    recorder: Option<Recorder>,
    notes: Rc<Notes>,
}

impl Service for Observed {
    fn body(&self, head: &Head<'_>, path: &[u8], listener: u16) -> BodyPlan {
        self.inner.body(head, path, listener)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        self.inner.call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        self.inner.believes_proxy(peer, listener)
    }

    fn path_form(&self) -> PathForm {
        self.inner.path_form()
    }

    fn wants_ended(&self) -> bool {
        true
    }

    fn wants_begun(&self) -> bool {
        self.lines.is_some() || self.inner_wants_begun
    }

    #[inline]
    fn begun(&self, begun: &Begun<'_>) -> u64 {
        let inner = if self.inner_wants_begun { self.inner.begun(begun) } else { 0 };
        match &self.lines {
            Some(lines) => lines.begun(begun, inner),
            None => inner,
        }
    }

    #[inline]
    fn ended(&self, ended: &Ended) {
        let inner = self.notes.with(ended.note, |site, upstream| {
            if let Some(recorder) = &self.recorder {
                recorder.record(ended, site);
            }
            match &self.lines {
                Some(lines) => lines.ended(ended, site, upstream),
                None => ended.mark,
            }
        });
        if self.inner_wants_ended {
            self.inner.ended(&Ended { mark: inner, ..*ended });
        }
    }
}
