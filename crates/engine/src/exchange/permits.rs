//! Connections that have left the lane but still count as connections of the server.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::service::ConnectionPermit;
use crate::shared::Prefix;

/// The permits of one worker.
#[derive(Default)]
pub(crate) struct Permits {
    count: Cell<usize>,
    /// Connections from another process that the server does not count yet.
    inherited: Cell<usize>,
    /// Clients of connections that have ended since the worker last checked.
    ended: RefCell<Vec<Option<Prefix>>>,
}

impl Permits {
    /// The number of permits.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// A permit for a connection of this worker that leaves the lane.
    pub(crate) fn issue(self: &Rc<Self>, peer: Option<Prefix>) -> Rc<Permit> {
        self.count.set(self.count.get() + 1);
        Rc::new(Permit { permits: self.clone(), peer })
    }

    /// A permit for a connection that another process has accepted.
    pub(crate) fn issue_inherited(self: &Rc<Self>) -> ConnectionPermit {
        self.inherited.set(self.inherited.get() + 1);
        ConnectionPermit(self.issue(None))
    }

    /// Whether connections have come or ended since the last check.
    pub(crate) fn have_changed(&self) -> bool {
        self.inherited.get() > 0 || !self.ended.borrow().is_empty()
    }

    /// How many connections have come from another process since the last call.
    pub(crate) fn take_inherited(&self) -> usize {
        self.inherited.take()
    }

    /// Clients of the connections that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<Option<Prefix>> {
        let ended = self.ended.take();
        self.count.set(self.count.get() - ended.len());
        ended
    }
}

/// Uncounts a connection that has left the lane, when its task and the holders of its permit have dropped this, also on
/// a panic.
pub(crate) struct Permit {
    permits: Rc<Permits>,
    peer: Option<Prefix>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.ended.borrow_mut().push(self.peer);
    }
}
