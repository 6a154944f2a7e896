//! The code of the page is the example's code, and its commands work as described.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use flatout::engine::Address;
use realworld::db::{Place, Source};
use support::key;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/realworld.md")).unwrap()
}

/// The blocks of one language, each with the heading above it.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<(&'p str, String)> {
    let (mut heading, mut open, mut found) = ("", None::<(bool, String)>, Vec::new());
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(opened)) => open = Some((opened == language, String::new())),
            (Some((is_wanted, block)), Some(_)) => {
                if *is_wanted {
                    found.push((heading, std::mem::take(block)));
                }
                open = None;
            }
            (Some((_, block)), None) => *block += &format!("{line}\n"),
            (None, None) if line.starts_with('#') => heading = line,
            (None, None) => {}
        }
    }
    found
}

/// The source files of the example in a folder, or one file.
fn source(place: &Path) -> String {
    if place.is_file() {
        return std::fs::read_to_string(place).unwrap();
    }
    let inner = std::fs::read_dir(place).unwrap().map(|entry| source(&entry.unwrap().path()));
    inner.collect()
}

#[test]
fn the_code_on_the_page_is_that_of_the_example() {
    let page = page();
    let shown = blocks(&page, "rust");
    assert!(shown.len() >= 4);
    for (heading, block) in shown {
        let file = heading.split('`').nth(1).unwrap_or_else(|| panic!("no file in `{heading}`"));
        let source = source(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        let there: Vec<&str> = source.lines().map(str::trim).collect();
        // A comment with an ellipsis stands for omitted code.
        for line in block.lines().map(str::trim).filter(|line| !line.starts_with("// …")) {
            assert!(there.contains(&line), "{file} has no line `{line}`");
        }
    }
}

#[test]
fn the_files_that_the_page_names_are_there() {
    let page = page();
    let all = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in
        page.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") || name.ends_with(".md"))
    {
        let places = [all.join(name), all.join("src/db").join(name), root().join(name)];
        assert!(places.iter().any(|place| place.is_file()), "{name}");
    }
}

#[test]
fn the_commands_on_the_page_work() {
    let source = Arc::new(Source::new(&Place::Memory).unwrap());
    let server = realworld::app(source, key()).listen("127.0.0.1:0").workers(1).start().unwrap();
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("no address") };
    let page = page();
    let commands: Vec<String> = blocks(&page, "sh")
        .into_iter()
        .map(|(_, block)| block)
        .filter(|block| block.contains("curl"))
        .map(|block| block.replace("localhost:8080", &address.to_string()))
        .collect();
    assert!(!commands.is_empty());
    let ran = Command::new("sh").args(["-euc", &commands.join("\n")]).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    // The JSON documents in order: the user, the article, the list that contains it.
    let documents: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&said).into_iter().collect::<Result<_, _>>().unwrap();
    let [user, made, listed] = &documents[..] else { panic!("{said}") };
    assert_eq!(user["user"]["username"], "ada");
    assert_eq!(made["article"]["slug"], "dragons");
    assert_eq!(
        (&listed["articlesCount"], &listed["articles"][0]["slug"]),
        (&1.into(), &made["article"]["slug"])
    );
    server.handle().drain();
    server.wait().unwrap();
}
