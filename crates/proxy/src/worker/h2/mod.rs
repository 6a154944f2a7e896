//! Requests over HTTP/2 connections.

mod completion;
mod dispatch;
mod pool;
mod receive;
mod send;

use flatout_engine::GuestKey;

use crate::connection::h2::Session;
use crate::worker::ProxyWorker;

impl ProxyWorker {
    /// Schedules a connection for the next turn.
    fn schedule(&self, session: &mut Session, guest: GuestKey) {
        if !std::mem::replace(&mut session.is_scheduled, true) {
            self.lane.call_again(guest);
        }
    }
}
