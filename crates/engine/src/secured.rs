//! The table of a worker's encrypted connections, one per thread, so that a connection's own entry stays as small as
//! that of a plain one.

use std::cell::RefCell;

use flatout_tls::Channel;

thread_local! {
    static CHANNELS: RefCell<Table> = const { RefCell::new(Table { channels: Vec::new(), vacant: Vec::new() }) };
}

struct Table {
    channels: Vec<Option<Box<Channel>>>,
    vacant: Vec<u32>,
}

/// An encrypted connection of this thread; closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Secured(u32);

impl Secured {
    pub(crate) fn new(channel: Channel) -> Secured {
        let channel = Some(Box::new(channel));
        CHANNELS.with_borrow_mut(|table| {
            let at = table.vacant.pop().unwrap_or(table.channels.len() as u32);
            match table.channels.get_mut(at as usize) {
                Some(place) => *place = channel,
                None => table.channels.push(channel),
            }
            Secured(at)
        })
    }

    /// Accesses the channel. `None` only while the thread ends.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Channel) -> T) -> Option<T> {
        let act = |table: &RefCell<Table>| {
            let mut table = table.try_borrow_mut().ok()?;
            Some(act(table.channels.get_mut(self.0 as usize)?.as_deref_mut()?))
        };
        CHANNELS.try_with(act).ok().flatten()
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        // The table is dropped with its thread.
        let taken = CHANNELS.try_with(|table| {
            let mut table = table.try_borrow_mut().ok()?;
            let taken = table.channels.get_mut(self.0 as usize)?.take();
            table.vacant.push(self.0);
            taken
        });
        drop(taken);
    }
}
