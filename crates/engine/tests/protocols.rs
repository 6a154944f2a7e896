//! The two protocols do not know each other: `src/h1` and `src/h2` share only what is in `src/serving`, and only its
//! `dispatch` asks which protocol a connection uses.

use std::fs;
use std::path::{Path, PathBuf};

/// The source files in a folder and those inside it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(of_entry).collect()
}

/// The lines of code in a file of the engine or in the files of a folder that contain one of `words`. Comments do not
/// count.
fn lines_with(path: &str, words: &[&str]) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path);
    let files = if path.is_dir() { sources(&path) } else { vec![path] };
    assert!(!files.is_empty());
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let matching = code.filter(|line| words.iter().any(|word| line.contains(word)));
        found.extend(matching.map(|line| format!("{}: {}", file.display(), line.trim())));
    }
    found
}

#[test]
fn h1_does_not_name_h2() {
    assert_eq!(lines_with("h1", &["h2"]), Vec::<String>::new());
}

#[test]
fn h2_does_not_name_h1() {
    assert_eq!(lines_with("h2", &["h1"]), Vec::<String>::new());
}

#[test]
fn only_dispatch_asks_for_the_protocol() {
    let questions = [".is_h2()", ".session()"];
    assert!(!lines_with("serving/dispatch.rs", &questions).is_empty());
    let elsewhere = lines_with("", &questions);
    let elsewhere = elsewhere.iter().filter(|line| {
        // `connection.rs` defines them.
        !line.contains("/serving/dispatch.rs: ") && !line.contains("/connection.rs: ")
    });
    assert_eq!(elsewhere.collect::<Vec<_>>(), Vec::<&String>::new());
}
