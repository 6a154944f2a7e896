//! Checks `ARCHITECTURE.md`: its table lists every crate, with the dependencies in `Cargo.toml`.

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
fn the_map_has_the_edges_that_there_are() {
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
