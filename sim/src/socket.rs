//! A non-blocking Unix socket, and how many bytes a peer sends or receives at once.
//!
//! Most sockets have nothing to receive, and a system call for each would cost more than everything else. So the thread has one epoll
//! set for all sockets of peers and for the sets of workers. It is read once after a worker's turn, and says which actors have news; and
//! once after peers have sent something, before the next turn of any of several workers.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::secure::{Decrypted, Tls};

/// Bytes that are received at once, at most.
const ROOM_MAX: usize = 65_536;

/// What became of a try to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes were appended.
    Bytes(usize),
    /// There is nothing now.
    Nothing,
    /// The other side sends nothing more.
    End,
    /// The other side has reset the connection.
    Reset,
}

/// What became of a try to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// This many bytes were taken.
    Bytes(usize),
    /// There is no room now.
    Full,
    /// The other side reads nothing more.
    Broken,
}

/// Events that are taken from the set at once.
const EVENTS_MAX: usize = 64;

/// After one of these numbers of pieces, a connection sends and receives as much as possible at once. Small pieces have found what they can
/// find by then, and long bodies would only slow a run down. In some runs there are more of them.
const PIECES_MAX: [u32; 4] = [1, 2, 4, 16];
const PIECES_MAX_FINE: [u32; 4] = [3, 10, 10, 100];

thread_local! {
    /// How often the server has done something.
    static TURNS: Cell<u64> = const { Cell::new(1) };

    /// Shared by all sockets: most of them have nothing to receive, and need no memory of their own.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; ROOM_MAX]);

    static READINESS: RefCell<Readiness> = RefCell::new(Readiness::new());

    /// Numbers of pieces of a connection.
    static PIECES: Cell<[u32; 4]> = const { Cell::new(PIECES_MAX) };

    /// Who acts now: sockets that it opens or accepts are its own.
    static ACTOR: Cell<usize> = const { Cell::new(NOBODY) };
}

/// The owner of what belongs to no actor.
const NOBODY: usize = usize::MAX;

/// From now on connections have many small pieces, or few.
pub(crate) fn set_fine(is_fine: bool) {
    PIECES.set(if is_fine { PIECES_MAX_FINE } else { PIECES_MAX });
}

/// From now on this actor acts.
pub(crate) fn begin(actor: usize) {
    ACTOR.set(actor);
}

/// Calls `each` with actors that may have something to receive, or room to send again, since a worker's last turn.
pub(crate) fn news(each: impl FnMut(usize)) {
    READINESS.with_borrow_mut(|readiness| {
        readiness.ask();
        readiness.news.drain(..).chain(readiness.full.drain(..)).for_each(each);
    });
}

/// Which sockets of this thread may have something to receive, or to accept.
struct Readiness {
    set: OwnedFd,
    /// By number.
    is_ready: Vec<bool>,
    owners: Vec<usize>,
    /// Owners of what became ready, and of sockets that had no room.
    news: Vec<usize>,
    full: Vec<usize>,
    free: Vec<usize>,
    /// Those of workers: ready as long as they have events.
    workers: Vec<usize>,
    /// Peers have done something since the set was asked.
    is_due: bool,
    events: Vec<Event>,
}

impl Readiness {
    fn new() -> Readiness {
        let set = epoll::create(CreateFlags::CLOEXEC).expect("a descriptor");
        let events = Vec::with_capacity(EVENTS_MAX);
        Readiness {
            set,
            is_ready: Vec::new(),
            owners: Vec::new(),
            news: Vec::new(),
            full: Vec::new(),
            free: Vec::new(),
            workers: Vec::new(),
            is_due: true,
            events,
        }
    }

    fn watch(&mut self, socket: impl AsFd) -> usize {
        self.add(socket, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)
    }

    fn watch_worker(&mut self, events: impl AsFd) -> usize {
        let number = self.add(events, EventFlags::IN);
        self.workers.push(number);
        number
    }

    fn add(&mut self, socket: impl AsFd, flags: EventFlags) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.is_ready.push(true);
            self.owners.push(NOBODY);
            self.is_ready.len() - 1
        });
        (self.is_ready[number], self.owners[number]) = (true, ACTOR.get());
        epoll::add(&self.set, socket, EventData::new_u64(number as u64), flags).expect("room in the set");
        number
    }

    /// Whether a worker may have events. Whether it has is asked only where there are several: the first thing that a turn does is the same
    /// system call.
    fn is_worker_ready(&mut self, number: usize) -> bool {
        if self.is_due && self.workers.len() > 1 {
            self.ask();
        }
        self.is_due || self.is_ready[number]
    }

    fn ask(&mut self) {
        self.is_due = false;
        self.workers.iter().for_each(|worker| self.is_ready[*worker] = false);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            self.events.clear();
            let room = rustix::buffer::spare_capacity(&mut self.events);
            let count = epoll::wait(&self.set, room, Some(&at_once)).expect("a set that can be asked");
            for event in &self.events {
                let number = event.data.u64() as usize;
                self.is_ready[number] = true;
                if self.owners[number] != NOBODY {
                    self.news.push(self.owners[number]);
                }
            }
            if count < EVENTS_MAX {
                return;
            }
        }
    }
}

/// A socket's number in the set. Its descriptor leaves the set when it is closed.
pub(crate) struct Watched(usize);

impl Watched {
    /// Of the events of a worker.
    pub(crate) fn of_worker(events: impl AsFd) -> Watched {
        begin(NOBODY);
        Watched(READINESS.with_borrow_mut(|readiness| readiness.watch_worker(events)))
    }

    /// Whether a worker may have events.
    pub(crate) fn is_worker_ready(&self) -> bool {
        READINESS.with_borrow_mut(|readiness| readiness.is_worker_ready(self.0))
    }

    fn is_ready(&self) -> bool {
        READINESS.with_borrow(|readiness| readiness.is_ready[self.0])
    }

    fn new(socket: impl AsFd) -> Watched {
        Watched(READINESS.with_borrow_mut(|readiness| readiness.watch(socket)))
    }

    /// There is nothing more until the set says otherwise.
    fn has_nothing(&self) {
        READINESS.with_borrow_mut(|readiness| readiness.is_ready[self.0] = false);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // At the end of a thread the set may be gone before its sockets.
        let _ = READINESS.try_with(|readiness| {
            let mut readiness = readiness.borrow_mut();
            readiness.workers.retain(|worker| *worker != self.0);
            readiness.free.push(self.0);
        });
    }
}

/// Where an upstream listens.
pub(crate) struct Listener {
    listener: UnixListener,
    watched: Watched,
}

impl Listener {
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn new(listener: UnixListener) -> Listener {
        listener.set_nonblocking(true).expect("a listener that does not block");
        Listener { watched: Watched::new(&listener), listener }
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&self) -> Option<Socket> {
        if !self.watched.is_ready() {
            return None;
        }
        match self.listener.accept() {
            Ok((stream, _)) => Some(Socket::new(stream)),
            Err(_) => {
                self.watched.has_nothing();
                None
            }
        }
    }
}

/// A worker has had a turn: who has found no room tries again.
pub(crate) fn worker_did() {
    TURNS.set(TURNS.get() + 1);
    READINESS.with_borrow_mut(|readiness| readiness.is_due = true);
}

/// The actor tries again after the next turn of a worker.
fn wait_for_room() {
    READINESS.with_borrow_mut(|readiness| {
        if readiness.full.last() != Some(&ACTOR.get()) {
            readiness.full.push(ACTOR.get());
        }
    });
}

/// A peer has done something: workers may have something to receive.
pub(crate) fn peer_did() {
    READINESS.with_borrow_mut(|readiness| readiness.is_due = true);
}

pub(crate) struct Socket {
    stream: UnixStream,
    watched: Watched,
    tls: Option<Box<Tls>>,
    /// The turn of the server since which there is no room.
    is_full_since: u64,
    /// Pieces so far, and how many may be small; `None` before the first was sent.
    pieces: u32,
    pieces_max: Option<u32>,
    /// What is sent before everything else.
    header: Vec<u8>,
    announced: Option<IpAddr>,
}

impl Socket {
    /// # Panics
    /// The system refuses what a simulation needs.
    pub(crate) fn new(stream: UnixStream) -> Socket {
        stream.set_nonblocking(true).expect("a socket that does not block");
        let watched = Watched::new(&stream);
        let header = Vec::new();
        let (pieces, pieces_max) = (0, None);
        Socket { watched, stream, tls: None, is_full_since: 0, pieces, pieces_max, header, announced: None }
    }

    /// With a header of the PROXY protocol, which announces a client of this address.
    pub(crate) fn announcing(self, header: Vec<u8>, announced: Option<IpAddr>) -> Socket {
        Socket { header, announced, ..self }
    }

    /// Whether the header is not sent yet: a proxy does not wait with it.
    pub(crate) fn is_announcing(&self) -> bool {
        !self.header.is_empty()
    }

    /// Whether there was no room for what was sent last.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_since == TURNS.get()
    }

    /// Whether something that was taken from the caller is still to be sent.
    pub(crate) fn has_unsent(&mut self) -> bool {
        self.tls.as_mut().is_some_and(|tls| tls.has_output())
    }

    /// The address of the client that was announced.
    pub(crate) fn announced(&self) -> Option<IpAddr> {
        self.announced
    }

    /// With TLS.
    pub(crate) fn secured(self, tls: Tls) -> Socket {
        Socket { tls: Some(Box::new(tls)), ..self }
    }

    /// Whether what was sent is on its way.
    pub(crate) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Receives at most `bytes_max` bytes behind those in `into`.
    ///
    /// With TLS there may be more than `bytes_max`, and none although something has happened.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Received {
        let Some(mut tls) = self.tls.take() else { return self.receive_plain(into, bytes_max) };
        if !tls.decrypted.is_empty() {
            let bytes = tls.decrypted.len();
            into.append(&mut tls.decrypted);
            self.tls = Some(tls);
            return Received::Bytes(bytes);
        }
        let has_moved = self.flush(&mut tls);
        let mut encrypted = Vec::new();
        let received = match self.receive_plain(&mut encrypted, bytes_max) {
            Received::Nothing if matches!(has_moved, Sent::Bytes(_)) => Received::Bytes(0),
            Received::Bytes(_) => match tls.decrypt(&encrypted, into) {
                Decrypted::Bytes(bytes) => Received::Bytes(bytes),
                Decrypted::End => Received::End,
                Decrypted::Broken => Received::Reset,
            },
            // Without a word it may be the end of half a response.
            Received::End => match tls.decrypt(&[], into) {
                Decrypted::End => Received::End,
                Decrypted::Bytes(_) | Decrypted::Broken => Received::Reset,
            },
            received => received,
        };
        self.tls = Some(tls);
        received
    }

    /// Sends some of these bytes. None may be taken although something has happened: with TLS, and behind the header of a proxy.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Sent {
        let Some(mut tls) = self.tls.take() else { return self.send_plain(bytes) };
        let taken = tls.encrypt(bytes);
        let mut flushed = self.flush(&mut tls);
        if taken == 0 && flushed == Sent::Full && tls.is_handshaking() {
            flushed = self.shake_hands(&mut tls);
        }
        self.tls = Some(tls);
        match flushed {
            Sent::Broken => Sent::Broken,
            Sent::Full if taken == 0 => Sent::Full,
            Sent::Full | Sent::Bytes(_) => Sent::Bytes(taken),
        }
    }

    /// Receives the server's part of a handshake, before which nothing can be sent.
    fn shake_hands(&mut self, tls: &mut Tls) -> Sent {
        let mut encrypted = Vec::new();
        match self.receive_plain(&mut encrypted, ROOM_MAX) {
            Received::Nothing => Sent::Full,
            Received::Bytes(_) => {
                let mut decrypted = std::mem::take(&mut tls.decrypted);
                let result = tls.decrypt(&encrypted, &mut decrypted);
                tls.decrypted = decrypted;
                if let Decrypted::Bytes(_) = result { Sent::Bytes(0) } else { Sent::Broken }
            }
            Received::End | Received::Reset => Sent::Broken,
        }
    }

    /// Sends a piece of what is encrypted.
    fn flush(&mut self, tls: &mut Tls) -> Sent {
        let piece = tls.piece(self.is_long());
        if piece.is_empty() {
            return Sent::Full;
        }
        let sent = self.send_plain(piece);
        if let Sent::Bytes(bytes) = sent {
            tls.sent(bytes);
        }
        sent
    }

    fn receive_plain(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Received {
        if !self.watched.is_ready() {
            return Received::Nothing;
        }
        let result = BUFFER.with_borrow_mut(|buffer| {
            let bytes = self.stream.read(&mut buffer[..bytes_max.min(ROOM_MAX)])?;
            into.extend_from_slice(&buffer[..bytes]);
            Ok::<_, std::io::Error>(bytes)
        });
        match result {
            Ok(0) => Received::End,
            Ok(bytes) => {
                self.pieces += 1;
                Received::Bytes(bytes)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.watched.has_nothing();
                Received::Nothing
            }
            Err(_) => Received::Reset,
        }
    }

    fn send_plain(&mut self, bytes: &[u8]) -> Sent {
        if self.is_full_since == TURNS.get() {
            wait_for_room();
            return Sent::Full;
        }
        let is_header = !self.header.is_empty();
        // In as many parts as the caller's pieces are: some have one byte.
        let piece = if is_header { &self.header[..bytes.len().clamp(1, self.header.len())] } else { bytes };
        match self.stream.write(piece) {
            Ok(count) if is_header => {
                self.header.drain(..count);
                Sent::Bytes(0)
            }
            Ok(count) => Sent::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_full_since = TURNS.get();
                wait_for_room();
                Sent::Full
            }
            Err(_) => Sent::Broken,
        }
    }

    /// Draws how many of so many bytes are sent at once.
    pub(crate) fn draw_piece(&mut self, random: &mut fastrand::Rng, bytes: usize) -> usize {
        self.pieces += 1;
        self.pieces_max.get_or_insert_with(|| random.choice(PIECES.get()).expect("some"));
        if self.is_long() { bytes } else { draw_piece(random, bytes) }
    }

    /// Draws how many bytes are received at most.
    pub(crate) fn draw_room(&mut self, random: &mut fastrand::Rng) -> usize {
        if self.is_long() || random.u8(..4) > 0 { ROOM_MAX } else { random.usize(1..=500) }
    }

    /// Whether so much has come in pieces that the rest goes at once.
    pub(crate) fn is_long(&self) -> bool {
        self.pieces_max.is_some_and(|most| self.pieces > most)
    }

    /// Sends nothing more, when all is sent. `Full`: it is not yet.
    pub(crate) fn end_write(&mut self) -> Sent {
        if let Some(mut tls) = self.tls.take() {
            tls.close();
            let mut flushed = Sent::Bytes(0);
            while let (Sent::Bytes(_), true) = (flushed, tls.has_output()) {
                flushed = self.flush(&mut tls);
            }
            self.tls = Some(tls);
            if let Sent::Full | Sent::Broken = flushed {
                return flushed;
            }
        }
        match self.stream.shutdown(Shutdown::Write) {
            Ok(()) => Sent::Bytes(0),
            Err(_) => Sent::Broken,
        }
    }

    /// Sends nothing more, also if the end of what was encrypted is lost.
    pub(crate) fn close_write(&mut self) {
        if let Some(mut tls) = self.tls.take() {
            tls.close();
            let _ = self.flush(&mut tls);
            self.tls = Some(tls);
        }
        // The other side may be gone.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// What one step of a peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Did {
    Nothing,
    Something,
    Ended,
}

/// Draws how many of so many bytes are sent at once.
pub(crate) fn draw_piece(random: &mut fastrand::Rng, bytes: usize) -> usize {
    let most = match random.u8(..4) {
        0 => 1,
        1 => random.usize(1..=100),
        2 => random.usize(1..=20_000),
        _ => bytes,
    };
    most.min(bytes)
}
