//! What handles requests in a server or a location.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, line, value};

/// Directives that pass requests to something that is not supported.
const OTHERS: [&str; 6] =
    ["fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass", "stub_status"];

impl<'d> Import<'d> {
    /// Writes what handles requests. `named` are the named locations of the server.
    pub(super) fn action(
        &mut self,
        chain: &Chain<'d>,
        path: Option<&Path>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        let own = |name: &str| chain.own().iter().find(|directive| directive.name == name);
        if let Some(directive) = own("return") {
            match self.answer(directive, chain) {
                Ok(said) => return lines.setting(said),
                Err(why) => self.leave(directive, &why, lines),
            }
            return lines.setting("respond 501 \"not converted\"".to_owned());
        }
        if let Some(directive) = own("proxy_pass") {
            match self.proxy(directive, chain, path, lines) {
                Ok(()) => self.fates.carried(directive),
                Err(why) => {
                    self.leave(directive, &why, lines);
                    lines.setting("respond 501 \"not converted\"".to_owned());
                }
            }
            if let Some(expires) = own("expires")
                && let Ok(control) = super::settings::expires(expires)
                && control != "off"
            {
                lines.setting(format!(
                    "response-header set \"Cache-Control\" {} when=success",
                    value(&control)
                ));
            }
            return;
        }
        if chain.own().iter().any(|directive| OTHERS.contains(&directive.name.as_str())) {
            return lines.setting("respond 501 \"not converted\"".to_owned());
        }
        if let Some(alias) = own("alias") {
            return self.alias(alias, path, lines);
        }
        let Some(root) = chain.find("root").filter(|root| !root.word(0).contains('$')) else {
            if path.is_some() {
                lines.comment("no root is set");
                lines.setting("respond 404".to_owned());
            }
            return;
        };
        self.fates.carried(root);
        match own("try_files") {
            Some(tried) => self.try_files(tried, root, chain, named, lines),
            None => lines.setting(line("files", root.word(0))),
        }
    }

    /// A folder that replaces a path.
    fn alias(&mut self, alias: &'d Directive, path: Option<&Path>, lines: &mut Lines) {
        let folder = alias.word(0);
        match path.and_then(Path::prefix) {
            Some(prefix) if !folder.contains('$') => {
                self.fates.carried(alias);
                lines.setting(line("files", folder));
                lines.setting(format!("rewrite-prefix {} \"/\"", value(prefix)));
            }
            _ => {
                self.leave(
                    alias,
                    "it needs a location with a plain path, and a folder without variables",
                    lines,
                );
                lines.setting("respond 501 \"not converted\"".to_owned());
            }
        }
    }

    fn try_files(
        &mut self,
        tried: &'d Directive,
        root: &'d Directive,
        chain: &Chain<'d>,
        named: &[&'d Directive],
        lines: &mut Lines,
    ) {
        let texts = tried.texts();
        let Some((last, first)) = texts.split_last() else { return };
        let are_files = first.iter().all(|text| ["$uri", "$uri/", "$uri/index.html"].contains(text));
        let index = chain.find("index").map_or("index.html", |index| index.word(0));
        let files = line("files", root.word(0));
        self.fates.carried(tried);
        if are_files && *last == "=404" {
            return lines.setting(files);
        }
        let is_index = last.split('?').next() == Some(format!("/{index}").as_str());
        if are_files && is_index {
            lines.setting(files);
            return lines.setting("spa".to_owned());
        }
        let place = named.iter().copied().find(|location| location.word(0) == *last);
        if let (true, Some(place)) = (are_files, place) {
            lines.setting(line("try-files", root.word(0)));
            // A named location is not nested in this one: it inherits from its server.
            let inner = chain.outer().within(place.inner());
            self.fates.carried(place);
            self.settings(&inner, lines);
            self.seen(place.inner());
            self.action(&inner, None, named, lines);
            return self.rest(place.inner(), lines);
        }
        self.leave(tried, "only $uri and $uri/, then =404, the index file or a named location", lines);
        lines.setting(files);
    }
}
