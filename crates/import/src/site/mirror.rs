//! `mirror`: copies of requests for another upstream.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::closed::OF_UPSTREAM_REQUESTS;
use super::out::{Lines, line, option};

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

/// Copies of one request.
const COPIES_MAX: usize = 8;

impl<'d> Import<'d> {
    /// Writes the upstreams that get copies of the requests of a proxied location.
    pub(super) fn mirror(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let all = chain.list(&["mirror"]);
        for (at, directive) in all.into_iter().enumerate().filter(|(_, it)| it.word(0) != "off") {
            let mirrored = match at {
                ..COPIES_MAX => self.mirrored(directive, chain, lines),
                _ => Err(format!("a request has at most {COPIES_MAX} copies")),
            };
            match mirrored {
                Ok(copies) => {
                    self.fates.carried(directive);
                    copies.into_iter().for_each(|copy| lines.setting(copy));
                }
                Err(why) => self.leave(directive, &why, lines),
            }
        }
    }

    /// The settings for copies: one, or one for each share of requests that has an upstream.
    ///
    /// # Errors
    /// Why copies cannot be sent there.
    fn mirrored(
        &mut self,
        directive: &Directive,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<Vec<String>, String> {
        if chain.word("mirror_request_body") == "off" {
            return Err("a copy has the body of its request".to_owned());
        }
        if lines.has("rewrite") || lines.has("rewrite-prefix") {
            return Err("a copy has the path that the upstream gets".to_owned());
        }
        let needs = "it needs a location with `proxy_pass http://UPSTREAM$request_uri`";
        let location = super::location::choose(directive.word(0), chain.server()).ok_or(needs)?;
        let inner = chain.at_server().inside(location);
        let pass = location.inner().iter().find(|it| it.name == "proxy_pass").ok_or(needs)?;
        let target = pass.word(0).strip_suffix("$request_uri").ok_or(needs)?;
        let (scheme, authority) = target.split_once("://").ok_or(needs)?;
        let shares = shares(authority, chain);
        let is_allowed = |it: &&Directive| {
            ALLOWED.contains(&it.name.as_str()) || shares.is_some() && is_for_no_upstream(it, authority)
        };
        if let Some(other) = location.inner().iter().find(|it| !is_allowed(it)) {
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
        if shares.is_none() && authority.contains('$') {
            return Err(needs.to_owned());
        }
        let shares = shares.unwrap_or_else(|| vec![(authority, "")]);
        let mut copies = Vec::new();
        for (authority, share) in shares {
            let upstream = self.upstream(authority, scheme == "https", "proxy", &inner, lines);
            let upstream = upstream.ok_or("its upstream has no servers")?;
            copies.push(format!("{}{}", line("mirror", &upstream), option("share", share)));
        }
        Ok(copies)
    }
}

/// The upstreams that a variable of `split_clients` names, and their shares of requests; `None` if it is none. The other requests have none.
fn shares<'d>(authority: &str, chain: &Chain<'d>) -> Option<Vec<(&'d str, &'d str)>> {
    let is_it = |it: &&Directive| it.name == "split_clients" && it.word(1) == authority;
    let http = chain.at_server().outer().own();
    let table = http.iter().rfind(is_it)?;
    let mut shares = Vec::new();
    for case in table.inner() {
        match (case.word(0), case.name.as_str()) {
            ("", _) => {}
            (upstream, _) if upstream.contains('$') => return None,
            (upstream, "*") if table.inner().len() == 1 => shares.push((upstream, "")),
            // What is left of several shares is not said.
            (_, "*") => return None,
            (upstream, share) => shares.push((upstream, share)),
        }
    }
    (!shares.is_empty() && shares.len() <= COPIES_MAX).then_some(shares)
}

/// Whether an `if` refuses copies for which the variable names no upstream.
fn is_for_no_upstream(directive: &Directive, variable: &str) -> bool {
    let condition: String = directive.texts().concat();
    let only_returns = || directive.inner().iter().all(|it| it.name == "return");
    directive.name == "if" && condition == format!("({variable}=)") && only_returns()
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
    fn a_request_may_have_several_copies() {
        let copies = "internal; proxy_pass http://b:2$request_uri; } location = /other { internal; proxy_pass http://c:3$request_uri;";
        let site = server("", "mirror /other;", copies);
        for upstream in ["b:2", "c:3"] {
            assert!(site.contains(&format!("| mirror \"http://{upstream}\" |")), "{site}");
        }
        // One that is not converted leaves the others.
        let site = server(
            "",
            "mirror /other;",
            &copies.replace("internal; proxy_pass http://c", "deny all; proxy_pass http://c"),
        );
        assert!(
            site.matches("| mirror ").count() == 1 && site.contains("not converted: mirror /other"),
            "{site}"
        );
    }

    #[test]
    fn a_share_of_the_requests_may_be_copied() {
        let of = |table: &str, copies: &str| {
            let http = format!("split_clients $remote_addr $copy {{ {table} }} upstream a {{ server b:2; }}");
            let site = "location / { mirror /copy; proxy_pass http://a:1; }";
            let text =
                format!("http {{ {http} server {{ {site} location = /copy {{ internal; {copies} }} }} }}");
            super::super::written::imported(&text).text
        };
        let pass = "proxy_pass http://$copy$request_uri;";
        let refuses = "if ($copy = \"\") { return 400; }";
        for (table, copies, expected) in [
            ("5% a; * '';", format!("{refuses} {pass}"), "mirror a share=\"5%\"\n"),
            ("5% a; * '';", pass.to_owned(), "mirror a share=\"5%\"\n"),
            (
                "0.5% a; 10% c:3; * '';",
                pass.to_owned(),
                "share=\"0.5%\"\n        mirror \"http://c:3\" share=\"10%\"\n",
            ),
        ] {
            let site = of(table, &copies);
            assert!(site.contains(expected) && !site.contains("not converted: mirror"), "{site}");
        }
        for (table, copies) in [
            ("5% a; * c:3;", pass.to_owned()),
            ("5% $host; * '';", pass.to_owned()),
            ("5% a; * '';", format!("if ($copy = x) {{ return 400; }} {pass}")),
            ("5% a; * '';", format!("{refuses} deny all; {pass}")),
        ] {
            let site = of(table, &copies);
            assert!(
                site.contains("not converted: mirror") && !site.contains("\n        mirror "),
                "{copies}: {site}"
            );
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
