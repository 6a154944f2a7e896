//! Named locations. One that is simple stands where `try_files` leads to it; others become routes.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::location::Path;
use super::out::Lines;

impl<'d> Import<'d> {
    /// Finds the named locations that become routes.
    pub(super) fn find_named(
        &mut self,
        server: &'d [Directive],
        outer: &[&'d [Directive]],
        named: &[&'d Directive],
    ) {
        self.named_routes.clear();
        for location in named {
            let name = location.word(0);
            let leads = |directive: &Directive, by: &str| {
                directive.name == by && directive.texts().last() == Some(&name)
            };
            let is_page = any(server, &|it| leads(it, "error_page"))
                || outer.iter().any(|block| block.iter().any(|it| leads(it, "error_page")));
            let is_tried = any(server, &|it| leads(it, "try_files"));
            // Where the path itself is not tried, it stands behind the files of others.
            let is_behind_others = any(server, &|it| leads(it, "try_files") && !it.texts().contains(&"$uri"));
            // Rules of the location that tries files are not for this one.
            let is_behind_rules = any(server, &|it| {
                it.name == "location"
                    && it.inner().iter().any(|inner| leads(inner, "try_files"))
                    && it.inner().iter().any(|inner| OF_RESPONSES.contains(&inner.name.as_str()))
            });
            if is_page || is_behind_others || is_behind_rules || (is_tried && !is_simple(location)) {
                self.named_routes.push(name.to_owned());
            }
        }
    }

    /// Writes these routes.
    pub(super) fn named_locations(
        &mut self,
        named: &[&'d Directive],
        levels: &[&Chain<'d>],
        site: &mut Lines,
    ) {
        for location in named {
            let name = location.word(0).to_owned();
            if self.named_routes.contains(&name) {
                self.location(location, &Path::Named(name), levels, named, site);
            } else if !self.fates.is_known(location) {
                self.leave(location, "no try_files refers to it", site);
            }
        }
    }

    pub(super) fn is_route(&self, name: &str) -> bool {
        self.named_routes.iter().any(|known| known == name)
    }
}

/// Rules for the responses of a location.
const OF_RESPONSES: [&str; 5] = ["add_header", "error_page", "expires", "limit_rate", "sub_filter"];

/// What needs a route of its own: rules that apply to no file of the `try_files`.
const RULES: [&str; 16] = [
    "add_header",
    "allow",
    "auth_basic",
    "auth_request",
    "deny",
    "error_page",
    "expires",
    "if",
    "limit_conn",
    "limit_except",
    "limit_rate",
    "limit_rate_after",
    "limit_req",
    "rewrite",
    "satisfy",
    "set",
];

/// Whether all of it can stand in the place of a `try_files`.
fn is_simple(location: &Directive) -> bool {
    let has = |names: &[&str]| location.inner().iter().any(|it| names.contains(&it.name.as_str()));
    has(&["proxy_pass", "return", "root"]) && !has(&["try_files"]) && !has_rules(location.inner())
}

/// Whether a block has rules for all its requests.
pub(super) fn has_rules(block: &[Directive]) -> bool {
    let is_rule = |it: &Directive| RULES.contains(&it.name.as_str()) && !super::fastcgi::is_script_test(it);
    block.iter().any(is_rule)
}

/// Whether a block, or one in it, has such a directive.
fn any(block: &[Directive], is_it: &dyn Fn(&Directive) -> bool) -> bool {
    let is_other = |directive: &Directive| directive.name != "server" && any(directive.inner(), is_it);
    block.iter().any(|directive| is_it(directive) || is_other(directive))
}
