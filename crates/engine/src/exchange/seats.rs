//! Connections that have left the lane and still count among the server's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::service::Seat;
use crate::shared::Prefix;

/// Those of one worker.
#[derive(Default)]
pub(crate) struct Seats {
    count: Cell<usize>,
    /// Those that came from another process since the worker looked: the server does not count them yet.
    came: Cell<usize>,
    /// Clients of those that have ended since the worker looked.
    ended: RefCell<Vec<Option<Prefix>>>,
}

impl Seats {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// A seat for a connection of this worker that leaves the lane.
    pub(crate) fn leaving(self: &Rc<Self>, peer: Option<Prefix>) -> Rc<Leaving> {
        self.count.set(self.count.get() + 1);
        Rc::new(Leaving { seats: self.clone(), peer })
    }

    /// A seat for a connection that another process has accepted.
    pub(crate) fn coming(self: &Rc<Self>) -> Seat {
        self.came.set(self.came.get() + 1);
        Seat(self.leaving(None))
    }

    /// Whether there is anything to count in or out.
    pub(crate) fn have_changed(&self) -> bool {
        self.came.get() > 0 || !self.ended.borrow().is_empty()
    }

    /// How many have come from elsewhere since this was asked last.
    pub(crate) fn take_came(&self) -> usize {
        self.came.take()
    }

    /// Clients of those that have ended since this was asked last.
    pub(crate) fn take_ended(&self) -> Vec<Option<Prefix>> {
        let ended = self.ended.take();
        self.count.set(self.count.get() - ended.len());
        ended
    }
}

/// Counts a connection out that has left the lane, when its task and whoever has its seat have ended: also by a panic.
pub(crate) struct Leaving {
    seats: Rc<Seats>,
    peer: Option<Prefix>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.seats.ended.borrow_mut().push(self.peer);
    }
}
