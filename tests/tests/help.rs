//! Help, version, completions, and manual pages.

use std::fs::File;
use std::process::{Command, Output};

use flatout_tests::{Folder, program};

fn run(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).args(arguments).output().unwrap()
}

const COMMANDS: [&str; 18] = [
    "serve",
    "check",
    "fmt",
    "explain",
    "reload",
    "upgrade",
    "upstream",
    "purge",
    "import",
    "top",
    "bench",
    "profile",
    "tune",
    "climb",
    "report",
    "new",
    "completions",
    "health",
];

#[test]
fn help_is_a_result() {
    let mut all: Vec<Vec<&str>> =
        vec![vec!["--help"], vec!["-h"], vec!["help"], vec!["--version"], vec!["-V"]];
    for command in COMMANDS {
        all.extend([vec![command, "--help"], vec![command, "-h"], vec!["help", command]]);
    }
    for arguments in all {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains('\x1b'), "{arguments:?}: colour without a terminal");
        // An example may be longer, because it is meant to be copied.
        let is_wide = |line: &&str| line.chars().count() > 100 && !line.starts_with("  flatout ");
        assert_eq!(text.lines().find(is_wide), None, "{arguments:?}");
    }
    let (short, long) = (run(&["climb", "-h"]).stdout, run(&["climb", "--help"]).stdout);
    assert!(short.len() < long.len() && String::from_utf8(long).unwrap().contains("Examples:\n  # "));
}

#[test]
fn the_version_has_the_commit_if_there_is_one() {
    let text = String::from_utf8(run(&["--version"]).stdout).unwrap();
    let version = text.strip_prefix("flatout ").and_then(|text| text.strip_suffix('\n')).unwrap();
    let (number, commit) = version.split_once(" (").unwrap_or((version, "0000000000 2000-01-01)"));
    assert!(number.split('.').count() == 3, "{text}");
    let (hash, day) = commit.strip_suffix(')').unwrap().split_once(' ').unwrap();
    assert!(
        hash.len() == 10 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) && day.len() == 10,
        "{text}"
    );
}

#[test]
fn shells_take_the_completions() {
    for (shell, arguments) in [("bash", &["-n", "-s"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && !output.stdout.is_empty(), "{shell}");
        let folder = Folder::new();
        folder.write("completions", &output.stdout);
        let file = File::open(folder.0.join("completions")).unwrap();
        // Only shells that are installed.
        let Ok(status) = Command::new(shell).args(arguments).stdin(file).status() else { continue };
        assert!(status.success(), "{shell}");
    }
    assert_eq!(run(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    assert!(run(&["man", folder.0.to_str().unwrap()]).status.success());
    for name in
        COMMANDS.map(|command| format!("flatout-{command}.1")).iter().map(String::as_str).chain(["flatout.1"])
    {
        let page = std::fs::read_to_string(folder.0.join(name)).unwrap();
        assert!(
            page.starts_with(".ie") || page.starts_with(".TH") || page.contains(".TH "),
            "{name}: {page}"
        );
    }
    assert_eq!(run(&["man", "/no/such/folder"]).status.code(), Some(1));
}
