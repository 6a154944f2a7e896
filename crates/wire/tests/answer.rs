//! Response heads against a second parser: httparse parses everything that is accepted here in the same way.

use flatout_wire::answer::{self, ResponseFraming};
use proptest::prelude::*;

const LIMIT: usize = 4 << 10;

/// Text that resembles a head: valid, odd, and broken ones.
fn head() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("HTTP/1.1 200 OK\r\n".to_owned()),
        Just("HTTP/1.0 404 Not Found\r\n".to_owned()),
        (0u16..1200).prop_map(|code| format!("HTTP/1.1 {code}\r\n")),
        "HTTP/1\\.[019] [0-9]{3} [ -~]{0,9}\r\n",
    ];
    let field = prop_oneof![
        (0u64..99).prop_map(|length| format!("Content-Length: {length}\r\n")),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
        Just("Connection: close\r\n".to_owned()),
        "[A-Za-z-]{1,9}:[ \t]{0,2}[ -~]{0,20}\r\n",
        "[ -~]{0,5}[:\r\n]{0,2}",
    ];
    (line, prop::collection::vec(field, 0..6), "[a-z]{0,9}")
        .prop_map(|(line, fields, behind)| format!("{line}{}\r\n{behind}", fields.concat()))
}

proptest! {
    #[test]
    fn accepted_responses_agree_with_the_oracle(text in head()) {
        let Ok(Some(found)) = answer::parse(text.as_bytes(), false, LIMIT) else { return Ok(()) };
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut other = httparse::Response::new(&mut fields);
        prop_assert_eq!(other.parse(text.as_bytes()), Ok(httparse::Status::Complete(found.head_bytes)));
        prop_assert_eq!(other.code, Some(found.status.code()));
        let length = other.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
        if let (ResponseFraming::Length(bytes), Some(length), false) = (found.framing, length, found.status.is_bodyless()) {
            prop_assert_eq!(bytes.to_string(), String::from_utf8_lossy(length.value).into_owned());
        }
    }

    #[test]
    fn pieces_and_noise_never_change_the_answer(text in head(), noise in any::<Vec<u8>>()) {
        let whole = answer::parse(text.as_bytes(), false, LIMIT);
        for end in 0..text.len() {
            match answer::parse(&text.as_bytes()[..end], false, LIMIT) {
                Ok(None) => {}
                told => prop_assert_eq!(told, whole, "told of {} bytes", end),
            }
        }
        let _ = answer::parse(&noise, true, LIMIT);
    }
}
