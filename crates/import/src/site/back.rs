//! What nginx changes in responses of upstreams so that they fit its own URLs: `proxy_redirect` and `proxy_cookie_*`.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, text, value};

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
        let location =
            path.and_then(|path| path.exact().or(path.prefix())).filter(|_| !authority.starts_with("unix:"));
        let default = location.map(|location| {
            let from = format!("{scheme}://{authority}{}", uri.unwrap_or(location));
            format!("proxy-redirect {} {}", text(&from), text(location))
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
                Some((name, flags)) if !name.starts_with(['~', '$']) && !flags.is_empty() => {
                    let name = match *name {
                        "$" => "*",
                        name => name,
                    };
                    let flags: Vec<String> = flags.iter().map(|flag| value(flag)).collect();
                    self.fates.carried(directive);
                    lines.setting(format!("proxy-cookie-flags {} {}", value(name), flags.join(" ")));
                }
                _ => self.leave(
                    directive,
                    "expressions and variables are not supported in names of cookies",
                    lines,
                ),
            }
        }
    }

    fn pair(&mut self, directive: &'d Directive, setting: &str, lines: &mut Lines) {
        match directive.texts()[..] {
            ["off"] => self.fates.carried(directive),
            [from, to] if !from.starts_with('~') && !from.contains('$') && !to.contains('$') => {
                self.fates.carried(directive);
                let from = if setting == "proxy-cookie-domain" { from.trim_start_matches('.') } else { from };
                lines.setting(format!("{setting} {} {}", text(from), text(to)));
            }
            _ => self.leave(directive, "expressions and variables are not supported here", lines),
        }
    }
}
