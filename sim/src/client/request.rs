//! The requests of clients.

use crate::model::Planned;
use crate::model::cache::{PLAIN_RESOURCES, RESOURCES, RequestDirectives};
use crate::scene::routes::{DISTANT, FIXED, MOVED, OLD, OPEN, READ_ONLY};
use crate::scene::ruled::{CHOSEN, HOSTS, Inputs, RULED, SORRY};
use crate::scene::{BODY_MAX_SMALL, DENIED, REFUSED};
use crate::tunnel::Lengths;
use crate::world::Shared;

/// An upload that nobody wants: more than a stream's window at first, or more than the server receives to keep the stream.
const UNWANTED_BYTES_MAX: usize = 70_000;
const UNWANTED_BYTES_KEPT: usize = 256 << 10;
const UNWANTED_BYTES_LONG: usize = 400_000;

/// The first of the numbers by which paths with rules are drawn.
const RULES_FIRST: u8 = 20;

/// Draws a request, of any protocol.
pub(super) fn draw_request(random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Planned {
    let id = shared.next_id();
    // The name in a handshake of TLS is that of the first host.
    let has_hosts = !shared.scene.has_tls;
    let sends_id = random.u8(..3) == 0;
    if shared.scene.shares_resources && random.u8(..4) > 0 {
        let any = random.u8(..RESOURCES);
        let resource = shared.scene.popular.filter(|_| random.u8(..4) > 0).unwrap_or(any);
        let is_plain = resource < PLAIN_RESOURCES;
        let method = match random.u8(..8) {
            0 => "HEAD",
            1 if !is_plain => "DELETE",
            _ => "GET",
        };
        let mut asks = RequestDirectives::draw(random, is_plain, shared.model.etag(resource));
        asks.no_cache |= shared.scene.insists && random.bool();
        return Planned {
            id,
            named: id,
            method,
            path: OPEN,
            host: HOSTS[0],
            body_length: 0,
            resource: Some(resource),
            asks,
            sends_id,
            response_bytes_max: usize::MAX,
            tunnel: None,
            address: None,
        };
    }
    let methods = match shared.scene.has_many_uploads {
        true => ["GET", "POST", "PUT", "POST", "POST", "PUT", "DELETE"],
        false => ["GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE"],
    };
    let method = *random.choice(&methods).expect("some");
    let first = if shared.scene.has_many_rules && random.u8(..4) > 0 { RULES_FIRST } else { 0 };
    let path = match random.u8(first..25) {
        0 | 1 => DENIED,
        2 | 3 => REFUSED,
        4 => OLD,
        5 => FIXED,
        6 => MOVED,
        7 => READ_ONLY,
        8 => DISTANT,
        RULES_FIRST..23 => RULED,
        23 => CHOSEN,
        24 if random.u8(..4) == 0 => SORRY,
        _ => OPEN,
    };
    let path = match path {
        RULED | CHOSEN | SORRY if !shared.scene.has_rules => OPEN,
        path => path,
    };
    let asks_first = path == RULED && Inputs::of(id).origin.is_some() && random.u8(..6) == 0;
    let method = if asks_first { "OPTIONS" } else { method };
    let host = if path == CHOSEN && has_hosts { HOSTS[id as usize % HOSTS.len()] } else { HOSTS[0] };
    let body_length = match method {
        "GET" | "HEAD" | "DELETE" | "OPTIONS" => 0,
        // Exactly as much as the smaller limit allows.
        _ if random.u8(..6) == 0 => BODY_MAX_SMALL,
        _ => shared.scene.draw_length(random),
    };
    Planned {
        id,
        named: id,
        method,
        path,
        host,
        body_length,
        resource: None,
        asks: RequestDirectives::default(),
        sends_id,
        response_bytes_max: usize::MAX,
        tunnel: None,
        address: None,
    }
}

/// Draws requests whose heads are the same, byte for byte, as those of a program that polls.
pub(super) fn draw_repeated(
    count: usize,
    random: &mut fastrand::Rng,
    shared: &mut Shared<'_>,
) -> Vec<Planned> {
    let named = shared.next_id();
    let asks = RequestDirectives { language: random.u8(..2), ..RequestDirectives::default() };
    let first = Planned {
        id: named,
        named,
        method: "GET",
        path: OPEN,
        host: HOSTS[0],
        body_length: 0,
        resource: Some(random.u8(..RESOURCES)),
        asks,
        sends_id: false,
        response_bytes_max: usize::MAX,
        tunnel: None,
        address: None,
    };
    let others = (1..count).map(|_| Planned { id: shared.next_id(), ..first.clone() });
    std::iter::once(first.clone()).chain(others).collect()
}

/// Draws a request for a tunnel.
pub(super) fn draw_tunnel(random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Planned {
    let planned = draw_request(random, shared);
    let length = |random: &mut fastrand::Rng| match random.u8(..3) {
        0 => 0,
        1 => random.usize(1..=2_000),
        _ => random.usize(1..=300_000),
    };
    let lengths = Lengths { of_client: length(random), of_upstream: length(random) };
    Planned {
        method: "GET",
        path: if planned.has_inputs() { OPEN } else { planned.path },
        host: HOSTS[0],
        body_length: 0,
        resource: None,
        asks: RequestDirectives::default(),
        tunnel: Some(lengths),
        ..planned
    }
}

/// Draws an upload that nobody wants, or a request of any kind.
pub(super) fn draw_unwanted(random: &mut fastrand::Rng, shared: &mut Shared<'_>) -> Planned {
    let planned = draw_request(random, shared);
    if random.u8(..4) == 0 {
        return planned;
    }
    let body_length = match random.u8(..4) {
        0 => random.usize(UNWANTED_BYTES_KEPT..=UNWANTED_BYTES_LONG),
        _ => random.usize(20_000..=UNWANTED_BYTES_MAX),
    };
    Planned {
        method: "POST",
        path: DENIED,
        host: HOSTS[0],
        body_length,
        resource: None,
        asks: RequestDirectives::default(),
        ..planned
    }
}
