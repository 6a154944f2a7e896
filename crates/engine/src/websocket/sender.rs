//! Sending to a socket from any thread: through the mailbox of its worker, where a number leads to the socket.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::socket::{Message, Socket, SocketInner};
use crate::exchange::{Mailbox, MailboxFull};

/// Sends to one WebSocket from any thread, also to one of another worker. Clones refer to the same connection; they may be
/// kept, and have no effect after it has ended.
///
/// ```
/// use std::sync::Mutex;
/// use flatout_engine::websocket::{Message, SocketSender};
///
/// /// To everyone in a room, whichever worker they are connected to; those that have left are forgotten.
/// fn tell(room: &Mutex<Vec<SocketSender>>, text: &str) {
///     let mut room = room.lock().unwrap();
///     // A worker whose mailbox is full does not keep up: this message is lost to its client.
///     room.retain(|member| member.is_open());
///     room.iter().for_each(|member| drop(member.send(Message::Text(text))));
/// }
/// ```
#[derive(Debug, Clone)]
pub struct SocketSender {
    mailbox: Mailbox,
    number: u64,
    is_open: Arc<AtomicBool>,
}

thread_local! {
    /// The sockets of this worker that have a sender, by their numbers.
    static SOCKETS: RefCell<HashMap<u64, Weak<SocketInner>>> = RefCell::default();
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl SocketSender {
    /// Sends a message: it is copied, and the worker sends it in its next turn. Has no effect on a closed connection.
    ///
    /// # Errors
    /// The worker has [not kept up](MailboxFull) with its mailbox; the message was not taken.
    pub fn send(&self, message: Message<'_>) -> Result<(), MailboxFull> {
        match message {
            Message::Text(text) => {
                let text = text.to_owned();
                self.run(move |socket| socket.send(Message::Text(&text)))
            }
            Message::Binary(bytes) => {
                let bytes = bytes.to_vec();
                self.run(move |socket| socket.send(Message::Binary(&bytes)))
            }
        }
    }

    /// Closes the connection, as [`Socket::close`] does.
    ///
    /// # Errors
    /// As for [`SocketSender::send`].
    pub fn close(&self, code: u16, reason: &str) -> Result<(), MailboxFull> {
        let reason = reason.to_owned();
        self.run(move |socket| socket.close(code, &reason))
    }

    /// Whether messages can still be sent, as far as this thread knows.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Whether both send to the same connection.
    pub fn is(&self, other: &SocketSender) -> bool {
        self.number == other.number
    }

    fn run(&self, job: impl FnOnce(&Socket) + Send + 'static) -> Result<(), MailboxFull> {
        if !self.is_open() {
            return Ok(());
        }
        let number = self.number;
        self.mailbox.run(move |_| {
            let socket = SOCKETS.with_borrow(|sockets| sockets.get(&number).and_then(Weak::upgrade));
            if let Some(inner) = socket {
                job(&Socket(inner));
            }
        })
    }

    /// A sender for a socket of this thread's worker.
    pub(super) fn new(mailbox: Mailbox, socket: Weak<SocketInner>) -> SocketSender {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        SOCKETS.with_borrow_mut(|sockets| sockets.insert(number, socket));
        SocketSender { mailbox, number, is_open: Arc::new(AtomicBool::new(true)) }
    }

    /// The connection has ended.
    pub(super) fn end(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        // When a worker ends, its thread's values may be gone already.
        let _ = SOCKETS.try_with(|sockets| sockets.borrow_mut().remove(&self.number));
    }
}
