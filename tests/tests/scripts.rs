//! `./x`: no demo and no benchmark is without a smoke run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The lines that `./x` prints.
fn x(arguments: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new("sh").arg("x").args(arguments).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn every_demo_and_benchmark_has_a_smoke_run() {
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    // `./x demo proxy [FLAG …]`: the words before the flags and the description, which two spaces separate.
    let command = |line: &String| {
        let command = line.strip_prefix("./x ")?.split("  ").next()?.to_owned();
        let words: Vec<&str> = command.split(' ').take_while(is_name).collect();
        ["bench", "demo"].contains(&words[0]).then(|| words.join(" "))
    };
    let commands: BTreeSet<String> = x(&["help"]).iter().filter_map(command).collect();
    assert!(commands.len() > 15, "{commands:?}");
    let listed: BTreeSet<String> = x(&["smoke", "--list"]).into_iter().collect();
    assert_eq!(commands, listed);
}
