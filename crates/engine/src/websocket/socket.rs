//! One WebSocket: a guest of the lane.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use flatout_lane::poll::Ready;
use flatout_lane::socket::Moved;
use flatout_wire::websocket::{Deflate, Opcode, close_payload, write_frame};

use super::WebSocketPlan;
use super::deflate::compress;
use super::handlers::{OnClose, OnMessage, SocketHandlers};
use super::incoming::{Incoming, IncomingItem};
use super::sender::SocketSender;
use crate::exchange::{GuestEvent, GuestKey, Guests, Lane, Mail, Mailbox, Worker};
use crate::service::{ConnectionPermit, DetachedConnection};

/// How long a closed connection is still read, so that a reset does not discard what was sent last.
const LINGER_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// Receives from one connection before others get their turn.
const RECEIVES_PER_CALL: usize = 8;

/// Shorter messages are not compressed: nothing would be gained.
const COMPRESSED_BYTES_MIN: usize = 64;

/// Capacity of the output buffer that is kept while there is nothing to send.
const OUT_BYTES_KEPT: usize = 4 << 10;

/// A message.
///
/// ```
/// use flatout_engine::websocket::Message;
///
/// fn bytes(message: Message<'_>) -> usize {
///     match message {
///         Message::Text(text) => text.len(),
///         Message::Binary(bytes) => bytes.len(),
///     }
/// }
///
/// assert_eq!(bytes(Message::Text("hello")), 5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'b> {
    /// UTF-8.
    Text(&'b str),
    /// Any bytes.
    Binary(&'b [u8]),
}

/// One connection, on its worker's thread. Clones refer to the same connection; they may be kept, and have no effect
/// after it has ended.
///
/// ```
/// use flatout_engine::websocket::{Message, Socket};
///
/// /// A handler that repeats what it hears, and ends the connection when it is asked to.
/// fn echo(socket: &Socket, message: Message<'_>) {
///     match message {
///         Message::Text("bye") => socket.close(1000, "goodbye"),
///         message => socket.send(message),
///     }
/// }
///
/// /// The same message to all but its author, as in a chat; those that have left are forgotten.
/// fn others(all: &mut Vec<Socket>, author: &Socket, message: Message<'_>) {
///     all.retain(Socket::is_open);
///     all.iter().filter(|socket| !socket.is(author)).for_each(|socket| socket.send(message));
/// }
/// ```
#[derive(Clone)]
pub struct Socket(pub(super) Rc<SocketInner>);

pub(super) struct SocketInner {
    lane: Lane,
    mailbox: Mailbox,
    plan: WebSocketPlan,
    deflate: Option<Deflate>,
    on_message: OnMessage,
    on_close: Cell<Option<OnClose>>,
    /// The code that the client has closed the connection with.
    client_code: Cell<Option<u16>>,
    /// Made when it is first asked for.
    sender: OnceCell<SocketSender>,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<OutgoingFrames>,
    /// Its input is being parsed: messages are sent when that is done.
    is_reading: Cell<bool>,
}

/// Sockets whose handler is to be called because they were closed: one for each connection at most.
#[derive(Default)]
struct ClosedSockets {
    waiting: HashMap<u64, (Socket, OnClose)>,
    number: u64,
}

impl ClosedSockets {
    fn add(&mut self, socket: Socket, on_close: OnClose) -> u64 {
        self.number += 1;
        self.waiting.insert(self.number, (socket, on_close));
        self.number
    }
}

thread_local! {
    static CLOSED: RefCell<ClosedSockets> = RefCell::default();
}

struct OutgoingFrames {
    guest: Option<GuestKey>,
    /// Counts the connection.
    permit: Option<ConnectionPermit>,
    unsent: Vec<u8>,
    /// Bytes of it that were sent.
    sent_bytes: usize,
    /// There may be data to receive.
    is_readable: bool,
    state: SocketPhase,
    /// Something was received since the deadline was set.
    has_received: bool,
    was_pinged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketPhase {
    Open,
    /// A close frame was queued; nothing follows it.
    Closing,
    /// It was sent too, and our side shut down: input is discarded.
    Lingering,
    Gone,
}

impl Socket {
    /// Sends a message, or queues it until there is room. Has no effect on a closed connection.
    pub fn send(&self, message: Message<'_>) {
        let (opcode, bytes) = match message {
            Message::Text(text) => (Opcode::Text, text.as_bytes()),
            Message::Binary(bytes) => (Opcode::Binary, bytes),
        };
        let fits =
            |deflate: Deflate| (COMPRESSED_BYTES_MIN..=deflate.message_bytes_max()).contains(&bytes.len());
        let mut packed = Vec::new();
        let is_compressed = self.0.deflate.is_some_and(fits) && compress(bytes, &mut packed);
        self.send_frame(opcode, is_compressed, if is_compressed { &packed } else { bytes });
    }

    /// Closes the connection with a close frame: 1000 is the usual code, 4000 to 4999 are for applications. An
    /// invalid code becomes 1000.
    pub fn close(&self, code: u16, reason: &str) {
        let code = if matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) { code } else { 1000 };
        self.send_frame(Opcode::Close, false, &close_payload(code, reason));
    }

    /// Whether messages can still be sent.
    pub fn is_open(&self) -> bool {
        self.0.outgoing.borrow().state == SocketPhase::Open
    }

    /// Whether both are the same connection.
    pub fn is(&self, other: &Socket) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Sends to this connection from any thread.
    pub fn sender(&self) -> SocketSender {
        let made = || SocketSender::new(self.0.mailbox.clone(), Rc::downgrade(&self.0));
        let sender = self.0.sender.get_or_init(made).clone();
        if !self.is_open() {
            sender.end();
        }
        sender
    }

    /// Puts a connection that has left HTTP into the lane.
    pub(super) fn open(
        taken: DetachedConnection,
        worker: &Worker,
        plan: WebSocketPlan,
        deflate: Option<Deflate>,
        handlers: SocketHandlers,
    ) {
        let SocketHandlers { opened, message, closed } = handlers;
        let lane = worker.lane.clone();
        let DetachedConnection { carrier, read, permit, .. } = taken;
        let mut incoming = Incoming::new(plan.limits, deflate.is_some());
        incoming.held.extend_from_slice(&read);
        let outgoing = OutgoingFrames {
            guest: None,
            permit: Some(permit),
            unsent: Vec::new(),
            sent_bytes: 0,
            is_readable: true,
            state: SocketPhase::Open,
            has_received: true,
            was_pinged: false,
        };
        let inner = Rc::new(SocketInner {
            lane: lane.clone(),
            mailbox: worker.mailbox.clone(),
            plan,
            deflate,
            on_message: message,
            on_close: Cell::new(closed),
            client_code: Cell::new(None),
            sender: OnceCell::new(),
            incoming: RefCell::new(incoming),
            outgoing: RefCell::new(outgoing),
            is_reading: Cell::new(false),
        });
        // A kernel that has no room for one more watch: the connection is dropped.
        let Ok(guest) = lane.enter(carrier, Rc::new(Socket(inner.clone())), 0) else { return };
        inner.outgoing.borrow_mut().guest = Some(guest);
        lane.set_deadline(guest, Some(plan.heartbeat));
        if let Some(opened) = opened {
            let socket = Socket(inner);
            socket.guarded(|| opened(&socket));
        }
    }

    /// Nothing can be sent any more: calls the handler once, in the worker's next turn, because the code that closes a
    /// connection may be in the middle of something.
    fn closed(&self) {
        if let Some(sender) = self.0.sender.get() {
            sender.end();
        }
        let Some(on_close) = self.0.on_close.take() else { return };
        let number = CLOSED.with_borrow_mut(|closed| closed.add(self.clone(), on_close));
        self.0.mailbox.post(Mail::Run(Box::new(move |_| {
            let found = CLOSED.with_borrow_mut(|closed| closed.waiting.remove(&number));
            if let Some((socket, on_close)) = found {
                on_close(&socket, socket.0.client_code.get());
            }
        })));
    }

    fn send_frame(&self, opcode: Opcode, is_compressed: bool, payload: &[u8]) {
        let mut outgoing = self.0.outgoing.borrow_mut();
        if outgoing.state != SocketPhase::Open {
            return;
        }
        write_frame(opcode, is_compressed, payload, None, &mut outgoing.unsent);
        if opcode == Opcode::Close {
            outgoing.state = SocketPhase::Closing;
        }
        if outgoing.unsent.len() - outgoing.sent_bytes > self.0.plan.unsent_bytes_max {
            // The client does not read, so it would not get a close frame either.
            outgoing.state = SocketPhase::Gone;
        }
        let is_open = outgoing.state == SocketPhase::Open;
        drop(outgoing);
        if !is_open {
            self.closed();
        }
        if !self.0.is_reading.get() {
            self.flush();
        }
    }

    /// Sends pending output.
    fn flush(&self) {
        let mut outgoing = self.0.outgoing.borrow_mut();
        let Some(guest) = outgoing.guest else { return };
        while outgoing.state != SocketPhase::Gone && outgoing.sent_bytes < outgoing.unsent.len() {
            let rest = outgoing.unsent.get(outgoing.sent_bytes..).unwrap_or_default();
            match self.0.lane.send(guest, rest) {
                Moved::Bytes(sent) => outgoing.sent_bytes += sent,
                Moved::WouldBlock => return,
                Moved::Broken => outgoing.state = SocketPhase::Gone,
            }
        }
        outgoing.sent_bytes = 0;
        outgoing.unsent.clear();
        if outgoing.unsent.capacity() > OUT_BYTES_KEPT {
            outgoing.unsent = Vec::new();
        }
        match outgoing.state {
            SocketPhase::Open | SocketPhase::Lingering => {}
            SocketPhase::Closing => {
                outgoing.state = SocketPhase::Lingering;
                self.0.lane.shut_down(guest);
                self.0.lane.set_deadline(guest, Some(LINGER_TIME_MAX));
            }
            SocketPhase::Gone => {
                drop(outgoing);
                self.end();
            }
        }
    }

    /// Releases everything.
    fn end(&self) {
        let mut outgoing = self.0.outgoing.borrow_mut();
        outgoing.state = SocketPhase::Gone;
        outgoing.unsent = Vec::new();
        let (guest, permit) = (outgoing.guest.take(), outgoing.permit.take());
        drop(outgoing);
        if let Some(guest) = guest {
            self.0.lane.remove(guest);
        }
        drop(permit);
        self.closed();
    }

    /// Receives and parses, until nothing more has arrived or the client does not read our output.
    fn read(&self) {
        for _ in 0..RECEIVES_PER_CALL {
            let outgoing = self.0.outgoing.borrow();
            let Some(guest) = outgoing.guest else { return };
            let is_full = outgoing.unsent.len() - outgoing.sent_bytes >= self.0.plan.unsent_bytes_full;
            let state = outgoing.state;
            if !outgoing.is_readable || (is_full && state == SocketPhase::Open) {
                return;
            }
            drop(outgoing);
            match self.receive(guest, state) {
                Moved::Bytes(0) | Moved::Broken => return self.end(),
                Moved::Bytes(_) => self.0.outgoing.borrow_mut().has_received = true,
                Moved::WouldBlock => self.0.outgoing.borrow_mut().is_readable = false,
            }
            self.flush();
        }
        let outgoing = self.0.outgoing.borrow();
        if let Some(guest) = outgoing.guest
            && outgoing.is_readable
        {
            self.0.lane.call_again(guest);
        }
    }

    /// One receive, and its result.
    fn receive(&self, guest: GuestKey, state: SocketPhase) -> Moved {
        let mut buffer = self.0.lane.buffer();
        let mut incoming = self.0.incoming.borrow_mut();
        let held = incoming.held.len();
        // Bytes that came with the request are held too, and may fill a whole read.
        let half = buffer.len() / 2;
        let (start, room) = buffer.split_at_mut(held.min(half));
        let from_held = start.len();
        start.copy_from_slice(incoming.held.get(..from_held).unwrap_or_default());
        let moved = match from_held < held {
            true => Moved::WouldBlock,
            false => self.0.lane.receive(guest, room),
        };
        let came = match moved {
            Moved::Bytes(0) | Moved::Broken => return moved,
            Moved::Bytes(came) => came,
            Moved::WouldBlock => 0,
        };
        if state != SocketPhase::Open {
            incoming.held.clear();
            return moved;
        }
        let behind = incoming.held.get(from_held..).unwrap_or_default().to_vec();
        let there = buffer.get_mut(..from_held + came).unwrap_or_default();
        let reading = ReadGuard::begin(&self.0.is_reading);
        let read = incoming.read(there, |item| self.handle_item(item));
        drop(reading);
        if let Err(fault) = read {
            self.close(fault.code(), fault.reason());
        }
        if behind.is_empty() {
            return moved;
        }
        // Once, after the request: the rest of what came with it.
        incoming.held.extend_from_slice(&behind);
        Moved::Bytes(behind.len())
    }

    fn handle_item(&self, item: IncomingItem<'_>) -> bool {
        match item {
            IncomingItem::Message(message) => (self.0.on_message)(self, message),
            IncomingItem::Ping(payload) => self.send_frame(Opcode::Pong, false, payload),
            IncomingItem::Pong => {}
            IncomingItem::Close(code) => {
                self.0.client_code.set(code);
                let payload = code.map_or_else(Vec::new, |code| close_payload(code, ""));
                self.send_frame(Opcode::Close, false, &payload);
            }
        }
        self.is_open()
    }

    /// The heartbeat time has passed.
    fn check_heartbeat(&self, guest: GuestKey) {
        let mut outgoing = self.0.outgoing.borrow_mut();
        let has_received = std::mem::take(&mut outgoing.has_received);
        if outgoing.state != SocketPhase::Open || (!has_received && outgoing.was_pinged) {
            drop(outgoing);
            return self.end();
        }
        outgoing.was_pinged = !has_received;
        drop(outgoing);
        self.0.lane.set_deadline(guest, Some(self.0.plan.heartbeat));
        if !has_received {
            self.send_frame(Opcode::Ping, false, b"");
        }
    }

    fn socket_ready(&self, ready: Ready) {
        if ready.readable() || ready.hung_up() {
            self.0.outgoing.borrow_mut().is_readable = true;
        }
        if ready.writable() {
            self.flush();
        }
        self.read();
    }
}

/// Marks that the input is being parsed, until it is dropped: also if a handler panics.
struct ReadGuard<'s>(&'s Cell<bool>);

impl<'s> ReadGuard<'s> {
    fn begin(flag: &'s Cell<bool>) -> ReadGuard<'s> {
        flag.set(true);
        ReadGuard(flag)
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Guests for Socket {
    /// A handler that panics ends its connection, as if the client had left.
    fn ready(&self, guest: GuestKey, _: u64, event: GuestEvent) {
        self.guarded(|| self.handle(guest, event));
    }
}

impl Socket {
    /// Calls what may call a handler. If that panics, the connection ends before the panic goes on.
    fn guarded(&self, call: impl FnOnce()) {
        if let Err(cause) = catch_unwind(AssertUnwindSafe(call)) {
            self.end();
            resume_unwind(cause);
        }
    }

    fn handle(&self, guest: GuestKey, event: GuestEvent) {
        match event {
            GuestEvent::Socket(ready) => self.socket_ready(ready),
            GuestEvent::Again => self.read(),
            GuestEvent::Deadline => self.check_heartbeat(guest),
            GuestEvent::Draining => self.close(1001, "the server is restarting"),
            GuestEvent::Room(_) | GuestEvent::Body(_) | GuestEvent::Gone(_) => {}
        }
    }
}
