//! What an application does with a WebSocket.

use std::fmt;

use super::socket::{Message, Socket};

type OnOpen = Box<dyn FnOnce(&Socket)>;
pub(super) type OnMessage = Box<dyn Fn(&Socket, Message<'_>)>;
pub(super) type OnClose = Box<dyn FnOnce(&Socket, Option<u16>)>;

/// The functions that are called for one WebSocket, all on its worker's thread: one that blocks it blocks every connection of
/// the worker.
///
/// ```
/// use flatout_engine::websocket::{Message, SocketHandlers};
///
/// SocketHandlers::new(|socket, message| socket.send(message))
///     .opened(|socket| socket.send(Message::Text("welcome")))
///     .closed(|_, code| println!("gone with {code:?}"));
/// ```
pub struct SocketHandlers {
    pub(super) opened: Option<OnOpen>,
    pub(super) message: OnMessage,
    pub(super) closed: Option<OnClose>,
}

impl SocketHandlers {
    /// `message` is called with each message.
    pub fn new(message: impl Fn(&Socket, Message<'_>) + 'static) -> SocketHandlers {
        SocketHandlers { opened: None, message: Box::new(message), closed: None }
    }

    /// `opened` is called once, before the first message: when the client has been told that it is connected.
    #[must_use]
    pub fn opened(mut self, opened: impl FnOnce(&Socket) + 'static) -> SocketHandlers {
        self.opened = Some(Box::new(opened));
        self
    }

    /// `closed` is called once for each connection that was opened, soon after the last message that could be sent, whoever
    /// ended it; with the code that the client closed it with, if it did. It is not called when the process ends.
    #[must_use]
    pub fn closed(mut self, closed: impl FnOnce(&Socket, Option<u16>) + 'static) -> SocketHandlers {
        self.closed = Some(Box::new(closed));
        self
    }
}

impl fmt::Debug for SocketHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketHandlers").finish_non_exhaustive()
    }
}
