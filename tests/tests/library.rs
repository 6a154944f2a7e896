//! The library's documentation: every public item has an example, and the names on the pages for users of other
//! frameworks exist.
//!
//! A type, a trait or a function has its own example. A method is called in an example of its file. rustdoc
//! checks that the examples compile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Types that users can neither name nor construct: markers that distinguish kinds of handlers.
const UNNAMEABLE: [&str; 3] = ["Plain", "Async", "Itself"];

/// Names on these pages that belong to other crates.
const FOREIGN: [&str; 9] =
    ["TraceLayer", "new_for_http", "ServeDir", "MyError", "From", "Send", "ServiceExt", "Arc", "fn"];

/// A public item, and whether it has an example.
struct Item<'s> {
    kind: &'s str,
    name: &'s str,
    is_method: bool,
    has_example: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The library's files, without their tests. The files of one type's folder count as one.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates/flatout/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
                let is_app = path.parent().is_some_and(|folder| folder.ends_with("app"));
                let place = if is_app { "app".to_owned() } else { path.display().to_string() };
                found.push((place, text));
            }
        }
    }
    assert!(found.len() > 50);
    found
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The text of a doc comment line.
fn documented(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
}

/// The code of all examples, without diagrams.
fn examples(text: &str) -> String {
    let (mut is_code, mut language, mut found) = (false, "", String::new());
    for line in text.lines() {
        let Some(line) = documented(line) else {
            is_code = false;
            continue;
        };
        match line.strip_prefix("```") {
            Some(opened) if !is_code => (is_code, language) = (true, opened),
            Some(_) => is_code = false,
            None if is_code && language != "text" => found += &format!("{line}\n"),
            None => {}
        }
    }
    found
}

/// The public items, and the methods that `methods!` makes.
fn items(text: &str) -> Vec<Item<'_>> {
    let (mut found, mut documentation) = (Vec::new(), String::new());
    for line in text.lines() {
        let code = line.trim_start();
        if let Some(text) = documented(line) {
            documentation += &format!("///{text}\n");
            continue;
        }
        let words: Vec<&str> = code.split(|letter| !is_word(letter)).collect();
        let item = match &words[..] {
            ["pub", "async", kind @ "fn", name, ..]
            | ["pub", kind @ ("fn" | "struct" | "enum" | "trait" | "type"), name, ..] => Some((*kind, *name)),
            [name, _, ""] if code.ends_with(';') && line.starts_with("        ") && !name.is_empty() => {
                documentation.starts_with("///Handles ").then_some(("fn", *name))
            }
            _ => None,
        };
        if let Some((kind, name)) = item {
            let (is_method, has_example) = (line.starts_with(' '), !examples(&documentation).is_empty());
            found.push(Item { kind, name, is_method, has_example });
        }
        // Attributes are between the documentation and its item.
        let is_attribute = code.starts_with('#') || code.starts_with("message") || code.starts_with("label");
        if !is_attribute && !code.starts_with("note") && code != ")]" {
            documentation.clear();
        }
    }
    found
}

fn calls(examples: &str, name: &str) -> bool {
    let is_called = |call: String| {
        examples.match_indices(&call).any(|(at, _)| !examples[at + call.len()..].starts_with(is_word))
    };
    is_called(format!(".{name}")) || is_called(format!("::{name}"))
}

#[test]
fn every_public_item_has_an_example() {
    let sources = sources();
    let (mut missing, mut count) = (BTreeSet::new(), 0);
    for (place, text) in &sources {
        let same_place = sources.iter().filter(|(other, _)| other == place);
        let examples: String = same_place.map(|(_, text)| examples(text)).collect();
        for Item { kind, name, is_method, has_example } in items(text) {
            count += 1;
            let is_shown = if is_method { calls(&examples, name) } else { has_example };
            // A macro's `$name` has no name here.
            if !is_shown && !name.is_empty() && !UNNAMEABLE.contains(&name) {
                missing.insert(format!("{place}: {kind} {name}"));
            }
        }
    }
    assert!(count > 200, "{count}");
    assert!(missing.is_empty(), "without an example:\n{}", Vec::from_iter(missing).join("\n"));
}

/// The words of a text, each with the text that follows it.
fn words(mut text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    while let Some(start) = text.find(is_word) {
        let rest = &text[start..];
        let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
        found.push(rest.split_at(end));
        text = &rest[end..];
    }
    found
}

/// Names of types, and of functions followed by a parenthesis, in the code of a table cell.
fn named(cell: &str) -> Vec<&str> {
    let code = cell.split('`').skip(1).step_by(2).filter(|code| !code.starts_with("tokio::"));
    // Quoted text is a path or a value.
    let words = code.flat_map(|code| code.split('"').step_by(2)).flat_map(words);
    let is_name = |(word, behind): &(&str, &str)| {
        let is_type = word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase);
        is_type || behind.starts_with('(')
    };
    words.filter(is_name).map(|(word, _)| word).collect()
}

#[test]
fn the_names_on_the_pages_for_newcomers_are_there() {
    let sources = sources();
    let mut known: BTreeSet<&str> = FOREIGN.into();
    for (place, text) in &sources {
        known.extend(items(text).iter().map(|item| item.name));
        if place.ends_with("/lib.rs") {
            known.extend(words(text).iter().map(|(word, _)| word));
        }
    }
    // Types made by the macro of keyed cookies, and a type's own `new`.
    known.extend(["SignedCookies", "PrivateCookies", "new"]);
    for page in ["coming-from-axum.md", "coming-from-actix.md"] {
        let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
        let rows = text.lines().filter_map(|line| {
            // A bar inside code is escaped.
            let line = line.strip_prefix("| ")?.replace("\\|", " ");
            Some(line.split(" | ").nth(1)?.to_owned())
        });
        let rows: Vec<String> = rows.collect();
        assert!(rows.len() > 15, "{page}");
        for row in &rows {
            let unknown: Vec<&str> = named(row).into_iter().filter(|name| !known.contains(name)).collect();
            assert!(unknown.is_empty(), "{page}: {unknown:?} in {row}");
        }
    }
}
