//! `limit_except`: access rules for all methods but those named.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, line, text};

impl<'d> Import<'d> {
    /// Writes the rules of a block's `limit_except`.
    pub(super) fn limit_except(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        for directive in chain.own().iter().filter(|directive| directive.name == "limit_except") {
            let Ok(rules) = rules(directive) else { continue };
            self.carry(directive);
            if rules.is_empty() {
                continue;
            }
            let mut inner = Lines::default();
            rules.into_iter().for_each(|rule| inner.setting(rule));
            lines.block(&directive.comments, format!("when {}", text(&of_others(directive))), inner);
        }
    }
}

/// The condition: the method is none of those named.
fn of_others(directive: &Directive) -> String {
    let mut methods: Vec<String> = directive.texts().iter().map(|name| format!("'{name}'")).collect();
    // As in nginx.
    if methods.iter().any(|name| name == "'GET'") && !methods.iter().any(|name| name == "'HEAD'") {
        methods.push("'HEAD'".to_owned());
    }
    format!("!(method in [{}])", methods.join(", "))
}

/// The access rules; none if other methods are allowed too.
///
/// # Errors
/// Why they cannot be converted.
pub(super) fn rules(directive: &Directive) -> Result<Vec<String>, &'static str> {
    let is_method = |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase());
    if !directive.texts().iter().all(is_method) {
        return Err("its methods are not supported");
    }
    let rule = |inner: &Directive| match inner.name.as_str() {
        "allow" | "deny" => Ok(line(&inner.name, inner.word(0).trim_end_matches(':'))),
        _ => Err("only allow and deny are supported in it; use a second route with when=\"method in …\""),
    };
    directive.inner().iter().map(rule).collect()
}
