//! The end of a connection after its last response.

use std::num::NonZeroU16;

use flatout_lane::clock;
use flatout_lane::socket::Moved;

use super::{Fate, Serving};
use crate::connection::Connection;
use crate::service::Outcome;

/// Bytes discarded after the last response, so that the client can read it before the connection is reset.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// They are counted in units of this size, begun ones included: a connection has only two bytes for the count.
const LINGER_UNIT_BYTES: usize = 64;

const LINGER_UNITS_MAX: NonZeroU16 = NonZeroU16::new((LINGER_BYTES_MAX / LINGER_UNIT_BYTES) as u16).unwrap();
const _: () = assert!(LINGER_BYTES_MAX / LINGER_UNIT_BYTES <= u16::MAX as usize);

/// How long this may take.
const LINGER_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(2);

impl Serving {
    /// Closes a connection at rest while the server drains; one that has not sent a request yet may still do so.
    pub(crate) fn finish_draining(&mut self, connection: &mut Connection) -> Fate {
        if connection.requests_left < self.bounds.requests_max {
            return self.finish(connection);
        }
        connection.deadline = connection.deadline.min(self.first_request_deadline());
        Fate::Keep
    }

    /// Ends the connection after its last response. Closing a socket with unread input resets the connection, and the
    /// reset may overtake the response. So only our side is shut down, and input is discarded for a while, until the
    /// client has closed too.
    pub(crate) fn finish(&mut self, connection: &mut Connection) -> Fate {
        let unread = connection.readable || connection.is_holding();
        if !unread && (connection.client_closes || connection.read_closed) {
            connection.transport.end();
            return Fate::Close(Outcome::Sent);
        }
        self.close_exchange(connection);
        connection.machine.close();
        connection.work = None;
        connection.lingering = Some(LINGER_UNITS_MAX);
        connection.deadline = self.now.ticks + clock::ticks(LINGER_TIME_MAX);
        connection.transport.shut_down();
        // Input is received in a separate turn: in this one the read buffer may hold requests of others.
        if connection.readable { Fate::Again } else { Fate::Keep }
    }

    pub(crate) fn discard_input(&mut self, connection: &mut Connection) -> Fate {
        while connection.readable {
            match connection.transport.receive(&mut self.read) {
                Moved::Bytes(0) | Moved::Broken => return Fate::Close(Outcome::Sent),
                Moved::WouldBlock => connection.readable = false,
                Moved::Bytes(read) => {
                    let units = u16::try_from(read.div_ceil(LINGER_UNIT_BYTES)).unwrap_or(u16::MAX);
                    let left = connection.lingering.map_or(0, NonZeroU16::get).saturating_sub(units);
                    connection.lingering = NonZeroU16::new(left);
                    if left == 0 {
                        return Fate::Close(Outcome::Sent);
                    }
                    connection.readable = read == self.read.len() || connection.read_closed;
                }
            }
        }
        Fate::Keep
    }
}
