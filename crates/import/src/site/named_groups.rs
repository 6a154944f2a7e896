//! Named groups of a location's expression: `$name` becomes `$1`, where no other expression can change what `$1` is.

use flatout_expression::structure::dividers;

use crate::nginx::Directive;

/// Directives whose expressions have groups of their own.
const OTHERS: [&str; 3] = ["rewrite", "if", "location"];

/// How a named group begins, and what ends its name.
const BEGINNINGS: [(&str, char); 3] = [("(?<", '>'), ("(?P<", '>'), ("(?'", '\'')];

/// The same configuration with the numbers of these groups.
pub(super) fn numbered(block: &[Directive]) -> Vec<Directive> {
    let mut block = block.to_vec();
    block.iter_mut().for_each(number);
    block
}

fn number(directive: &mut Directive) {
    let names = match directive.name == "location" && directive.word(0).starts_with('~') {
        true => names(directive.words.last().map_or("", |word| &word.text)),
        false => Vec::new(),
    };
    let Some(inner) = &mut directive.block else { return };
    if names.iter().any(|name| !name.is_empty()) && !has_other_groups(inner) {
        inner.iter_mut().for_each(|inner| replace(inner, &names));
    }
    inner.iter_mut().for_each(number);
}

fn has_other_groups(block: &[Directive]) -> bool {
    block.iter().any(|directive| OTHERS.contains(&&*directive.name) || has_other_groups(directive.inner()))
}

fn replace(directive: &mut Directive, names: &[String]) {
    for word in &mut directive.words {
        word.text = substituted(&word.text, names);
    }
    directive.block.iter_mut().flatten().for_each(|inner| replace(inner, names));
}

/// The names of an expression's groups, in the order of their numbers; empty for those without a name.
fn names(pattern: &str) -> Vec<String> {
    dividers(pattern).filter(|(_, char)| *char == '(').filter_map(|(at, _)| group(&pattern[at..])).collect()
}

/// The name of the group that begins here, empty without one; `None` if it has no number.
fn group(text: &str) -> Option<String> {
    for (beginning, end) in BEGINNINGS {
        let name = text.strip_prefix(beginning).and_then(|rest| rest.split_once(end)).map(|(name, _)| name);
        if let Some(name) = name.filter(|name| is_name(name)) {
            return Some(name.to_owned());
        }
    }
    (!text.starts_with("(?")).then(String::new)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A text with `$1` in place of `$name`. What a digit would follow is left as it is.
fn substituted(text: &str, names: &[String]) -> String {
    let mut out = text.to_owned();
    let mut numbered: Vec<(usize, &String)> =
        names.iter().enumerate().filter(|(_, name)| !name.is_empty()).collect();
    // The longest first: a name may be the beginning of another.
    numbered.sort_by_key(|(_, name)| std::cmp::Reverse(name.len()));
    for (at, name) in numbered {
        let number = at + 1;
        for form in [format!("${{{name}}}"), format!("${name}")] {
            let mut parts = out.split(&form);
            let mut replaced = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let is_longer = !form.ends_with('}')
                    && part.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
                match is_longer || part.starts_with(|char: char| char.is_ascii_digit()) {
                    true => replaced.push_str(&form),
                    false => replaced.push_str(&format!("${number}")),
                }
                replaced.push_str(part);
            }
            out = replaced;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::written::of_server;
    use super::*;

    #[test]
    fn groups_have_their_numbers() {
        assert_eq!(
            names("^/(a)(?:b)/(?<name>[(]\\(x)(?P<other>y)(?'third'z)(?=w)"),
            ["", "name", "other", "third"]
        );
        let names: Vec<String> = ["a", "ab"].map(str::to_owned).into();
        assert_eq!(substituted("/$ab/${a}x/$a/$abc/${a}1", &names), "/$2/$1x/$1/$abc/${a}1");
    }

    #[test]
    fn a_named_group_of_a_location_is_passed_on() {
        let site = of_server("location ~ ^/u/(?<name>\\w+)/$ { proxy_pass http://a:1/user/$name; }");
        assert!(site.contains("\"/user/$1?\" then=stop") && !site.contains("501"), "{site}");
        for content in [
            "rewrite ^/u/(.*) /x/$1; proxy_pass http://a:1/user/$name;",
            "if ($arg_x ~ (.)) { return 403; } proxy_pass http://a:1/$name;",
        ] {
            let site = of_server(&format!("location ~ ^/u/(?<name>\\w+)/$ {{ {content} }}"));
            assert!(site.contains("respond 501"), "{content}: {site}");
        }
    }
}
