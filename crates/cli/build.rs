//! The commit being built, for `flatout --version`; without git or a repository there is none.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", name]).filter(|path| std::path::Path::new(path).exists())
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    // A source folder without its own repository may be inside another one.
    let is_ours = git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    let commit = git(&["log", "-1", "--format=%h %cs", "--abbrev=10"]).filter(|_| is_ours);
    if let Some(commit) = commit {
        println!("cargo:rustc-env=FLATOUT_COMMIT={} ({commit})", env!("CARGO_PKG_VERSION"));
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
