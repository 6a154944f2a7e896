//! What the servers of HTTP/2 upstreams may send before a client has taken it: one budget for each client connection,
//! however many of its requests are in progress.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The window of each response. With 128 requests of one client in progress these are 3 MiB.
pub(crate) const FIRST_BYTES: u32 = 24 << 10;

/// The window to which that of a response grows if its client takes the content as fast as it comes.
pub(crate) const GROWN_BYTES: u32 = 256 << 10;

/// By how much the windows of all responses to one client connection may grow.
const EXTRA_BYTES_MAX: u32 = 1 << 20;

/// How much the windows have grown, by client connection. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Windows(Rc<RefCell<HashMap<u64, u32>>>);

/// The growth of one window; given back when it is dropped.
pub(crate) struct Growth {
    windows: Windows,
    client: Option<u64>,
    bytes: u32,
}

impl Windows {
    /// No growth yet of a window for this client connection. `None` is no client but a cache, which takes everything.
    pub(crate) fn growth(&self, client: Option<u64>) -> Growth {
        Growth { windows: self.clone(), client, bytes: 0 }
    }
}

impl Growth {
    /// The window's size.
    pub(crate) fn window(&self) -> u32 {
        FIRST_BYTES + self.bytes
    }

    /// Doubles the window if the client's budget allows it. Returns by how much it grows.
    pub(crate) fn grow(&mut self) -> u32 {
        let more = self.window().min(GROWN_BYTES.saturating_sub(self.window()));
        if more == 0 {
            return 0;
        }
        if let Some(client) = self.client {
            let mut all = self.windows.0.borrow_mut();
            let taken = all.get(&client).copied().unwrap_or_default() + more;
            if taken > EXTRA_BYTES_MAX {
                return 0;
            }
            all.insert(client, taken);
        }
        self.bytes += more;
        more
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        if let Some(client) = self.client.filter(|_| self.bytes > 0) {
            let mut all = self.windows.0.borrow_mut();
            if let Some(taken) = all.get_mut(&client) {
                *taken -= self.bytes.min(*taken);
                if *taken == 0 {
                    all.remove(&client);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_of_one_client_share_a_budget() {
        let windows = Windows::default();
        let mut growths: Vec<Growth> = (0..100).map(|_| windows.growth(Some(7))).collect();
        let grown: u32 = growths.iter_mut().map(|growth| (0..10).map(|_| growth.grow()).sum::<u32>()).sum();
        assert!(grown <= EXTRA_BYTES_MAX && grown > EXTRA_BYTES_MAX / 2, "{grown}");
        assert!(growths.iter().all(|growth| growth.window() <= GROWN_BYTES));
        let mut others = windows.growth(Some(8));
        assert_eq!(others.grow(), FIRST_BYTES, "another client has its own");
        drop((growths, others));
        assert!(windows.0.borrow().is_empty());
        let mut cache = windows.growth(None);
        while cache.grow() > 0 {}
        assert_eq!(cache.window(), GROWN_BYTES);
    }
}
