//! The upstream's end of a TLS connection that the server passed on. All bytes must be those that the client sent, including the first record.

use super::{PAUSE_MS_MAX, is_pausing};
use crate::client::NUMBER_BYTES;
use crate::socket::{Did, Received, Socket};
use crate::trace::{Actor, Event};
use crate::tunnel::Tunnel;
use crate::world::Shared;

/// The type, version and length of a TLS record.
const RECORD_HEAD_BYTES: usize = 5;

pub(super) struct Connection {
    socket: Socket,
    actor: Actor,
    input: Vec<u8>,
    /// `None` until the connection's number has arrived.
    tunnel: Option<Tunnel>,
    wakes_at_ns: u64,
}

impl Connection {
    pub(super) fn new(socket: Socket, actor: Actor) -> Connection {
        Connection { socket, actor, input: Vec::new(), tunnel: None, wakes_at_ns: 0 }
    }

    /// When it goes on by itself; 0 if it waits for its peer.
    pub(super) fn wakes_at_ns(&self) -> u64 {
        self.wakes_at_ns
    }

    pub(super) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
    ) -> Result<Did, String> {
        if is_pausing(&mut self.wakes_at_ns, shared) {
            return Ok(Did::Nothing);
        }
        if let Some(tunnel) = &mut self.tunnel {
            let (input, wakes_at_ns) = (&mut self.input, &mut self.wakes_at_ns);
            return tunnel.step(&mut self.socket, input, random, shared, self.actor, wakes_at_ns);
        }
        if random.u8(..24) == 0 {
            let pause_ms = random.u64(1..=PAUSE_MS_MAX);
            self.wakes_at_ns = shared.pause(self.actor, pause_ms);
            return Ok(Did::Something);
        }
        let most = self.socket.draw_room(random);
        match self.socket.receive(&mut self.input, most) {
            Received::Nothing => return Ok(Did::Nothing),
            Received::Bytes(bytes) => shared.event(self.actor, Event::Received(bytes)),
            Received::End | Received::Reset => {
                shared.event(self.actor, Event::Closed);
                return Ok(Did::Ended);
            }
        }
        self.begin(random, shared)?;
        Ok(Did::Something)
    }

    fn begin(&mut self, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Result<(), String> {
        let Some([_, _, _, high, low]) = self.input.first_chunk::<RECORD_HEAD_BYTES>() else { return Ok(()) };
        let record = RECORD_HEAD_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
        let Some(number) = self.input.get(record..record + NUMBER_BYTES) else { return Ok(()) };
        let id = number.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let first: Vec<u8> = self.input.drain(..record + NUMBER_BYTES).collect();
        let planned = shared.model.passed_on(id, &first)?;
        shared.event(self.actor, Event::SeenHead(id));
        self.tunnel = Tunnel::of_upstream(&planned, random, shared.scene.upstreams_fail);
        Ok(())
    }
}
