//! The connection of a subscriber over HTTP/2, with one request: messages come as Server-Sent Events in the body of its response.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{self, ResponseFuture, SendRequest};

use crate::carrier::{Carrier, Wire};
use crate::socket::{Received, Socket, draw_piece};
use crate::trace::Actor;
use crate::world::Shared;

pub(crate) struct EventStream {
    wire: Rc<RefCell<Wire>>,
    state: State,
    /// Until it is sent.
    request: Option<http::Request<()>>,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    /// Received bytes for which the server got no credit yet.
    unreleased: usize,
}

type Handshake = Pin<Box<dyn Future<Output = Result<(SendRequest<Bytes>, Driver), h2::Error>>>>;
type Driver = client::Connection<Carrier, Bytes>;

enum State {
    Handshake(Handshake),
    Open(SendRequest<Bytes>, Box<Driver>),
    Ended,
}

impl EventStream {
    /// `position`: where a subscriber that comes back continues.
    pub(crate) fn new(
        socket: Socket,
        path: &str,
        (position, token): (Option<&str>, &str),
        random: &mut fastrand::Rng,
    ) -> EventStream {
        let wire = Wire::new(socket, Vec::new(), random);
        let window = *random.choice(&[100, 3_000, 65_535, 1 << 20]).expect("some");
        let mut builder = client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(window.max(65_535));
        let handshake = Box::pin(builder.handshake(Carrier(wire.clone())));
        let mut request = http::Request::builder().uri(format!("http://a.test{path}"));
        request = request.header("authorization", format!("Bearer {token}"));
        if let Some(position) = position {
            request = request.header("last-event-id", position);
        }
        EventStream {
            wire,
            state: State::Handshake(handshake),
            request: Some(request.body(()).expect("a valid request")),
            response: None,
            body: None,
            unreleased: 0,
        }
    }

    /// Whether the header of a proxy is not sent yet.
    pub(crate) fn is_announcing(&self) -> bool {
        self.wire.borrow().socket.is_announcing()
    }

    /// Does some of what it can. The response is appended to `input` as one of HTTP/1 that ends with its connection.
    pub(crate) fn step(
        &mut self,
        input: &mut Vec<u8>,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Received {
        self.wire.borrow_mut().draw_moves(random);
        let had_ended = matches!(self.state, State::Ended);
        let mut did = self.drive(shared, actor);
        did |= self.ask();
        let received = self.receive(input, random);
        did |= self.drive(shared, actor);
        match received {
            // What had come before the end of the connection, or together with it, is read first.
            Received::Nothing if had_ended => Received::End,
            Received::Nothing if did => Received::Bytes(0),
            received => received,
        }
    }

    /// Lets the connection receive and send. Returns whether it did.
    fn drive(&mut self, shared: &mut Shared<'_>, actor: Actor) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let next = match &mut self.state {
            State::Handshake(handshake) => match handshake.as_mut().poll(&mut context) {
                Poll::Ready(Ok((sender, driver))) => Some(State::Open(sender, Box::new(driver))),
                Poll::Ready(Err(_)) => Some(State::Ended),
                Poll::Pending => None,
            },
            State::Open(_, driver) => match pin!(driver).poll(&mut context) {
                Poll::Ready(_) => Some(State::Ended),
                Poll::Pending => None,
            },
            State::Ended => None,
        };
        let did = next.is_some();
        if let Some(next) = next {
            self.state = next;
        }
        self.wire.borrow_mut().report(shared, actor) || did
    }

    /// Sends the request, if the server has room for one.
    fn ask(&mut self) -> bool {
        let State::Open(sender, _) = &mut self.state else { return false };
        let mut context = Context::from_waker(Waker::noop());
        if self.request.is_none() || !matches!(sender.poll_ready(&mut context), Poll::Ready(Ok(()))) {
            return false;
        }
        let request = self.request.take().expect("it is not sent yet");
        self.response = sender.send_request(request, true).ok().map(|(response, _)| response);
        true
    }

    fn receive(&mut self, input: &mut Vec<u8>, random: &mut fastrand::Rng) -> Received {
        let mut context = Context::from_waker(Waker::noop());
        if let Some(response) = &mut self.response {
            return match pin!(response).poll(&mut context) {
                Poll::Pending => Received::Nothing,
                Poll::Ready(Err(_)) => Received::Reset,
                Poll::Ready(Ok(response)) => {
                    let head = format!("HTTP/1.1 {} \r\n\r\n", response.status().as_u16());
                    input.extend_from_slice(head.as_bytes());
                    (self.body, self.response) = (Some(response.into_body()), None);
                    Received::Bytes(0)
                }
            };
        }
        let Some(body) = &mut self.body else { return Received::Nothing };
        if self.unreleased > 0 && random.bool() {
            let is_long = self.wire.borrow().socket.is_long();
            let released = if is_long { self.unreleased } else { draw_piece(random, self.unreleased) };
            self.unreleased -= released;
            // The stream may have ended.
            let _ = body.flow_control().release_capacity(released);
            return Received::Bytes(0);
        }
        match body.poll_data(&mut context) {
            Poll::Pending if self.unreleased > 0 => {
                let _ = body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
                Received::Bytes(0)
            }
            Poll::Pending => Received::Nothing,
            Poll::Ready(Some(Ok(bytes))) => {
                input.extend_from_slice(&bytes);
                self.unreleased += bytes.len();
                Received::Bytes(bytes.len())
            }
            Poll::Ready(Some(Err(_))) => Received::Reset,
            Poll::Ready(None) => Received::End,
        }
    }
}
