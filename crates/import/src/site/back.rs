//! What nginx changes in responses of upstreams so that they fit its own URLs: `proxy_redirect` and `proxy_cookie_*`.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, text, value};
use super::pattern::{self, Pattern};

/// Attributes of cookies that can be added.
const FLAGS: [&str; 5] = ["secure", "httponly", "samesite=strict", "samesite=lax", "samesite=none"];

impl<'d> Import<'d> {
    /// Writes the changes for a `proxy_pass` to `url`. `has_own_host`: the upstream gets its own name as Host.
    pub(super) fn changes_back(
        &mut self,
        (scheme, authority, uri): (&str, &str, Option<&str>),
        has_own_host: bool,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) {
        // An upstream that gets the client's Host puts that into its redirects.
        // Without a path of its own, all paths of its URLs are those of this server.
        let pair = match uri {
            Some(uri) => path.and_then(Path::plain).map(|location| (uri, location)),
            None => Some(("/", "/")),
        };
        let default = pair.filter(|_| !authority.starts_with("unix:")).map(|(uri, location)| {
            let from = format!("{scheme}://{authority}{uri}");
            format!(
                "proxy-redirect {} {}",
                text(&from.replace('$', "$$")),
                text(&location.replace('$', "$$"))
            )
        });
        let redirects = chain.list(&["proxy_redirect"]);
        if redirects.is_empty() && has_own_host {
            default.iter().for_each(|line| lines.setting(line.clone()));
        }
        for directive in redirects {
            match directive.texts()[..] {
                ["off"] => self.fates.carried(directive),
                ["default"] => {
                    self.fates.carried(directive);
                    default.iter().for_each(|line| lines.setting(line.clone()));
                }
                _ => self.pair(directive, "proxy-redirect", lines),
            }
        }
        self.has_proxy_redirects |= lines.has("proxy-redirect");
        for (theirs, ours) in
            [("proxy_cookie_domain", "proxy-cookie-domain"), ("proxy_cookie_path", "proxy-cookie-path")]
        {
            for directive in chain.list(&[theirs]) {
                self.pair(directive, ours, lines);
            }
        }
        for directive in chain.list(&["proxy_cookie_flags"]) {
            let texts = directive.texts();
            match texts.split_first() {
                Some((&"off", [])) => self.fates.carried(directive),
                Some((name, flags)) if !flags.is_empty() && flags.iter().all(|flag| !flag.contains('$')) => {
                    let is_plain = !name.starts_with('~') && !name.contains('$');
                    match if is_plain { Ok(value(name)) } else { self.looked_for(name, true) } {
                        Ok(name) => {
                            let flags: Vec<String> = flags.iter().map(|flag| value(flag)).collect();
                            self.fates.carried(directive);
                            lines.setting(format!("proxy-cookie-flags {name} {}", flags.join(" ")));
                        }
                        Err(why) => self.leave(directive, &why, lines),
                    }
                }
                _ => self.leave(directive, "variables are not supported in flags", lines),
            }
        }
    }

    /// What a rule looks for, as the site file has it: a text with variables, or an expression.
    ///
    /// # Errors
    /// Why it cannot be converted.
    fn looked_for(&self, given: &str, in_cookies: bool) -> Result<String, String> {
        let Some(pattern) = given.strip_prefix('~') else {
            return self.unsupported(given).map_or_else(|| Ok(text(given)), Err);
        };
        // In names and domains of cookies, nginx always ignores case.
        let usual = if in_cookies { "~*" } else { "~" };
        let (mark, pattern) = pattern.strip_prefix('*').map_or((usual, pattern), |pattern| ("~*", pattern));
        match pattern::read(pattern) {
            Some(Pattern::Same(pattern)) => Ok(text(&format!("{mark}{pattern}"))),
            _ => Err("look-around and back-references are not supported".to_owned()),
        }
    }

    fn pair(&mut self, directive: &'d Directive, setting: &str, lines: &mut Lines) {
        let [from, to] = directive.texts()[..] else {
            return match directive.texts()[..] {
                ["off"] => self.fates.carried(directive),
                _ => self.leave(directive, "there is no equivalent", lines),
            };
        };
        let (from, to) = match setting {
            "proxy-cookie-domain" => (from.trim_start_matches('.'), to.trim_start_matches('.')),
            _ => (from, to),
        };
        // `/ "/; Secure"` is how flags were added before there was a directive for them.
        let (to, flags) = to.split_once(';').unwrap_or((to, ""));
        let flags: Vec<String> = flags.split(';').map(|flag| flag.trim().to_ascii_lowercase()).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).filter(|flag| !flag.is_empty()).collect();
        if flags.iter().any(|flag| !FLAGS.contains(flag)) {
            return self.leave(directive, "an attribute of this kind cannot be added", lines);
        }
        if !flags.is_empty() {
            let flags: Vec<String> = flags.iter().map(|flag| value(flag)).collect();
            lines.setting(format!("proxy-cookie-flags \"*\" {}", flags.join(" ")));
            if from == to {
                return self.fates.carried(directive);
            }
        }
        let unsupported = self.unsupported(to);
        match (self.looked_for(from, setting == "proxy-cookie-domain"), unsupported) {
            (Ok(from), None) => {
                self.fates.carried(directive);
                lines.setting(format!("{setting} {from} {}", text(to)));
            }
            (Err(why), _) | (Ok(_), Some(why)) => self.leave(directive, &why, lines),
        }
    }
}
