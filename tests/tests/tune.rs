//! `flatout tune` from outside: its output, its changes in a tree or in a separate network namespace, and that undo
//! restores everything. No test changes a setting of the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use flatout_tests::{Folder, Server, program};

/// Files of a host that some low-risk tunings would change.
const FILES: &[(&str, &str)] = &[
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/core/rmem_max", "212992\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
    ("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
    ("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic bbr\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
    ("etc/sysctl.d/99-own.conf", "# mine\n"),
];

fn tune(arguments: &[&str]) -> Output {
    Command::new(program("flatout")).arg("tune").args(arguments).output().expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A tree of files that represents a host.
struct Machine(Folder, Folder);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(Folder::new(), Folder::new());
        FILES.iter().for_each(|(path, text)| machine.0.write(path, text));
        machine
    }

    fn root(&self) -> &str {
        self.0.0.to_str().expect("a path in UTF-8")
    }

    fn tune(&self, arguments: &[&str]) -> Output {
        let state: &[&str] = if arguments.contains(&"--state") { &[] } else { &["--state", self.state()] };
        tune(&[arguments, &["--root", self.root()], state].concat())
    }

    /// Its journal, which is outside of it.
    fn state(&self) -> &str {
        self.1.0.to_str().expect("a path in UTF-8")
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.0.0.join(path)).expect("a file")
    }

    /// All files but the journal's.
    fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.0.0, &mut found);
        found.retain(|path, _| !path.starts_with(self.0.0.join("var/lib/flatout")));
        found
    }
}

fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => collect(&path, found),
            false => {
                found.insert(path.clone(), std::fs::read(&path).expect("a file"));
            }
        }
    }
}

#[test]
fn one_screen_and_json_say_the_same() {
    let machine = Machine::new();
    let output = machine.tune(&[]);
    assert_eq!(output.status.code(), Some(0));
    let screen = stdout(&output);
    for expected in
        ["flatout tune apply --low-risk", "--low-risk --possible", "--all lists them", "merely possible"]
    {
        assert!(screen.contains(expected), "{screen}");
    }
    let all = stdout(&machine.tune(&["--all"]));
    for expected in ["net.core.somaxconn = 32768", "congestion", "possible, without a sign that it is needed"]
    {
        assert!(!screen.contains("congestion") && all.contains(expected), "{all}");
    }
    // A queue that has overflowed since boot is too short; one that does not overflow while it is watched is not.
    machine.0.write("proc/net/netstat", "TcpExt: ListenOverflows\nTcpExt: 7\n");
    let screen = stdout(&machine.tune(&[]));
    assert!(screen.contains("net.core.somaxconn = 32768 (ListenOverflows 7 since boot)"), "{screen}");
    let watched = stdout(&machine.tune(&["--watch", "20ms"]));
    assert!(!watched.contains("net.core.somaxconn"), "{watched}");
    assert!(screen.lines().count() < 40, "{screen}");
    let json = stdout(&machine.tune(&["--json"]));
    for key in ["name", "scope", "risk", "value", "advice", "measurable_here", "why_unknown"] {
        assert!(json.contains(&format!("\"{key}\":")), "{json}");
    }
    assert!(stdout(&machine.tune(&["--all"])).contains("`ethtool -") || screen.contains("unknown here"));
}

/// The interface for other programs: a list whose entries have these keys with these types.
#[test]
fn json_has_the_documented_fields() {
    let machine = Machine::new();
    let text = stdout(&machine.tune(&["--json", "--port", "80"]));
    let serde_json::Value::Array(tunings) = serde_json::from_str(&text).expect("JSON") else {
        panic!("{text}")
    };
    assert!(tunings.len() > 55, "{}", tunings.len());
    let is_one_of =
        |value: &serde_json::Value, words: &[&str]| words.contains(&value.as_str().expect("a string"));
    for tuning in &tunings {
        let tuning = tuning.as_object().expect("an object");
        assert!(tuning["name"].is_string());
        assert!(
            is_one_of(&tuning["scope"], &["process", "namespace", "device", "host", "reboot"]),
            "{tuning:?}"
        );
        assert!(is_one_of(&tuning["risk"], &["low", "medium", "high"]), "{tuning:?}");
        assert!(tuning["measurable_here"].is_boolean(), "{tuning:?}");
        for key in ["value", "advice", "why_unknown"] {
            assert!(tuning[key].is_string() || tuning[key].is_null(), "{tuning:?}");
        }
        // An unknown value has a reason; a known one has a value.
        assert!(tuning["value"].is_string() || tuning["why_unknown"].is_string(), "{tuning:?}");
    }
    let named = |name: &str| tunings.iter().find(|tuning| tuning["name"] == name).expect("a tuning");
    assert_eq!(named("somaxconn")["value"], "4096");
    assert_eq!(named("somaxconn")["advice"], "net.core.somaxconn = 32768");
    assert_eq!(named("qdisc")["measurable_here"], false);
}

/// A name given twice is applied once; while another run holds the journal, the user has to wait, not the program.
#[test]
fn repeated_names_and_a_locked_journal_are_reported() {
    let machine = Machine::new();
    let output = machine.tune(&["apply", "somaxconn", "somaxconn"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("somaxconn: already as suggested\n"), "{}", stdout(&output));
    let lock = std::fs::File::open(machine.1.0.join("lock")).expect("a lock");
    lock.lock().expect("it is free");
    for arguments in [&["apply", "rmem-max"][..], &["undo"]] {
        let output = machine.tune(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("another flatout is changing settings"), "{}", stderr(&output));
    }
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "32768");
    drop(lock);
    assert_eq!(stdout(&machine.tune(&["undo"])), "somaxconn: net.core.somaxconn: restored to 4096\n");
}

/// Nothing is changed that could not be recorded first.
#[test]
fn without_room_for_the_journal_nothing_is_changed() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let script = "mount -t tmpfs -o size=16k,mode=700 tmpfs \"$1\" || exit 77; head -c 20000 /dev/zero > \"$1/fill\"; \
                  shift; exec \"$@\"";
    let state = Folder::new();
    let state = state.0.to_str().expect("a path in UTF-8");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", state])
        .arg(program("flatout"))
        .args([
            "tune",
            "apply",
            "--low-risk",
            "--possible",
            "--persist",
            "--root",
            machine.root(),
            "--state",
            state,
        ])
        .output();
    let Ok(output) = output.inspect(|output| assert_ne!(output.status.code(), Some(0))) else { return };
    if output.status.code() == Some(77) || stderr(&output).starts_with("unshare") {
        left_out("nothing can be mounted here");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("a record cannot be written: No space left"), "{}", stderr(&output));
    assert_eq!(machine.snapshot(), before);
}

/// `--low-risk` makes what the list shows; `--possible` what only a climb can judge.
#[test]
fn only_changes_with_evidence_are_applied() {
    let machine = Machine::new();
    machine.0.write("proc/net/netstat", "TcpExt: ListenOverflows\nTcpExt: 7\n");
    assert!(machine.tune(&["apply", "--low-risk"]).status.success());
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "32768");
    assert_eq!(machine.read("proc/sys/net/core/rmem_max"), "212992\n");
    let script = stdout(&machine.tune(&["script"]));
    assert!(!script.contains("rmem_max"), "{script}");
    assert!(stdout(&machine.tune(&["script", "--possible"])).contains("rmem_max"));
    assert!(machine.tune(&["apply", "--low-risk", "--possible"]).status.success());
    assert_eq!(machine.read("proc/sys/net/core/rmem_max"), "16777216");
    assert!(machine.tune(&["undo"]).status.success());
    assert_eq!(machine.read("proc/sys/net/core/rmem_max"), "212992\n");
}

/// Settings of a server that does not run cannot be examined.
#[test]
fn a_port_where_nothing_listens_is_an_error() {
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let port = free.to_string();
    for arguments in [&["--port", &port][..], &["apply", "--low-risk", "--port", &port]] {
        let output = tune(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(&format!("nothing listens on port {port}")), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn applied_settings_are_undone_byte_for_byte() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let output = machine.tune(&["apply", "--low-risk", "--possible", "congestion", "--persist"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("net.core.somaxconn was 4096"), "{}", stdout(&output));
    assert_eq!(machine.read("proc/sys/net/ipv4/tcp_congestion_control"), "reno");
    assert_eq!(machine.read("proc/sys/net/ipv4/tcp_rmem"), "4096 131072 16777216");
    assert!(machine.read("etc/sysctl.d/zz-flatout-somaxconn.conf").contains("net.core.somaxconn = 32768\n"));
    assert!(stdout(&machine.tune(&[])).contains("changes are in force"));

    let output = machine.tune(&["undo", "somaxconn"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "4096\n");
    assert_eq!(machine.read("proc/sys/net/core/rmem_max"), "16777216");
    assert_eq!(machine.tune(&["undo"]).status.code(), Some(0));
    assert_eq!(machine.snapshot(), before);
    assert_eq!(stdout(&machine.tune(&["undo"])), "nothing to undo\n");
}

/// Killed at twenty moments of applying, spread over its duration.
#[test]
fn a_killed_run_is_undone() {
    let whole = {
        let (machine, began) = (Machine::new(), Instant::now());
        assert!(machine.tune(&["apply", "--low-risk", "--possible", "--persist"]).status.success());
        // On a busy machine a run may take long once, and short the next times.
        began.elapsed().min(Duration::from_secs(2))
    };
    for moment in 0..20 {
        let machine = Machine::new();
        let before = machine.snapshot();
        let mut run = Command::new(program("flatout"))
            .args(["tune", "apply", "--low-risk", "--possible", "--persist", "--root", machine.root()])
            .args(["--state", machine.state()])
            .stdout(Stdio::null())
            .spawn()
            .expect("it runs");
        std::thread::sleep(whole * moment / 20);
        let _ = run.kill();
        run.wait().expect("its end");
        let output = machine.tune(&["undo"]);
        assert_eq!(output.status.code(), Some(0), "moment {moment}: {}", stderr(&output));
        assert_eq!(machine.snapshot(), before, "moment {moment}");
    }
}

#[test]
fn foreign_changes_stay() {
    let machine = Machine::new();
    assert!(machine.tune(&["apply", "somaxconn"]).status.success());
    machine.0.write("proc/sys/net/core/somaxconn", "777\n");
    let output = machine.tune(&["undo"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).contains("left alone: somebody changed it from 32768 to 777"),
        "{}",
        stdout(&output)
    );
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "777\n");
}

#[test]
fn damaged_records_are_reported_and_the_rest_restored() {
    let machine = Machine::new();
    let before = machine.snapshot();
    assert!(machine.tune(&["apply", "somaxconn", "rmem-max"]).status.success());
    machine.1.write("000009.json", "flatout journal 1 00000000\n{}");
    let output = machine.tune(&["apply", "congestion"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("000009.json"), "{}", stderr(&output));
    assert_eq!(machine.tune(&["undo"]).status.code(), Some(1));
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn risks_need_consent_and_mistakes_are_reported() {
    let machine = Machine::new();
    let before = machine.snapshot();
    for (arguments, status, expected) in [
        (&["apply", "audit"][..], 2, "are not recorded"),
        (&["apply", "mitigations", "somaxconn"], 2, "apply mitigations --accept-risk"),
        (&["apply", "firewall", "--accept-risk"], 1, "unknown here"),
        (&["apply", "taps"], 1, "unknown here"),
        (&["apply"], 2, "--low-risk"),
        (&["apply", "somaxcon"], 2, "did you mean `somaxconn`?"),
        (&["undo", "qdsic"], 2, "did you mean `qdisc`?"),
        (&["explain"], 2, "lists them"),
        (&["explain", "somaxconn", "qdisc"], 2, "name one tuning"),
        (&["apply", "zzzz"], 2, "lists them"),
        (&["--low-risk"], 2, "belongs to `flatout tune apply`"),
        (&["undo", "--persist"], 2, "belongs to `flatout tune apply`"),
        (&["apply", "somaxconn", "--possible"], 2, "--possible extends --low-risk"),
        (&["undo", "--possible"], 2, "belongs to `flatout tune apply` and `flatout tune script`"),
        (
            &["apply", "somaxconn", "--json"],
            2,
            "--json has no meaning for `flatout tune apply`; it belongs to `flatout tune`",
        ),
        (&["apply", "somaxconn", "--state", "/proc/flatout"], 1, "journal /proc/flatout"),
        (&["exlain", "rps"], 2, "a similar value exists: 'explain'"),
        (&["--port", "99999"], 2, "need a whole number"),
        (&["--pid", "4000000"], 2, "there is no process"),
        (&["--root", "/nowhere"], 2, "need an existing folder"),
        (&["--jsn"], 2, "a similar argument exists: '--json'"),
    ] {
        let output = machine.tune(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(machine.snapshot(), before);
}

#[test]
fn explain_gives_reasons_and_changes() {
    let machine = Machine::new();
    let text = stdout(&machine.tune(&["explain", "congestion", "--port", "80"]));
    for expected in [
        "congestion: bbr paces",
        "source      Richards",
        "scope       one network namespace",
        "risk        medium",
        "lost        over long",
        "current     bbr",
        "suggested   net.ipv4",
        "counter     unknown",
        "measurable  on any path",
        "apply       flatout tune apply congestion --port 80 --state ",
        "undo        flatout tune undo congestion --state ",
        "net.ipv4.tcp_congestion_control to reno",
        "--persist writes /etc/sysctl.d/zz-flatout-congestion.conf\n  # flatout tune: congestion",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // The written files equal the ones shown.
    assert!(machine.tune(&["apply", "congestion", "--persist"]).status.success());
    let written = machine.read("etc/sysctl.d/zz-flatout-congestion.conf");
    assert!(written.lines().all(|line| text.contains(&format!("\n  {line}\n"))), "{written}");
}

/// The printed script applies and undoes the same changes; it runs on the tree.
#[test]
fn the_script_does_the_same() {
    let machine = Machine::new();
    let before = machine.snapshot();
    let text = stdout(&machine.tune(&["script", "--possible"]));
    let text = text.replace("/proc/sys/", &format!("{}/proc/sys/", machine.root()));
    let text = text.replace("/sys/kernel/", &format!("{}/sys/kernel/", machine.root()));
    let folder = Folder::new();
    folder.write("tune.sh", &text);
    let run = |verb: &str| {
        let script = folder.0.join("tune.sh");
        assert!(
            Command::new("sh").arg(script).arg(verb).stdout(Stdio::null()).status().expect("sh").success()
        );
    };
    run("apply");
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "32768");
    assert_eq!(machine.read("sys/kernel/mm/transparent_hugepage/enabled"), "madvise");
    run("undo");
    let words = |files: BTreeMap<PathBuf, Vec<u8>>| -> Vec<String> {
        // A kernel ends values with a line feed, and marks choices with brackets; a tree does not.
        files
            .into_values()
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().replace("always madvise [never]", "never"))
            .collect()
    };
    assert_eq!(words(machine.snapshot()), words(before));
    // Changes by others in the meantime stay, and the rest is undone.
    run("apply");
    machine.0.write("proc/sys/net/core/somaxconn", "777\n");
    std::fs::remove_file(machine.0.0.join("proc/sys/net/core/rmem_max")).expect("it was there");
    run("undo");
    assert_eq!(machine.read("proc/sys/net/core/somaxconn"), "777\n");
    assert_eq!(machine.read("proc/sys/net/ipv4/tcp_rmem").trim(), "4096\t131072\t6291456");
}

/// A setting of a process, here the test's own.
#[test]
fn a_process_is_changed_and_put_back() {
    let folder = Folder::new();
    let server = Server::site(&folder.0, &[]);
    let pid = server.pid().to_string();
    let limits = || std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("a process");
    let state = Folder::new();
    let run = |arguments: &[&str]| {
        tune(&[arguments, &["--pid", &pid, "--state", state.0.to_str().expect("UTF-8")]].concat())
    };
    let before = limits();
    let output = run(&["apply", "descriptors"]);
    // If a limit cannot be raised above its ceiling, that is reported and nothing is changed.
    let (said, complaint) = (stdout(&output), stderr(&output));
    match output.status.code() {
        Some(0) => assert_eq!(limits() == before, said.contains("already as suggested"), "{said}"),
        _ => assert!(
            limits() == before && complaint.contains("run as root, outside a container"),
            "{complaint}"
        ),
    }
    assert_eq!(run(&["undo"]).status.code(), Some(0));
    assert_eq!(limits(), before);
    let port = server.address.port().to_string();
    let json = stdout(&tune(&["--json", "--port", &port]));
    assert!(json.contains(" CPUs\""), "{json}");
}

/// Without root nothing can be changed, but everything is reported.
#[test]
fn without_root() {
    use std::os::unix::process::CommandExt;
    // Copy the program to where another user can read it: by another process, since a fork of another test would keep a file that is
    // being written open, and it could not be run then.
    let folder = Folder::new();
    let copy = folder.0.join("flatout");
    assert!(Command::new("cp").arg(program("flatout")).arg(&copy).status().expect("cp runs").success());
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command.arg("tune").args(arguments).current_dir("/");
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.output().expect("it runs")
    };
    assert_eq!(as_nobody(&["--all"]).status.code(), Some(0));
    assert_eq!(as_nobody(&["--json"]).status.code(), Some(0));
    let output = as_nobody(&["apply", "synack-retries", "--state", "/proc/flatout"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("journal"), "{}", stderr(&output));
}

#[expect(clippy::print_stderr, reason = "a test tells why it tests nothing")]
fn left_out(reason: &str) {
    eprintln!("left out: {reason}");
}

/// A separate network namespace, removed with the test.
struct Namespace(String);

impl Namespace {
    /// `None` if namespaces are not allowed here; the test reports that and ends.
    fn new(name: &str) -> Option<Namespace> {
        let namespace = Namespace(format!("flatout-{name}-{}", std::process::id()));
        let made = Command::new("ip").args(["netns", "add", &namespace.0]).output();
        if made.is_ok_and(|output| output.status.success()) {
            return Some(namespace);
        }
        left_out("no network namespace can be made here");
        None
    }

    fn run(&self, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program).args(arguments);
        command.output().expect("it runs")
    }

    /// A veth pair; one end stays here and carries the default route.
    fn with_veth(&self) {
        for arguments in [
            &["link", "add", "v0", "type", "veth", "peer", "name", "v1"][..],
            &["addr", "add", "192.0.2.1/24", "dev", "v0"],
            &["link", "set", "v0", "up"],
            &["link", "set", "v1", "up"],
            &["route", "add", "default", "via", "192.0.2.2", "dev", "v0"],
        ] {
            let output = self.run("ip", arguments);
            assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        }
    }

    /// Its qdiscs and offloads.
    fn links(&self) -> String {
        stdout(&self.run("sh", &["-c", "tc -d qdisc show; ethtool -k v0 2>/dev/null; true"]))
    }

    /// Everything in it that a tuning could change.
    fn snapshot(&self) -> String {
        // Counters and random numbers change by themselves; each line is one setting.
        let script = "for f in $(find /proc/sys/net /sys/class/net/v0/queues -type f ! -name stable_secret \
                      ! -name cookie_gen ! -name '*_count' 2>/dev/null | sort); do echo \"$f $(cat $f 2>/dev/null)\"; done; \
                      for f in gro_flush_timeout napi_defer_hard_irqs threaded; do cat /sys/class/net/v0/$f; done; \
                      tc -d qdisc show; ethtool -k v0 2>/dev/null; nft list ruleset 2>/dev/null; true";
        stdout(&self.run("sh", &["-c", script]))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// Real settings of a real kernel, in a separate namespace: complete snapshots are equal before and after.
#[test]
fn in_a_namespace_everything_is_put_back() {
    let Some(namespace) = Namespace::new("tune") else { return };
    namespace.with_veth();
    let state = Folder::new();
    let state = state.0.to_str().expect("a path in UTF-8");
    // Something that a user switched off during debugging.
    let ethtool = namespace.run("sh", &["-c", "ethtool -K v0 tso off"]);
    let before = namespace.snapshot();
    let flatout = program("flatout");
    let mut names = vec![
        "somaxconn",
        "syn-backlog",
        "port-range",
        "tcp-rmem",
        "autocorking",
        "fastopen",
        "slow-start-after-idle",
        "synack-retries",
        "max-tw-buckets",
        "congestion",
        "qdisc",
        "rps",
        "defer-interrupts",
    ];
    names.extend(ethtool.status.success().then_some("segmentation"));
    for name in names {
        let output = namespace.run(&flatout, &["tune", "apply", name, "--state", state]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
    }
    let between = namespace.snapshot();
    assert_ne!(between, before);
    assert!(between.contains("/proc/sys/net/core/somaxconn 32768"), "{between}");
    // From outside the namespace nothing is restored, least of all in ours.
    let outside = tune(&["undo", "somaxconn", "--state", state]);
    assert_eq!(outside.status.code(), Some(1));
    assert!(stdout(&outside).contains("run it there"), "{}", stdout(&outside));
    let output = namespace.run(&flatout, &["tune", "undo", "--state", state]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(namespace.snapshot(), before);
}

/// Qdiscs with custom parameters, and an offload: they are equal before and after.
#[test]
fn configured_qdiscs_are_restored_with_their_parameters() {
    let Some(namespace) = Namespace::new("link") else { return };
    namespace.with_veth();
    // A veth has its own NAPI instances only with this offload.
    let has_ethtool = namespace.run("sh", &["-c", "ethtool -K v0 gro on"]).status.success();
    let state = Folder::new();
    let state = state.0.to_str().expect("a path in UTF-8");
    let flatout = program("flatout");
    let program = flatout.to_str().expect("a path in UTF-8");
    let there_and_back_by = |shell: &[&str], name: &str, what: &str| {
        let before = namespace.links();
        let words = [shell, &[program, "tune", "apply", name, "--state", state]].concat();
        let output = namespace.run(words[0], &words[1..]);
        assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
        assert!(stdout(&output).contains(" was "), "{what}: {}", stdout(&output));
        let output = namespace.run(&flatout, &["tune", "undo", "--state", state]);
        assert_eq!(output.status.code(), Some(0), "{what}: {}{}", stdout(&output), stderr(&output));
        assert!(stdout(&output).contains("restored to"), "{what}: {}", stdout(&output));
        let after = namespace.links();
        let changed: Vec<_> = before.lines().zip(after.lines()).filter(|(one, other)| one != other).collect();
        assert!(after == before, "{what}: {changed:?}");
    };
    let there_and_back = |name: &str, what: &str| there_and_back_by(&[], name, what);
    let qdisc = |command: &str| {
        let known = namespace.run("sh", &["-c", &format!("tc qdisc {command}")]).status.success();
        if !known {
            left_out(&format!("this kernel has no {command}"));
        }
        known
    };
    for parameters in [
        "pfifo limit 77",
        "handle 77: bfifo limit 7777",
        "pfifo_fast",
        "fq limit 5000 flow_limit 50 maxrate 100mbit",
        "fq_codel limit 500 target 3ms interval 50ms noecn",
        "codel limit 55 target 7ms",
    ] {
        if qdisc(&format!("replace dev v0 root {parameters}")) {
            there_and_back("qdisc", parameters);
        }
    }
    // A qdisc attached by the kernel comes back by itself.
    if namespace.run("sh", &["-c", "ip link add i0 type ifb && ip link set i0 up"]).status.success() {
        let before = namespace.links();
        let run = |arguments: &[&str]| {
            namespace.run(&flatout, &[arguments, &["--interface", "i0", "--state", state]].concat())
        };
        let output = run(&["tune", "apply", "qdisc"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_ne!(namespace.links(), before);
        assert_eq!(run(&["tune", "undo"]).status.code(), Some(0));
        assert_eq!(namespace.links(), before);
    }
    // The ingress qdisc stays in place.
    if qdisc("replace dev v0 root pfifo limit 5") && qdisc("add dev v0 clsact") {
        there_and_back("qdisc", "beside a clsact");
    }
    for whole in ["htb default 1", "tbf rate 1mbit burst 10k latency 10ms"] {
        if qdisc(&format!("replace dev v0 root {whole}")) {
            // Up to the handle, which is followed by packet counters.
            let root = || {
                let shown = stdout(&namespace.run("tc", &["qdisc", "show", "dev", "v0"]));
                shown.split(" root").next().unwrap_or_default().to_owned()
            };
            let before = root();
            let output = namespace.run(&flatout, &["tune", "apply", "qdisc", "--state", state]);
            assert_eq!(output.status.code(), Some(1), "{whole}: {}", stdout(&output));
            assert!(stderr(&output).contains("configured by somebody"), "{whole}: {}", stderr(&output));
            assert_eq!(root(), before, "{whole}");
        }
    }
    match has_ethtool {
        true => {
            namespace.run("sh", &["-c", "ethtool -K v0 gro off"]);
            there_and_back("gro", "gro");
            // Segmentation stays requested, and is only active together with the checksums that it needs.
            namespace.run("sh", &["-c", "ethtool -K v0 tx off rx off"]);
            there_and_back("checksums", "checksums");
        }
        false => left_out("ethtool is not installed"),
    }
    // Interrupts are suspended only for servers that poll: first without one, then with one.
    let explain = [program, "tune", "explain", "irq-suspension"];
    let suspension = stdout(&namespace.run(explain[0], &explain[1..]));
    let folder = Folder::new();
    folder.write("netstat", "TcpExt: BusyPollRxPackets\nTcpExt: 7\n");
    // The files of `/proc/net` are created for each access; their folder is not.
    let polled = [
        "sh",
        "-c",
        "cp /proc/net/dev /proc/net/route \"$0\" && mount --bind \"$0\" /proc/$$/net && exec \"$@\"",
        folder.0.to_str().expect("a path in UTF-8"),
    ];
    let words = [&polled[..], &explain].concat();
    match suspension.contains("only for a server that polls its epoll") {
        true => {
            let suspension = stdout(&namespace.run(words[0], &words[1..]));
            assert!(suspension.contains("no interrupts for up to 20 ms"), "{suspension}");
            there_and_back_by(&polled, "irq-suspension", "irq-suspension");
        }
        false => left_out("this kernel suspends no interrupts"),
    }
}

/// The firewall of a namespace: the port bypasses it, and afterwards the rules are as before.
#[test]
fn a_firewall_is_passed_and_put_back() {
    const RULES: &str = "add table inet f; add chain inet f in { type filter hook input priority 0; policy drop; }; \
                         add rule inet f in ct state established accept; add rule inet f in tcp dport 8080 counter accept";
    let Some(namespace) = Namespace::new("nft") else { return };
    if !namespace.run("sh", &["-c", "command -v nft"]).status.success() {
        left_out("nft is not installed");
        return;
    }
    let output = namespace.run("nft", &[RULES]);
    assert!(output.status.success(), "{}", stderr(&output));
    let state = Folder::new();
    let state = state.0.to_str().expect("a path in UTF-8");
    let before = namespace.snapshot();
    let flatout = program("flatout");
    let output = namespace
        .run(&flatout, &["tune", "apply", "firewall", "--accept-risk", "--port", "8080", "--state", state]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rules = stdout(&namespace.run("nft", &["list", "ruleset"]));
    assert!(
        rules.contains("tcp dport 8080 notrack") && rules.contains("accept comment \"flatout tune\""),
        "{rules}"
    );
    let output = namespace.run(&flatout, &["tune", "undo", "--state", state]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(namespace.snapshot(), before);
}
