//! `mirror`: copies of requests for another upstream.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::closed::OF_UPSTREAM_REQUESTS;
use super::out::{Lines, line};

/// What the location of a mirror may have: a copy has the fields and the body of its request, and no rules of its own.
const ALLOWED: [&str; 9] = [
    "internal",
    "proxy_pass",
    "proxy_connect_timeout",
    "proxy_send_timeout",
    "proxy_read_timeout",
    "access_log",
    "error_log",
    "log_not_found",
    "log_subrequest",
];

impl<'d> Import<'d> {
    /// Writes the upstream that gets copies of the requests of a proxied location.
    pub(super) fn mirror(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let all = chain.list(&["mirror"]);
        for (at, directive) in all.iter().enumerate().filter(|(_, it)| it.word(0) != "off") {
            let mirrored = match at {
                0 => self.mirrored(directive, chain, lines),
                _ => Err("a request has one copy".to_owned()),
            };
            match mirrored {
                Ok(upstream) => {
                    self.fates.carried(directive);
                    lines.setting(line("mirror", &upstream));
                }
                Err(why) => self.leave(directive, &why, lines),
            }
        }
    }

    /// # Errors
    /// Why copies cannot be sent there.
    fn mirrored(
        &mut self,
        directive: &Directive,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<String, String> {
        if chain.word("mirror_request_body") == "off" {
            return Err("a copy has the body of its request".to_owned());
        }
        if lines.has("rewrite") || lines.has("rewrite-prefix") {
            return Err("a copy has the path that the upstream gets".to_owned());
        }
        let needs = "it needs a location with `proxy_pass http://UPSTREAM$request_uri`";
        let location = super::location::choose(directive.word(0), chain.server()).ok_or(needs)?;
        let inner = chain.at_server().inside(location);
        if let Some(other) = location.inner().iter().find(|it| !ALLOWED.contains(&it.name.as_str())) {
            return Err(format!("a copy has the fields, the body and the rules of its request: {other}"));
        }
        if !chain.server().iter().any(|it| std::ptr::eq(it, location)) {
            return Err("its location is inside another one".to_owned());
        }
        let mut parts =
            OF_UPSTREAM_REQUESTS.iter().flat_map(|name| [inner.find(name), chain.find(name)]).flatten();
        if let Some(fewer) = parts.find(|it| it.word(0) != "on") {
            return Err(format!("a copy has the method, the fields and the body of its request: {fewer}"));
        }
        if fields(chain) != fields(&inner) {
            return Err(
                "a copy has the fields of `proxy_set_header` of its request, such as secrets".to_owned()
            );
        }
        let pass = location.inner().iter().find(|it| it.name == "proxy_pass").ok_or(needs)?;
        let target = pass.word(0).strip_suffix("$request_uri").filter(|rest| !rest.contains('$'));
        let (scheme, authority) = target.and_then(|target| target.split_once("://")).ok_or(needs)?;
        self.upstream(authority, scheme == "https", "proxy", &inner, lines)
            .ok_or_else(|| "its upstream has no servers".to_owned())
    }
}

/// What an upstream gets in place of the client's fields.
fn fields<'d>(chain: &Chain<'d>) -> Vec<Vec<&'d str>> {
    chain.list(&["proxy_set_header"]).into_iter().map(Directive::texts).collect()
}

#[cfg(test)]
mod tests {
    use super::super::written::of_server;

    const PASS: &str = "internal; proxy_pass http://b:2$request_uri;";

    fn server(around: &str, main: &str, copies: &str) -> String {
        of_server(&format!(
            "{around} location / {{ mirror /copy; proxy_pass http://a:1; {main} }} location = /copy {{ {copies} }}"
        ))
    }

    #[test]
    fn copies_go_to_the_upstream_of_a_plain_location() {
        for (around, more) in [
            ("", ""),
            ("", "proxy_read_timeout 5s; access_log off;"),
            ("proxy_set_header X-Key secret;", ""),
            ("proxy_pass_request_headers on;", ""),
        ] {
            let site = server(around, "", &format!("{PASS} {more}"));
            assert!(site.contains("| mirror "), "{around} {more}: {site}");
        }
    }

    #[test]
    fn no_copies_go_where_the_location_changes_or_refuses_them() {
        for more in [
            "proxy_pass_request_headers off;",
            "proxy_pass_request_body off;",
            "proxy_set_header Authorization '';",
            "proxy_method HEAD;",
            "deny all;",
            "if ($arg_a) { return 403; }",
            "limit_req zone=a;",
            "rewrite ^ /x break;",
            "unknown_directive on;",
        ] {
            let site = server("", "", &format!("{PASS} {more}"));
            assert!(!site.contains("| mirror ") && site.contains("not converted: mirror"), "{more}: {site}");
        }
    }

    #[test]
    fn no_copies_have_fields_that_the_mirror_would_not_get() {
        for (around, main) in [
            ("", "proxy_set_header Authorization 'Basic c2VjcmV0';"),
            // The main location does not inherit it.
            ("proxy_set_header Cookie '';", "proxy_set_header X-A b;"),
            ("proxy_pass_request_headers off;", "proxy_pass_request_headers on;"),
            ("", "proxy_set_body secret;"),
        ] {
            let site = server(around, main, PASS);
            assert!(!site.contains("| mirror ") && site.contains("not converted: mirror"), "{main}: {site}");
        }
    }
}
