//! `cpus`: the CPUs that the server's threads run on.

use std::process::{Command, Output};

use flatout_tests::upgrading::orphan;
use flatout_tests::{Folder, Server, Signal, program, until};

fn serve(folder: &Folder, more: &[&str]) -> Command {
    let mut command = Command::new(program("flatout"));
    command.current_dir(&folder.0).args(["serve", "-c", "site.kdl"]).args(more);
    command
}

fn folder(settings: &str) -> Folder {
    let folder = Folder::new();
    folder.write("site.kdl", site(settings));
    folder
}

fn site(settings: &str) -> String {
    format!("listen \"127.0.0.1:0\"\n{settings}\nrespond 200 \"hello\"\n")
}

/// The CPUs that each thread of a process may use, and its name.
fn threads(pid: u32) -> Vec<(String, String)> {
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let texts = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    texts.map(|text| (field(&text, "Name:"), field(&text, "Cpus_allowed_list:"))).collect()
}

fn own_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_threads_run_there_with_one_worker_for_each() {
    let last = own_cpus().split([',', '-']).next_back().expect("a CPU").to_owned();
    let folder = folder(&format!("cpus \"{last}\""));
    let server = Server::start(serve(&folder, &[]));
    let threads = threads(server.pid());
    assert!(threads.iter().all(|(_, cpus)| *cpus == last), "{threads:?}");
    let workers = threads.iter().filter(|(name, _)| name.starts_with("flatout-") && name.len() == 9).count();
    assert_eq!(workers, 1, "{threads:?}");
}

#[test]
fn a_reload_refuses_a_change_and_an_upgrade_makes_it() {
    let last = own_cpus().split([',', '-']).next_back().expect("a CPU").to_owned();
    let folder = folder(&format!("workers 1\ncpus \"{last}\""));
    let server = Server::start(serve(&folder, &[]));
    folder.write("site.kdl", site("workers 1"));
    server.signal(Signal::HUP);
    until("it is refused", || {
        server.said().iter().any(|line| line.contains("changes to `cpus` need a restart"))
    });
    server.signal(Signal::USR2);
    until("it is replaced", || server.said().iter().any(|line| line.contains("has taken over")));
    let line = server.said().into_iter().find(|line| line.contains("has taken over")).expect("the line");
    let threads = threads(orphan(&line).pid());
    assert!(threads.iter().any(|(_, cpus)| *cpus == own_cpus()), "{threads:?}");
}

#[test]
fn mistakes_are_reported() {
    let folder = folder("");
    for (list, expected) in [
        ("x", "got `x`, need CPUs such as 2,3 or 0-3"),
        ("", "need CPUs such as 2,3 or 0-3"),
        ("3-1", "got `3-1`, need CPUs"),
        ("0-9999", "got `0-9999`, need CPUs"),
        ("1023", "cpus: got [1023], this process may use ["),
    ] {
        let output = serve(&folder, &["--cpus", list]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{list}: {}", text(&output));
        assert!(text(&output).contains(expected), "{list}: {}", text(&output));
    }
}
