//! Packages that could be published have the metadata that a registry shows.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_package_has_registry_metadata() {
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"];
    let texts = licences.map(|name| std::fs::read_to_string(root().join(name)).unwrap());
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let has = |line: &str| manifest.lines().any(|this| this.starts_with(line));
        for line in [
            "description = ",
            "documentation = ",
            "license.workspace = ",
            "readme",
            // It builds on Linux only.
            "targets = [\"x86_64-unknown-linux-gnu\"]",
        ] {
            assert!(has(line), "{}: no `{line}`", folder.display());
        }
        for (name, text) in licences.iter().zip(&texts) {
            let own = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            assert!(own == *text, "{}: no {name}; link it to that of the root", folder.display());
        }
        count += 1;
    }
    assert!(count > 10, "{count}");
}
