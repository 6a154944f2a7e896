//! A service that is observed: it answers as before, and what it has answered is logged and counted.
//!
//! What the engine does not know of a request (its site, its upstream) the service leaves in the worker's [`Notes`], under the
//! number that it gives to [`Response::set_note`](flatout_engine::Response::set_note).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flatout_engine::{Begun, BodyPlan, Ended, Reply, Request, Response, Service};
use flatout_wire::Head;
use flatout_wire::target::PathForm;

use crate::log::{Lines, Log};
use crate::metrics::{Metrics, Recorder};

/// What observes a server: its logs and its metrics. Clones observe with the same ones.
#[derive(Clone, Default)]
pub struct Observers {
    /// Each logs what its plan says.
    pub logs: Vec<Log>,
    /// Counts, if there are any.
    pub metrics: Option<Metrics>,
}

impl Observers {
    /// Wraps the service of a worker, which `make` makes. Without logs and metrics it stays as it is, and costs nothing.
    pub fn wrap(&self, make: impl FnOnce(Rc<Notes>) -> Box<dyn Service>) -> Box<dyn Service> {
        let notes = Rc::new(Notes::default());
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

/// Notes of a worker that are kept at a time: responses that were begun and have not ended. Over it the oldest is forgotten,
/// and its line has `-` for the upstream.
const NOTES_MAX: usize = 16 << 10;

/// Bits of a note that name the site; the others name what is kept.
const SITE_BITS: u32 = 16;

/// What one worker's services note of the requests that they answer.
#[derive(Default)]
pub struct Notes {
    kept: RefCell<Vec<(u64, Upstream)>>,
    count: Cell<u64>,
}

/// What was asked of an upstream for a request, and how long that took. Times are nanoseconds from the start of the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its address, as it is logged; several that were tried have commas between them.
    pub address: Rc<str>,
    /// The status of its response; 0 where there was none.
    pub status: u16,
    /// Until there was a connection.
    pub connect_ns: Option<u64>,
    /// Until the head of its response was read.
    pub head_ns: Option<u64>,
    /// Until its response had come whole.
    pub response_ns: Option<u64>,
}

impl Notes {
    /// The note of a response of this site, without an upstream.
    #[inline]
    pub fn site(site: u16) -> u64 {
        u64::from(site)
    }

    /// The note of a response that came from an upstream.
    pub fn upstream(&self, site: u16, upstream: Upstream) -> u64 {
        let count = self.count.get() + 1;
        self.count.set(count);
        let mut kept = self.kept.borrow_mut();
        match kept.get_mut(count as usize % NOTES_MAX) {
            Some(place) => *place = (count, upstream),
            None => {
                if kept.is_empty() {
                    // The count begins with 1.
                    kept.push((0, upstream.clone()));
                }
                kept.push((count, upstream));
            }
        }
        count << SITE_BITS | u64::from(site)
    }

    /// Changes what was noted, if it is still kept.
    pub fn update(&self, note: u64, change: impl FnOnce(&mut Upstream)) {
        let count = note >> SITE_BITS;
        if let Some((kept, upstream)) = self.kept.borrow_mut().get_mut(count as usize % NOTES_MAX)
            && *kept == count
            && count != 0
        {
            change(upstream);
        }
    }

    /// Does something with the site and the upstream of a note.
    #[inline]
    fn with<T>(&self, note: u64, act: impl FnOnce(u16, Option<&Upstream>) -> T) -> T {
        let (site, count) = (note as u16, note >> SITE_BITS);
        if count == 0 {
            return act(site, None);
        }
        let kept = self.kept.borrow();
        let found = kept.get(count as usize % NOTES_MAX).filter(|(this, _)| *this == count);
        act(site, found.map(|(_, upstream)| upstream))
    }
}

/// A service and what observes it.
struct Observed {
    inner: Box<dyn Service>,
    inner_wants_ended: bool,
    inner_wants_begun: bool,
    lines: Option<Lines>,
    recorder: Option<Recorder>,
    notes: Rc<Notes>,
}

impl Service for Observed {
    fn body(&self, head: &Head<'_>, path: &[u8]) -> BodyPlan {
        self.inner.body(head, path)
    }

    #[inline]
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        self.inner.call(request, response)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(status: u16) -> Upstream {
        Upstream { address: "unix:/a".into(), status, connect_ns: None, head_ns: None, response_ns: None }
    }

    #[test]
    fn notes_are_found_until_they_are_forgotten() {
        let notes = Notes::default();
        let first = notes.upstream(3, upstream(200));
        notes.update(first, |upstream| upstream.response_ns = Some(7));
        let found = notes.with(first, |site, upstream| (site, upstream.cloned()));
        assert_eq!(found, (3, Some(Upstream { response_ns: Some(7), ..upstream(200) })));
        assert_eq!(notes.with(Notes::site(9), |site, upstream| (site, upstream.is_none())), (9, true));
        assert_eq!(notes.with(0, |site, upstream| (site, upstream.is_none())), (0, true));
        for status in 0..NOTES_MAX as u16 {
            let note = notes.upstream(1, upstream(status));
            assert_eq!(notes.with(note, |_, upstream| upstream.map(|found| found.status)), Some(status));
        }
        assert!(notes.with(first, |_, upstream| upstream.is_none()), "its place is another's");
        notes.update(first, |_| panic!("it is forgotten"));
        assert_eq!(notes.kept.borrow().len(), NOTES_MAX);
    }
}
