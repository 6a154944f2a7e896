//! The commit being built, for `flatout --version`: from the environment, or from git. A copy of the sources without a repository has none.

use std::process::Command;

/// Hash and date of the commit, for those who build without git: packages of the same sources have the same bytes.
const COMMIT: &str = "FLATOUT_SOURCE_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", name]).filter(|path| std::path::Path::new(path).exists())
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rerun-if-env-changed={COMMIT}");
    // A source folder without its own repository may be inside another one.
    let is_ours = git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    let of_git = || git(&["log", "-1", "--format=%h %cs", "--abbrev=10"]).filter(|_| is_ours);
    let given = std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(of_git) {
        println!("cargo:rustc-env=FLATOUT_COMMIT={} ({commit})", env!("CARGO_PKG_VERSION"));
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
