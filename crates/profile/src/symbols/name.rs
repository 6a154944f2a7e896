//! Readable function names.

/// Longest name; compilers make names of many thousands of characters.
const NAME_CHARS_MAX: usize = 240;

/// A name without generic arguments, and of limited length: `<Box<dyn Fn()> as FnOnce<()>>::call_once::<u8>` becomes
/// `<Box as FnOnce>::call_once`.
pub(super) fn short(name: &str) -> String {
    let plain = without_generics(name).unwrap_or_else(|| name.to_owned());
    match plain.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain,
    }
}

/// The same, with the module of its Rust source file if the debug information has no path: `parse` of
/// `…/wire/src/head.rs` becomes `wire::head::parse`.
pub(super) fn qualified(name: &str, file: &str) -> String {
    let name = short(name);
    match module(file) {
        Some(module) if !name.contains("::") => format!("{module}::{name}"),
        _ => name,
    }
}

/// `…/tokio-1.47.1/src/task/mod.rs` is `tokio::task`.
fn module(file: &str) -> Option<String> {
    let (folder, module) = file.strip_suffix(".rs")?.rsplit_once("/src/")?;
    let package = folder.rsplit('/').next()?;
    // A package's folder in the registry ends in its version.
    let name = match package.rsplit_once('-') {
        Some((name, version)) if version.contains('.') => name,
        _ => package,
    };
    let module = module.trim_end_matches("/mod").replace('/', "::");
    Some(format!("{}::{module}", name.replace('-', "_")))
}

/// Removes the text between `<` and `>` after a name. A `<` elsewhere starts `<Type as Trait>` and stays. `None` if
/// they do not match: C++ has operators with these characters.
fn without_generics(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    // Whether each open `<` starts generic arguments; `hidden` counts those that do.
    let mut open = Vec::new();
    let mut hidden = 0_usize;
    let mut last = ' ';
    for letter in name.chars() {
        match letter {
            '<' => {
                let is_generic = last.is_alphanumeric() || matches!(last, '_' | ':' | '}');
                open.push(is_generic);
                hidden += usize::from(is_generic);
                if is_generic && hidden == 1 {
                    plain.truncate(plain.trim_end_matches("::").len());
                } else if hidden == 0 {
                    plain.push(letter);
                }
            }
            '>' if last != '-' => match open.pop()? {
                true => hidden -= 1,
                false if hidden == 0 => plain.push(letter),
                false => {}
            },
            _ if hidden == 0 => plain.push(letter),
            _ => {}
        }
        last = letter;
    }
    open.is_empty().then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_arguments_are_left_out() {
        for (name, expected) in [
            ("<Box<dyn Fn()> as FnOnce<()>>::call_once::<u8>", "<Box as FnOnce>::call_once"),
            ("{closure#1}<a::b<c>, Result<(), ()>>", "{closure#1}"),
            ("map::<fn(u8) -> Vec<u8>, _>::{closure#0}", "map::{closure#0}"),
            ("<std::thread::Thread>::new", "<std::thread::Thread>::new"),
            ("std::vector<int>::push_back(int)", "std::vector::push_back(int)"),
            ("a::operator<<", "a::operator<<"),
            ("a::operator->", "a::operator->"),
            ("x > y", "x > y"),
            ("plain", "plain"),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }

    #[test]
    fn names_without_a_path_get_their_files() {
        for (name, file, expected) in [
            ("parse", "/home/me/flatout/crates/wire/src/head.rs", "wire::head::parse"),
            (
                "poll<a::b>",
                "/c/src/index.crates.io-1/tokio-util-0.7.1/src/task/mod.rs",
                "tokio_util::task::poll",
            ),
            ("a::b", "/x/src/y.rs", "a::b"),
            ("ngx_http_parse", "src/http/ngx_http_parse.c", "ngx_http_parse"),
            ("main", "", "main"),
        ] {
            assert_eq!(qualified(name, file), expected, "{file}");
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = short(&"é".repeat(1000));
        assert_eq!(name.chars().count(), NAME_CHARS_MAX + 1);
        assert_eq!(short("x"), "x");
    }
}
