//! Checks `ARCHITECTURE.md`: its table lists every crate, with the dependencies in `Cargo.toml`. That every place in
//! `docs/internals/where.md` exists. And that every file of tests is in one of the programs that run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Edges = BTreeMap<String, BTreeSet<String>>;

/// The table's rows: `` | `crate` | description | uses | must never know | ``.
fn told(map: &str) -> Edges {
    let rows = map.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _, uses, _, ""] = cells[..] else { return None };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        let uses = uses.split(", ").filter(|used| *used != "–").map(str::to_owned);
        Some((name.to_owned(), uses.collect()))
    });
    rows.collect()
}

/// The dependencies of a crate on our crates, without those of its tests.
fn edges(manifest: &str) -> BTreeSet<String> {
    let dependencies = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = dependencies
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ']).next());
    let ours = names.filter(|name| *name == "flatout" || name.starts_with("flatout-"));
    ours.map(|name| name.trim_start_matches("flatout-").to_owned()).collect()
}

#[test]
fn the_map_lists_all_dependencies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let mut found = Edges::new();
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let folder = entry.unwrap();
        let name = folder.file_name().into_string().unwrap();
        found.insert(name, edges(&text(&folder.path().join("Cargo.toml"))));
    }
    assert!(found.len() > 10 && found["engine"].contains("wire"), "{found:?}");
    assert_eq!(told(&text(&root.join("ARCHITECTURE.md"))), found);
}

/// The longest that the map may get: it is read in one sitting.
const MAP_LINES_MAX: usize = 150;

#[test]
fn the_map_is_short() {
    let map = include_str!("../../ARCHITECTURE.md");
    assert!(map.lines().count() <= MAP_LINES_MAX, "{} lines", map.lines().count());
}

/// Whether a source file defines this name.
fn defines(source: &str, name: &str) -> bool {
    let kinds = ["fn", "const", "static", "struct", "enum", "trait", "type", "mod"];
    kinds.iter().any(|kind| {
        source.match_indices(&format!("{kind} {name}")).any(|(at, text)| {
            let after = source[at + text.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

#[test]
fn every_place_in_the_index_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let index = std::fs::read_to_string(root.join("docs/internals/where.md")).unwrap();
    let places: Vec<(&str, &str)> = index
        .lines()
        .filter_map(|line| {
            line.split('|').nth(2)?.trim().strip_prefix('`')?.strip_suffix('`')?.split_once("::")
        })
        .collect();
    assert!(places.len() >= 60, "{} places", places.len());
    let lost = places.iter().filter(|(file, name)| {
        !std::fs::read_to_string(root.join(file)).is_ok_and(|source| defines(&source, name))
    });
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
}

/// The files of tests of a crate that neither `tests/main.rs` nor a `[[test]]` of `Cargo.toml` names.
fn forgotten(package: &Path) -> Vec<String> {
    let text = |name: &str| std::fs::read_to_string(package.join(name)).unwrap();
    let manifest = text("Cargo.toml");
    if !manifest.contains("autotests = false") {
        return Vec::new();
    }
    let modules = text("tests/main.rs");
    let files = std::fs::read_dir(package.join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    let names = sources.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let is_named = |name: &String| {
        modules.contains(&format!("\nmod {name};\n"))
            || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"))
    };
    names.filter(|name| name != "main" && !is_named(name)).collect()
}

#[test]
fn every_file_of_tests_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in crates.chain([root.join("tests")]) {
        let forgotten = forgotten(&package);
        let main = package.join("tests/main.rs");
        assert!(forgotten.is_empty(), "{forgotten:?}: add them as modules to {}", main.display());
    }
}
