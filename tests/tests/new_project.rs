//! `flatout new`: the project builds, its tests pass, and it serves what its README says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flatout_tests::{Folder, Server, program};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn new(folder: &Folder, arguments: &[&str]) -> Output {
    Command::new(program("flatout")).arg("new").args(arguments).current_dir(&folder.0).output().unwrap()
}

/// The files below a folder, relative to it, without what a build makes.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.ends_with("target") => {}
                true => folders.push(path),
                false => drop(found.insert(path.strip_prefix(folder).unwrap().to_owned())),
            }
        }
    }
    found
}

/// The lines of the tables of dependencies, without comments and the library's own.
fn dependencies(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]");
    lines.filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with("flatout")).collect()
}

/// The ordinary build compiles and tests the example, and the generated project equals it.
#[test]
fn a_new_project_equals_the_example_that_is_built() {
    let folder = Folder::new();
    let library = root().join("crates/flatout");
    let output = new(&folder, &["note-shop", "--library", library.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (project, example) = (folder.0.join("note-shop"), root().join("examples/note-shop"));
    let mut built = files(&example);
    assert!(built.remove(Path::new("rustfmt.toml")), "the workspace has other settings");
    assert_eq!(files(&project), built);
    let read = |folder: &Path, file: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
    for file in files(&project) {
        let (made, built) = (read(&project, &file), read(&example, &file));
        match file.ends_with("Cargo.toml") {
            true => {
                assert_eq!(dependencies(&made), dependencies(&built));
                assert!(made.contains("name = \"note-shop\"\n"), "{made}");
                assert!(
                    made.contains(&format!("flatout = {{ path = {:?} }}", library.canonicalize().unwrap())),
                    "{made}"
                );
            }
            false => assert_eq!(made, built, "{}", file.display()),
        }
        assert!(
            !made.contains("@NAME@") && !made.contains("@CRATE@") && !made.contains("@FLATOUT@"),
            "{made}"
        );
    }
    // Another name, with an underscore where Rust needs one, and the root of the checkout.
    assert!(new(&folder, &["my-shop", "--library", root().to_str().unwrap()]).status.success());
    let other = folder.0.join("my-shop");
    assert!(read(&other, Path::new("src/main.rs")).contains("use my_shop::"));
    let path = format!("path = {:?}", library.canonicalize().unwrap());
    assert!(read(&other, Path::new("Cargo.toml")).contains(&path));
}

#[test]
fn a_new_project_is_served() {
    let folder = Folder::new();
    let program = program("note-shop");
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
    let plan = std::fs::read_to_string(root().join("examples/note-shop/load/urls.txt")).unwrap();
    for line in plan.lines() {
        let (_, path) = line.split_once(' ').unwrap();
        assert_eq!(server.get(path, "").status, 200, "{path}");
    }
}

#[test]
fn failures_that_end_the_program_are_errors() {
    let folder = Folder::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let holder = format!("the port is held by {} (", std::process::id());
    for (arguments, code, part) in [
        (["--listen", taken.as_str()], 1, holder.as_str()),
        (["--lisen", "127.0.0.1:0"], 2, "invalid option '--lisen'"),
        (["--listen", "foo"], 2, "\"foo\""),
    ] {
        let mut command = Command::new(program("note-shop"));
        command.args(arguments).env("DATABASE", ":memory:").current_dir(&folder.0);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(" error: ") && text.contains(part), "{text}");
    }
}

#[test]
fn a_wrong_name_or_an_existing_folder_is_refused() {
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join("shop")).unwrap();
    let root = root().canonicalize().unwrap();
    let root = root.to_str().unwrap();
    let engine = format!("{root}/crates/engine");
    for (arguments, part) in [
        (&["shop", "--library", root][..], "`shop` exists already"),
        (&["../shop"], "cannot be named `../shop`"),
        (&["test"], "try `my-test`"),
        (&["other", "--library", "/nowhere"], "cannot open `/nowhere`"),
        (&["other", "--library", "."], "neither `.` nor `./crates/flatout` is the library"),
        (&["other", "--library", &engine], "need a checkout of flatout"),
        (&["other"], "not published yet: give a checkout of flatout: flatout new other --library CHECKOUT"),
    ] {
        let output = new(&folder, arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(part), "{text}");
    }
    assert!(!folder.0.join("other").exists());
    assert_eq!(std::fs::read_dir(folder.0.join("shop")).unwrap().count(), 0);
}
