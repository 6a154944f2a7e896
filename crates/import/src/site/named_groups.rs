//! Named groups of a location's expression: `$name` becomes `$1`, where no other expression can change what `$1` is. Numbered groups of
//! a server's name get a name there, and `$1` becomes `$host_1`.

use crate::nginx::Directive;

use super::pattern::{Group, groups};

/// Directives whose expressions have groups of their own.
const OTHERS: [&str; 3] = ["rewrite", "if", "location"];

/// Directives whose expressions, which begin with a tilde, have groups for their own texts alone.
const OWN_GROUPS: [&str; 4] = ["location", "proxy_redirect", "proxy_cookie_domain", "proxy_cookie_path"];

/// The same configuration with the numbers of these groups.
pub(super) fn numbered(block: &[Directive]) -> Vec<Directive> {
    let mut block = block.to_vec();
    block.iter_mut().for_each(number);
    block
}

/// The variable for a group of a server's name that has none.
const HOST_GROUP: &str = "host_";

/// Names the numbered groups of the only name of a server, where a variable needs them and nginx has no other groups there.
fn name_host_groups(server: &mut Directive) {
    let Some(block) = &mut server.block else { return };
    let names: Vec<&str> =
        block.iter().filter(|it| it.name == "server_name").flat_map(Directive::texts).collect();
    let [name] = names[..] else { return };
    if !name.starts_with('~') || has_own_groups(block) {
        return;
    }
    let named = with_names(name);
    let groups: Vec<String> = groups(&named).map(|group| group.name.to_owned()).collect();
    let is_replaced: Vec<bool> =
        block.iter_mut().map(|directive| replace_host_groups(directive, &groups)).collect();
    let server_names = block.iter_mut().filter(|directive| directive.name == "server_name");
    if is_replaced.contains(&true) {
        server_names.flat_map(|directive| &mut directive.words).for_each(|word| word.text.clone_from(&named));
    }
}

/// An expression with a name for each of its groups.
fn with_names(pattern: &str) -> String {
    let mut named = pattern.to_owned();
    let groups: Vec<Group<'_>> = groups(pattern).collect();
    for (index, group) in groups.iter().enumerate().rev().filter(|(_, group)| group.name.is_empty()) {
        named.insert_str(group.inside, &format!("?<{HOST_GROUP}{}>", index + 1));
    }
    named
}

/// Whether a block itself has expressions whose groups take the place of others.
fn has_own_groups(block: &[Directive]) -> bool {
    block.iter().any(|directive| ["rewrite", "if"].contains(&&*directive.name))
}

/// Replaces the groups in a directive and in what is inside it; returns whether there were any.
fn replace_host_groups(directive: &mut Directive, groups: &[String]) -> bool {
    if directive.name == "server_name" || is_pattern(directive) || has_own_groups(directive.inner()) {
        return false;
    }
    let mut is_replaced = false;
    for word in &mut directive.words {
        for (at, name) in groups.iter().enumerate().take(9) {
            let number = at + 1;
            for form in [format!("${{{number}}}"), format!("${number}")] {
                is_replaced |= word.text.contains(&form);
                word.text = word.text.replace(&form, &format!("${{{name}}}"));
            }
        }
    }
    let inner = directive.block.iter_mut().flatten();
    inner.fold(is_replaced, |all, inner| replace_host_groups(inner, groups) || all)
}

fn number(directive: &mut Directive) {
    if directive.name == "server" {
        name_host_groups(directive);
    }
    let pattern = match directive.name == "location" && is_pattern(directive) {
        true => directive.words.last().map_or("", |word| &word.text),
        false => "",
    };
    let names: Vec<String> = groups(pattern).map(|group| group.name.to_owned()).collect();
    let is_any_case = directive.word(0).starts_with("~*");
    let own = directive.words.last().map_or_else(String::new, |word| word.text.clone());
    let own = own.trim_start_matches(['~', '*']).to_owned();
    if directive.name == "rewrite" {
        number_own_groups(directive);
    }
    let Some(inner) = &mut directive.block else { return };
    if names.iter().any(|name| !name.is_empty()) {
        let own = if is_any_case { format!("(?i){own}") } else { own };
        number_first_rewrite(inner, &own, &names);
    }
    if names.iter().any(|name| !name.is_empty()) && !has_other_groups(inner) {
        inner.iter_mut().for_each(|inner| replace(inner, &names));
    }
    inner.iter_mut().for_each(number);
}

/// `rewrite ^/page/(?<id>.*) /page.php?id=$id`.
fn number_own_groups(rewrite: &mut Directive) {
    if let [pattern, to, ..] = &mut rewrite.words[..] {
        let names: Vec<String> = groups(&pattern.text).map(|group| group.name.to_owned()).collect();
        to.text = substituted(&to.text, &names);
    }
}

/// `rewrite ^ /page?id=$id`, where the group is one of the location: it has the location's expression, which finds all its paths.
fn number_first_rewrite(block: &mut [Directive], own: &str, names: &[String]) {
    let is_rule = |it: &&mut Directive| ["rewrite", "if", "set", "return"].contains(&&*it.name);
    let Some(first) = block.iter_mut().find(is_rule).filter(|it| it.name == "rewrite") else { return };
    if let [pattern, to, ..] = &mut first.words[..]
        && ["^", ".*", "^.*", "^.*$", "^/"].contains(&pattern.text.as_str())
    {
        let numbered = substituted(&to.text, names);
        if numbered != to.text {
            (pattern.text, to.text) = (own.to_owned(), numbered);
        }
    }
}

fn has_other_groups(block: &[Directive]) -> bool {
    block.iter().any(|directive| OTHERS.contains(&&*directive.name) || has_other_groups(directive.inner()))
}

/// Whether a directive has an expression with groups for itself and what is inside it.
fn is_pattern(directive: &Directive) -> bool {
    OWN_GROUPS.contains(&&*directive.name) && directive.word(0).starts_with('~')
}

fn replace(directive: &mut Directive, names: &[String]) {
    if is_pattern(directive) {
        return;
    }
    for word in &mut directive.words {
        word.text = substituted(&word.text, names);
    }
    directive.block.iter_mut().flatten().for_each(|inner| replace(inner, names));
}

/// A text with `$1` in place of `$name`. What a digit would follow is left as it is.
pub(super) fn substituted(text: &str, names: &[String]) -> String {
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
    use flatout_config::Source;

    use super::super::nginx;
    use super::super::written::of_server;
    use super::*;

    #[test]
    fn groups_have_their_numbers() {
        let found = groups("^/(a)(?:b)/(?<name>[(]\\(x)(?P<other>y)(?'third'z)(?P<P>p)(?=w)");
        let found: Vec<&str> = found.map(|group| group.name).collect();
        assert_eq!(found, ["", "name", "other", "third", "P"]);
        let names: Vec<String> = ["a", "ab"].map(str::to_owned).into();
        assert_eq!(substituted("/$ab/${a}x/$a/$abc/${a}1", &names), "/$2/$1x/$1/$abc/${a}1");
    }

    #[test]
    fn expressions_for_one_text_keep_their_groups() {
        for (directive, expected) in [
            ("proxy_redirect ~^http://[^/]+(/.+)$ $1;", "proxy_redirect ~^http://[^/]+(/.+)$ $1"),
            ("proxy_cookie_domain ~^(.+)\\.y$ $1;", "proxy_cookie_domain ~^(.+)\\.y$ $1"),
            ("proxy_cookie_path ~^/a(.*)$ $1;", "proxy_cookie_path ~^/a(.*)$ $1"),
            ("proxy_redirect http://a/ /$1/;", "proxy_redirect http://a/ /${host_1}/"),
        ] {
            let text =
                format!("server {{ server_name ~^(.+)\\.x$; location / {{ {directive} root /srv/$1; }} }}");
            let source = Source::new("nginx.conf", text.into_bytes(), &nginx::FILE).unwrap();
            let numbered = numbered(&nginx::parse(&source, "nginx.conf").unwrap());
            let location = numbered[0].inner().iter().find(|it| it.name == "location").unwrap();
            let words = location.inner()[0].texts().join(" ");
            assert_eq!(format!("{} {words}", location.inner()[0].name), expected);
            assert_eq!(location.inner()[1].word(0), "/srv/${host_1}");
        }
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
