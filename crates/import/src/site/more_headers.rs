//! `more_set_headers` and `more_clear_headers` of the module headers-more, which nginx applies before `add_header` and combines
//! over all levels, as a site file does; and those for requests.

use crate::nginx::Directive;

use super::chain::Chain;
use super::constants::is_used;
use super::lists::is_of_connection;
use super::out::{Lines, text, value};
use super::{Import, values};

/// Directives for fields of responses, and for those of requests.
const RESPONSES: [&str; 2] = ["more_set_headers", "more_clear_headers"];
const REQUESTS: [&str; 2] = ["more_set_input_headers", "more_clear_input_headers"];

/// What a directive does.
pub(super) struct MoreHeaders {
    /// The statuses of the responses that it changes; empty: all.
    statuses: Vec<u16>,
    /// The settings that it becomes.
    pub(super) lines: Vec<String>,
}

impl<'d> Import<'d> {
    /// Writes those of a block, with those of the locations around it.
    pub(super) fn more_headers(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        for level in chain.of_route().iter().rev() {
            for directive in level.iter().filter(|it| is_more(it)) {
                match self.more_headers_of(directive, chain) {
                    Ok(more) => {
                        self.fates.carried(directive);
                        more.write(lines);
                    }
                    Err(why) => self.leave(directive, &why, lines),
                }
            }
        }
    }

    /// What one of them does.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn more_headers_of(
        &self,
        directive: &Directive,
        chain: &Chain<'d>,
    ) -> Result<MoreHeaders, String> {
        let is_request = REQUESTS.contains(&directive.name.as_str());
        let mut more = MoreHeaders { statuses: Vec::new(), lines: Vec::new() };
        let texts = directive.texts();
        let mut words = texts.iter();
        while let Some(word) = words.next() {
            match *word {
                "-s" if !is_request => {
                    let given = words.next().copied().unwrap_or_default().split([' ', ',']);
                    for status in given.filter(|status| !status.is_empty()) {
                        let status =
                            status.parse().map_err(|_| format!("the status {status} is not supported"))?;
                        more.statuses.push(status);
                    }
                }
                flag if flag.starts_with('-') => return Err(format!("{flag} is not supported")),
                field if is_request => more.lines.push(self.field_of_request(directive, field, chain)?),
                field => more.lines.push(self.field_of_response(directive, field)?),
            }
        }
        Ok(more)
    }

    fn field_of_response(&self, directive: &Directive, field: &str) -> Result<String, String> {
        let (name, given) = split(directive, field)?;
        if given.is_empty() {
            return Ok(format!("response-header remove {}", value(name)));
        }
        self.check_field_value(given)?;
        Ok(format!("response-header set {} {}", value(name), text(given)))
    }

    /// nginx changes the request itself. Here upstreams get the changed field, while conditions and texts have that of the client.
    fn field_of_request(
        &self,
        directive: &Directive,
        field: &str,
        chain: &Chain<'d>,
    ) -> Result<String, String> {
        let (name, given) = split(directive, field)?;
        let variable = format!("http_{}", name.to_ascii_lowercase().replace('-', "_"));
        let all = chain.levels().last().copied().unwrap_or_default();
        let has_meaning = ["authorization", "cookie", "host", "range", "user-agent"];
        if all.iter().any(|it| is_used(it, &variable))
            || has_meaning.iter().any(|own| name.eq_ignore_ascii_case(own))
        {
            return Err(format!("other rules depend on the field {name} of the request"));
        }
        if given.is_empty() {
            return Ok(format!("request-header remove {}", value(name)));
        }
        if let Some(unknown) = values::unknown_variable(given, &self.maps) {
            return Err(values::unsupported(unknown));
        }
        Ok(format!("request-header set {} {}", value(name), text(given)))
    }

    /// Why requests must not be passed on: a field of theirs would not be changed.
    pub(super) fn lost_request_field(&self, directive: &Directive, chain: &Chain<'d>) -> Option<String> {
        REQUESTS
            .contains(&directive.name.as_str())
            .then(|| self.more_headers_of(directive, chain).err())
            .flatten()
    }
}

impl MoreHeaders {
    /// Writes the settings, under the condition that the response has one of the statuses.
    fn write(self, lines: &mut Lines) {
        match self.condition() {
            None => self.lines.into_iter().for_each(|line| lines.setting_again(line)),
            Some(condition) => {
                let mut inner = Lines::default();
                self.lines.into_iter().for_each(|line| inner.setting_again(line));
                lines.block(&[], format!("when {}", text(&condition)), inner);
            }
        }
    }

    /// The condition that the response has one of the statuses; `None` for all.
    pub(super) fn condition(&self) -> Option<String> {
        let tests: Vec<String> = self.statuses.iter().map(|status| format!("status == {status}")).collect();
        (!tests.is_empty()).then(|| tests.join(" || "))
    }
}

/// Whether a directive is one of these.
pub(super) fn is_more(directive: &Directive) -> bool {
    let name = directive.name.as_str();
    RESPONSES.contains(&name) || REQUESTS.contains(&name)
}

/// The name and the value of a field; without a value it is removed.
fn split<'t>(directive: &Directive, field: &'t str) -> Result<(&'t str, &'t str), String> {
    let is_clear = directive.name.contains("_clear_");
    let (name, given) = match field.split_once(':') {
        Some((name, given)) => (name.trim(), if is_clear { "" } else { given.trim() }),
        None => (field.trim(), ""),
    };
    if name.contains('*') {
        return Err(format!("the wildcard in {name} is not supported"));
    }
    if is_of_connection(name) {
        return Err("fields of the connection cannot be set".to_owned());
    }
    Ok((name, given))
}

#[cfg(test)]
mod tests {
    use crate::site::written::of_server;

    #[test]
    fn fields_of_headers_more() {
        for (given, expected) in [
            (
                "root /r; more_set_headers 'X-A: b' \"Server: c\";",
                "response-header set \"X-A\" \"b\" | response-header set \"Server\" \"c\"",
            ),
            ("root /r; more_set_headers X-A: ;", "response-header remove \"X-A\""),
            (
                "root /r; more_clear_headers Server X-Powered-By;",
                "response-header remove \"Server\" | response-header remove \"X-Powered-By\"",
            ),
            (
                "root /r; more_set_headers -s '404 410' 'X-A: $host';",
                "when \"status == 404 || status == 410\" { | response-header set \"X-A\" \"$host\" | }",
            ),
            (
                "root /r; more_set_headers 'A: 1'; location /x { more_set_headers 'B: 2'; location /x/y { more_set_headers 'C: 3'; } }",
                "response-header set \"B\" \"2\" | response-header set \"C\" \"3\" | files",
            ),
            (
                "location / { more_set_input_headers 'X-Of: $host'; more_clear_input_headers X-No; proxy_pass http://a:1; }",
                "request-header set \"X-Of\" \"$host\" | request-header remove \"X-No\"",
            ),
            (
                "location / { if ($http_origin) { more_set_headers 'Access-Control-Allow-Origin: $http_origin'; } proxy_pass http://a:1; }",
                "when \"!($http_origin in ['', '0'])\" { | response-header set \"Access-Control-Allow-Origin\" \"$http_origin\" | }",
            ),
        ] {
            let site = of_server(given);
            assert!(site.contains(expected) && !site.contains("not converted"), "{given}\n{site}");
        }
    }

    #[test]
    fn unsupported_fields_of_headers_more_are_left_and_those_of_requests_close() {
        for given in ["-t text/html 'X-A: b'", "'Connection: close'", "'X-A: $unknown'", "-s 40x 'X-A: b'"] {
            let site = of_server(&format!("root /r; more_set_headers {given};"));
            assert!(
                site.contains("not converted: more_set_headers") && site.contains("files \"/r\""),
                "{site}"
            );
        }
        let site = of_server("root /r; more_clear_headers 'X-*';");
        assert!(site.contains("not converted: more_clear_headers"), "{site}");
        for given in [
            "location / { more_clear_input_headers X-User; if ($http_x_user) { return 403; } proxy_pass http://a:1; }",
            "location / { more_set_input_headers 'Host: a'; proxy_pass http://a:1; }",
            "more_set_input_headers -r 'X-A: b'; location / { proxy_pass http://a:1; }",
        ] {
            let site = of_server(given);
            assert!(site.contains("respond 501") && !site.contains("proxy \""), "{given}\n{site}");
        }
    }
}
