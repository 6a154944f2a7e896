//! `userid`: a cookie with a random id for clients without one. `$uid_got` and `$uid_set` become variables, and the cookie a field.

use crate::nginx::Directive;

use super::chain::Chain;
use super::lists::list_here;
use super::out::{Lines, text, value};
use super::{Import, values};

/// The directives, each of which is inherited on its own.
const NAMES: [&str; 9] = [
    "userid",
    "userid_name",
    "userid_domain",
    "userid_path",
    "userid_expires",
    "userid_mark",
    "userid_flags",
    "userid_p3p",
    "userid_service",
];

/// What the client has sent.
const GOT: &str = "uid_got";

/// What it gets.
const SET: &str = "uid_set";

/// Until when it is kept.
const EXPIRES: &str = "uid_expires";

/// Fewer characters in a cookie are no id: they are those of 16 bytes in Base64.
const ID_CHARS: usize = 22;

impl<'d> Import<'d> {
    /// Defines the variables, if there is a cookie.
    pub(super) fn visitor_cookies(&mut self, http: &'d [Directive], top: &mut Lines) {
        if !has_cookie(http) {
            return;
        }
        for name in [GOT, SET] {
            top.setting(format!("set {} \"\"", value(name)));
            self.maps.push(name.to_owned());
        }
    }

    /// Writes the cookie of the innermost of `levels`, in the same way as a list.
    pub(super) fn visitor_cookie(&mut self, levels: &[&Chain<'d>], lines: &mut Lines) {
        let Some(here) = levels.first() else { return };
        let own = list_here(levels, &NAMES);
        if own.is_empty() {
            return;
        }
        let mode = here.word("userid");
        let cookie = match mode {
            "on" | "v1" | "log" => self.cookie(here),
            _ => Ok((String::new(), String::new())),
        };
        for directive in own {
            let why = match (directive.name.as_str(), &cookie) {
                ("userid_p3p", _) => Some("no browser reads P3P"),
                ("userid_service", _) => Some("ids are random"),
                (_, Err(why)) => Some(*why),
                _ => None,
            };
            match why {
                Some(why) => self.leave(directive, why, lines),
                None => self.fates.carried(directive),
            }
        }
        let Ok((name, attributes)) = cookie else { return };
        if name.is_empty() {
            return;
        }
        let mark = Some(here.word("userid_mark")).filter(|mark| mark.len() == 1);
        let end = format!("{}=", mark.unwrap_or("="));
        let sent = format!("$cookie_{name}");
        let is_known = match mark {
            // The end may be missing.
            None => format!("{sent}.size() >= {ID_CHARS}"),
            Some(_) => format!("{sent}.size() > {ID_CHARS} && {sent}.endsWith('{end}')"),
        };
        let is_reset = match self.maps.iter().any(|name| name == "uid_reset") {
            true => " && $uid_reset in ['', '0']",
            false => "",
        };
        let got = format!("{sent}.size() >= {ID_CHARS} ? '{name}=' + {sent} : ''");
        lines.setting(format!("set {} expr={}", value(GOT), text(&got)));
        if mode == "log" {
            return;
        }
        let set = format!("{is_known}{is_reset} ? '' : '{name}=' + $random_id + '{end}'");
        lines.setting(format!("set {} expr={}", value(SET), text(&set)));
        if let Some(seconds) = values::seconds(here.word("userid_expires")) {
            let expires = format!("cookieDate(time + {seconds})");
            lines.setting(format!("set {} expr={}", value(EXPIRES), text(&expires)));
        }
        let mut inner = Lines::default();
        let field = format!("${SET}{attributes}");
        inner.setting(format!("response-header add \"Set-Cookie\" {}", text(&field)));
        lines.block(&[], format!("when {}", text(&format!("${SET} != ''"))), inner);
    }

    /// The name of the cookie, and its attributes in nginx's order.
    fn cookie(&self, chain: &Chain<'d>) -> Result<(String, String), &'static str> {
        let or = |name: &str, usual: &'static str| match chain.word(name) {
            "" => usual,
            given => given,
        };
        let name = or("userid_name", "uid");
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err("the name may contain only letters, digits and _");
        }
        let mut attributes = String::new();
        match or("userid_expires", "off") {
            "off" => {}
            "max" => attributes.push_str("; expires=Thu, 31-Dec-37 23:55:55 GMT"),
            time if values::seconds(time).is_some() => attributes.push_str(&format!("; expires=${EXPIRES}")),
            _ => return Err("its time is not understood"),
        }
        match or("userid_domain", "none") {
            "none" => {}
            domain => attributes.push_str(&format!("; domain={domain}")),
        }
        attributes.push_str(&format!("; path={}", or("userid_path", "/")));
        if let Some(flags) = chain.find("userid_flags") {
            let given = flags.texts();
            // In nginx's order.
            for flag in ["secure", "httponly", "samesite", "samesite=strict", "samesite=lax", "samesite=none"]
            {
                if given.iter().any(|other| other.eq_ignore_ascii_case(flag)) {
                    attributes.push_str(&format!("; {flag}"));
                }
            }
        }
        let given = NAMES.iter().filter_map(|name| chain.find(name)).flat_map(Directive::texts);
        if given.into_iter().any(|text| text.contains('$') || text.chars().any(char::is_control)) {
            return Err("variables are not supported in it");
        }
        Ok((name.to_owned(), attributes))
    }
}

/// Whether a block, or one inside it, sets or reads the cookie.
fn has_cookie(block: &[Directive]) -> bool {
    block.iter().any(|directive| {
        (directive.name == "userid" && directive.word(0) != "off") || has_cookie(directive.inner())
    })
}

#[cfg(test)]
mod tests {
    use super::super::written::{imported, of_server};

    #[test]
    fn clients_without_an_id_get_one() {
        let site = of_server("root /r; userid on; userid_domain a.test; userid_expires 365d;");
        let expected = "set \"uid_got\" expr=\"$cookie_uid.size() >= 22 ? 'uid=' + $cookie_uid : ''\" | \
             set \"uid_set\" expr=\"$cookie_uid.size() >= 22 ? '' : 'uid=' + $random_id + '=='\"";
        assert!(site.contains(expected), "{site}");
        let cookie = "when \"$uid_set != ''\" { | response-header add \"Set-Cookie\" \
             \"$uid_set; expires=$uid_expires; domain=a.test; path=/\" | }";
        assert!(site.contains(cookie), "{site}");
        assert!(site.contains("set \"uid_expires\" expr=\"cookieDate(time + 31536000)\""), "{site}");
    }

    #[test]
    fn locations_have_their_own_cookie() {
        let main = "root /r; userid on; userid_name id; location /a { userid_mark x; userid_flags samesite=lax secure; } \
             location /b { userid off; } location /c { userid log; } location /d {}";
        let site = of_server(main);
        assert_eq!(site.matches("response-header add \"Set-Cookie\"").count(), 2, "once a route: {site}");
        assert!(site.contains("\"$uid_set; path=/; secure; samesite=lax\""), "{site}");
        assert!(site.contains("$cookie_id.endsWith('x=') ? '' : 'id=' + $random_id + 'x='"), "{site}");
        assert!(!site.contains("not converted"), "{site}");
    }

    #[test]
    fn parts_without_an_equivalent_are_named() {
        let text = imported(
            "http { map $arg_r $uid_reset { default 0; a 1; } server { listen 80; root /r; userid on; userid_p3p x; \
             add_header A $uid_set; } }",
        )
        .text;
        assert!(text.contains("// not converted: userid_p3p x;"), "{text}");
        assert!(text.contains("$cookie_uid.size() >= 22 && $uid_reset in ['', '0'] ? ''"), "{text}");
        assert!(text.contains("response-header add \"A\" \"$uid_set\""), "{text}");
        let named = of_server("root /r; userid on; userid_name a-b;");
        assert!(
            named.contains("// not converted: userid_name a-b;") && !named.contains("Set-Cookie"),
            "{named}"
        );
    }
}
