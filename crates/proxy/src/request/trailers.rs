//! The trailer fields of requests.

use flatout_gateway::{Forwarded, is_alike};
use flatout_wire::Head;
use flatout_wire::field::write_line;

use super::fields::{is_about_body, is_forwarded, is_never_trailer, is_nominated, is_ours};

/// The trailer fields that may follow a request: those of the route that no rule has removed or set, that are not ours,
/// and that the client has not kept for its connection.
pub(crate) fn passed_trailers(head: &Head<'_>, what: &Forwarded<'_>) -> Vec<String> {
    let is_set = |name: &[u8]| {
        let lines = what.edits.lines.split(|&byte| byte == b'\n');
        let mut names = lines.filter_map(|line| line.split(|&byte| byte == b':').next());
        names.any(|set| is_alike(name, &set.to_ascii_lowercase()))
    };
    let is_passed = |name: &&String| {
        let name = name.as_bytes();
        may_be_trailer(name)
            && !what.edits.drops(name)
            && !is_set(name)
            && !is_nominated(name, head.field_all("Connection"))
    };
    what.forward.request_trailers.iter().filter(is_passed).cloned().collect()
}

/// Whether a field may follow the body of a request: it does not frame or route the request, nor say who sends it, how it
/// is to be handled or what its body is (RFC 9110 section 6.5.1).
pub fn may_be_trailer(name: &[u8]) -> bool {
    const NEVER: [&str; 8] = [
        "cookie",
        "range",
        "max-forwards",
        "pragma",
        "via",
        "x-real-ip",
        "x-http-method-override",
        "trailer",
    ];
    let is_never = NEVER.iter().any(|never| is_alike(name, never.as_bytes()));
    let is_condition = name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"if-"));
    !is_never
        && !is_condition
        && !is_ours(name)
        && !is_forwarded(name)
        && !is_about_body(name)
        && !is_never_trailer(name)
}

/// The lines of the trailer fields of a request that are passed on.
pub(crate) fn request_trailers(trailers: &[(Vec<u8>, Vec<u8>)], passed: &[String]) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in trailers {
        if passed.iter().any(|passed| name.eq_ignore_ascii_case(passed.as_bytes())) {
            write_line(name, value, &mut lines);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_frame_route_or_describe_a_request_are_no_trailers() {
        for name in [
            "host",
            "Content-Length",
            "transfer-encoding",
            "content-type",
            "Connection",
            "te",
            "trailer",
            "expect",
            "authorization",
            "cookie",
            "x-forwarded-for",
            "X_Forwarded_Host",
            "forwarded",
            "x-real-ip",
            "early-data",
            "if-match",
            "range",
            "upgrade",
            "via",
            "cache-control",
        ] {
            assert!(!may_be_trailer(name.as_bytes()), "{name}");
        }
        assert!(may_be_trailer(b"x-checksum") && may_be_trailer(b"grpc-status"));
    }
}
