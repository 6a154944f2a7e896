//! Responses and request bodies, by the key of their exchange.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_lane::slab::Key;
use flatout_wire::Status;

use super::{Lane, Pull, Push, RESPONSES_POOLED_MAX};
use crate::exchange::entry::{Exchange, Outgoing};
use crate::exchange::intake::Intake;
use crate::exchange::pipes::PooledPipe;
use crate::exchange::tasks::spawn_response;
use crate::service::{BoxError, ExchangeKey, FileRange, Filter, PushedRules, Response, Takeover};

impl Lane {
    /// Responds to a parked request. Returns whether it still exists. A second response is ignored.
    pub fn answer(&self, key: ExchangeKey, response: impl Into<Box<Response>>) -> bool {
        let mut response = response.into();
        // Data pushed before the response is encoded passes through it too.
        if let Some(rules) = response.take_pushed_rules() {
            self.set_pushed_rules(key.0, *rules);
        }
        self.send_item(key, Outgoing::Answer(response))
    }

    /// Responds to a parked request with what a future makes, which ends with the exchange. It takes the place of another one that was to
    /// respond.
    pub fn answer_later(&self, key: ExchangeKey, future: Pin<Box<dyn Future<Output = Response>>>) {
        if !self.is_open(key) {
            return;
        }
        let task = spawn_response(self.clone(), key, future);
        self.with(key.0, |exchange| exchange.task = Some(task));
    }

    /// Applies these to everything that is pushed to an exchange. Those of a second response are ignored, like the response.
    pub(crate) fn set_pushed_rules(&self, key: Key, rules: PushedRules) {
        if !rules.trailers.is_empty() {
            self.with(key, |exchange| {
                exchange.trailers.get_or_insert(rules.trailers);
            });
        }
        if let Some(filter) = rules.filter {
            self.set_filter(key, filter);
        }
    }

    fn set_filter(&self, key: Key, filter: Box<dyn Filter>) {
        let refused = self.with(key, |exchange| match exchange.filter {
            None => exchange.filter.replace(filter),
            Some(_) => Some(filter),
        });
        // Outside of the borrow: it belongs to a service.
        drop(refused);
    }

    /// Passes something through the exchange's filter; `None` without a filter.
    fn filtered(
        &self,
        key: ExchangeKey,
        act: impl FnOnce(&mut dyn Filter) -> Result<Bytes, BoxError>,
    ) -> Option<Result<Bytes, BoxError>> {
        let mut filter = self.with(key.0, |exchange| exchange.filter.take()).flatten()?;
        let made = act(&mut *filter);
        self.set_filter(key.0, filter);
        Some(made)
    }

    /// Whether what is pushed to this exchange passes through a filter.
    pub(crate) fn is_filtered(&self, key: ExchangeKey) -> bool {
        self.with(key.0, |exchange| exchange.filter.is_some()).unwrap_or(false)
    }

    /// Whether a body may go through a pipe to this exchange: its bytes are not changed, and there are no frames
    /// between them, as in HTTP/2.
    pub fn takes_pipes(&self, key: ExchangeKey) -> bool {
        self.with(key.0, |exchange| exchange.filter.is_none() && exchange.stream().is_none()).unwrap_or(true)
    }

    /// An empty response, reusing the memory of a sent one if possible: for services that respond by key often.
    pub fn response(&self) -> Box<Response> {
        self.0.responses.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a response's memory for [`Lane::response`].
    pub(crate) fn give_back(&self, mut response: Box<Response>) {
        response.reset();
        let mut kept = self.0.responses.borrow_mut();
        if kept.len() < RESPONSES_POOLED_MAX {
            kept.push(response);
        }
    }

    /// Sends an interim response, such as 103; `fields` are complete field lines, trusted. Returns whether the
    /// exchange still exists. It is not sent to HTTP/1.0 clients, nor to a client for which too much is already
    /// waiting.
    pub fn inform(&self, key: ExchangeKey, status: Status, fields: &[u8]) -> bool {
        match self.with(key.0, |exchange| exchange.has_room()) {
            Some(true) => self.send_item(key, Outgoing::Inform(status, fields.to_vec())),
            has_room => has_room.is_some(),
        }
    }

    /// Adds a piece to the body of a response with [`Body::Pushed`](crate::Body::Pushed).
    pub fn push(&self, key: ExchangeKey, bytes: Bytes) -> Push {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Push::Gone };
        if !exchange.has_room() {
            exchange.was_refused = true;
            return Push::Full(bytes);
        }
        if bytes.is_empty() {
            return Push::Accepted;
        }
        if exchange.filter.is_none() {
            exchange.enqueue(Outgoing::Data(bytes));
            self.list(key.0, exchange);
            return Push::Accepted;
        }
        drop(exchanges);
        match self.filtered(key, |filter| filter.piece(bytes)) {
            Some(Ok(bytes)) => self.enqueue_data(key, bytes),
            Some(Err(_)) => drop(self.cut(key)),
            None => {}
        }
        Push::Accepted
    }

    fn enqueue_data(&self, key: ExchangeKey, bytes: Bytes) {
        if !bytes.is_empty() {
            self.send_item(key, Outgoing::Data(bytes));
        }
    }

    /// The same with the content of a pipe; a pipe that was not accepted is returned.
    ///
    /// # Errors
    /// Too much waits to be sent, as in [`Push::Full`].
    pub fn push_pipe(&self, key: ExchangeKey, pipe: PooledPipe) -> Result<Push, PooledPipe> {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Ok(Push::Gone) };
        if !exchange.has_room() {
            exchange.was_refused = true;
            return Err(pipe);
        }
        if pipe.bytes() > 0 {
            exchange.enqueue(Outgoing::Pipe(pipe));
            self.list(key.0, exchange);
        }
        Ok(Push::Accepted)
    }

    /// Whether a body may come from a file to this exchange: its bytes are not changed.
    pub fn takes_files(&self, key: ExchangeKey) -> bool {
        !self.is_filtered(key)
    }

    /// The same with a range of a file, which must exist until it is sent. It counts like memory. Not for an exchange with a
    /// [filter](Lane::takes_files).
    pub fn push_file(&self, key: ExchangeKey, range: FileRange) -> bool {
        range.bytes == 0 || self.send_item(key, Outgoing::File(range))
    }

    /// Whether [`Lane::push`] would accept something now; if not, an attached guest is notified when there is room.
    pub fn has_room(&self, key: ExchangeKey) -> bool {
        let mut exchanges = self.0.exchanges.borrow_mut();
        exchanges.get_mut(key.0).is_none_or(|exchange| {
            exchange.was_refused |= !exchange.has_room();
            exchange.has_room()
        })
    }

    /// Asks for a notice to the attached guest when the client has taken more, also if there is room now.
    pub fn tell_of_room(&self, key: ExchangeKey) {
        self.with(key.0, |exchange| exchange.was_refused = true);
    }

    /// Memory of the response that the client has not taken.
    pub fn unsent_bytes(&self, key: ExchangeKey) -> usize {
        let unsent = self.with(key.0, |exchange| exchange.outbox_bytes() + exchange.unsent_bytes);
        unsent.map_or(0, |unsent| usize::try_from(unsent).unwrap_or(usize::MAX))
    }

    /// Takes the next piece of a request's body that was planned to be [pulled](crate::BodyPlan::Pull).
    pub fn pull(&self, key: ExchangeKey) -> Pull {
        let mut exchanges = self.0.exchanges.borrow_mut();
        let Some(exchange) = exchanges.get_mut(key.0) else { return Pull::Gone };
        let Some(pulled) = exchange.intake.as_mut().and_then(Intake::pulled) else { return Pull::Gone };
        let (piece, goes_on) = pulled.next();
        if goes_on {
            exchange.reads_on = true;
            self.list(key.0, exchange);
        }
        piece
    }

    /// Ends such a body; `trailers` are complete field lines, trusted. Returns whether the exchange still exists.
    pub fn end(&self, key: ExchangeKey, trailers: &[u8]) -> bool {
        match self.filtered(key, |filter| filter.end()) {
            Some(Ok(bytes)) => self.enqueue_data(key, bytes),
            Some(Err(_)) => return self.cut(key),
            None => {}
        }
        let own = self.with(key.0, |exchange| exchange.trailers.take()).flatten();
        self.send_item(
            key,
            Outgoing::End(own.map_or_else(|| trailers.to_vec(), |own| [&own, trailers].concat())),
        )
    }

    /// Aborts such a body: the client sees that it is incomplete.
    pub fn cut(&self, key: ExchangeKey) -> bool {
        self.send_item(key, Outgoing::Cut)
    }

    /// Takes the connection of a parked request without a body out of the lane, as
    /// [`Reply::Leave`](crate::Reply::Leave) does. `head` is the request's head, which the code that takes over gets again.
    /// A stream of HTTP/2 cannot leave, and is reset. Returns whether the exchange still exists.
    pub fn take_over(&self, key: ExchangeKey, head: &[u8], takeover: Takeover) -> bool {
        self.send_item(key, Outgoing::Leave(takeover, head.to_vec()))
    }

    /// Whether a request's body is [pulled](crate::BodyPlan::Pull), or was: then it is not part of the request.
    pub fn is_pulled(&self, key: ExchangeKey) -> bool {
        let is_pulled = |exchange: &mut Exchange| exchange.intake.as_mut().and_then(Intake::pulled).is_some();
        self.with(key.0, is_pulled).unwrap_or(false)
    }

    /// Ready when the exchange has room, or has ended.
    pub(crate) fn poll_room(&self, key: ExchangeKey, context: &mut Context<'_>) -> Poll<()> {
        let mut exchanges = self.0.exchanges.borrow_mut();
        match exchanges.get_mut(key.0) {
            Some(exchange) if !exchange.has_room() => {
                exchange.room = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}
