//! Expressions of PCRE in the form of the site file, wherever a configuration has them.

use crate::nginx::{Directive, Word};

use super::pattern::translated;

/// The same configuration with these expressions.
pub(super) fn expressions(main: &[Directive]) -> Vec<Directive> {
    let mut main = main.to_vec();
    main.iter_mut().for_each(translate);
    main
}

fn translate(directive: &mut Directive) {
    let words = &mut directive.words;
    match directive.name.as_str() {
        "rewrite" | "fastcgi_split_path_info" => words.iter_mut().take(1).for_each(change),
        "location" => {
            let is_pattern = words.first().is_some_and(|word| word.text.starts_with('~'));
            words.iter_mut().filter(|_| is_pattern).for_each(change);
        }
        "if" => {
            let operator =
                words.iter().position(|word| ["~", "~*", "!~", "!~*"].contains(&word.text.as_str()));
            if let Some(at) = operator {
                words.iter_mut().skip(at + 1).for_each(change);
            }
        }
        "server_name" | "valid_referers" => {
            words.iter_mut().filter(|word| word.text.starts_with('~')).for_each(change);
        }
        "proxy_redirect" | "proxy_cookie_domain" | "proxy_cookie_path" | "proxy_cookie_flags" => {
            words.iter_mut().take(1).filter(|word| word.text.starts_with('~')).for_each(change);
        }
        "map" => {
            for case in directive.block.iter_mut().flatten().filter(|case| case.name.starts_with('~')) {
                case.name = translated(&case.name);
            }
        }
        _ => {}
    }
    directive.block.iter_mut().flatten().for_each(translate);
}

fn change(word: &mut Word) {
    word.text = translated(&word.text);
}
