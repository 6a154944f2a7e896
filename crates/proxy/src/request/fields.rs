//! Fields of a request by what they are about: which of them are ours, and which a client may not claim.

use flatout_gateway::{Forward, is_alike};
use flatout_wire::Head;

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and those that we write ourselves.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    const NAMES: [&str; 12] = [
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "http2-settings",
        "expect",
        "early-data",
    ];
    // The length alone excludes most names.
    NAMES.iter().any(|ours| ours.len() == name.len() && name.eq_ignore_ascii_case(ours.as_bytes()))
}

pub(crate) fn is_forwarded(name: &[u8]) -> bool {
    (name.len() == 9 && name.eq_ignore_ascii_case(b"forwarded"))
        || (name.len() > 12 && name.get(..12).is_some_and(|start| is_alike(start, b"x-forwarded-")))
}

/// Whether this field of a trusted sender is rewritten.
pub(crate) fn is_rewritten(name: &[u8], forward: &Forward) -> bool {
    match name.len() {
        9 => forward.forwarded,
        _ => {
            forward.x_forwarded
                && ["for", "proto", "host"]
                    .iter()
                    .any(|ours| name.get(12..).is_some_and(|rest| rest.eq_ignore_ascii_case(ours.as_bytes())))
        }
    }
}

/// Whether `name` is one of the options that `Connection` lists.
pub(crate) fn is_nominated(name: &[u8], mut connection: impl Iterator<Item = impl AsRef<[u8]>>) -> bool {
    connection.any(|value| {
        value
            .as_ref()
            .split(|&byte| byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
    })
}

/// Whether `connection`, the value of a `Connection` field, names a field of this request that would otherwise be forwarded.
pub fn withholds(connection: &[u8], head: &Head<'_>) -> bool {
    connection.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).any(|option| {
        let is_usual = option.eq_ignore_ascii_case(b"close") || is_ours(option);
        !is_usual && head.fields().any(|(name, _)| name.eq_ignore_ascii_case(option))
    })
}

/// Applications behind CGI, WSGI and the like cannot tell `X_User` from `X-User`.
pub(crate) fn has_underscore(name: &[u8]) -> bool {
    name.contains(&b'_')
}

pub(crate) fn is_about_body(name: &[u8]) -> bool {
    name.len() > 8 && name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"))
}

/// Whether a field may follow no body (RFC 9110 section 6.5.1).
pub(crate) fn is_never_trailer(name: &[u8]) -> bool {
    const NEVER: [&str; 8] = [
        "authorization",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "host",
        "set-cookie",
        "trailer",
    ];
    NEVER.iter().any(|never| name.eq_ignore_ascii_case(never.as_bytes()))
}
