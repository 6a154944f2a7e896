//! Changes that `flatout climb` finds automatically: in the configuration of other servers, and on a path
//! between two networks.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use flatout_tests::{Folder, Server, program};
use serde_json::Value;

/// The smallest measurement that shows what is tried.
const QUICK: [&str; 10] =
    ["-d100ms", "--warmup", "20ms", "--pairs", "6", "--pairs-max", "6", "-c8", "--profile", "0s"];

fn climb(folder: &Folder, command: &mut Command) -> (Value, Output) {
    let output =
        command.args(["--json", "out.json", "--state", "journal"]).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.0.join("out.json")).unwrap();
    (serde_json::from_str(&text).unwrap(), output)
}

fn rung<'v>(found: &'v Value, name: &str) -> &'v Value {
    let rungs = found["rungs"].as_array().unwrap();
    rungs.iter().find(|rung| rung["name"] == name).unwrap_or_else(|| panic!("{name} is not tried: {found}"))
}

fn is_installed(name: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        left_out(&format!("{name} is not installed"));
    }
    there
}

/// nginx with one worker that writes its log line by line: each edit is measured in a copy, and the file stays
/// unchanged.
#[test]
fn nginx_is_climbed_by_its_configuration() {
    if !is_installed("nginx") {
        return;
    }
    let folder = Folder::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    folder.write("included/site.conf", format!(
        "server {{\n    listen 127.0.0.1:{port};\n    access_log access.log;\n    location / {{\n        return 200 hello;\n    }}\n}}\n"
    ));
    let temporary = "    client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n";
    let main =
        format!("worker_processes 1;\nevents {{}}\nhttp {{\n{temporary}    include included/*.conf;\n}}\n");
    folder.write("nginx.conf", &main);
    let server = format!(
        "exec nginx -p {0}/ -c {0}/nginx.conf -e stderr -g 'daemon off; pid nginx.pid; user root;'",
        folder.0.display()
    );
    let (found, output) = climb(
        &folder,
        Command::new(program("flatout"))
            .args(["climb", "--server-cmd", &server, "--url", &format!("http://127.0.0.1:{port}/")])
            .args(QUICK),
    );
    for name in ["worker-processes", "access-log-buffer", "reuseport", "keepalive-requests", "backlog"] {
        let rung = rung(&found, name);
        assert!(rung["gain"].is_number() && rung["reason"].as_str().unwrap().contains(';'), "{rung}");
    }
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("edits are made in a copy of") && told.contains("included/site.conf"), "{told}");
    assert_eq!(
        std::fs::read_to_string(folder.0.join("nginx.conf")).unwrap(),
        main,
        "nothing of it was written to"
    );
    let kept = found["rungs"].as_array().unwrap().iter().filter(|rung| rung["status"] == "kept").count();
    let diff = found["diff"].as_str().unwrap();
    assert_eq!(diff.is_empty(), kept == 0, "{found}");
    if !diff.is_empty() && is_installed("patch") {
        folder.write("kept.diff", diff);
        let patched = Command::new("patch")
            .args(["-p1", "-d", "/", "-i"])
            .arg(folder.0.join("kept.diff"))
            .output()
            .unwrap();
        assert!(patched.status.success(), "{diff}\n{patched:?}");
        let checked =
            Command::new("sh").args(["-c", &server.replacen("exec nginx", "nginx -t", 1)]).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// nginx in front of an application on a Unix socket, here a second server of the same nginx: both variants are alive at once, each
/// with a socket of its own. A cache is tried only with the consent of the application's author.
#[test]
fn a_response_cache_needs_consent_and_evidence() {
    if !is_installed("nginx") {
        return;
    }
    let folder = Folder::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let base = folder.0.display();
    std::fs::create_dir(folder.0.join("run")).unwrap();
    let temporary = "client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;";
    folder.write("nginx.conf", format!(
        "worker_processes auto;\nevents {{}}\nhttp {{\n    {temporary}\n    access_log off;\n    gzip off;\n    keepalive_requests 1000000;\n    proxy_set_header X-Rungs few;\n    server {{\n        listen 127.0.0.1:{port} reuseport;\n        \
         location / {{\n            proxy_pass http://unix:{base}/run/app.sock:;\n        }}\n    }}\n    server {{\n        listen unix:{base}/run/app.sock;\n        \
         location / {{\n            return 200 hello;\n        }}\n    }}\n}}\n"
    ));
    let server = format!(
        "exec nginx -p {base}/ -c {base}/nginx.conf -e stderr -g 'daemon off; pid nginx.pid; user root;'"
    );
    let url = format!("http://127.0.0.1:{port}/");
    let climbed = |flags: &[&str]| {
        let mut command = Command::new(program("flatout"));
        command.args(["climb", "--server-cmd", &server, "--url", &url]).args(QUICK).args(flags);
        climb(&folder, &mut command).0
    };
    let found = climbed(&[]);
    let cache = rung(&found, "response-cache");
    assert_eq!(cache["status"], "skipped", "{cache}");
    assert!(cache["reason"].as_str().unwrap().contains("--cache-time"), "{cache}");
    let found = climbed(&["--cache-time", "1m"]);
    let cache = rung(&found, "response-cache");
    let reason = cache["reason"].as_str().unwrap();
    assert!(cache["gain"].is_number() && reason.contains("responses under load were identical"), "{cache}");
    let is_root =
        Command::new("unshare").args(["-m", "-n", "true"]).status().is_ok_and(|done| done.success());
    match is_root {
        true => assert_eq!(cache["how"], "side-by-side", "{cache}"),
        false => left_out("no namespaces here"),
    }
    assert!(!folder.0.join("run/app.sock").exists(), "nothing is left of it");
    let changing = std::fs::read_to_string(folder.0.join("nginx.conf")).unwrap();
    folder.write("nginx.conf", changing.replace("return 200 hello;", "return 200 $request_id;"));
    let found = climbed(&["--cache-time", "1m"]);
    let cache = rung(&found, "response-cache");
    assert_eq!(cache["status"], "skipped", "{cache}");
    assert!(cache["reason"].as_str().unwrap().contains("differed from the first"), "{cache}");
}

/// The cache of flatout itself is a flag, and needs the same evidence.
#[test]
fn flatout_gets_no_cache_for_responses_that_differ() {
    let folder = Folder::new();
    folder.write("site.kdl", "listen \"127.0.0.1:0\"\nrespond 200 \"$request_id\"\n");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", "--workers", "1", "-c"]).arg(folder.0.join("site.kdl"));
    let upstream = Server::start(command);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!(
        "exec {} serve --to http://{} --listen 127.0.0.1:{port} --workers 64",
        program("flatout").display(),
        upstream.address
    );
    let mut command = Command::new(program("flatout"));
    command.args(["climb", "--server-cmd", &server, "--url", &format!("http://127.0.0.1:{port}/")]);
    let found = climb(&folder, command.args(QUICK).args(["--cache-time", "1m"])).0;
    let cache = rung(&found, "response-cache");
    assert_eq!(cache["status"], "skipped", "{cache}");
    assert!(cache["reason"].as_str().unwrap().contains("differed from the first"), "{cache}");
}

/// HAProxy with one thread on a host with several CPUs.
#[test]
fn haproxy_is_climbed_by_its_configuration() {
    if !is_installed("haproxy") || std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return;
    }
    let folder = Folder::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!(
        "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 5s\n    timeout server 5s\n    timeout connect 5s\nfrontend in\n    \
         bind 127.0.0.1:{port}\n    http-request return status 200 content-type text/plain string hello\n"
    );
    folder.write("haproxy.cfg", &config);
    let server = format!("exec haproxy -q -db -f {}/haproxy.cfg", folder.0.display());
    let (found, _) = climb(
        &folder,
        Command::new(program("flatout"))
            .args(["climb", "--server-cmd", &server, "--url", &format!("http://127.0.0.1:{port}/")])
            .args(QUICK),
    );
    for name in ["nbthread", "http-reuse", "backlog"] {
        assert!(rung(&found, name)["gain"].is_number(), "{found}");
    }
    assert_eq!(std::fs::read_to_string(folder.0.join("haproxy.cfg")).unwrap(), config);
}

/// A process in a separate network namespace, which ends with it.
struct Network(Child);

impl Network {
    fn new() -> Option<Network> {
        let mut child = Command::new("unshare")
            .args([
                "-n",
                "-m",
                "sh",
                "-c",
                "mount -t sysfs sysfs /sys && ip link set lo up && echo up && exec sleep 600",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        let network = Network(child);
        (line == "up\n").then_some(network)
    }

    fn command(&self, folder: &Path, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let id = self.0.id().to_string();
        command.args(["-t", &id, "-n", "-m", &format!("--wd={}", folder.display())]).arg(program.as_ref());
        command
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let output = self.command(Path::new("/"), "sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The noise at which a burden of a third is still detected.
const NOISE_MAX: f64 = 0.15;

/// A server in one network and the load in another, with a veth pair between them, so tunings of a device can be
/// measured. Receive offload that was switched off, and a mask that sends all packets to one CPU, are found
/// automatically, measured and undone. The cost of either depends on the host and on the load: the mask costs small
/// requests a third and more.
#[test]
fn a_real_path_makes_a_card_measurable() {
    if !is_installed("ethtool") {
        return;
    }
    let (Some(here), Some(there)) = (Network::new(), Network::new()) else {
        return left_out("no network namespaces here");
    };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let queues = format!("numtxqueues {cpus} numrxqueues {cpus}");
    let rights = here.command(Path::new("/"), "sh").args(["-c", &format!(
        "ip link add v0 {queues} type veth peer name v1 {queues} netns {} && ip address add 198.18.7.1/30 \
         dev v0 && ip link set v0 up && ethtool -K v0 gro off && for queue in /sys/class/net/v0/queues/rx-*; do echo 1 > $queue/rps_cpus; done",
        there.0.id()
    )]).status();
    if !rights.is_ok_and(|status| status.success()) {
        return left_out("no veth pair here");
    }
    // Packets as from a real network: not large ones that were never segmented.
    there.sh("ip address add 198.18.7.2/30 dev v1 && ip link set v1 up && ethtool -K v1 tso off gso off");
    let planted = "ethtool -k v0 | grep -E '^generic-receive'; cat /sys/class/net/v0/queues/rx-*/rps_cpus";
    let before = here.sh(planted);
    let folder = Folder::new();
    let flatout = program("flatout");
    let server = format!("exec {} json-api --listen 198.18.7.1:8080 --workers 1", flatout.display());
    // Requests of several packets, which the offload is meant for.
    let load = |flags: &str| {
        let (network, flatout) = (there.0.id(), flatout.display());
        format!(
            "nsenter -t {network} -n {flatout} bench $FLATOUT_URL {flags} -c16 -d150ms --warmup 50ms --json"
        )
    };
    let (found, output) = climb(
        &folder,
        here.command(&folder.0, &flatout)
            .args(["climb", "--server-cmd", &server, "--url", "http://198.18.7.1:8080/json"])
            .args([
                "--bench",
                &load(&format!("-H 'X-Fill: {}'", "x".repeat(7000))),
                "--interface",
                "v0",
                "--budget",
                "40s",
                "--profile",
                "0s",
                "--pairs-max",
                "40",
            ]),
    );
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    for name in ["gro", "rps"] {
        let rung = rung(&found, name);
        assert!(rung["gain"].is_number(), "{rung}: {told}");
    }
    assert_eq!(here.sh(planted), before, "the network is as it was");
    let (found, _) = climb(
        &folder,
        here.command(&folder.0, &flatout)
            .args(["climb", "rps", "--server-cmd", &server, "--url", "http://198.18.7.1:8080/json"])
            .args(["--bench", &load(""), "--interface", "v0", "--budget", "30s", "--profile", "0s"]),
    );
    // On a busy host differences of this size cannot be detected, and with one CPU there is nothing to steer.
    if cpus > 1 && found["noise_floor"].as_f64().is_some_and(|floor| floor < NOISE_MAX) {
        assert_eq!(rung(&found, "rps")["status"], "kept", "{found}");
    }
    assert_eq!(here.sh(planted), before, "the network is as it was");
    let refused = here
        .command(&folder.0, &flatout)
        .args([
            "climb",
            "--server-cmd",
            &server,
            "--url",
            "http://198.18.7.1:8080/json",
            "--interface",
            "v0",
            "gro",
        ])
        .args(["--state", "journal"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("passes no network device"), "{refused:?}");
}

/// Reports which part of a test this host cannot run.
#[allow(clippy::print_stderr, reason = "for who reads the test's output")]
fn left_out(what: &str) {
    eprintln!("left out: {what}");
}
