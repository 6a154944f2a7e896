//! `proxy_pass` to a variable whose values are URLs in a `map`: it is written as an `if` for each of them, so that upstreams stand where
//! they are used.

use std::collections::HashMap;

use crate::nginx::{Directive, Word};

/// URLs of one map; with more it is left as it is.
const URLS_MAX: usize = 32;

/// The usual URL of a map, and its others.
type Urls = (String, Vec<String>);

/// The same configuration with these conditions.
pub(super) fn expanded(main: &[Directive]) -> Vec<Directive> {
    let mut main = main.to_vec();
    for http in main.iter_mut().filter(|directive| directive.name == "http") {
        let Some(block) = &mut http.block else { continue };
        let maps: HashMap<String, Urls> = block.iter().filter_map(urls).collect();
        if !maps.is_empty() {
            expand(block, &maps);
        }
    }
    main
}

/// The variable and the URLs of a map with nothing else in it.
fn urls(map: &Directive) -> Option<(String, Urls)> {
    let name = map.word(1).strip_prefix('$').filter(|_| map.name == "map")?;
    let (mut usual, mut others) = (None, Vec::new());
    for case in map.inner().iter().filter(|case| !["volatile", "hostnames"].contains(&case.name.as_str())) {
        let url = case.word(0).to_owned();
        let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
        if authority.is_empty() || authority.contains(['$', '/', '\'']) {
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

fn expand(block: &mut Vec<Directive>, maps: &HashMap<String, Urls>) {
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
        *pass = to(usual);
        block.splice(at..at, ifs);
    }
    for directive in block {
        if let Some(inner) = &mut directive.block {
            expand(inner, maps);
        }
    }
}

fn word(text: &str) -> Word {
    Word { text: text.to_owned(), is_quoted: false }
}
