//! Commands of a page of the documentation, typed as they stand, in an empty folder and a network of their own: their ports are free.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Folder, program};

/// Seconds for all commands of a page.
const PAGE_S_MAX: &str = "240";

/// The page `docs/NAME`.
pub fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands of a text: all of its blocks for the shell.
pub fn commands(text: &str) -> String {
    let blocks = text.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").expect("a block ends").0);
    blocks.map(|block| format!("echo '== commands'\n{block}")).collect()
}

/// Runs a script, in which the first command that fails is the last; returns its output.
///
/// # Panics
/// A command fails, or the script does not end.
pub fn run(script: &str, folder: &Folder) -> String {
    // What is left when a command fails ends with the script.
    let script = format!(
        "set -eo pipefail\nip link set lo up\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    );
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = program("flatout").parent().expect("a folder").display().to_string();
    let mut shell = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        shell.args(["--user", "--map-root-user"]);
    }
    shell.args(["--net", "timeout", "--signal=TERM", PAGE_S_MAX, "bash", "-c", &script]);
    shell.env("PATH", format!("{programs}:{path}")).env("HOME", &folder.0);
    let output = shell.current_dir(&folder.0).stdin(Stdio::null()).output().expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let server = std::fs::read_to_string(folder.0.join("server.log")).unwrap_or_default();
    assert!(output.status.success(), "{out}\n{err}\nthe server:\n{server}");
    out
}
