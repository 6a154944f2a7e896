//! A TLS connection that the server passes on without decrypting it. The server reads only the host name in the first record.

use super::request::draw_tunnel;
use crate::model::Planned;
use crate::secure;
use crate::socket::{Did, Socket};
use crate::trace::{Actor, Event};
use crate::tunnel::Tunnel;
use crate::world::Shared;

/// The length of the connection's number, which follows the first record. The upstream identifies the connection by it.
pub(crate) const NUMBER_BYTES: usize = 4;

pub(super) struct Connection {
    socket: Socket,
    planned: Planned,
    tunnel: Tunnel,
    input: Vec<u8>,
    has_begun: bool,
    opened_ns: u64,
}

impl Connection {
    pub(super) fn new(socket: Socket, random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Connection {
        let planned = draw_tunnel(random, shared);
        shared.model.plan(planned.clone());
        let mut first = secure::first_record();
        first.extend_from_slice(&planned.id.to_be_bytes());
        shared.model.pass_on(planned.id, first.clone());
        let tunnel = Tunnel::of_client(&planned, random, shared.scene.clients_fail).expect("a tunnel");
        let (input, opened_ns) = (Vec::new(), shared.now_ns);
        Connection { socket, planned, tunnel: tunnel.behind(first), input, has_begun: false, opened_ns }
    }

    /// What the client waits for, for error messages.
    pub(super) fn waits_for(&self) -> String {
        format!("the end of connection {} that is passed on", self.planned.id)
    }

    pub(super) fn step(
        &mut self,
        random: &mut fastrand::Rng,
        shared: &mut Shared<'_>,
        actor: Actor,
        wakes_at_ns: &mut u64,
    ) -> Result<Did, String> {
        if !std::mem::replace(&mut self.has_begun, true) {
            shared.event(actor, Event::Request(self.planned.id, "TLS that is passed on".to_owned()));
        }
        // A draining server does not wait for the first record of a connection.
        if shared.may_be_of_former(self.opened_ns) && !shared.model.is_passed_on(self.planned.id) {
            shared.model.break_tunnel(self.planned.id);
        }
        self.tunnel.step(&mut self.socket, &mut self.input, random, shared, actor, wakes_at_ns)
    }
}
