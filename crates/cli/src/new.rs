//! `flatout new NAME`: a project on the library.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, value_parser};

use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "new",
    about: "Make a project: an API with a database, tests and a load plan",
    more: "The folder must not exist. Nothing is downloaded; `cargo test` in the folder builds the project. The library is \
           not published yet, so the project refers to it in a checkout of flatout.",
    examples: &[(
        "flatout new shop --library ~/flatout",
        "make the folder shop; then: cd shop && cargo test && cargo run",
    )],
    arguments: |command| {
        let name = Arg::new(NAME).value_name("NAME").required(true);
        let name = name.help("The name of the package and its folder: a-z, 0-9, - and _");
        let library = Arg::new(LIBRARY).long(LIBRARY).value_name("CHECKOUT");
        let library = library.value_parser(value_parser!(PathBuf));
        let library =
            library.help("Required: the checkout of flatout with the library, or its crates/flatout");
        command.override_usage(USAGE).arg(name).arg(library)
    },
    run,
};

const NAME: &str = "name";
const LIBRARY: &str = "library";

/// Without the library there is an error of our own, which says why it is needed.
const USAGE: &str = "flatout new <NAME> --library <CHECKOUT>";

/// The library within a checkout, and its name in its manifest.
const LIBRARY_FOLDER: &str = "crates/flatout";
const LIBRARY_NAME: &str = "name = \"flatout\"";

/// As on crates.io.
const NAME_BYTES_MAX: usize = 64;

/// Names that the compiler or Cargo has a meaning for, and that match the other rules.
const RESERVED: [&str; 58] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "flatout",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

/// Path and text of each file.
const FILES: [(&str, &str); 8] = [
    ("Cargo.toml", include_str!("new/template/manifest.toml")),
    (".gitignore", include_str!("new/template/gitignore")),
    ("README.md", include_str!("new/template/README.md")),
    ("src/main.rs", include_str!("new/template/src/main.rs")),
    ("src/lib.rs", include_str!("new/template/src/lib.rs")),
    ("src/database.rs", include_str!("new/template/src/database.rs")),
    ("tests/api.rs", include_str!("new/template/tests/api.rs")),
    ("load/urls.txt", include_str!("new/template/load/urls.txt")),
];

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(name) = matches.get_one::<String>(NAME) else { return Ok(()) };
    check(name).map_err(Failure::Usage)?;
    let Some(checkout) = matches.get_one::<PathBuf>(LIBRARY) else {
        return Err(Failure::Usage(format!(
            "the library is not published yet: give a checkout of flatout: flatout new {name} --library CHECKOUT"
        )));
    };
    let library = library(checkout)?;
    let dependency = format!("flatout = {{ path = {:?} }}", library.display().to_string());
    let folder = Path::new(name);
    std::fs::create_dir(folder).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::Usage(format!("`{name}` exists already: choose another name, or remove it"))
        }
        _ => Failure::Run(format!("cannot create the folder `{name}`: {error}")),
    })?;
    for (file, text) in FILES {
        let text = text.replace("@NAME@", name).replace("@CRATE@", &name.replace('-', "_"));
        let path = folder.join(file);
        let folder = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text.replace("@FLATOUT@", &dependency)))
            .map_err(|error| Failure::Run(format!("cannot write `{}`: {error}", path.display())))?;
    }
    print(&format!(
        "made `{name}`, an API with a database\n\n  cd {name}\n  cargo test          test it\n  cargo run           serve \
         it on 127.0.0.1:8080\n  cat README.md       requests to try, and how to load it\n"
    ))
}

/// The folder of the library: this folder, or the one within this checkout.
fn library(checkout: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::Usage(format!("--library: cannot open `{}`: {error}", checkout.display()));
    let folder = checkout.canonicalize().map_err(failed)?;
    let within = folder.join(LIBRARY_FOLDER);
    [folder, within].into_iter().find(|folder| is_library(folder)).ok_or_else(|| {
        Failure::Usage(format!(
            "--library: neither `{0}` nor `{0}/{LIBRARY_FOLDER}` is the library: need a checkout of flatout",
            checkout.display().to_string().trim_end_matches('/')
        ))
    })
}

/// Whether the package in this folder is the library.
fn is_library(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|manifest| manifest.lines().any(|line| line.trim() == LIBRARY_NAME))
}

/// # Errors
/// Why a package cannot have this name.
fn check(name: &str) -> Result<(), String> {
    let is_valid = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
    if !is_valid {
        return Err(format!(
            "a project cannot be named `{name}`: a name has up to {NAME_BYTES_MAX} characters a-z, 0-9, - and _, and \
             starts with a letter"
        ));
    }
    if RESERVED.contains(&name.replace('-', "_").as_str())
        || matches!(name, "serde" | "serde_json" | "rusqlite")
    {
        return Err(format!(
            "a project cannot be named `{name}`, which has a meaning in Rust: try `my-{name}`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_packages_are_checked() {
        for name in ["shop", "my-shop", "shop_2"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "Shop", "2shop", "../shop", "a/b", "-x", "shöp", &"x".repeat(65)] {
            assert!(check(name).unwrap_err().contains("a-z, 0-9"), "{name}");
        }
        for name in ["test", "flatout", "fn", "proc-macro", "serde"] {
            assert!(check(name).unwrap_err().contains(&format!("try `my-{name}`")), "{name}");
        }
    }
}
