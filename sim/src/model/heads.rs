//! Under which configuration a request is: the one that is served when the server has its head. What is served later does not change it.

use std::collections::HashMap;

/// Configurations, as bits.
pub(crate) type Mask = u32;

/// The configurations that each request may be under.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    known: HashMap<u32, Mask>,
    /// Those that the server may not have read yet.
    unread: HashMap<u32, Progress>,
}

/// How far a head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Begun,
    /// All of it is on its way, and the server waits for it.
    Sent,
}

impl Heads {
    /// The first byte of a head is sent, while this configuration is served.
    pub(crate) fn begin(&mut self, id: u32, served: usize) {
        self.known.insert(id, 1 << served);
        self.unread.insert(id, Progress::Begun);
    }

    /// The last byte of a head was sent, while this configuration is served.
    pub(crate) fn sent(&mut self, id: u32, served: usize) {
        self.known.insert(id, 1 << served);
        self.unread.insert(id, Progress::Sent);
    }

    /// The last byte of a head was sent before.
    pub(crate) fn was_sent(&mut self, id: u32) {
        self.unread.entry(id).and_modify(|progress| *progress = Progress::Sent);
    }

    /// Its client reads nothing from now on. While what the server sends finds no room, it may not read the head either.
    pub(crate) fn is_held(&mut self, id: u32) {
        self.unread.entry(id).and_modify(|progress| *progress = Progress::Begun);
    }

    /// Another configuration is served.
    pub(crate) fn serve(&mut self, configuration: usize) {
        for id in self.unread.keys() {
            *self.known.entry(*id).or_default() |= 1 << configuration;
        }
    }

    /// The server has read all that was sent: nobody has anything to do.
    pub(crate) fn read(&mut self) {
        self.unread.retain(|_, progress| *progress != Progress::Sent);
    }

    /// The server has read a request's head, because an upstream has got the request.
    pub(crate) fn read_one(&mut self, id: u32) {
        self.unread.remove(&id);
    }

    /// Requests whose heads the server has certainly read.
    pub(crate) fn surely_read(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied().filter(|id| !self.unread.contains_key(id))
    }

    /// The configurations that a request may be under, of so many.
    pub(crate) fn of(&self, id: u32, count: usize) -> Mask {
        let all = (1 << count) - 1;
        self.known.get(&id).copied().unwrap_or(all)
    }
}
