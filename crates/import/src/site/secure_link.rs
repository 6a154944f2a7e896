//! `secure_link` with `secure_link_md5`: `$secure_link` becomes a variable with an expression over the MD5 of a text.

use crate::nginx::Directive;

use super::chain::Chain;
use super::out::{Lines, text};
use super::{Import, values};

/// The variable: `1` for a valid link, `0` for one that has expired, otherwise empty.
const NAME: &str = "secure_link";

/// The time until which a link is valid.
const EXPIRES: &str = "secure_link_expires";

impl<'d> Import<'d> {
    /// Defines the variables, if each `secure_link` can be converted.
    pub(super) fn secure_links(&mut self, http: &'d [Directive], top: &mut Lines) {
        let mut pairs = Vec::new();
        collect(http, None, None, &mut pairs);
        if pairs.is_empty() || pairs.iter().any(|(link, md5)| self.link(link, md5).is_none()) {
            return;
        }
        for name in [NAME, EXPIRES] {
            top.setting(format!("set {} \"\"", super::out::value(name)));
            self.maps.push(name.to_owned());
        }
    }

    /// Writes the values for a block.
    pub(super) fn secure_link(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let is_own =
            |directive: &Directive| ["secure_link", "secure_link_md5"].contains(&directive.name.as_str());
        let mut around = chain.of_route().iter().copied().flatten();
        if !around.any(is_own) || !self.maps.iter().any(|name| name == NAME) {
            return;
        }
        let (Some(link), Some(md5)) = (chain.find("secure_link"), chain.find("secure_link_md5")) else {
            return;
        };
        let Some((valid, expires)) = self.link(link, md5) else { return };
        chain
            .of_route()
            .iter()
            .copied()
            .flatten()
            .filter(|directive| is_own(directive))
            .for_each(|it| self.fates.carried(it));
        lines.setting(format!("set {} expr={}", super::out::value(NAME), text(&valid)));
        if let Some(expires) = expires {
            lines.setting(format!("set {} {}", super::out::value(EXPIRES), text(expires)));
        }
    }

    /// The expression for `$secure_link`, and the text of the time.
    fn link<'w>(&self, link: &'w Directive, md5: &Directive) -> Option<(String, Option<&'w str>)> {
        let (hash, expires) = match link.word(0).split_once(',') {
            Some((hash, expires)) => (hash, Some(expires)),
            None => (link.word(0), None),
        };
        let known = |given: &str| values::unknown_variable(given, &self.maps).is_none();
        if ![hash, md5.word(0), expires.unwrap_or_default()].into_iter().all(known) {
            return None;
        }
        // The end of Base64 may be there or not.
        let is_equal = format!("({}).replace('=', '') == ({}).md5()", sum(hash)?, sum(md5.word(0))?);
        Some(match expires {
            None => (format!("{is_equal} ? '1' : ''"), None),
            Some(given) => {
                let time = sum(given)?;
                let ends = format!("int({time}) < time ? '0' : '1'");
                (format!("{is_equal} && int({time}) > 0 ? ({ends}) : ''"), Some(given))
            }
        })
    }
}

/// Each pair of directives that applies somewhere.
fn collect<'d>(
    block: &'d [Directive],
    link: Option<&'d Directive>,
    md5: Option<&'d Directive>,
    found: &mut Vec<(&'d Directive, &'d Directive)>,
) {
    let own = |name: &str| block.iter().rev().find(|directive| directive.name == name);
    let (own_link, own_md5) = (own("secure_link"), own("secure_link_md5"));
    let (link, md5) = (own_link.or(link), own_md5.or(md5));
    if own_link.is_some() || own_md5.is_some() {
        found.extend(link.zip(md5));
    }
    for directive in block {
        collect(directive.inner(), link, md5, found);
    }
}

/// A text with variables as a sum of texts: `secret$uri` is `'secret' + $uri`.
fn sum(given: &str) -> Option<String> {
    let (mut parts, mut rest) = (Vec::new(), given);
    let literal = |text: &str| match text.contains(['\'', '\\']) || text.chars().any(char::is_control) {
        true => None,
        false => Some((!text.is_empty()).then(|| format!("'{text}'"))),
    };
    for name in values::variables(given) {
        let at = rest.find('$')?;
        let (before, behind) = rest.split_at(at);
        parts.extend(literal(before)?);
        let written = if behind.starts_with("${") { format!("${{{name}}}") } else { format!("${name}") };
        rest = behind.strip_prefix(&written)?;
        parts.push(format!("${}", Some(name).filter(|name| !name.is_empty())?));
    }
    parts.extend(literal(rest)?);
    Some(if parts.is_empty() { "''".to_owned() } else { parts.join(" + ") })
}

#[cfg(test)]
mod tests {
    use super::super::written::{imported, of_server};
    use super::sum;

    #[test]
    fn texts_with_variables_are_sums() {
        assert_eq!(sum("secret$uri$arg_e").as_deref(), Some("'secret' + $uri + $arg_e"));
        assert_eq!(sum("${uri}a b").as_deref(), Some("$uri + 'a b'"));
        assert_eq!(sum("").as_deref(), Some("''"));
        assert_eq!((sum("it's"), sum("a$")), (None, None));
    }

    #[test]
    fn signed_links_become_a_variable() {
        let text = "location / { secure_link $arg_md5,$arg_expires; secure_link_md5 \"$arg_expires$uri secret\"; \
                    if ($secure_link = \"\") { return 403; } if ($secure_link = \"0\") { return 410; } root /r; }";
        let site = of_server(text);
        let expected = "set \"secure_link\" expr=\"($arg_md5).replace('=', '') == ($arg_expires + $uri + ' secret').md5() \
                        && int($arg_expires) > 0 ? (int($arg_expires) < time ? '0' : '1') : ''\"";
        for part in
            [expected, "when \"$secure_link == ''\" { | respond 403 | }", "respond 410", "files \"/r\""]
        {
            assert!(site.contains(part), "{part}\n{site}");
        }
        assert!(imported(&format!("http {{ server {{ {text} }} }}")).unserved.is_empty());
    }

    /// A link that cannot be checked is not served.
    #[test]
    fn other_signed_links_close_their_location() {
        for how in [
            "secure_link_secret word;",
            "secure_link $arg_md5; secure_link_md5 \"$nothing\";",
            "secure_link $arg_md5; secure_link_md5 \"it's\";",
            "secure_link $arg_md5;",
        ] {
            let site = of_server(&format!(
                "location / {{ {how} if ($secure_link = \"\") {{ return 403; }} root /r; }}"
            ));
            assert!(site.contains("respond 501") && !site.contains("files "), "{how}\n{site}");
        }
    }
}
