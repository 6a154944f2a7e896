//! Requests to upgrade a connection to another protocol.

use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_gateway::{Forward, Forwarded};
use flatout_wire::field::write_line;
use flatout_wire::websocket::{KEY_BYTES, accept_key};
use flatout_wire::{Framing, Head};

use super::fields::is_nominated;

/// The field that proves that a WebSocket was meant.
const KEY: &str = "Sec-WebSocket-Key";

pub(crate) fn is_key(name: &[u8]) -> bool {
    name.len() == KEY.len() && name.eq_ignore_ascii_case(KEY.as_bytes())
}

/// The protocols that a client asks to upgrade to and that may be forwarded, as a value of `Upgrade`. Never with a body: it
/// would be unclear where it ends. Never for a response that may be stored, because it could go to another client.
pub(crate) fn upgrade(head: &Head<'_>, what: &Forwarded<'_>) -> Option<Vec<u8>> {
    let allowed = &what.forward.upgrade;
    let may_have_body = head.framing != Framing::None || what.edits.replaces_body;
    let asks = is_nominated(b"upgrade", head.field_all("Connection"));
    if !asks || allowed.is_empty() || may_have_body || what.caching.is_some() {
        return None;
    }
    let asked = head.field_all("Upgrade").flat_map(|value| value.split(|&byte| byte == b','));
    let is_any = allowed.iter().any(|it| it == Forward::ANY_UPGRADE);
    let is_allowed = |protocol: &&[u8]| match is_any {
        true => is_protocol_name(protocol) && !carries_requests(protocol),
        false => allowed.iter().any(|it| protocol.eq_ignore_ascii_case(it.as_bytes())),
    };
    let protocols: Vec<&[u8]> = asked.map(<[u8]>::trim_ascii).filter(is_allowed).collect();
    (!protocols.is_empty()).then(|| protocols.join(&b", "[..]))
}

/// Whether requests could be sent in a tunnel of this protocol: they would get past all rules.
pub fn carries_requests(protocol: &[u8]) -> bool {
    let begins = |start: &&[u8]| protocol.get(..start.len()).is_some_and(|it| it.eq_ignore_ascii_case(start));
    [&b"h2"[..], b"http", b"tls"].iter().any(begins)
}

/// Whether this is the name of a protocol, perhaps with its version.
pub fn is_protocol_name(protocol: &[u8]) -> bool {
    let is_name = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-._/+".contains(&byte);
    !protocol.is_empty() && protocol.iter().all(is_name)
}

/// Whether an upstream that switches protocols has chosen some that the request, whose written head this is, asked for.
pub(crate) fn was_asked<'a>(written: &[u8], chosen: impl Iterator<Item = &'a [u8]>) -> bool {
    // The client's own field is never forwarded, and no rule can write one.
    let line = written.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(UPGRADE));
    let asked = || line.unwrap_or_default().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let mut chosen =
        chosen.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii).peekable();
    chosen.peek().is_some() && chosen.all(|this| asked().any(|asked| this.eq_ignore_ascii_case(asked)))
}

/// The beginning of the line in which we ask for an upgrade.
pub(crate) const UPGRADE: &[u8] = b"Upgrade: ";

/// Writes a `Sec-WebSocket-Key` for the upstream. Returns the `Sec-WebSocket-Accept` that a WebSocket server
/// responds with.
pub(crate) fn write_key(out: &mut Vec<u8>) -> String {
    let random = RandomState::new();
    let halves = [random.hash_one(0), random.hash_one(1)].map(u64::to_be_bytes);
    let key = STANDARD.encode(halves.concat());
    debug_assert_eq!(key.len(), KEY_BYTES);
    write_line(KEY.as_bytes(), key.as_bytes(), out);
    accept_key(key.as_bytes())
}
