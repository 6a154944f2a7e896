//! `mirror`: copies of requests for another upstream.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, line};

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
        let inner = chain.at_server().within(location.inner());
        let pass = location.inner().iter().find(|it| it.name == "proxy_pass").ok_or(needs)?;
        let target = pass.word(0).strip_suffix("$request_uri").filter(|rest| !rest.contains('$'));
        let (scheme, authority) = target.and_then(|target| target.split_once("://")).ok_or(needs)?;
        self.upstream(authority, scheme == "https", "proxy", &inner, lines)
            .ok_or_else(|| "its upstream has no servers".to_owned())
    }
}
