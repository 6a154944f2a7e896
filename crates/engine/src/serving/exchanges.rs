//! Exchanges end, and their guests and readers are notified.

use flatout_lane::slab::Key;

use super::Serving;
use crate::connection::Connection;
use crate::exchange::{Exchange, GuestEvent};
use crate::service::{BodyFault, ExchangeKey, Outcome};

impl Serving {
    /// The response of an exchange was sent, and its request's body is still read.
    pub(crate) fn end_response(&mut self, exchange: Option<Key>) {
        let Some(key) = exchange else { return };
        let (task, guest) = self.lane.with(key, Exchange::end_response).unwrap_or_default();
        if let Some(task) = task {
            task.abort();
        }
        if let Some(guest) = guest {
            self.notices.push((guest, GuestEvent::Gone(ExchangeKey(key))));
        }
    }

    /// Reports to the reader of the current request's body, if it is incomplete, why it ends.
    #[inline]
    pub(crate) fn fail_body(&self, connection: &Connection, fault: BodyFault) {
        if let Some(exchange) = connection.exchange {
            self.lane.with(exchange, |exchange| exchange.fail_body(fault));
        }
    }

    /// Ends the connection's exchange; an attached guest is notified.
    #[inline]
    pub(crate) fn close_exchange(&mut self, connection: &mut Connection) {
        if let Some(exchange) = connection.exchange.take() {
            self.end_exchange(exchange);
        }
    }

    pub(crate) fn end_exchange(&mut self, exchange: Key) {
        if let Some(guest) = self.lane.close(exchange) {
            self.notices.push((guest, GuestEvent::Gone(ExchangeKey(exchange))));
        }
    }

    /// Calls the guest that pulls the body, if there is new data.
    pub(crate) fn notify_reader(&mut self, key: Key) {
        let told = self.lane.with(key, |exchange| {
            let guest = exchange.guest?;
            exchange.intake.as_mut()?.pulled()?.has_news().then_some(guest)
        });
        if let Some(guest) = told.flatten() {
            self.notices.push((guest, GuestEvent::Body(ExchangeKey(key))));
        }
    }

    /// The same for one exchange that has `unsent` bytes of its body left to send.
    #[inline]
    pub(crate) fn note_unsent_of(&mut self, key: Key, unsent: u64) {
        let heard = self.lane.with(key, |exchange| {
            exchange.unsent_bytes = unsent;
            match exchange.has_room() {
                true => {
                    let was_refused = std::mem::take(&mut exchange.was_refused);
                    (exchange.room.take(), exchange.guest.filter(|_| was_refused))
                }
                false => (None, None),
            }
        });
        let Some((room, guest)) = heard else { return };
        if let Some(room) = room {
            room.wake();
        }
        if let Some(guest) = guest {
            self.notices.push((guest, GuestEvent::Room(ExchangeKey(key))));
        }
    }
}

/// What the reader of a body learns when its connection or stream ends like this.
pub(crate) fn body_fault_of(outcome: Outcome) -> BodyFault {
    match outcome {
        Outcome::TimedOut => BodyFault::TooSlow,
        Outcome::Stopped => BodyFault::Stopped,
        Outcome::Sent => BodyFault::Responded,
        Outcome::ClientGone | Outcome::Refused | Outcome::Failed | Outcome::Taken => BodyFault::Aborted,
    }
}
