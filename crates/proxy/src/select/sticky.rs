//! Sticky sessions: a cookie keeps a client at one server.

use flatout_engine::Response;
use flatout_wire::Head;

use crate::plan;
use crate::plan::Balance;
use crate::select::balance::Shares;

/// The value of the request's cookie of this name.
pub(crate) fn cookie<'b>(head: &Head<'b>, name: &str) -> Option<&'b [u8]> {
    head.field_all("Cookie").flat_map(|line| line.split(|&byte| byte == b';')).find_map(|pair| {
        let (this, value) = pair.trim_ascii().split_at_checked(name.len())?;
        (this == name.as_bytes()).then_some(())?;
        value.strip_prefix(b"=")
    })
}

/// The place of the server named by the cookie.
pub(crate) fn server(head: &Head<'_>, name: &str, shares: &Shares) -> Option<usize> {
    let value = cookie(head, name)?;
    let is_it = |at: &usize| shares.server(*at).is_some_and(|server| server.cookie.as_bytes() == value);
    shares.active().iter().copied().find(is_it)
}

/// Sets the cookie in a response.
pub(crate) fn set(plan: &plan::Upstream, shares: &Shares, server: usize, response: &mut Response) {
    if let (Balance::Sticky { cookie }, Some(server)) = (&plan.balance, shares.server(server)) {
        let value = &server.cookie;
        response.header("Set-Cookie", format!("{cookie}={value}; Path=/; HttpOnly; SameSite=Lax"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    #[test]
    fn cookies_are_found() {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: ab=1; a=2\r\nCookie: b=3;c = 4\r\n\r\n";
        let mut fields = Vec::new();
        let head = parse(bytes, &mut fields, &HeadLimits::default()).unwrap().unwrap();
        for (name, value) in [("a", Some(&b"2"[..])), ("ab", Some(b"1")), ("b", Some(b"3")), ("d", None)] {
            assert_eq!(cookie(&head, name), value, "{name}");
        }
    }
}
