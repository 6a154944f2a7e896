//! Checks names over all crates: a type name is used once in a crate and is a noun of the field, modules are not named by
//! participles, and tests are plain statements. Sources are read as text, so a type must be defined at the start of a line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that have been type names and do not say what the type is.
const VAGUE: &[&str] =
    &["Said", "Asked", "Kept", "Held", "Looked", "Told", "Came", "Went", "Took", "What", "Left", "Given"];

/// Words that have been names of functions and do not say what is returned or done.
const VAGUE_FUNCTIONS: &[&str] = &[
    "said", "says", "asked", "asks", "heard", "looked", "told", "tells", "came", "went", "took", "what",
    "given",
];

/// Modules that end with `-ing` and are named by a noun or a fixed term.
const NOUNS: &[(&str, &str)] = &[
    ("blocking", "tokio's term for calls that block a thread"),
    ("coalescing", "ethtool's term, and the name of a tuning"),
    ("framing", "RFC 9112's term"),
    ("incoming", "an adjective: the body `Incoming`"),
    ("listing", "the page that lists a folder"),
    ("outgoing", "an adjective: the body `Outgoing`"),
    ("pinning", "the kernel's term, and the name of a tuning"),
    ("routing", "the field's term"),
    ("setting", "an entry of a file or a flag"),
    ("string", "not a participle"),
    ("timing", "the field's term"),
    ("serving", "the state with which a worker serves its connections, the type `Serving`"),
    ("tracing", "OpenTelemetry's term, and the crate's name"),
    ("tuning", "an entry of `flatout tune`"),
];

/// Words that make the name of a test a riddle (`what_cannot_be_is_told`): a plain statement has a noun in their place.
const RIDDLES: &[&str] = &[
    "alike", "came", "gotten", "nobody", "nobodys", "said", "somebody", "taken", "tell", "tells", "told",
    "went", "what", "whatever", "who",
];

/// A source file of a crate, and the crate's name.
struct Source {
    package: String,
    path: PathBuf,
    text: String,
}

impl Source {
    /// The name of its module: that of the folder for `mod.rs`.
    fn module(&self) -> &str {
        let named = if self.path.ends_with("mod.rs") { self.path.parent().unwrap() } else { &self.path };
        named.file_stem().unwrap().to_str().unwrap()
    }

    /// Its text without modules of tests. Those are at the end of a file, or files of their own.
    fn product(&self) -> &str {
        let is_test = |part: &str| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs");
        if self.path.iter().any(|part| is_test(part.to_str().unwrap())) {
            return "";
        }
        let end = self.text.match_indices("#[cfg(test)]\nmod ").find(|(at, start)| {
            let line = self.text[at + start.len()..].lines().next().unwrap_or_default();
            line.ends_with('{')
        });
        end.map_or(&self.text, |(at, _)| &self.text[..at])
    }
}

/// All sources below `crates/*/NAME` for these folders, and below `tests`.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let package = entry.unwrap().path();
        let name = package.file_name().unwrap().to_str().unwrap();
        folders.iter().for_each(|folder| collect(name, &package.join(folder), Path::new(folder), &mut found));
    }
    if folders.contains(&"tests") {
        collect("tests", &root.join("tests/tests"), Path::new("tests"), &mut found);
    }
    assert!(found.len() > 200, "{} sources", found.len());
    found
}

/// Adds the sources in a folder, with their path relative to the crate.
fn collect(package: &str, folder: &Path, relative: &Path, found: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        let path = relative.join(entry.file_name().unwrap());
        if entry.is_dir() {
            collect(package, &entry, &path, found);
        } else if entry.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&entry).unwrap();
            found.push(Source { package: package.to_owned(), path, text });
        }
    }
}

/// The name of the type that a line defines. Associated types are indented and not public: they are none.
fn type_defined(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let public = ["pub ", "pub(crate) ", "pub(super) "].iter().find_map(|start| words.strip_prefix(start));
    let restricted = || words.strip_prefix("pub(in ")?.split_once(") ").map(|(_, rest)| rest);
    let rest = public.or_else(restricted).unwrap_or(words);
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let is_type = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => line == words || rest.len() < words.len() - "type ".len(),
        _ => false,
    };
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// The name of the function that a line defines.
fn function_defined(line: &str) -> Option<&str> {
    let rest = line.trim_start();
    let rest =
        rest.strip_prefix("pub").map_or(rest, |rest| rest.split_once(' ').map_or(rest, |(_, rest)| rest));
    let rest = ["const ", "async ", "unsafe "]
        .iter()
        .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The names of the tests in a source.
fn tests(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(function) = function.filter(|_| is_test) {
            names.extend(function.split(['(', '<']).next());
            is_test = false;
        }
    }
    names
}

/// Fails with every wrong name and its place.
fn report(advice: &str, wrong: &BTreeMap<String, String>) {
    let wrong: Vec<String> = wrong.iter().map(|(key, place)| format!("  {key}: {place}")).collect();
    assert!(wrong.is_empty(), "{advice}:\n{}", wrong.join("\n"));
}

#[test]
fn type_names_are_unique_in_a_crate() {
    let sources = sources(&["src"]);
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in &sources {
        for name in source.product().lines().filter_map(type_defined) {
            let key = format!("{} {name}", source.package);
            places.entry(key).or_default().push(source.path.display().to_string());
        }
    }
    assert!(places.len() > 1000, "{} types", places.len());
    let twice = places.into_iter().filter(|(_, files)| files.len() > 1);
    let wrong = twice.map(|(key, files)| (key, files.join(", "))).collect();
    report("a crate has two types of the same name; name each by what sets it apart", &wrong);
}

#[test]
fn type_names_are_nouns_of_the_field() {
    let mut wrong = BTreeMap::new();
    for source in &sources(&["src", "tests"]) {
        for name in source.text.lines().filter_map(type_defined).filter(|name| VAGUE.contains(name)) {
            wrong.insert(format!("{} {name}", source.package), source.path.display().to_string());
        }
    }
    report(
        "a type has a name that does not say what it is; use the field's noun (query, entry, event)",
        &wrong,
    );
}

#[test]
fn functions_are_named_by_actions_or_results() {
    let mut wrong = BTreeMap::new();
    for source in &sources(&["src"]) {
        let functions = source.text.lines().filter_map(function_defined);
        for name in functions.filter(|name| VAGUE_FUNCTIONS.contains(name)) {
            wrong.insert(format!("{} {name}", source.package), source.path.display().to_string());
        }
    }
    report("a function has a name that does not say what it returns or does", &wrong);
}

#[test]
fn modules_are_named_by_nouns() {
    let mut wrong = BTreeMap::new();
    let is_noun = |module: &str| NOUNS.iter().any(|(noun, _)| *noun == module);
    for source in &sources(&["src"]) {
        let module = source.module();
        if module.ends_with("ing") && !is_noun(module) {
            wrong.insert(format!("{} {}", source.package, source.path.display()), module.to_owned());
        }
    }
    report("a module is named by a participle; use a noun, or add a noun to NOUNS with its reason", &wrong);
}

#[test]
fn tests_are_named_by_statements() {
    let mut wrong = BTreeMap::new();
    let mut count = 0;
    for source in &sources(&["src", "tests"]) {
        for name in tests(&source.text) {
            count += 1;
            let riddle = name.split('_').find(|word| RIDDLES.contains(word));
            let riddle = riddle.or_else(|| name.starts_with("it_").then_some("it"));
            if let Some(word) = riddle {
                wrong.insert(
                    format!("{} {name}", source.package),
                    format!("{} (`{word}`)", source.path.display()),
                );
            }
        }
    }
    assert!(count > 1500, "{count} tests");
    report("the name of a test is a riddle; write a plain statement with nouns", &wrong);
}

#[test]
fn definitions_are_found() {
    let found = |line: &'static str| type_defined(line);
    assert_eq!(found("pub(in crate::serve) struct Values<'a> {"), Some("Values"));
    assert_eq!(found("    pub(super) enum Scope;"), Some("Scope"));
    assert_eq!(found("type Edges = BTreeMap<u8, u8>;"), Some("Edges"));
    assert_eq!(found("    type Output = u8;"), None);
    assert_eq!(found("    // struct Nothing"), None);
    assert_eq!(function_defined("    pub(crate) const fn told(&self) {"), Some("told"));
    assert_eq!(function_defined("fn asked<T>(it: T) {"), Some("asked"));
    assert_eq!(function_defined("// fn nothing()"), None);
    assert_eq!(tests("#[test]\nfn a() {}\nfn b() {}\n#[tokio::test]\nasync fn c() {}"), ["a", "c"]);
}
