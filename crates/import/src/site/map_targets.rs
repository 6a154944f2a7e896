//! `proxy_pass` to a variable whose values are URLs, in a `map` or of several `set`: it is written as an `if` for each of them, so that
//! upstreams stand where they are used.

use std::collections::HashMap;

use crate::nginx::{Directive, Word};

use super::constants::{authority, is_used, no_redirects};
use super::ifs::has_group;

/// URLs of one map; with more it is left as it is.
const URLS_MAX: usize = 32;

/// The usual URL of a map, and its others.
type Urls = (String, Vec<String>);

/// The same configuration with these conditions. Adds the servers that were named by variables.
pub(super) fn expanded(main: &[Directive], named: &mut Vec<String>) -> Vec<Directive> {
    let mut main = main.to_vec();
    for http in main.iter_mut().filter(|directive| directive.name == "http") {
        let Some(block) = &mut http.block else { continue };
        let maps: HashMap<String, Urls> = block.iter().filter_map(urls).collect();
        expand(block, &maps, false, named);
    }
    main
}

/// Whether a text is the URL of a server, without a path.
fn is_url(text: &str) -> bool {
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    authority.is_some_and(|authority| !authority.is_empty() && !authority.contains(['$', '/', '\'']))
}

/// `set $app URL; if (…) { set $app OTHER; } proxy_pass $app;`: the last `set` that applies has the requests, and so has the last `if`
/// with a `proxy_pass`.
fn expand_sets(block: &mut Vec<Directive>, named: &mut Vec<String>) {
    let Some(at) = block.iter().position(|it| it.name == "proxy_pass" && it.word(0).starts_with('$')) else {
        return;
    };
    let Some(pass) = block.get(at).cloned() else { return };
    let variable = pass.word(0);
    let name = variable.trim_start_matches('$').trim_matches(['{', '}']);
    let sets = |it: &Directive| it.name == "set" && it.word(0).trim_start_matches('$') == name;
    let of_if = |it: &Directive| match it.inner() {
        [only] if it.name == "if" && sets(only) && is_url(only.word(1)) => Some(only.word(1).to_owned()),
        _ => None,
    };
    // The first one is for all requests.
    let usual = block.iter().find(|it| is_used(it, name) || sets(it));
    let Some(usual) = usual.filter(|it| sets(it) && is_url(it.word(1))).map(|it| it.word(1).to_owned())
    else {
        return;
    };
    let is_known = |(index, it): (usize, &Directive)| {
        index == at || of_if(it).is_some() || (sets(it) && it.word(1) == usual) || !is_used(it, name)
    };
    let has_one_usual = block.iter().filter(|it| sets(it)).count() == 1;
    if !has_one_usual || !block.iter().enumerate().all(is_known) {
        return;
    }
    let to = |url: &str| Directive { words: vec![word(url)], comments: Vec::new(), ..pass.clone() };
    for directive in block.iter_mut() {
        if let Some(url) = of_if(directive) {
            named.push(authority(&url).to_owned());
            directive.block = Some(vec![to(&url)]);
        }
    }
    named.push(authority(&usual).to_owned());
    block[at] = to(&usual);
    block.retain(|it| !sets(it));
}

/// The variable and the URLs of a map with nothing else in it.
fn urls(map: &Directive) -> Option<(String, Urls)> {
    let name = map.word(1).strip_prefix('$').filter(|_| map.name == "map")?;
    let (mut usual, mut others) = (None, Vec::new());
    for case in map.inner().iter().filter(|case| !["volatile", "hostnames"].contains(&case.name.as_str())) {
        let url = case.word(0).to_owned();
        if !is_url(&url) {
            return None;
        }
        match case.name.as_str() {
            "default" => usual = Some(url),
            _ if others.contains(&url) => {}
            _ => others.push(url),
        }
    }
    let usual = usual?;
    others.retain(|url| *url != usual);
    (others.len() <= URLS_MAX).then(|| (name.to_owned(), (usual, others)))
}

/// `set $rest ""; if (…) { set $rest ?$args; } proxy_pass http://app$rest;`: the path and the query under that condition. Returns
/// whether it is so.
fn add_paths(block: &mut Vec<Directive>) -> bool {
    let Some(at) = block.iter().position(|it| it.name == "proxy_pass") else { return false };
    let Some(pass) = block.get(at).cloned() else { return false };
    let Some((url, name)) = pass.word(0).split_once('$').filter(|(url, _)| is_url(url)) else { return false };
    let name = name.trim_matches(['{', '}']).to_owned();
    let sets = |it: &Directive| it.name == "set" && it.word(0).trim_start_matches('$') == name;
    let of_if = |it: &Directive| match it.inner() {
        [only] if it.name == "if" && sets(only) => {
            let to = only.word(1);
            let is_target = to.starts_with(['?', '/']) && !to.ends_with('?') && !has_group(to);
            is_target.then(|| format!("{}{to}?", if to.starts_with('?') { "/" } else { "" }))
        }
        _ => None,
    };
    let usual = block.iter().position(|it| sets(it) && it.word(1).is_empty());
    let is_known = |(index, it): (usize, &Directive)| {
        index == at || Some(index) == usual || of_if(it).is_some() || !(sets(it) || is_used(it, &name))
    };
    let is_first = block.iter().position(|it| sets(it) || is_used(it, &name)) == usual;
    let has_rewrite = block.iter().any(|it| it.name == "rewrite");
    if usual.is_none() || !is_first || has_rewrite || !block.iter().enumerate().all(is_known) {
        return false;
    }
    for directive in block.iter_mut() {
        if let Some(to) = of_if(directive) {
            let rewrite = Directive {
                name: "rewrite".to_owned(),
                words: ["^", &to, "break"].map(word).into(),
                comments: Vec::new(),
                block: None,
                ..pass.clone()
            };
            directive.block = Some(vec![rewrite]);
        }
    }
    block[at] = Directive { words: vec![word(url)], ..pass.clone() };
    block.retain(|it| !sets(it));
    true
}

fn expand(
    block: &mut Vec<Directive>,
    maps: &HashMap<String, Urls>,
    has_redirect: bool,
    named: &mut Vec<String>,
) {
    let has_redirect = has_redirect || block.iter().any(|it| it.name == "proxy_redirect");
    let count = named.len();
    expand_sets(block, named);
    let found = block.iter().position(|it| it.name == "proxy_pass" && it.word(0).starts_with('$'));
    if let Some(at) = found
        && let Some(pass) = block.get_mut(at)
        && let Some((usual, others)) = maps.get(pass.word(0).trim_start_matches('$').trim_matches(['{', '}']))
    {
        let variable = pass.word(0).to_owned();
        let to = |url: &str| Directive { words: vec![word(url)], comments: Vec::new(), ..pass.clone() };
        let ifs: Vec<Directive> = others
            .iter()
            .map(|url| Directive {
                name: "if".to_owned(),
                words: vec![word(&format!("({variable}")), word("="), word(&format!("{url})"))],
                block: Some(vec![to(url)]),
                ..to(url)
            })
            .collect();
        named.extend(others.iter().chain([usual]).map(|url| authority(url).to_owned()));
        *pass = to(usual);
        block.splice(at..at, ifs);
    }
    let had_variables = add_paths(block) || named.len() > count;
    if had_variables && !has_redirect {
        let pass = block.iter().find(|it| it.name == "proxy_pass").map(no_redirects);
        block.extend(pass);
    }
    for directive in block {
        if let Some(inner) = &mut directive.block {
            expand(inner, maps, has_redirect, named);
        }
    }
}

fn word(text: &str) -> Word {
    Word { text: text.to_owned(), is_quoted: false }
}
