//! `auth_request`.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::closed::COSMETIC;
use super::location::{Path, choose};
use super::out::{Lines, text, value};

/// What nginx skips in a request that decides about another one.
const SKIPPED: [&str; 7] =
    ["internal", "satisfy", "allow", "deny", "auth_basic", "auth_basic_user_file", "auth_request"];

impl<'d> Import<'d> {
    /// `auth_request` names a location that forwards requests. One that cannot be converted closes its block.
    pub(super) fn auth_request(
        &mut self,
        directive: Option<&'d Directive>,
        chain: &Chain<'d>,
        lines: &mut Lines,
    ) {
        let Some(directive) = directive else { return };
        if self.constant_auth(directive, chain).is_some() {
            // Whatever responds here does what it would have said.
            return self.fates.carried(directive);
        }
        if directive.word(0) == "off" {
            self.fates.carried(directive);
            return lines.setting("forward-auth off".to_owned());
        }
        match self.auth_target(directive, chain) {
            Ok(AuthTarget::Route(path)) => {
                self.fates.carried(directive);
                lines.setting(format!("forward-auth {}", text(path)));
            }
            Ok(AuthTarget::Upstream { authority, is_tls, path }) => {
                let upstream = self.upstream(authority, is_tls, "proxy", &chain.at_server(), lines);
                let Some(upstream) = upstream else {
                    return self.leave(directive, "its upstream has no server", lines);
                };
                self.fates.carried(directive);
                lines.setting(format!("forward-auth {} path={}", value(&upstream), value(path)));
            }
            Err(why) => self.leave(directive, &why, lines),
        }
    }

    /// The status of an `auth_request` whose location only returns it.
    pub(super) fn constant_auth(&self, directive: &Directive, chain: &Chain<'d>) -> Option<u16> {
        let uri = directive.word(0);
        let location = chain
            .server()
            .iter()
            .find(|it| it.name == "location" && Path::of(it).is_some_and(|path| path.exact() == Some(uri)))?;
        let [only] = location.inner() else { return None };
        let is_alone = chain.word("satisfy") != "any";
        only.word(0).parse().ok().filter(|_| only.name == "return" && only.words.len() == 1 && is_alone)
    }

    /// Where `auth_request` sends its questions.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn auth_target(
        &self,
        directive: &'d Directive,
        chain: &Chain<'d>,
    ) -> Result<AuthTarget<'d>, String> {
        let uri = directive.word(0);
        let asked = chain.server().iter().find(|location| {
            location.name == "location"
                && matches!(Path::of(location), Some(path) if path.exact().or(path.prefix()) == Some(uri))
        });
        let asked = asked.ok_or("it needs a location of its path")?;
        let inner = chain.at_server().inside(asked);
        if !asked.inner().iter().any(|it| it.name.ends_with("_pass")) {
            if !choose(uri, chain.server()).is_some_and(|chosen| std::ptr::eq(chosen, asked)) {
                return Err("another location has its path".to_owned());
            }
            let why = asked.inner().iter().find_map(|it| self.undecided(it, &inner));
            return why.map_or(Ok(AuthTarget::Route(uri)), Err);
        }
        let pass = inner.find_own("proxy_pass").ok_or("it needs a location with proxy_pass")?;
        let (scheme, rest) = pass.word(0).split_once("://").ok_or("it needs a location with proxy_pass")?;
        if pass.word(0).contains('$') {
            return Err("variables are not supported in upstreams".to_owned());
        }
        let (authority, path) = match rest.find('/') {
            Some(at) if !rest.starts_with("unix:") => rest.split_at(at),
            _ => (rest.trim_end_matches(':'), uri),
        };
        Ok(AuthTarget::Upstream { authority, is_tls: scheme == "https", path })
    }

    /// Why a location cannot decide with this directive in it.
    fn undecided(&self, directive: &'d Directive, chain: &Chain<'d>) -> Option<String> {
        let is_plain = match directive.name.as_str() {
            "if" => self.conditional(directive, chain).is_some(),
            "return" => true,
            "root" | "alias" => !directive.word(0).contains('$'),
            name => COSMETIC.contains(&name) || SKIPPED.contains(&name),
        };
        (!is_plain).then(|| format!("its location has {}", directive.name))
    }
}

/// What decides about requests.
pub(super) enum AuthTarget<'d> {
    /// An upstream.
    Upstream { authority: &'d str, is_tls: bool, path: &'d str },
    /// A location that responds at once.
    Route(&'d str),
}
