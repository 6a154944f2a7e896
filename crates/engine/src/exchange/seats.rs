//! Connections that have left the lane but still count as connections of the server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::service::ConnectionPermit;
use crate::shared::Prefix;

/// The seats of one worker.
#[derive(Default)]
pub(crate) struct Seats {
    count: Cell<usize>,
    /// Connections from another process that the server does not count yet.
    came: Cell<usize>,
    /// Clients of connections that have ended since the worker last checked.
    ended: RefCell<Vec<Option<Prefix>>>,
}

impl Seats {
    /// The number of seats.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// A seat for a connection of this worker that leaves the lane.
    pub(crate) fn leaving(self: &Rc<Self>, peer: Option<Prefix>) -> Rc<Leaving> {
        self.count.set(self.count.get() + 1);
        Rc::new(Leaving { seats: self.clone(), peer })
    }

    /// A seat for a connection that another process has accepted.
    pub(crate) fn coming(self: &Rc<Self>) -> ConnectionPermit {
        self.came.set(self.came.get() + 1);
        ConnectionPermit(self.leaving(None))
    }

    /// Whether connections have come or ended since the last check.
    pub(crate) fn have_changed(&self) -> bool {
        self.came.get() > 0 || !self.ended.borrow().is_empty()
    }

    /// How many connections have come from another process since the last call.
    pub(crate) fn take_came(&self) -> usize {
        self.came.take()
    }

    /// Clients of the connections that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<Option<Prefix>> {
        let ended = self.ended.take();
        self.count.set(self.count.get() - ended.len());
        ended
    }
}

/// Uncounts a connection that has left the lane, when its task and the holders of its seat have dropped this, also on
/// a panic.
pub(crate) struct Leaving {
    seats: Rc<Seats>,
    peer: Option<Prefix>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.seats.ended.borrow_mut().push(self.peer);
    }
}
