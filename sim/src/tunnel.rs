//! One end of a tunnel, as after `101 Switching Protocols`: it sends its bytes, in drawn pieces, and checks those of the other end.

use crate::message::{body, is_part_of_body};
use crate::model::Planned;
use crate::socket::{Did, Received, Sent, Socket};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// The longest pause.
const PAUSE_MS_MAX: u64 = 3_000;

/// Bytes of each end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) of_client: usize,
    pub(crate) of_upstream: usize,
}

pub(crate) struct Tunnel {
    id: u32,
    output: Vec<u8>,
    sent: usize,
    /// What the other end sends, and how much of it has come.
    tag: u32,
    length: usize,
    received: usize,
    /// It closes its sending side as soon as it has sent everything.
    closes_early: bool,
    has_closed: bool,
    other_has_closed: bool,
    /// Nothing can be sent any more.
    is_broken: bool,
    /// The end that closes first when both have everything.
    is_first: bool,
    /// It breaks off when so many bytes are sent.
    breaks_at: Option<usize>,
}

impl Tunnel {
    /// The client's end of the tunnel of a request.
    pub(crate) fn of_client(planned: &Planned, random: &mut fastrand::Rng, may_fail: bool) -> Option<Tunnel> {
        let lengths = planned.tunnel?;
        let (up, down) = (lengths.of_client, lengths.of_upstream);
        Some(Tunnel::new(planned.id, (planned.id, up), (!planned.id, down), false, random, may_fail))
    }

    /// The upstream's.
    pub(crate) fn of_upstream(
        planned: &Planned,
        random: &mut fastrand::Rng,
        may_fail: bool,
    ) -> Option<Tunnel> {
        let lengths = planned.tunnel?;
        let (up, down) = (lengths.of_client, lengths.of_upstream);
        Some(Tunnel::new(planned.id, (!planned.id, down), (planned.id, up), true, random, may_fail))
    }

    fn new(
        id: u32,
        sends: (u32, usize),
        receives: (u32, usize),
        is_first: bool,
        random: &mut fastrand::Rng,
        may_fail: bool,
    ) -> Tunnel {
        Tunnel {
            id,
            output: body(sends.0, sends.1).to_vec(),
            sent: 0,
            tag: receives.0,
            length: receives.1,
            received: 0,
            closes_early: random.u8(..4) == 0,
            has_closed: false,
            other_has_closed: false,
            is_broken: false,
            is_first,
            breaks_at: (may_fail && random.u8(..6) == 0).then(|| random.usize(..=sends.1)),
        }
    }

    /// Sends `first` before everything else. The other end has to remove it.
    pub(crate) fn behind(mut self, mut first: Vec<u8>) -> Tunnel {
        first.append(&mut self.output);
        Tunnel { output: first, ..self }
    }

    /// Does one thing. `input` is what has been received already.
    pub(crate) fn step(
        &mut self,
        socket: &mut Socket,
        input: &mut Vec<u8>,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Result<Did, String> {
        if self.breaks_at.is_some_and(|at| self.sent >= at) {
            shared.model.break_tunnel(self.id);
            shared.event(actor, Event::Close);
            return Ok(Did::Ended);
        }
        let has_all = self.received == self.length && self.sent == self.output.len();
        let is_over = self.is_first || self.other_has_closed;
        if has_all && is_over && input.is_empty() && (self.is_broken || !socket.has_unsent()) {
            shared.event(actor, Event::Close);
            return Ok(Did::Ended);
        }
        let order = if random.bool() { [true, false] } else { [false, true] };
        for sends in order {
            let did = match sends {
                true => self.send(socket, random, shared, actor),
                false => self.receive(socket, input, random, shared, actor)?,
            };
            if did == Did::Something && random.u8(..32) == 0 {
                let pause_ms = random.u64(1..=PAUSE_MS_MAX);
                *wakes_at_ns = shared.pause(actor, pause_ms);
            }
            if did != Did::Nothing {
                return Ok(did);
            }
        }
        Ok(Did::Nothing)
    }

    fn send(
        &mut self,
        socket: &mut Socket,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Did {
        let rest = &self.output[self.sent..];
        if self.is_broken {
            return Did::Nothing;
        }
        if rest.is_empty() && (self.closes_early || !socket.has_unsent()) {
            if !self.closes_early || self.has_closed {
                return Did::Nothing;
            }
            match socket.end_write() {
                Sent::Full => return Did::Nothing,
                Sent::Bytes(_) => self.has_closed = true,
                Sent::Broken => self.is_broken = true,
            }
            shared.event(actor, Event::CloseWrite);
            return Did::Something;
        }
        let piece = &rest[..socket.draw_piece(random, rest.len())];
        match socket.send(piece) {
            Sent::Bytes(bytes) => {
                self.sent += bytes;
                shared.event(actor, Event::Sent(bytes));
                Did::Something
            }
            Sent::Full => Did::Nothing,
            // What was sent before it is still to be received.
            Sent::Broken => {
                (self.sent, self.is_broken) = (self.output.len(), true);
                Did::Something
            }
        }
    }

    fn receive(
        &mut self,
        socket: &mut Socket,
        input: &mut Vec<u8>,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
    ) -> Result<Did, String> {
        self.take(input)?;
        if self.other_has_closed {
            return Ok(Did::Nothing);
        }
        let most = socket.draw_room(random);
        let received = socket.receive(input, most);
        // With TLS the last bytes come together with the end.
        self.take(input)?;
        match received {
            Received::Nothing => Ok(Did::Nothing),
            Received::Bytes(bytes) => {
                shared.event(actor, Event::Received(bytes));
                Ok(Did::Something)
            }
            Received::End | Received::Reset => {
                shared.event(actor, Event::Closed);
                if self.received < self.length {
                    if !shared.model.may_end_tunnel(self.id, shared.scene) {
                        let (id, got, of) = (self.id, self.received, self.length);
                        return Err(format!(
                            "the tunnel of request {id} has ended after {got} bytes of {of}"
                        ));
                    }
                    return Ok(Did::Ended);
                }
                // It may still read.
                self.other_has_closed = true;
                Ok(Did::Something)
            }
        }
    }

    fn take(&mut self, input: &mut Vec<u8>) -> Result<(), String> {
        let is_it =
            self.received + input.len() <= self.length && is_part_of_body(self.tag, self.received, input);
        if !is_it {
            return Err(format!("the tunnel of request {}: other bytes than were sent into it", self.id));
        }
        self.received += input.len();
        input.clear();
        Ok(())
    }
}
