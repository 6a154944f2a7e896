//! What upstreams respond.

use super::{Arrived, Behaviour, Fault, TRICKLE_BYTES_MIN};
use crate::message::{Framing, body};
use crate::model::cache::{PLAIN_RESOURCES, ResponseDirectives, TAGS, tag_name};
use crate::model::{End, Sent as SentResponse};
use crate::trace::{Actor, Event};
use crate::world::Shared;

/// A response that was drawn, of any protocol.
pub(super) struct Made {
    pub(super) is_after_interim: bool,
    pub(super) status: u16,
    /// Its fields, as lines.
    pub(super) lines: String,
    /// The connection ends with it.
    pub(super) closes: bool,
    pub(super) framing: Framing,
    /// `None`: its request or status allows none.
    pub(super) body: Option<&'static [u8]>,
}

impl Made {
    /// Whether it has so many bytes that it may trickle.
    pub(super) fn is_long(&self) -> bool {
        self.body.is_some_and(|body| body.len() >= TRICKLE_BYTES_MIN)
    }
}

/// The response to a client's request. `ends_at_close`: it is one whose end may be that of its connection.
pub(super) fn application(
    arrived: &Arrived,
    behaviour: Behaviour,
    ends_at_close: bool,
    random: &mut fastrand::Rng,
    shared: &mut Shared<'_>,
    actor: Actor,
) -> Made {
    let Some(planned) = &arrived.planned else { return authorization(arrived, behaviour) };
    let confirmed = arrived.etag.as_ref().filter(|_| planned.resource.is_some() && random.bool());
    let is_plain = planned.resource.is_some_and(|resource| resource < PLAIN_RESOURCES);
    let status = match (planned.resource, confirmed) {
        (_, Some(_)) => 304,
        (Some(_), None) if is_plain => 200,
        (Some(_), None) => *random.choice(&[200, 200, 200, 200, 200, 201, 204, 404, 500]).expect("some"),
        (None, None) => *random.choice(&[200, 200, 200, 201, 204, 304, 404, 500]).expect("some"),
    };
    let drawn = ResponseDirectives::draw(random, planned);
    // The cookie of a 304 would be its client's only.
    let says = ResponseDirectives { sets_cookie: drawn.sets_cookie && confirmed.is_none(), ..drawn };
    let body_length = match behaviour.trickles {
        true => random.usize(TRICKLE_BYTES_MIN..=2 * TRICKLE_BYTES_MIN),
        false => shared.scene.draw_length(random).min(planned.response_bytes_max),
    };
    let framing = match random.u8(..3) {
        0 => Framing::Chunked,
        1 if behaviour.closes => Framing::Close,
        _ => Framing::Length(body_length),
    };
    let has_body = planned.method != "HEAD" && !matches!(status, 204 | 304);
    let body_tag = random.u32(..);
    let end = match behaviour.fault {
        Some(Fault::HalfResponse) if ends_at_close && framing == Framing::Close => End::Unknown,
        Some(Fault::HalfResponse) => End::Cut,
        _ => End::Whole(body_length),
    };
    let name = shared.model.respond(
        planned.id,
        SentResponse { status, body_tag, end, says: says.clone(), responded: shared.moment() },
    );
    shared.event(actor, Event::Responds(planned.id, status));
    let field = if confirmed.is_some() { "X-Confirmed" } else { "X-Sent" };
    let mut lines = format!("{field}: {name}\r\nX-Powered-By: yes\r\nContent-Type: text/plain\r\n");
    if planned.id % 2 == 0 {
        lines += "X-Served-By: application\r\n";
    }
    if planned.has_inputs() {
        let id = planned.id;
        lines += &format!("Set-Cookie: session={id}; Path=/app/x; Domain=application.test\r\n");
        if status == 201 {
            lines += &format!("Location: http://application.test/{id}\r\n");
        }
    }
    if let Some(resource) = planned.resource {
        let etag = confirmed.unwrap_or(&name);
        // In one field or the other, among others.
        lines += &match resource % 2 {
            0 => format!("Cache-Tag: all,{}\r\n", tag_name(resource % TAGS)),
            _ => format!("Surrogate-Key: {} all\r\n", tag_name(resource % TAGS)),
        };
        lines += &format!("ETag: \"{etag}\"\r\n{}", says.lines());
    }
    Made {
        is_after_interim: behaviour.interim,
        status,
        lines,
        closes: behaviour.closes,
        framing,
        body: has_body.then(|| body(body_tag, body_length)),
    }
}

/// The response of the authorization service.
pub(super) fn authorization(arrived: &Arrived, behaviour: Behaviour) -> Made {
    let (status, text) = if arrived.allows { (200, "") } else { (403, "refused") };
    Made {
        is_after_interim: false,
        status,
        lines: String::new(),
        closes: behaviour.closes,
        framing: Framing::Length(text.len()),
        body: Some(text.as_bytes()),
    }
}
