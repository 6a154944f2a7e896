//! Parses messages the slow way: find the end, split into lines, check each.
//!
//! An incomplete message is open: these functions do not decide whether it is already invalid.

/// The result of parsing the start of some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read<T> {
    /// The value, and its length in bytes.
    Whole(T, usize),
    /// It is incomplete, or already invalid.
    Open,
    Faulty,
}

/// How a body is delimited, according to its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delimited {
    /// Neither Content-Length nor Transfer-Encoding.
    NotAtAll,
    Length(u64),
    Chunked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) is_11: bool,
    pub(crate) body: Delimited,
    pub(crate) keep_alive: bool,
    pub(crate) expects: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) code: u16,
    pub(crate) body: Delimited,
    pub(crate) keep_alive: bool,
}

pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// Limits of a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) head: usize,
    pub(crate) target: usize,
    pub(crate) fields: usize,
}

/// The head of a request at the start of `input`.
pub(crate) fn request(input: &[u8], limits: Limits) -> Read<Request> {
    let mut start = 0;
    while input[start..].starts_with(b"\r\n") {
        start += 2;
    }
    if start > 4 {
        return Read::Faulty;
    }
    let Some(end) = find(&input[start..], b"\r\n\r\n") else {
        return if input.len() >= limits.head { Read::Faulty } else { Read::Open };
    };
    let bytes = start + end + 4;
    match request_of(&input[start..start + end], limits) {
        Some(request) if bytes <= limits.head => Read::Whole(request, bytes),
        _ => Read::Faulty,
    }
}

fn request_of(head: &[u8], limits: Limits) -> Option<Request> {
    let lines = lines(head);
    let [method, target, version] = lines[0].split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    if !is_token(method) || !is_target(method, target) || target.len() > limits.target {
        return None;
    }
    let is_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let fields = fields(&lines[1..])?;
    if fields.len() > limits.fields {
        return None;
    }
    let hosts = values(&fields, "host");
    if hosts.len() > 1 || (is_11 && hosts.is_empty()) || !hosts.iter().all(|host| is_authority(host)) {
        return None;
    }
    let expected = values(&fields, "expect");
    if !expected.iter().all(|value| value.eq_ignore_ascii_case(b"100-continue")) {
        return None;
    }
    let body = delimited(&fields)?;
    if body == Delimited::Chunked && !is_11 {
        return None;
    }
    let has_body = !matches!(body, Delimited::NotAtAll | Delimited::Length(0));
    Some(Request {
        method: method.to_vec(),
        target: target.to_vec(),
        is_11,
        body,
        keep_alive: keeps(&fields, is_11),
        expects: !expected.is_empty() && is_11 && has_body,
    })
}

/// The head of a response at the start of `input`.
pub(crate) fn response(input: &[u8], head_max: usize) -> Read<Response> {
    let Some(end) = find(input, b"\r\n\r\n") else {
        return if input.len() >= head_max { Read::Faulty } else { Read::Open };
    };
    match response_of(&input[..end]) {
        Some(response) if end + 4 <= head_max => Read::Whole(response, end + 4),
        _ => Read::Faulty,
    }
}

fn response_of(head: &[u8]) -> Option<Response> {
    let lines = lines(head);
    let line = lines[0];
    let is_11 = line.starts_with(b"HTTP/1.1 ");
    if !is_11 && !line.starts_with(b"HTTP/1.0 ") {
        return None;
    }
    let code = line.get(9..12).filter(|code| code.iter().all(u8::is_ascii_digit))?;
    let code: u16 = String::from_utf8(code.to_vec()).ok()?.parse().ok()?;
    let reason = &line[12..];
    if code < 100 || !(reason.is_empty() || reason[0] == b' ') || !is_value(reason) {
        return None;
    }
    let fields = fields(&lines[1..])?;
    let body = delimited(&fields)?;
    let keep_alive = keeps(&fields, is_11) && (is_11 || body != Delimited::Chunked);
    Some(Response { code, body, keep_alive })
}

/// A chunked body at the start of `input`: its data so far, and if it is complete, its trailer fields.
pub(crate) fn chunked(input: &[u8]) -> (Vec<u8>, Read<Vec<Field>>) {
    let (mut data, mut rest, mut surplus) = (Vec::new(), input, 0);
    loop {
        let Some(end) = find(rest, b"\r\n") else { return (data, Read::Open) };
        let line = &rest[..end];
        rest = &rest[end + 2..];
        let digits = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
        let (digits, extensions) = line.split_at(digits);
        surplus += extensions.len();
        let size =
            String::from_utf8(digits.to_vec()).ok().and_then(|digits| u64::from_str_radix(&digits, 16).ok());
        let is_good = (1..=16).contains(&digits.len())
            && digits.iter().all(u8::is_ascii_hexdigit)
            && extensions.len() <= 256
            && surplus <= 16 << 10
            && extensions_are_good(extensions);
        let Some(size) = size.filter(|size| is_good && *size <= 1 << 63) else { return (data, Read::Faulty) };
        if size == 0 {
            break;
        }
        let here = rest.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        data.extend(&rest[..here]);
        surplus = surplus.saturating_sub(here);
        rest = &rest[here..];
        match rest {
            [] | [b'\r'] => return (data, Read::Open),
            [b'\r', b'\n', ..] => rest = &rest[2..],
            _ => return (data, Read::Faulty),
        }
    }
    let (mut trailers, mut bytes) = (Vec::new(), 0);
    loop {
        let Some(end) = find(rest, b"\r\n") else { return (data, Read::Open) };
        let line = &rest[..end];
        rest = &rest[end + 2..];
        if line.is_empty() {
            return (data, Read::Whole(trailers, input.len() - rest.len()));
        }
        bytes += line.len() + 1;
        match field(line) {
            Some(field) if bytes <= 4096 && trailers.len() < 32 && !is_forbidden(&field.0) => {
                trailers.push(field)
            }
            _ => return (data, Read::Faulty),
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|here| here == part)
}

fn lines(mut head: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while let Some(end) = find(head, b"\r\n") {
        lines.push(&head[..end]);
        head = &head[end + 2..];
    }
    lines.push(head);
    lines
}

fn fields(lines: &[&[u8]]) -> Option<Vec<Field>> {
    lines.iter().map(|line| field(line)).collect()
}

fn field(line: &[u8]) -> Option<Field> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    (is_token(name) && is_value(value)).then(|| (name.to_vec(), value.trim_ascii().to_vec()))
}

fn values<'f>(fields: &'f [Field], name: &str) -> Vec<&'f [u8]> {
    let named = fields.iter().filter(|(this, _)| this.eq_ignore_ascii_case(name.as_bytes()));
    named.map(|(_, value)| &value[..]).collect()
}

fn delimited(fields: &[Field]) -> Option<Delimited> {
    match (&values(fields, "content-length")[..], &values(fields, "transfer-encoding")[..]) {
        ([], []) => Some(Delimited::NotAtAll),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Some(Delimited::Chunked),
        ([length], []) if length.iter().all(u8::is_ascii_digit) => {
            let length: u64 = String::from_utf8(length.to_vec()).ok()?.parse().ok()?;
            (length <= 1 << 63).then_some(Delimited::Length(length))
        }
        _ => None,
    }
}

fn keeps(fields: &[Field], is_11: bool) -> bool {
    let values = values(fields, "connection");
    let has = |option: &str| {
        let mut options = values.iter().flat_map(|value| value.split(|byte| *byte == b','));
        options.any(|this| this.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
    };
    !has("close") && (is_11 || has("keep-alive"))
}

fn is_token(text: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_good)
}

fn is_value(text: &[u8]) -> bool {
    text.iter().all(|byte| (*byte >= b' ' || *byte == b'\t') && *byte != 0x7f)
}

fn is_target(method: &[u8], target: &[u8]) -> bool {
    let is_escape = |(at, _): (usize, &u8)| {
        target.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let mut escapes = target.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    if !target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') || !escapes.all(is_escape) {
        return false;
    }
    if method == b"CONNECT" {
        return is_authority(target);
    }
    let lower = target.to_ascii_lowercase();
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| lower.starts_with(scheme));
    match scheme {
        Some(scheme) => {
            let authority = target[scheme.len()..].split(|byte| matches!(byte, b'/' | b'?')).next();
            authority.is_some_and(is_authority)
        }
        None => target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS"),
    }
}

fn is_authority(text: &[u8]) -> bool {
    let (host, port) = match text.iter().rposition(|byte| *byte == b':') {
        // Inside brackets, colons belong to the address.
        Some(at) if !text[at..].contains(&b']') => (&text[..at], &text[at + 1..]),
        _ => (text, &b""[..]),
    };
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte);
    let is_host = match host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")) {
        Some(address) => String::from_utf8_lossy(address).parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let has_labels = !host.is_empty() && !host.starts_with(b".") && !host.ends_with(b"..");
            has_labels && host.iter().all(is_name_byte)
        }
    };
    let is_digits = port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    let number = String::from_utf8_lossy(port).parse::<u32>().unwrap_or(0);
    is_host && is_digits && number <= 65535
}

fn extensions_are_good(text: &[u8]) -> bool {
    let Some(text) = text.strip_prefix(b";") else { return text.is_empty() };
    let token_end = |text: &[u8]| text.iter().position(|byte| !is_token(&[*byte])).unwrap_or(text.len());
    let (name, rest) = text.split_at(token_end(text));
    if name.is_empty() {
        return false;
    }
    let Some(value) = rest.strip_prefix(b"=") else { return extensions_are_good(rest) };
    let Some(mut quoted) = value.strip_prefix(b"\"") else {
        let (value, rest) = value.split_at(token_end(value));
        return !value.is_empty() && extensions_are_good(rest);
    };
    loop {
        match quoted {
            [b'"', rest @ ..] => return extensions_are_good(rest),
            [b'\\', byte, rest @ ..] if is_value(&[*byte]) => quoted = rest,
            [byte, rest @ ..] if *byte != b'\\' && is_value(&[*byte]) => quoted = rest,
            _ => return false,
        }
    }
}

/// Fields that must not be trailers (RFC 9110 section 6.5.1).
fn is_forbidden(name: &[u8]) -> bool {
    "age authorization cache-control connection content-encoding content-length content-range content-type cookie date \
     expect expires host if-match if-modified-since if-none-match if-range if-unmodified-since keep-alive location \
     max-forwards pragma proxy-authenticate proxy-authorization proxy-connection range retry-after set-cookie te trailer \
     transfer-encoding upgrade vary via www-authenticate x-forwarded-for x-forwarded-host"
        .split_whitespace()
        .any(|forbidden| name.eq_ignore_ascii_case(forbidden.as_bytes()))
}
