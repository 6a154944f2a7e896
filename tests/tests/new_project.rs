//! `flatout new`: the project builds, its tests pass, and it serves what its README says.

use std::path::Path;
use std::process::{Command, Output};

use flatout_tests::{Folder, Server, program};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn new(folder: &Folder, arguments: &[&str]) -> Output {
    Command::new(program("flatout")).arg("new").args(arguments).current_dir(&folder.0).output().unwrap()
}

/// `cargo` in the project, with the versions and the built dependencies of this workspace.
fn cargo(project: &Path, arguments: &[&str]) {
    let mut cargo = Command::new("cargo");
    cargo.args(arguments).args(["--offline", "--quiet"]).current_dir(project);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap());
    let output = cargo.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
}

#[test]
#[ignore = "builds the project's own dependencies, TLS and SQLite among them: minutes"]
fn a_new_project_is_tested_and_served() {
    let folder = Folder::new();
    let library = root().join("crates/flatout");
    let output = new(&folder, &["note-shop", "--library", library.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let project = folder.0.join("note-shop");
    std::fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    cargo(&project, &["test"]);
    cargo(&project, &["build"]);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("debug/note-shop");
    let help = Command::new(&program).arg("--help").current_dir(&folder.0).output().unwrap();
    assert!(help.status.success() && help.stdout.starts_with(b"usage: note-shop "), "{help:?}");
    assert!(!folder.0.join("note-shop.db").exists(), "help opens no database");
    let mut command = Command::new(&program);
    command.args(["--listen", "127.0.0.1:0"]).env("DATABASE", folder.0.join("notes.db"));
    let server = Server::start(command);
    let added = server.one(
        "POST /notes HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 19\r\nConnection: close\r\n\r\n{\"text\":\"buy milk\"}",
    );
    assert_eq!((added.status, added.text().as_str()), (201, r#"{"id":1,"text":"buy milk"}"#));
    // The load plan's paths.
    let plan = std::fs::read_to_string(project.join("load/urls.txt")).unwrap();
    for line in plan.lines() {
        let (_, path) = line.split_once(' ').unwrap();
        assert_eq!(server.get(path, "").status, 200, "{path}");
    }
}

#[test]
fn a_wrong_name_or_an_existing_folder_is_refused() {
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join("shop")).unwrap();
    for (arguments, part) in [
        (&["shop"][..], "`shop` exists already"),
        (&["../shop"], "cannot be named `../shop`"),
        (&["test"], "try `my-test`"),
        (&["other", "--library", "/nowhere"], "cannot open `/nowhere`"),
        (&["other", "--library", "."], "has no Cargo.toml"),
    ] {
        let output = new(&folder, arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert!(!folder.0.join("other").exists());
    assert_eq!(std::fs::read_dir(folder.0.join("shop")).unwrap().count(), 0);
}
