//! What observes a worker's requests: logs and metrics.

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::{Begun, Ended, Prepared, Reply, Request, Response, Service, TlsRoute};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

use crate::log::{Lines, Log};
use crate::metrics::{Metrics, Recorder};
pub use crate::notes::{
    Attempt, LOG_CONDITIONS_MAX, LoggedTexts, NO_SITE, Notes, ROUTE_LOGS_MAX, RequestLogs, Sites, Upstream,
};

/// The logs and metrics of a server. Clones share them.
#[derive(Clone, Default)]
pub struct Observers {
    /// The logs, each with its own plan.
    pub logs: Vec<Log>,
    /// The metrics, if any.
    pub metrics: Option<Metrics>,
}

impl Observers {
    /// One worker's part, made on its thread; without logs and metrics, nothing that a request would have to pass.
    pub fn worker(&self) -> (Rc<Notes>, Option<Observer>) {
        let wanted = self.logs.iter().filter_map(Log::wanted_texts).collect();
        let notes = Rc::new(Notes::of_logs(self.logs.iter().any(Log::wants_upstreams), wanted));
        let is_needed = !self.logs.is_empty() || self.metrics.is_some();
        let observer = is_needed.then(|| Observer {
            lines: (!self.logs.is_empty()).then(|| Lines::new(&self.logs)),
            recorder: self.metrics.as_ref().map(Metrics::recorder),
            notes: notes.clone(),
        });
        (notes, observer)
    }

    /// Wraps a worker's service, which `make` makes. Without logs and metrics the service is returned as it is, at no
    /// cost.
    pub fn wrap(&self, make: impl FnOnce(Rc<Notes>) -> Box<dyn Service>) -> Box<dyn Service> {
        let (notes, observer) = self.worker();
        let inner = make(notes);
        match observer {
            None => inner,
            Some(observer) => Box::new(Observed {
                inner_wants_ended: inner.wants_ended(),
                inner_wants_begun: inner.wants_ended() && inner.wants_begun(),
                inner,
                observer,
            }),
        }
    }
}

/// One worker's part of the logs and metrics. Its service passes on what the engine reports of each request.
pub struct Observer {
    lines: Option<Lines>,
    recorder: Option<Recorder>,
    notes: Rc<Notes>,
}

impl Observer {
    /// Whether [`Observer::begun`] is needed.
    pub fn wants_begun(&self) -> bool {
        self.lines.is_some()
    }

    /// A request has begun. `inner` is the mark of the service that is observed; the mark for both is returned.
    #[inline]
    pub fn begun(&self, begun: &Begun<'_>, inner: u64) -> u64 {
        self.lines.as_ref().map_or(inner, |lines| lines.begun(begun, inner))
    }

    /// A request has ended. Returns the mark of the service that is observed.
    #[inline]
    pub fn ended(&self, ended: &Ended) -> u64 {
        if let Some(recorder) = &self.recorder {
            recorder.record(ended, Notes::site_of(ended.note));
        }
        // Only logs want to know the upstream.
        match &self.lines {
            Some(lines) => {
                let texts = self.notes.take_texts(ended.note);
                self.notes
                    .with(ended.note, |site, upstream| lines.ended(ended, site, (upstream, texts.as_ref())))
            }
            None => ended.mark,
        }
    }
}

/// Any service with its observer.
struct Observed {
    inner: Box<dyn Service>,
    inner_wants_ended: bool,
    inner_wants_begun: bool,
    observer: Observer,
}

impl Service for Observed {
    fn prepare(&self, head: &Head<'_>, path: &[u8], listener: u16) -> Prepared {
        self.inner.prepare(head, path, listener)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        self.inner.call(request, response)
    }

    fn believes_proxy(&self, peer: Option<SocketAddr>, listener: u16) -> bool {
        self.inner.believes_proxy(peer, listener)
    }

    fn route_tls(&self, name: Option<&str>, peer: Option<SocketAddr>, listener: u16) -> TlsRoute {
        self.inner.route_tls(name, peer, listener)
    }

    fn path_form(&self) -> PathForm {
        self.inner.path_form()
    }

    fn wants_ended(&self) -> bool {
        true
    }

    fn wants_begun(&self) -> bool {
        self.inner_wants_begun || self.observer.wants_begun()
    }

    #[inline]
    fn begun(&self, begun: &Begun<'_>) -> u64 {
        let inner = if self.inner_wants_begun { self.inner.begun(begun) } else { 0 };
        self.observer.begun(begun, inner)
    }

    #[inline]
    fn ended(&self, ended: &Ended) {
        let mark = self.observer.ended(ended);
        if self.inner_wants_ended {
            self.inner.ended(&Ended { mark, ..*ended });
        }
    }
}
