//! Observes a worker's upstream requests: counters, and for logs which servers were tried and how long each attempt
//! took. If neither is wanted, nothing is counted and no clock is read.

use std::rc::Rc;
use std::sync::Arc;

use flatout_engine::Response;
use flatout_lane::clock;
use flatout_wire::Status;

use super::failure::Failure;
use super::figures::{Figures, OfServer, OfUpstream, down, up};
use flatout_observe::observed::{Attempt, Notes, Upstream};

/// The observers of one worker's upstream requests.
#[derive(Clone, Default)]
pub struct Watch {
    /// Where attempts are noted.
    pub notes: Option<Rc<Notes>>,
    /// Where they are counted.
    pub figures: Option<Figures>,
}

impl Watch {
    /// Counts, and notes what logs want.
    pub fn new(notes: &Rc<Notes>, figures: Option<Figures>) -> Watch {
        Watch { notes: Some(notes.clone()), figures }
    }

    /// Where attempts are noted, if somebody wants them.
    #[inline]
    pub(crate) fn wanted_notes(&self) -> Option<&Rc<Notes>> {
        self.notes.as_ref().filter(|notes| notes.wants_upstreams())
    }

    fn is_timing(&self) -> bool {
        self.wanted_notes().is_some() || self.figures.is_some()
    }
}

/// A worker's counters for a server, if they are wanted.
#[derive(Default)]
pub(crate) struct ServerCounts(pub(crate) Option<Arc<OfServer>>);

/// A worker's counters for an upstream, if they are wanted.
#[derive(Default)]
pub(crate) struct UpstreamCounts(pub(crate) Option<Arc<OfUpstream>>);

impl ServerCounts {
    #[inline]
    pub(crate) fn up(&self, of: impl FnOnce(&OfServer) -> &std::sync::atomic::AtomicU64) {
        if let Some(counts) = &self.0 {
            up(of(counts));
        }
    }

    #[inline]
    pub(crate) fn down(&self, of: impl FnOnce(&OfServer) -> &std::sync::atomic::AtomicU64) {
        if let Some(counts) = &self.0 {
            down(of(counts));
        }
    }
}

impl UpstreamCounts {
    /// Counts a request that has ended for this reason.
    pub(crate) fn ended(&self, failure: Failure) {
        if let Some(counter) = self.0.as_ref().and_then(|counts| counts.ended.get(failure as usize)) {
            up(counter);
        }
    }

    #[inline]
    pub(crate) fn up(&self, of: impl FnOnce(&OfUpstream) -> &std::sync::atomic::AtomicU64) {
        if let Some(counts) = &self.0 {
            up(of(counts));
        }
    }

    #[inline]
    pub(crate) fn down(&self, of: impl FnOnce(&OfUpstream) -> &std::sync::atomic::AtomicU64) {
        if let Some(counts) = &self.0 {
            down(of(counts));
        }
    }
}

/// The attempts of one request.
#[derive(Default)]
pub(crate) struct Trail {
    /// When the current attempt began; 0 if it is not measured.
    began_ns: u64,
    /// All attempts, until they are noted for a response.
    attempts: Vec<Attempt>,
    /// The key of their note.
    note: u64,
}

impl Trail {
    /// An attempt starts: to connect to the server at this address, or to use an existing connection.
    pub(crate) fn begin(&mut self, watch: &Watch, address: &Rc<str>) {
        if !watch.is_timing() {
            return;
        }
        self.began_ns = clock::nanoseconds();
        if watch.wanted_notes().is_some() {
            // Usually it is the only one.
            self.attempts.reserve_exact(1);
            let address = address.clone();
            self.attempts.push(Attempt {
                address,
                status: 0,
                connect_ns: None,
                head_ns: None,
                response_ns: None,
            });
        }
    }

    /// The connection is established.
    pub(crate) fn connected(&mut self) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.connect_ns = Some(since(self.began_ns));
        }
    }

    /// The upstream's response head has arrived; the client gets `response`.
    pub(crate) fn answered(&mut self, watch: &Watch, status: Status, response: &mut Response) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.status = status.code();
            attempt.head_ns = Some(since(self.began_ns));
            self.note(watch, response);
        }
    }

    /// The attempt has failed. The client gets `status` unless another attempt follows.
    pub(crate) fn failed(&mut self, status: Status) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.status = status.code();
            attempt.response_ns = Some(since(self.began_ns));
        }
    }

    /// Notes all attempts for the log line of a response.
    pub(crate) fn note(&mut self, watch: &Watch, response: &mut Response) {
        let attempts = std::mem::take(&mut self.attempts);
        if let Some(notes) = watch.wanted_notes().filter(|_| !attempts.is_empty()) {
            self.note = notes.upstream(0, Upstream { attempts });
            response.set_note(self.note);
        }
    }

    /// Notes all attempts for the log line of a connection that is passed on. Returns the note's number, 0 without one.
    pub(crate) fn note_number(&mut self, watch: &Watch) -> u64 {
        let attempts = std::mem::take(&mut self.attempts);
        if let Some(notes) = watch.wanted_notes().filter(|_| !attempts.is_empty()) {
            self.note = notes.upstream(0, Upstream { attempts });
        }
        self.note
    }

    /// The response was received completely.
    pub(crate) fn ended(&self, watch: &Watch, counts: &ServerCounts) {
        if self.began_ns == 0 {
            return;
        }
        let took_ns = since(self.began_ns);
        if let Some(counts) = &counts.0 {
            counts.responses.record(took_ns);
        }
        if let Some(notes) = watch.wanted_notes() {
            notes.update(self.note, |upstream| {
                if let Some(attempt) = upstream.attempts.last_mut() {
                    attempt.response_ns = Some(took_ns);
                }
            });
        }
    }
}

fn since(began_ns: u64) -> u64 {
    clock::nanoseconds().saturating_sub(began_ns)
}
