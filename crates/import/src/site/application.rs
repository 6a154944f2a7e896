//! `uwsgi_pass` and `scgi_pass`: an upstream with `protocol uwsgi` or `protocol scgi`, for one application.

use crate::nginx::Directive;

use super::chain::Chain;
use super::fastcgi::{self, Params};
use super::out::{Lines, line};
use super::{Import, values};

/// The directives that pass requests to such applications.
pub(super) const PASSES: [&str; 2] = ["uwsgi_pass", "scgi_pass"];

/// Whether the server sends this variable by itself.
pub(super) fn is_usual(name: &str, given: &str) -> bool {
    match name {
        "PATH_INFO" => ["$document_uri", "$uri"].contains(&given),
        "SCGI" => given == "1",
        // They are about scripts.
        "SCRIPT_NAME" | "PATH_TRANSLATED" | "REDIRECT_STATUS" | "DOCUMENT_ROOT" => false,
        _ => fastcgi::is_usual(name, given),
    }
}

impl<'d> Import<'d> {
    /// Writes `proxy` to an application that speaks uwsgi or SCGI.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn application(
        &mut self,
        pass: &'d Directive,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<(), String> {
        self.application_lost(pass, chain)?;
        let family = family(pass);
        let mut params = Params { family, root: String::new(), constants: Vec::new() };
        for directive in chain.list(&[&format!("{family}_param")]) {
            self.param(directive, chain, &mut params, lines);
        }
        let mut settings = vec![format!("protocol {family}")];
        settings.extend(params.settings());
        let (address, is_tls) = match pass.word(0).strip_prefix("suwsgi://") {
            Some(address) => (address, true),
            None => (pass.word(0).trim_start_matches("uwsgi://"), false),
        };
        if self.proxy_to_application(address, is_tls, family, settings, chain, lines)? {
            self.transfer(chain, family, lines);
        }
        Ok(())
    }

    /// Writes `proxy` to the address of an application, which may have variables. Returns whether there is a server; without one, clients
    /// get 502, as from nginx.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn proxy_to_application(
        &mut self,
        address: &str,
        is_tls: bool,
        family: &str,
        settings: Vec<String>,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<bool, String> {
        if address.contains('$') {
            self.named_upstream(("http", address), is_tls, family, settings, chain, lines)?;
        } else {
            let Some(upstream) = self.upstream_with(address, is_tls, family, settings, chain, lines) else {
                lines.setting("respond 502".to_owned());
                return Ok(false);
            };
            lines.setting(line("proxy", &upstream));
        }
        // nginx adds no fields of its own to these requests.
        lines.setting("x-forwarded off".to_owned());
        Ok(true)
    }

    /// Checks that a `uwsgi_pass` or `scgi_pass` can be converted.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn application_lost(&self, pass: &Directive, chain: &Chain<'d>) -> Result<(), String> {
        if let Some(why) = self.unsupported(pass.word(0)) {
            return Err(why);
        }
        let modifiers = ["uwsgi_modifier1", "uwsgi_modifier2"];
        if modifiers.iter().any(|name| !["", "0"].contains(&chain.word(name))) {
            return Err("modifiers other than 0 are not supported".to_owned());
        }
        let list = chain.list(&[&format!("{}_param", family(pass))]);
        match list.iter().find(|param| self.is_lost_variable(param)) {
            Some(param) => Err(format!("{param}: variables are not supported in this parameter")),
            None => Ok(()),
        }
    }

    /// Whether it decides what is run or who is asking, and cannot be converted.
    fn is_lost_variable(&self, param: &Directive) -> bool {
        let (name, given) = (param.word(0), param.word(1));
        match name {
            // A script, where there is one application.
            "SCRIPT_FILENAME" => given.contains('$'),
            "REMOTE_USER" | "AUTH_USER" => values::unknown_variable(given, &self.maps).is_some(),
            _ => name.starts_with("UWSGI_") && values::unknown_variable(given, &self.maps).is_some(),
        }
    }
}

/// `uwsgi` or `scgi`.
fn family(pass: &Directive) -> &'static str {
    if pass.name == "scgi_pass" { "scgi" } else { "uwsgi" }
}

#[cfg(test)]
mod tests {
    use crate::site::written::{imported, of_server};

    /// nginx's own `uwsgi_params`.
    const USUAL: &str = "uwsgi_param QUERY_STRING $query_string; uwsgi_param REQUEST_METHOD $request_method; \
        uwsgi_param CONTENT_TYPE $content_type; uwsgi_param CONTENT_LENGTH $content_length; \
        uwsgi_param REQUEST_URI $request_uri; uwsgi_param PATH_INFO $document_uri; \
        uwsgi_param DOCUMENT_ROOT $document_root; uwsgi_param SERVER_PROTOCOL $server_protocol; \
        uwsgi_param REQUEST_SCHEME $scheme; uwsgi_param HTTPS $https if_not_empty; uwsgi_param REMOTE_ADDR $remote_addr; \
        uwsgi_param REMOTE_PORT $remote_port; uwsgi_param SERVER_PORT $server_port; uwsgi_param SERVER_NAME $server_name;";

    #[test]
    fn applications_get_an_upstream_with_their_protocol() {
        for family in ["uwsgi", "scgi"] {
            let usual = USUAL.replace("uwsgi_", &format!("{family}_"));
            let text = format!(
                "http {{ upstream app {{ server 10.0.0.1:3031; server 10.0.0.2:3031 backup; }} server {{ listen 80; server_name a.example; root /srv; \
                 location / {{ {usual} {family}_param SCRIPT_NAME /shop; {family}_param UWSGI_SCHEME $scheme; \
                 {family}_param REMOTE_USER $remote_user; {family}_read_timeout 5m; {family}_pass app; \
                 {family}_buffers 8 4k; {family}_next_upstream error; {family}_hide_header X-A; {family}_request_buffering off; }} }} }}"
            );
            let site = imported(&text).text;
            for expected in [
                format!("protocol {family}\n"),
                format!("{family}-param \"DOCUMENT_ROOT\" \"/srv\""),
                format!("{family}-param \"SCRIPT_NAME\" \"/shop\""),
                "request-param \"UWSGI_SCHEME\" \"$scheme\"".to_owned(),
                "request-param \"REMOTE_USER\" \"$remote_user\"".to_owned(),
                "server \"10.0.0.2:3031\" backup=on".to_owned(),
                "read-time \"5m\"".to_owned(),
                "retry-on error".to_owned(),
                "response-header remove \"X-A\"".to_owned(),
                "buffer-requests off".to_owned(),
                "proxy app".to_owned(),
            ] {
                assert!(site.contains(&expected), "{expected}\n{site}");
            }
            assert!(
                !site.contains("not converted:") && site.matches(&format!("{family}-param")).count() == 4,
                "{site}"
            );
        }
    }

    #[test]
    fn files_come_before_an_application() {
        let site = of_server(
            "location / { root /srv; try_files $uri @app; } location @app { uwsgi_pass unix:/run/app.sock; }",
        );
        let expected = "try-files \"/srv\" final=on | reroute \"@app\" | } | route \"@app\" { | proxy app | x-forwarded off | }";
        assert!(site.contains(expected), "{site}");
    }

    /// What decides what is run or who is asking must not be lost.
    #[test]
    fn an_unconverted_parameter_of_identity_closes_its_location() {
        for text in [
            "uwsgi_param REMOTE_USER $unknown; uwsgi_pass a:1;",
            "uwsgi_param UWSGI_SCRIPT $unknown; uwsgi_pass a:1;",
            "scgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; scgi_pass a:1;",
            "uwsgi_modifier1 14; uwsgi_pass a:1;",
            "uwsgi_pass $app;",
        ] {
            let site = of_server(&format!("location / {{ {text} }}"));
            assert!(site.contains("respond 501") && !site.contains("proxy "), "{text}\n{site}");
        }
        let site = imported(
            "http { server { listen 80; location / { uwsgi_pass suwsgi://a:1; uwsgi_ssl_verify on; } } }",
        )
        .text;
        assert!(site.contains("server \"https://a:1\"") && !site.contains("upstream-verify"), "{site}");
        let site = of_server("location / { uwsgi_pass uwsgi://a:1; uwsgi_param X $nothing; }");
        assert!(
            site.contains("proxy a-1") && site.contains("// not converted: uwsgi_param X $nothing;"),
            "{site}"
        );
        let site = of_server("location / { uwsgi_pass a:1; uwsgi_param X-Scheme https; }");
        assert!(
            site.contains("proxy a-1") && site.contains("// not converted: uwsgi_param X-Scheme https;"),
            "{site}"
        );
    }
}
