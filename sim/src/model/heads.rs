//! Under which configuration a request is: the one that is served when the server has its head. What is served later does not change it.

use std::collections::HashMap;

/// Configurations, as bits.
pub(crate) type Mask = u32;

/// The configurations that each request may be under.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    known: HashMap<u32, Mask>,
    /// Those that the server may not have read yet.
    unread: Vec<u32>,
}

impl Heads {
    /// The last byte of a head was sent, while this configuration is served.
    pub(crate) fn sent(&mut self, id: u32, served: usize) {
        self.known.insert(id, 1 << served);
        self.unread.push(id);
    }

    /// Another configuration is served.
    pub(crate) fn serve(&mut self, configuration: usize) {
        for id in &self.unread {
            *self.known.entry(*id).or_default() |= 1 << configuration;
        }
    }

    /// The server has read all that was sent: nobody has anything to do.
    pub(crate) fn read(&mut self) {
        self.unread.clear();
    }

    /// The server has read a request's head, because an upstream has got the request.
    pub(crate) fn read_one(&mut self, id: u32) {
        self.unread.retain(|unread| *unread != id);
    }

    /// Requests whose heads the server has certainly read.
    pub(crate) fn surely_read(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied().filter(|id| !self.unread.contains(id))
    }

    /// The configurations that a request may be under, of so many.
    pub(crate) fn of(&self, id: u32, count: usize) -> Mask {
        let all = (1 << count) - 1;
        self.known.get(&id).copied().unwrap_or(all)
    }
}
