//! `flatout climb`, the real binary, with scripted servers, changes and load generators.

#[path = "../../crates/engine/tests/support/attempts.rs"]
mod attempts;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use attempts::attempts;
use flatout_tests::{Folder, PATIENCE, Server, Signal, program, until};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

/// Short runs: the differences here are larger than any noise.
const QUICK: [&str; 10] =
    ["-d100ms", "--warmup", "0ms", "--pairs", "8", "--pairs-max", "8", "-c2", "--profile", "0s"];

/// A generator that prints a number: 1000, or 1300 if the file `fast` exists, 700 if `slow` exists, plus a little
/// noise.
const GENERATOR: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n
v=1000; if [ -e fast ]; then v=1300; fi; if [ -e slow ]; then v=700; fi
echo $((v + n * 37 % 11))";

fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("flatout"));
    command.arg("climb").args(arguments).current_dir(&folder.0);
    // Tests must not use the journal of this host.
    if !arguments.iter().any(|argument| ["--state", "--resume"].contains(argument)) {
        command.args(["--state", "journal"]);
    }
    command
}

fn climb(folder: &Folder, arguments: &[&str]) -> Output {
    // The first one builds the program.
    let mut command = command(folder, arguments);
    let begun = Instant::now();
    let output = command.output().unwrap();
    assert!(begun.elapsed() < 2 * PATIENCE, "{arguments:?} took {:?}", begun.elapsed());
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The result that `--json out.json` wrote.
fn result(folder: &Folder) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.0.join("out.json")).unwrap()).unwrap()
}

/// Climbs, and reads the result.
fn climbed(folder: &Folder, arguments: &[&str]) -> Value {
    let output = climb(folder, &[arguments, &["--json", "out.json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    result(folder)
}

fn statuses(found: &Value) -> Vec<&str> {
    found["rungs"].as_array().unwrap().iter().map(|rung| rung["status"].as_str().unwrap()).collect()
}

/// The flags of a variant that creates a file while it is applied.
fn file(name: &str) -> Vec<String> {
    ["--variant", name, "--set", &format!("touch {name}"), "--unset", &format!("rm {name}")]
        .map(String::from)
        .to_vec()
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

fn is_there(folder: &Folder, name: &str) -> bool {
    folder.0.join(name).exists()
}

/// A server that responds after 4 ms, or after 1 ms if `fast` is in the folder, and with 500 if `broken` is.
fn scripted(folder: &Path) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let folder = folder.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, folder) = (stream.unwrap(), folder.clone());
            thread::spawn(move || answer(&stream, &folder));
        }
    });
    address
}

fn answer(mut stream: &TcpStream, folder: &Path) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            thread::sleep(Duration::from_millis(if folder.join("fast").exists() { 1 } else { 4 }));
            let status = if folder.join("broken").exists() { "500 Broken" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\nx");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

/// The command of the bundled server on a free port, and its URL.
fn bundled() -> (String, String) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let program = program("flatout");
    let command = format!("exec {} json-api --listen {free} --workers 1", program.display());
    (command, format!("http://{free}/json"))
}

#[test]
fn helpful_rungs_are_kept_and_the_rest_undone() {
    let folder = Folder::new();
    let server = Server::json();
    let (fast, none, slow) = (file("fast"), file("none"), file("slow"));
    let url = format!("http://{}/json", server.address);
    let flags = ["--url", &url, "--bench", GENERATOR, "--shapley", "6", "--peak-rate", "500", "--price", "1"];
    let all = [&flags[..], &words(&fast), &words(&none), &words(&slow), &QUICK].concat();
    let output = climb(&folder, &[&all[..], &["--json", "out.json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    assert_eq!(statuses(&found), ["kept", "none", "worse"], "{found}");
    let gain = |at: usize, name: &str| found["rungs"][at][name].as_f64().unwrap();
    assert!(
        (0.28..0.32).contains(&gain(0, "gain")) && gain(0, "low") > 0.25 && gain(0, "high") < 0.35,
        "{found}"
    );
    assert!((0.28..0.32).contains(&gain(0, "leave_one_out")), "{found}");
    assert!((-0.50..-0.28).contains(&gain(2, "gain")), "{found}");
    assert!(found["noise_floor"].as_f64().unwrap() < 0.05);
    assert_eq!((found["apply"].as_str(), found["take_back"].as_str()), (Some("touch fast"), Some("rm fast")));
    assert!((990.0..1020.0).contains(&found["before"]["requests_per_s"].as_f64().unwrap()), "{found}");
    assert!((1290.0..1320.0).contains(&found["after"]["requests_per_s"].as_f64().unwrap()), "{found}");
    assert_eq!(found["before"]["machines"].as_u64(), Some(1));
    // Before, after and the total gain are from the same runs.
    let per_s = |side: &str| found[side]["requests_per_s"].as_f64().unwrap();
    let together = found["total"]["gain"].as_f64().unwrap();
    assert!((per_s("after") / per_s("before") - 1.0 - together).abs() < 1e-9, "{found}");
    assert_eq!(found["rungs"][0]["confidence"].as_f64().map(|share| (share * 1e4).round()), Some(9833.0));
    for name in ["fast", "none", "slow"] {
        assert!(!is_there(&folder, name), "{name} is left");
    }
    let text = stdout(&output);
    for expected in
        ["measuring noise", "before", "kept", "worse", "█", "apply:        touch fast", "average over orders"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let told = stderr(&output);
    assert!(told.contains("\nmeasuring noise (A/A) ") && told.contains("3 changes will be tried"), "{told}");
}

/// Programs read these names: none may be removed or change its meaning.
#[test]
fn json_has_its_fields() {
    let folder = Folder::new();
    let fast = file("fast");
    let url = url(scripted(&folder.0));
    let found = climbed(&folder, &[&["--url", &url], &words(&fast)[..], &QUICK].concat());
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&found),
        "after apply before command cpu_of date diff end error left_behind load load_rate_per_s machine next noise noise_floor noise_floor_of_servers noise_of_servers objective profiles rungs \
         take_back today total total_effects url"
    );
    assert_eq!(
        names(&found["rungs"][0]),
        "apply confidence disturbance effects elsewhere gain high how leave_one_out leave_one_out_interval low name pairs reason shapley starts \
         status take_back"
    );
    let side = "cpu_us_per_request errors generator_share headroom latency machines means p50_ns p99_9_ns p99_ns price_per_1e9_requests requests \
                requests_per_cpu_s requests_per_s runs";
    assert_eq!((names(&found["before"]), names(&found["after"])), (side.to_owned(), side.to_owned()));
    assert_eq!(names(&found["machine"]), "cpus kernel processor");
    assert_eq!(names(&found["before"]["means"]["throughput"]), "high low mean");
    let rung = &found["rungs"][0];
    assert_eq!((rung["apply"].as_str(), rung["take_back"].as_str()), (Some("touch fast"), Some("rm fast")));
    assert_eq!(statuses(&found), ["kept"], "four times as fast by our own generator: {found}");
    assert!(found["before"]["p50_ns"].as_f64() > found["after"]["p50_ns"].as_f64());
}

fn report(folder: &Folder, arguments: &[&str]) -> Output {
    Command::new(program("flatout")).arg("report").args(arguments).current_dir(&folder.0).output().unwrap()
}

#[test]
fn a_climb_is_drawn_and_drawn_again_from_its_json() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let (fast, slow) = (file("fast"), file("slow"));
    let flags = ["--url", &url, "--bench", GENERATOR, "--json", "a.json", "--report", "a.html"];
    let climbed = climb(&folder, &[&flags[..], &words(&fast), &words(&slow), &QUICK].concat());
    assert_eq!(climbed.status.code(), Some(0), "{}", stderr(&climbed));
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    let page = read("a.html");
    for expected in ["class=\"word kept\"", "class=\"word worse\"", "touch fast", "flatout climb --url http"]
    {
        assert!(page.contains(expected), "{expected} in {page}");
    }

    let again = report(&folder, &["a.json", "--report", "b.html"]);
    assert_eq!((again.status.code(), stdout(&again)), (Some(0), stdout(&climbed)), "{}", stderr(&again));
    assert!(read("b.html") == page, "the page is another one");
    let compared = report(&folder, &["a.json", "--compare", "a.json"]);
    assert!(stdout(&compared).contains("since the earlier climb"), "{}", stdout(&compared));

    std::fs::write(folder.0.join("cut.json"), &read("a.json")[..500]).unwrap();
    for (arguments, status, expected) in [
        (&["cut.json"][..], 2, "`cut.json`: not a climb: EOF while parsing"),
        (&["a.html"], 2, "`a.html`: not a climb: expected value at line 1 column 1"),
        (&["none.json"], 2, "cannot read `none.json`"),
        (&["a.json", "--report", "no/such/folder.html"], 1, "cannot write `no/such/folder.html`"),
        (&[], 2, "required arguments were not provided"),
    ] {
        let output = report(&folder, arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
}

/// A token on the command line is hidden in every output.
#[test]
fn secrets_are_hidden() {
    let folder = Folder::new();
    let url = format!("{}?token=sesame1", url(scripted(&folder.0)));
    let set = "touch fast; : curl -H 'X-Api-Key: sesame2' http://me:sesame3@host/";
    let flags = ["--url", &url, "-H", "Authorization: Bearer sesame4", "--header=Accept: text/plain"];
    let variant = ["--variant", "fast", "--set", set, "--unset", "rm fast # PASSWORD=sesame5"];
    let results = ["--json", "a.json", "--report", "a.html", "--peak-rate", "1000", "--price", "1"];
    let output = climb(&folder, &[&flags[..], &variant, &QUICK, &results].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(folder.0.join(name)).unwrap();
    for text in [stdout(&output), read("a.json"), read("a.html")] {
        assert!(!text.contains("sesame"), "{text}");
        assert!(text.contains("token=***"), "{text}");
    }
    let found: Value = serde_json::from_str(&read("a.json")).unwrap();
    let command = found["command"].as_str().unwrap();
    assert!(command.contains("-H 'Authorization: ***' '--header=Accept: text/plain'"), "{command}");
    let set = found["rungs"][0]["apply"].as_str().unwrap();
    assert_eq!(set, "touch fast; : curl -H 'X-Api-Key: ***' http://me:***@host/");
}

/// Malicious files: too large, endless, with too many entries, with markup and escapes in names.
#[test]
fn a_hostile_file_is_refused_or_harmless() {
    let folder = Folder::new();
    let url = url(scripted(&folder.0));
    let mut found = climbed(&folder, &[&["--url", &url], &words(&file("fast"))[..], &QUICK].concat());
    let rung = found["rungs"][0].to_string();
    let whole = found.to_string();
    folder.write("many.json", whole.replace(&rung, &vec![rung.as_str(); 50_000].join(",")));
    folder.write("nan.json", whole.replacen("\"noise_floor\":", "\"noise_floor\":NaN,\"x\":", 1));
    folder.write("negative.json", whole.replacen("\"runs\":", "\"runs\":-", 1));
    folder.write("deep.json", "[".repeat(1 << 20));
    for (name, expected) in [
        ("many.json", "it has 50000 rungs, more than 1000"),
        ("nan.json", "not a climb: expected value"),
        ("negative.json", "not a climb: invalid value: integer `-"),
        ("deep.json", "`deep.json`: not a climb: "),
        ("/dev/zero", "`/dev/zero` is larger than 64 MiB"),
    ] {
        let output = report(&folder, &[name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(stderr(&output).contains(expected), "{name}: {}", stderr(&output));
    }
    found["rungs"][0]["name"] = "\u{1b}[2J</script><img src=x onerror=alert(1)>".into();
    found["url"] = "http://h/\u{7}\u{1b}]0;x".into();
    folder.write("escapes.json", found.to_string());
    let output = report(&folder, &["escapes.json", "--report", "escapes.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        !stdout(&output).contains('\u{1b}') && stdout(&output).contains("[2J</script>"),
        "{}",
        stdout(&output)
    );
    let page = std::fs::read_to_string(folder.0.join("escapes.html")).unwrap();
    assert!(!page.contains("<img") && page.contains("&lt;img src=x"));
}

/// A rung may improve one objective and not another.
/// A proxy instead of the server: the CPU time of the rest of the machine is compared, too. Needs root and BPF.
#[test]
fn the_rest_of_the_machine_is_compared() {
    let (folder, backend) = (Folder::new(), Server::json());
    let (command, url) = bundled();
    let address = url.trim_start_matches("http://").trim_end_matches("/json");
    let to = format!("http://{}", backend.address);
    let proxy = format!("exec {} serve --listen {address} --to {to}", program("flatout").display());
    let flags = ["--server-cmd", &command, "--url", &url, "--variant", "proxy", "--with-cmd", &proxy];
    let quick = ["-d500ms", "-c4", "--budget", "30s", "--profile", "0s", "--json", "out.json"];
    let output = climb(&folder, &[&flags[..], &quick].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (found, text) = (result(&folder), stdout(&output));
    if !found["cpu_of"].as_str().unwrap().contains("softirqs for it") {
        assert!(text.contains("without softirqs") && found["rungs"][0]["elsewhere"].is_null(), "{text}");
        return;
    }
    let rung = &found["rungs"][0];
    assert_eq!(statuses(&found), ["worse"], "{rung}");
    let share = |end: &str| rung["elsewhere"][end].as_f64().unwrap();
    assert!(share("low") < share("gain") && share("gain") < share("high"), "{rung}");
}

#[test]
fn every_objective_is_measured() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let fast = file("fast");
    let generator = r#"n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n
        p=4000; if [ -e fast ]; then p=1000; fi
        echo '{"requests_per_s":'$((1000 + n * 37 % 11))',"requests":1000,"errors":{},'
        echo '"latency_ns":{"p99":'$((p + n * 37 % 11))'}}'"#;
    for (objective, status, gain) in [("p99", "kept", 2.9..3.1), ("throughput", "none", -0.1..0.1)] {
        let flags = ["--url", &url, "--bench", generator, "--for", objective];
        let found = climbed(&folder, &[&flags, &words(&fast)[..], &QUICK].concat());
        assert_eq!((statuses(&found), found["objective"].as_str()), (vec![status], Some(objective)));
        assert!(gain.contains(&found["rungs"][0]["gain"].as_f64().unwrap()), "{found}");
    }
    let flags = ["--url", &url, "--bench", GENERATOR, "--for", "p99"];
    let output = climb(&folder, &[&flags, &words(&fast)[..], &QUICK].concat());
    assert_eq!(output.status.code(), Some(1), "a number tells no latency");
    assert!(stderr(&output).contains("do not report p99"), "{}", stderr(&output));
}

/// p99 is measured at a share of the highest rate, or at a given rate, both times with the requests that were due.
/// With two connections a server with 4 ms response time serves at most 500 requests a second.
#[test]
fn latency_is_measured_at_a_rate() {
    attempts(rates_of_a_measured_latency);
}

fn rates_of_a_measured_latency() {
    let folder = Folder::new();
    let url = url(scripted(&folder.0));
    let fast = file("fast");
    for (rate, expected) in [
        (&[][..], 40.0..350.0),
        (&["--load-rate", "50%"], 30.0..250.0),
        (&["--load-rate", "123"], 123.0..124.0),
    ] {
        let flags = ["--url", &url, "--for", "p99", "--warmup", "50ms"];
        let found = climbed(&folder, &[&flags, rate, &words(&fast)[..], &QUICK, &["-d200ms"]].concat());
        let at = found["load_rate_per_s"].as_f64().unwrap();
        assert!(expected.contains(&at), "{rate:?}: {at}");
        let served = found["before"]["requests_per_s"].as_f64().unwrap();
        assert!(
            (at * 0.5..at * 1.25).contains(&served),
            "about what was due at random times: {served} of {at}"
        );
        assert!(
            found["before"]["machines"].is_null(),
            "a rate that was given says nothing of how many machines it takes"
        );
    }
    for (flags, expected) in [
        (&["--load-rate", "50%"][..], "use --for p99 or --for cpu"),
        (&["--load-rate", "50%", "--for", "p99", "--bench", GENERATOR], "sets its rate itself"),
        (&["--load-rate", "500%", "--for", "p99"], "got 500 %"),
    ] {
        let output = climb(&folder, &[&["--url", &url], flags, &words(&fast)[..], &QUICK].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

/// The load generator raises its own limit of open files; a server keeps the limit that it would have had.
#[test]
fn a_server_has_its_own_limit_of_open_files() {
    let folder = Folder::new();
    let (server, url) = bundled();
    let server = format!("ulimit -n > limit; {server}");
    let limited = "ulimit -S -n 200; exec \"$0\" \"$@\"";
    let output = Command::new("/bin/sh")
        .args(["-c", limited])
        .arg(program("flatout"))
        .args(["climb", "--server-cmd", &server, "--url", &url, "--state", "journal"])
        .args(words(&file("fast")))
        .args(QUICK)
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(folder.0.join("limit")).unwrap().trim(), "200");
}

#[test]
fn a_burden_is_estimated_and_stays_away() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let slow = file("slow");
    let flags = ["--url", &url, "--bench", GENERATOR, "--keep"];
    let found = climbed(&folder, &[&flags, &words(&slow)[..], &["--burden"], &QUICK].concat());
    assert_eq!(statuses(&found), ["skipped"]);
    let rung = &found["rungs"][0];
    assert!((0.40..0.45).contains(&rung["gain"].as_f64().unwrap()), "1000 ÷ 700: {found}");
    assert_eq!(rung["how"].as_str(), Some("from-the-other-side"));
    let reason = rung["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("an equal one costs 30.") || reason.starts_with("an equal one costs 29."),
        "{reason}"
    );
    assert!(
        reason.ends_with(") of the requests per second; it stays, because another program owns it"),
        "{reason}"
    );
    assert!(!is_there(&folder, "slow") && found["apply"].is_null());
}

/// A change that costs latency is reported as an increase; in its row it is a cost, too.
#[test]
fn a_burden_on_latency_is_reported_as_such() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let slow = file("slow");
    let generator = r#"n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n
        p=4000; if [ -e slow ]; then p=5000; fi
        echo '{"requests_per_s":1000,"requests":1000,"errors":{},"latency_ns":{"p99":'$((p + n * 37 % 11))'}}'"#;
    let flags = ["--url", &url, "--bench", generator, "--for", "p99"];
    let output = climb(&folder, &[&flags, &words(&slow)[..], &["--burden"], &QUICK].concat());
    let text = stdout(&output);
    assert!(
        text.contains("skipped         costs 25.") || text.contains("skipped         costs 24."),
        "{text}"
    );
    assert!(text.contains(") more latency (p99); it stays, because another program owns it)"), "{text}");
}

/// A server whose starts are counted by the generator: changes that need a restart are applied, and only compared
/// runs restart it.
#[test]
fn only_some_rungs_restart_the_server() {
    let folder = Folder::new();
    let (server, url) = bundled();
    let server = format!("echo x >> starts; rm -f began; if [ -e fast ]; then touch began; fi; {server}");
    let generator = GENERATOR.replace("-e fast", "-e began");
    let (fast, none) = (file("fast"), file("none"));
    let flags = ["--server-cmd", &server, "--url", &url, "--bench", &generator];
    let found =
        climbed(&folder, &[&flags, &words(&fast)[..], &["--restart"], &words(&none), &QUICK].concat());
    assert_eq!(statuses(&found), ["kept", "none"], "{found}");
    assert!((0.28..0.32).contains(&found["total"]["gain"].as_f64().unwrap()), "{found}");
    let starts = std::fs::read_to_string(folder.0.join("starts")).unwrap().lines().count();
    // The first; then, each with four starts of both sides, the noise, `fast`, and the total. In what order is random. `none` needs no start.
    let of_fast = found["rungs"][0]["starts"].as_u64().unwrap() as usize;
    assert_eq!(of_fast, 4, "{found}");
    let expected = 1 + 3 * 2 * of_fast;
    assert!((expected - 2..=expected + 2).contains(&starts), "{starts}: {found}");
}

/// A setting of the server's processes ends with them: it is applied again to those started next.
#[test]
fn settings_of_a_process_are_applied_again_after_a_restart() {
    let folder = Folder::new();
    let (server, url) = bundled();
    // Faster by a quarter while the marked process is the server's.
    let marked = "kill -0 $(cat marked 2>/dev/null) 2>/dev/null && v=$((v * 5 / 4))\necho $((v";
    let generator = GENERATOR.replace("echo $((v", marked);
    // The last run may have it applied: when it is undone, the process still exists.
    let unset = "kill -0 $FLATOUT_PIDS && rm marked";
    let marks = ["--variant", "marks", "--set", "echo $FLATOUT_PIDS >marked", "--unset", unset];
    let fast = file("fast");
    let flags = ["--server-cmd", &server, "--url", &url, "--bench", &generator];
    let found = climbed(&folder, &[&flags, &marks[..], &words(&fast), &["--restart"], &QUICK].concat());
    assert_eq!(statuses(&found), ["kept", "kept"], "{}", found["rungs"]);
    let total = found["total"]["gain"].as_f64().unwrap();
    assert!((0.55..0.7).contains(&total), "1.3 times 1.25: {total}");
}

/// Stacks before and after, or the reason why this kernel does not allow sampling.
#[test]
fn the_cost_of_a_request_is_sampled() {
    let folder = Folder::new();
    let (server, url) = bundled();
    let fast = file("fast");
    let flags = ["--server-cmd", &server, "--url", &url, "--bench", GENERATOR];
    let found = climbed(&folder, &[&flags, &words(&fast)[..], &QUICK, &["--profile", "300ms"]].concat());
    let profiles = &found["profiles"];
    assert!(
        profiles["missing"].is_string() || profiles["before"].is_object() && profiles["after"].is_object()
    );
    assert!(!is_there(&folder, "fast"));
    let flags = ["--server-cmd", &server, "--url", &url];
    let found = climbed(&folder, &[&flags, &words(&fast)[..], &QUICK, &["--profile", "300ms"]].concat());
    let profiles = &found["profiles"];
    assert!(profiles["missing"].is_string() || profiles["before"]["stacks"].is_array(), "{profiles}");
}

#[test]
fn keep_leaves_helpful_changes_applied() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let (fast, slow) = (file("fast"), file("slow"));
    let flags = ["--url", &url, "--bench", GENERATOR, "--keep"];
    climbed(&folder, &[&flags, &words(&fast)[..], &words(&slow), &QUICK].concat());
    assert!(is_there(&folder, "fast") && !is_there(&folder, "slow"));
}

#[test]
fn an_interrupt_undoes_changes_and_prints_partial_results() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = Folder::new();
        let (fast, none) = (file("fast"), file("none"));
        let url = url(scripted(&folder.0));
        let flags =
            [&["--url", &url, "--json", "out.json"], &words(&fast)[..], &words(&none), &QUICK].concat();
        let child = command(&folder, &flags).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        until("the second rung is tried", || is_there(&folder, "none"));
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("interrupted; everything was undone"), "{}", stderr(&output));
        assert!(!is_there(&folder, "fast") && !is_there(&folder, "none"));
        let found = result(&folder);
        assert_eq!((statuses(&found), found["end"].as_str()), (vec!["kept", "skipped"], Some("interrupted")));
        assert!(stdout(&output).contains("these are the results so far"), "{}", stdout(&output));
    }
}

#[test]
fn a_change_that_kills_the_server_is_worse() {
    let folder = Folder::new();
    let (server, url) = bundled();
    let set = "touch deadly && kill -9 $FLATOUT_PIDS";
    let flags =
        ["--server-cmd", &server, "--url", &url, "--variant", "deadly", "--set", set, "--unset", "rm deadly"];
    let output = climb(&folder, &[&flags, &QUICK[..], &["--json", "out.json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("the server died"), "{}", stdout(&output));
    assert!(!is_there(&folder, "deadly"));
    assert_eq!(statuses(&result(&folder)), ["worse"]);
}

#[test]
fn a_generator_that_fails_ends_the_climb() {
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    for (generator, expected) in [
        ("if [ -e fast ]; then echo out of ports >&2; exit 3; fi; echo 1", "(exit status: 3): out of ports"),
        ("if [ -e fast ]; then echo hello; else echo 1; fi", "not understood (last line: `hello`)"),
    ] {
        let folder = Folder::new();
        let fast = file("fast");
        let output =
            climb(&folder, &[&["--url", &url, "--bench", generator], &words(&fast)[..], &QUICK].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(!is_there(&folder, "fast"));
    }
}

#[test]
fn errors_are_no_measurement() {
    let folder = Folder::new();
    let url = url(scripted(&folder.0));
    let (fast, broken) = (file("fast"), file("broken"));
    folder.write("broken", "");
    let output = climb(&folder, &[&["--url", &url], &words(&fast)[..], &QUICK].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output)
            .contains("responds with status 500; a server that responds with errors is not measured"),
        "{}",
        stderr(&output)
    );
    std::fs::remove_file(folder.0.join("broken")).unwrap();
    let found = climbed(&folder, &[&["--url", &url], &words(&broken)[..], &words(&fast), &QUICK].concat());
    assert_eq!(statuses(&found), ["worse", "kept"], "{found}");
    assert!(found["rungs"][0]["reason"].as_str().unwrap().contains("errors rose from 0.000 % to 100.000 %"));
}

#[test]
fn impossible_measurements_are_reported_and_never_zero() {
    let folder = Folder::new();
    let (server, url) = bundled();
    let needs =
        |name: &'static str, what: &'static str| ["--variant", name, "--with-args", "", "--needs", what];
    let flags = [
        &["--server-cmd", &server, "--url", &url][..],
        &needs("card", "device"),
        &needs("boot", "reboot"),
        &["--state", "journal"],
        &["--variant", "wrong", "--with-args", "--nonsense"],
        &["--variant", "refused", "--set", "echo no such knob >&2; exit 1", "--unset", "true"],
        &["--variant", "plain", "--with-args", "--locality off"],
    ];
    let found = climbed(&folder, &[&flags.concat()[..], &QUICK].concat());
    assert_eq!(statuses(&found)[..4], ["not-measurable", "skipped", "skipped", "skipped"], "{found}");
    for (at, expected) in
        ["do not pass through a network device", "reboot", "unexpected argument '--nonsense'", "no such knob"]
            .iter()
            .enumerate()
    {
        let rung = &found["rungs"][at];
        assert!(rung["reason"].as_str().unwrap().contains(expected), "{rung}");
        assert!(rung["gain"].is_null(), "{rung}");
    }
    assert!(
        found["rungs"][4]["gain"].is_number() && found["before"]["cpu_us_per_request"].is_number(),
        "{found}"
    );
}

#[test]
fn the_budget_is_kept() {
    attempts(a_budget_that_is_kept);
}

fn a_budget_that_is_kept() {
    let folder = Folder::new();
    let url = url(scripted(&folder.0));
    let (fast, none) = (file("fast"), file("none"));
    program("flatout");
    let begun = Instant::now();
    let flags = ["--url", &url, "--budget", "500ms", "-d200ms", "--warmup", "0ms", "-c1"];
    let found = climbed(&folder, &[&flags, &words(&fast)[..], &words(&none)].concat());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!((statuses(&found), found["end"].as_str()), (vec!["skipped"; 2], Some("over")));
    assert!(!is_there(&folder, "fast"));
}

#[test]
fn an_earlier_climb_is_compared_with() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let fast = file("fast");
    let flags = [&["--url", &url, "--bench", GENERATOR], &words(&fast)[..], &QUICK].concat();
    climbed(&folder, &flags);
    let compare = |folder: &Folder| {
        let output = climb(folder, &[&flags[..], &["--compare", "out.json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let text = compare(&folder);
    assert!(
        text.contains("since the earlier climb: requests/s without changes: no significant difference"),
        "{text}"
    );
    let old = std::fs::read_to_string(folder.0.join("out.json")).unwrap();
    let mut value: Value = serde_json::from_str(&old).unwrap();
    value["before"]["means"]["throughput"] = serde_json::json!({ "mean": 2000, "low": 1990, "high": 2010 });
    folder.write("out.json", value.to_string());
    assert!(compare(&folder).contains("without changes: worse, 2,000/s then"), "half as fast as then");
}

#[test]
fn the_lab_is_a_network_of_its_own() {
    let folder = Folder::new();
    let devices = || std::fs::read_to_string("/proc/net/dev").unwrap().lines().count();
    let before = devices();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server =
        format!("exec {} json-api --listen 0.0.0.0:{free} --workers 1", program("flatout").display());
    let url = format!("http://127.0.0.1:{free}/json");
    let set = "echo 0 > /proc/sys/net/ipv4/tcp_autocorking";
    let unset = "echo 1 > /proc/sys/net/ipv4/tcp_autocorking";
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_autocorking").unwrap();
    let knob = read();
    let flags = [
        "--lab",
        "--server-cmd",
        &server,
        "--url",
        &url,
        "--variant",
        "corking",
        "--set",
        set,
        "--unset",
        unset,
    ];
    let output =
        climb(&folder, &[&flags[..], &["--needs", "device"], &QUICK, &["--json", "out.json"]].concat());
    assert_eq!((devices(), read()), (before, knob), "the host is as it was");
    if !rustix::process::geteuid().is_root() || stderr(&output).contains("it needs root") {
        assert!(stderr(&output).contains("it needs root"), "{}", stderr(&output));
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    assert!(found["rungs"][0]["gain"].is_number(), "{found}");
    assert!(found["before"]["cpu_us_per_request"].is_number(), "{found}");
}

/// The command runs in the lab, reaches both networks, and the climb begins only if it has succeeded.
#[test]
fn the_lab_is_prepared_by_a_command() {
    let folder = Folder::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server =
        format!("exec {} json-api --listen 0.0.0.0:{free} --workers 1", program("flatout").display());
    let url = format!("http://127.0.0.1:{free}/json");
    let prepared = |setup: &str| {
        let variant = ["--variant", "reno", "--with-args=--congestion reno", "--lab-setup", setup];
        climb(&folder, &[&["--lab", "--server-cmd", &server, "--url", &url][..], &variant, &QUICK].concat())
    };
    let output = prepared(
        "kill -0 $FLATOUT_PID && ip address show dev $FLATOUT_DEVICE >seen && \
         nsenter --net=$FLATOUT_CLIENT_NETWORK ip address >>seen",
    );
    if stderr(&output).contains("it needs root") {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let seen = std::fs::read_to_string(folder.0.join("seen")).unwrap();
    assert!(seen.contains("198.18.0.1/30") && seen.contains("198.18.0.2/30"), "{seen}");
    let output = prepared("echo there are no such rules >&2; exit 3");
    assert_ne!(output.status.code(), Some(0));
    let expected = ["lab-setup: ", "exit status: 3", "there are no such rules"];
    assert!(expected.iter().all(|part| stderr(&output).contains(part)), "{}", stderr(&output));
}

/// A real tuning in the lab: it changes only the lab, and its journal is empty afterwards.
#[test]
fn tunings_are_tried_and_undone() {
    let folder = Folder::new();
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let before = read();
    let flags =
        ["--lab", "congestion", "threaded-napi", "mitigations", "--accept-risk", "--state", "journal"];
    let output = climb(&folder, &[&flags[..], &QUICK, &["--json", "out.json"]].concat());
    assert_eq!(read(), before, "the host is as it was");
    if stderr(&output).contains("it needs root") {
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    let congestion = &found["rungs"][0];
    match congestion["status"].as_str() {
        Some("skipped") => assert!(congestion["reason"].as_str().unwrap().contains("already as suggested")),
        _ => assert!(congestion["gain"].is_number(), "{congestion}"),
    }
    // It waits for a reboot, or there is nothing to do.
    assert_eq!(statuses(&found)[2], "skipped", "{found}");
    let left = std::fs::read_dir(folder.0.join("journal")).into_iter().flatten().flatten();
    let left: Vec<_> = left
        .map(|entry| entry.file_name())
        .filter(|name| name != "lock" && name != "climb.waiting")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A network that outlives a killed climb.
struct Network(std::process::Child);

impl Network {
    /// `None` without root or the required programs.
    fn new() -> Option<Network> {
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        let network = Network(child);
        (line == "up\n").then_some(network)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.id().to_string(), "-n"]).arg(program);
        command
    }

    /// A packet tap in it, which ends with this test at the latest; `None` without python3.
    fn tap(&self) -> Option<std::process::Child> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/tap.py");
        let tap = self.command(Path::new("python3")).arg(script).spawn().ok()?;
        until("the tap is there", || self.taps() == 1);
        Some(tap)
    }

    /// How many packet taps there are in it.
    fn taps(&self) -> usize {
        let output = self.command(Path::new("cat")).arg("/proc/net/packet").output().unwrap();
        stdout(&output).matches(" 0003 ").count()
    }

    /// All settings of this network, and its rules.
    fn snapshot(&self) -> String {
        let all = "cd /proc/sys/net && grep -rs . ipv4 core | sort; nft list ruleset 2>&1";
        let output = self.command(Path::new("sh")).args(["-c", all]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A typical firewall with a rule for each blocked address and with connection tracking, and bbr.
const BURDENS: &str = r#"
set -e
blocked() { for net in 0 1 2 3 4; do seq 1 250 | sed "s/.*/ip $1 198.51.$net.& drop/"; done; }
nft -f - <<RULES
table inet burden {
    chain input { type filter hook input priority filter;
        $(blocked saddr)
        ct state established,related accept
        ct state invalid drop
    }
    chain output { type filter hook output priority filter;
        $(blocked daddr)
        ct state established,related accept
    }
}
RULES
sysctl -q -w net.ipv4.tcp_congestion_control=bbr 2>/dev/null || true"#;

/// Typical burdens are found automatically, the cost of each is measured, and the network is unchanged afterwards.
#[test]
fn planted_burdens_are_measured_and_stay() {
    let flatout = program("flatout");
    let Some(network) = Network::new() else { return };
    let planted = network.command(Path::new("sh")).args(["-c", BURDENS]).output().unwrap();
    if !planted.status.success() {
        // No nft here, or a kernel without it.
        return;
    }
    let Some(mut tap) = network.tap() else { return };
    let folder = Folder::new();
    let snapshot = network.snapshot();
    assert!(snapshot.contains("198.51.4.250"), "the rules are there");
    let (server, url) = bundled();
    let output = network
        .command(&flatout)
        .args(["climb", "--server-cmd", &server, "--url", &url, "--state", "journal", "--json", "out.json"])
        .args(["--accept-risk", "--budget", "60s", "-d", "100ms"])
        .args(["--warmup", "20ms", "--pairs-max", "40", "--profile", "0s", "--for", "cpu"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let after = network.snapshot();
    let changed = after.lines().zip(snapshot.lines()).find(|(now, then)| now != then);
    assert!(after == snapshot, "the network is not as it was: {changed:?}");
    assert_eq!(network.taps(), 1, "the tap is still there, alone");
    let _ = tap.kill();
    let _ = tap.wait();
    let found = result(&folder);
    let named = |name: &str| {
        let rungs = found["rungs"].as_array().unwrap();
        rungs
            .iter()
            .find(|rung| rung["name"] == name)
            .unwrap_or_else(|| panic!("{name} is not tried: {found}"))
    };
    let told = stderr(&output);
    assert!(
        told.contains("changes will be tried") && told.contains("high risk, while it is tried"),
        "{told}"
    );
    assert!(told.lines().any(|line| line.starts_with("firewall ")), "as it finishes: {told}");
    let firewall = named("firewall");
    // On a busy host differences of this size cannot be detected, and are not.
    if found["noise_floor"].as_f64().is_some_and(|floor| floor < NOISE_MAX) {
        assert_eq!(firewall["status"], "kept", "{told}");
        assert!(firewall["low"].as_f64().unwrap() > 0.0, "so many rules cost something: {told}");
    }
    let taps = named("taps");
    assert!(taps["gain"].is_number() && taps["how"] == "from-the-other-side", "{taps}");
}

/// The A/A noise at which a burden of a third is still detected.
const NOISE_MAX: f64 = 0.10;

/// Killed at twenty random moments, each time followed by `tune undo`; then everything is as it was.
#[test]
fn changes_of_a_killed_climb_are_undone() {
    let Some(network) = Network::new() else { return };
    let folder = Folder::new();
    let before = network.snapshot();
    let climb = |duration: &str| {
        let flags = ["congestion", "somaxconn", "--state", "journal", "--pairs", "4", "--pairs-max", "4"];
        network
            .command(&program("flatout"))
            .arg("climb")
            .args(flags)
            .args([duration, "--warmup", "0ms", "-c2", "--profile", "0s"])
            .current_dir(&folder.0)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let begun = Instant::now();
    assert!(climb("-d10ms").wait_with_output().unwrap().status.success());
    let whole = begun.elapsed();
    assert_eq!(network.snapshot(), before);
    let seed = std::process::id();
    let mut found_in_place = 0;
    for moment in 0..20 {
        // A change that has to be seen must be in place for longer than it takes to look.
        let awaits_change = moment % 4 == 0;
        let mut child = climb(if awaits_change { "-d200ms" } else { "-d10ms" });
        if awaits_change {
            while network.snapshot() == before && child.try_wait().unwrap().is_none() {}
        } else {
            // Every other time, wait until the first rung is tried.
            let said = BufReader::new(child.stderr.take().unwrap()).lines();
            let _ = said.take(if moment % 2 == 0 { 0 } else { 2 }).count();
            thread::sleep(whole / (1 + moment % 2) * ((seed + moment) * 7919 % 100) / 100);
        }
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
        child.wait().unwrap();
        found_in_place += u32::from(network.snapshot() != before);
        let undo = network
            .command(&program("flatout"))
            .args(["tune", "undo", "--state", "journal"])
            .current_dir(&folder.0)
            .output()
            .unwrap();
        assert!(undo.status.success(), "seed {seed}: {}", stderr(&undo));
        assert_eq!(network.snapshot(), before, "seed {seed}, moment {moment}");
    }
    assert!(found_in_place > 0, "seed {seed}: {found_in_place} of 20 were killed with a change in place");
}

/// A variant is in the journal before its first command runs: whenever the climb is killed, `tune undo` runs the
/// second one. A climb that finds such an entry reports it first.
#[test]
fn a_variant_of_a_killed_climb_is_undone() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let generator = "if [ -e slow ]; then touch seen; sleep 30; fi; echo 1000";
    let variant = ["--variant", "slow", "--set", "echo \"$FLATOUT_URL\" > slow", "--unset", "mv slow undone"];
    let flags = ["--url", &url, "--bench", generator];
    let mut child =
        command(&folder, &[&flags[..], &variant, &QUICK].concat()).stderr(Stdio::null()).spawn().unwrap();
    until("the change is measured", || is_there(&folder, "seen"));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert!(is_there(&folder, "slow"));

    let fast = file("fast");
    let flags = ["--url", &url, "--bench", "echo 1000"];
    let next = climb(&folder, &[&flags, &words(&fast)[..], &QUICK].concat());
    let told = stderr(&next);
    let first = told.lines().next().unwrap();
    assert!(
        first.contains("still in place from earlier runs") && first.contains("slow; to undo it first"),
        "{told}"
    );

    let undo = |names: &[&str]| {
        let arguments = [&["tune", "undo", "--state", "journal"], names].concat();
        Command::new(program("flatout")).args(arguments).current_dir(&folder.0).output().unwrap()
    };
    assert_eq!(undo(&["slowly"]).status.code(), Some(2), "there is no such variant");
    let undone = undo(&["slow"]);
    assert_eq!(undone.status.code(), Some(0), "{}{}", stdout(&undone), stderr(&undone));
    assert!(!is_there(&folder, "slow"));
    let written = std::fs::read_to_string(folder.0.join("undone")).unwrap();
    assert_eq!(written.trim(), url, "{written}");
    assert!(stdout(&undo(&[])).contains("nothing to undo"));
}

/// A host below a folder, which is rebooted by writing another boot id.
struct Rebooted<'f>(&'f Folder);

impl Rebooted<'_> {
    fn boot(&self, id: &str, mitigation: &str) {
        let vulnerabilities = "root/sys/devices/system/cpu/vulnerabilities";
        for (path, text) in [
            ("root/proc/sys/kernel/random/boot_id", id),
            ("root/proc/sys/kernel/hostname", "web1"),
            ("root/proc/sys/kernel/osrelease", "6.1.0"),
            ("root/proc/cmdline", &format!("quiet booted={id}")),
            ("root/etc/machine-id", "0123"),
            (&format!("{vulnerabilities}/meltdown"), mitigation),
            (&format!("{vulnerabilities}/l1tf"), "Not affected"),
        ] {
            self.0.write(path, text);
        }
    }
}

/// Like the other generator, and faster by another quarter if `quick` exists.
const GENERATOR_OF_BOOTS: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n
v=1000; if [ -e fast ]; then v=1300; fi; if [ -e quick ]; then v=$((v * 5 / 4)); fi
echo $((v + n * 37 % 11))";

/// Climbs up to the reboot, with everything that can be measured before it.
fn before_reboot(folder: &Folder, url: &str) -> Output {
    Rebooted(folder).boot("one", "Mitigation: PTI");
    let fast = file("fast");
    let flags = ["mitigations", "--accept-risk", "--root", "root", "--state", "journal", "--url", url];
    let results = ["--bench", GENERATOR_OF_BOOTS, "--json", "out.json", "--report", "out.html"];
    climb(folder, &[&flags[..], &results, &words(&fast), &QUICK].concat())
}

/// From a different folder than at the start of the climb.
fn resumed(folder: &Folder) -> Output {
    let journal = folder.0.join("journal");
    let mut command = Command::new(program("flatout"));
    command.args(["climb", "--resume", "--state"]).arg(journal).current_dir("/");
    command.output().unwrap()
}

#[test]
fn a_climb_goes_on_after_a_reboot() {
    let folder = Folder::new();
    let server = Server::json();
    let url = format!("http://{}/json", server.address);
    let output = before_reboot(&folder, &url);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let found = result(&folder);
    assert_eq!(statuses(&found), ["skipped", "kept"], "{found}");
    assert!(
        found["rungs"][0]["reason"].as_str().unwrap().starts_with("it needs a reboot: the runs before it")
    );
    let waiting = std::fs::metadata(folder.0.join("journal/climb.waiting")).unwrap();
    assert_eq!(waiting.permissions().mode() & 0o777, 0o600, "what was typed is nobody else's");
    let next: Vec<&str> = found["next"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        next[0],
        "boot with mitigations=off: opens meltdown; set it where this machine's boot loader is configured"
    );
    assert_eq!(next[1], "reboot");
    let journal = folder.0.join("journal").canonicalize().unwrap();
    assert_eq!(next[2], format!("flatout climb --resume --state {}", journal.display()));
    let text = stdout(&output);
    assert!(next.iter().all(|step| text.contains(step)), "{text}");

    // Each time it reports what is missing, and keeps waiting.
    let refused = |status: i32, expected: &str| {
        let output = resumed(&folder);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(is_there(&folder, "journal/climb.waiting") && !is_there(&folder, "fast"));
    };
    refused(2, "this machine has not been rebooted since (boot one)");
    let again = before_reboot(&folder, &url);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    let found = result(&folder);
    assert_eq!(statuses(&found), ["not-measurable", "kept"], "the other one waits on");
    let reason = found["rungs"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("whose rung `mitigations` waits for a reboot already"), "{reason}");
    Rebooted(&folder).boot("two", "Mitigation: PTI");
    refused(
        1,
        "`mitigations` has not taken effect with this boot: it is mitigated: meltdown (6 %), and was mitigated: meltdown \
         (6 %) before; the kernel was booted with `quiet booted=two`, before with `quiet booted=one`",
    );
    Rebooted(&folder).boot("two", "Vulnerable");
    folder.write("root/etc/machine-id", "4567");
    refused(2, "belongs to the machine `web1` (0123), and this is `web1` (4567)");

    folder.write("root/etc/machine-id", "0123");
    folder.write("quick", "");
    let output = resumed(&folder);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let found = result(&folder);
    assert_eq!(statuses(&found), ["kept", "kept"], "{found}");
    let rung = &found["rungs"][0];
    assert!((0.23..0.27).contains(&rung["gain"].as_f64().unwrap()), "{found}");
    assert_eq!(rung["how"].as_str(), Some("across-a-reboot"));
    assert!(rung["reason"].as_str().unwrap().contains("measured across a reboot"), "{found}");
    assert!((0.60..0.65).contains(&found["total"]["gain"].as_f64().unwrap()), "1.3 · 1.25: {found}");
    assert!((1610.0..1650.0).contains(&found["after"]["requests_per_s"].as_f64().unwrap()), "{found}");
    assert!((990.0..1020.0).contains(&found["before"]["requests_per_s"].as_f64().unwrap()), "{found}");
    assert_eq!(found["next"].as_array().map(Vec::len), Some(0));
    assert!(found["apply"].as_str().unwrap().contains("flatout tune apply mitigations"), "{found}");
    let page = std::fs::read_to_string(folder.0.join("out.html")).unwrap();
    assert!(page.contains("measured across a reboot"), "{page}");
    assert!(!is_there(&folder, "fast") && !is_there(&folder, "journal/climb.waiting"));
    let output = resumed(&folder);
    assert!(stderr(&output).contains("no climb waits for a reboot in"), "{}", stderr(&output));
}

#[test]
fn a_reboot_that_brings_nothing_is_none() {
    let folder = Folder::new();
    let server = Server::json();
    before_reboot(&folder, &format!("http://{}/json", server.address));
    Rebooted(&folder).boot("two", "Vulnerable");
    let output = resumed(&folder);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    assert_eq!(statuses(&found), ["none", "kept"], "{found}");
    assert!((0.28..0.32).contains(&found["total"]["gain"].as_f64().unwrap()), "{found}");
    assert!(found["next"][0].as_str().unwrap().starts_with("flatout tune undo mitigations"), "{found}");
    assert!(!found["apply"].as_str().unwrap().contains("mitigations"), "{found}");
}

/// A file that is truncated, edited, or of another version; and a server that has ended.
#[test]
fn a_climb_that_cannot_go_on_says_why_and_waits_on() {
    let folder = Folder::new();
    let server = Server::json();
    before_reboot(&folder, &format!("http://{}/json", server.address));
    Rebooted(&folder).boot("two", "Vulnerable");
    let path = folder.0.join("journal/climb.waiting");
    let whole = std::fs::read_to_string(&path).unwrap();
    for (text, expected) in [
        (whole[..5].to_owned(), "has no checksum"),
        (whole[..whole.len() / 2].to_owned(), "its checksum is wrong: it was damaged or edited"),
        (whole.replace("\"requests_per_s\": 1", "\"requests_per_s\": 9"), "its checksum is wrong"),
        (whole.replacen("climb 1 ", "climb 7 ", 1), "is of another kind or version; need `flatout climb 1`"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let output = resumed(&folder);
        assert_eq!(output.status.code(), Some(2), "{expected}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it is");
    }
    std::fs::write(&path, &whole).unwrap();
    drop(server);
    let output = resumed(&folder);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("does not respond"), "{}", stderr(&output));
    assert!(path.exists());
    let journal = folder.0.join("journal");
    let output = climb(&folder, &["--resume", "--state", journal.to_str().unwrap(), "--for", "p99"]);
    assert!(stderr(&output).contains("got `--for`, allowed is --state"), "{}", stderr(&output));
}

/// Its speed decreases with each packet tap in its network.
const GENERATOR_OF_TAPS: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n
taps=$(grep -c ' 0003 ' /proc/net/packet)
echo $((1000 - 200 * taps + n * 37 % 11))";

/// A packet tap of another program: its cost is estimated by adding one more, and it is stopped only with consent.
#[test]
fn a_packet_tap_is_estimated_and_stopped_by_consent_alone() {
    let Some(network) = Network::new() else { return };
    let folder = Folder::new();
    let Some(mut tap) = network.tap() else { return };
    let taps = || network.taps();
    let (server, url) = bundled();
    let climb = |flags: &[&str]| {
        let all = ["climb", "taps", "--server-cmd", &server, "--url", &url, "--bench", GENERATOR_OF_TAPS];
        let rest = ["--json", "out.json", "--state", "journal"];
        let mut command = network.command(&program("flatout"));
        command.args([&all[..], &QUICK, &rest, flags].concat()).current_dir(&folder.0).output().unwrap()
    };
    let output = climb(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    let rung = &found["rungs"][0];
    assert_eq!(
        (rung["status"].as_str(), rung["how"].as_str()),
        (Some("skipped"), Some("from-the-other-side"))
    );
    assert!((0.31..0.35).contains(&rung["gain"].as_f64().unwrap()), "800 ÷ 600: {found}");
    let pid = tap.id().to_string();
    let reason = rung["reason"].as_str().unwrap();
    let held = format!("(pid {pid}); to stop it at the end: --stop {pid} --keep --accept-risk");
    assert!(
        reason.contains("it stays, because another program owns it") && reason.ends_with(&held),
        "{reason}"
    );
    assert_eq!(taps(), 1, "ours is gone, and the other is there");

    let output = climb(&["--stop", "1", "--keep", "--accept-risk"]);
    assert_eq!(output.status.code(), Some(2));
    let expected = format!("--stop: got 1, need a process that holds a packet tap: python3 (pid {pid})");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));

    let output = climb(&["--stop", &pid, "--keep", "--accept-risk"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&folder);
    let next = found["next"][0].as_str().unwrap();
    assert!(next.contains("was stopped; start it again: cd ") && next.contains("tap.py"), "{next}");
    assert!(found["rungs"][0]["reason"].as_str().unwrap().ends_with("it was removed at the end"), "{found}");
    assert!(!tap.wait().unwrap().success());
    assert_eq!(taps(), 0);
}

#[test]
fn wrong_usage_is_reported() {
    let folder = Folder::new();
    folder.write("old.json", "{}");
    for (arguments, expected) in [
        (&["--port", "1", "no-such-tuning"][..], "no tuning `no-such-tuning`"),
        (&["--port", "1", "audit"], "--accept-risk"),
        (&["--server-cmd", "x"], "--server-cmd needs --url"),
        (&["--variant", "a", "--set", "x"], "could not be undone"),
        (&["--compare", "old.json"], "`old.json`: not a climb: missing field"),
        (&["--compare", "/nowhere"], "cannot read `/nowhere`"),
    ] {
        let output = climb(&folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(!stderr(&output).contains("will be tried"), "{}", stderr(&output));
    }
}

#[test]
fn a_missing_server_is_reported() {
    let folder = Folder::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fast = file("fast");
    let output = climb(&folder, &[&["--url", &url(free)], &words(&fast)[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("does not respond"), "{}", stderr(&output));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = url(taken.local_addr().unwrap());
    let output = climb(&folder, &[&["--server-cmd", "true", "--url", &taken], &words(&fast)[..]].concat());
    assert!(stderr(&output).contains("listens on"), "{}", stderr(&output));
}

#[test]
fn a_plan_file_is_climbed() {
    let folder = Folder::new();
    let address = scripted(&folder.0);
    let plan = format!(
        "url \"http://{address}/\"\nbench \"sh generator\"\npairs 4; pairs-max 4; profile \"0s\"\n\
         variant \"fast\" {{ set \"touch fast\"; unset \"rm fast\"; }}\n\
         skip \"card\" reason=\"there is none\"\nrung \"audit\"\n"
    );
    std::fs::write(folder.0.join("generator"), GENERATOR).unwrap();
    std::fs::write(folder.0.join("good.kdl"), plan).unwrap();
    let found = climbed(&folder, &["--plan", "good.kdl"]);
    assert_eq!(statuses(&found), ["kept", "skipped", "skipped"]);
    assert_eq!(found["rungs"][1]["reason"], "there is none");
    assert!(found["rungs"][2]["reason"].as_str().unwrap().contains("--accept-risk"), "{found}");
    assert!(!is_there(&folder, "fast"));
}

#[test]
fn a_bad_plan_file_is_wrong_usage() {
    let folder = Folder::new();
    std::fs::write(folder.0.join("bad.kdl"), "port 1\n  conections 64\n").unwrap();
    let output = climb(&folder, &["--plan", "bad.kdl"]);
    let message = "bad.kdl:2:3: unknown setting `conections`; did you mean `connections`?\n  \
                   2 |   conections 64\n    |   ^^^^^^^^^^\n";
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).ends_with(message), "{}", stderr(&output));
    for (name, expected) in [("none.kdl", "cannot read `none.kdl`"), ("/dev/zero", "larger than 64 KiB")] {
        let output = climb(&folder, &["--plan", name]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

/// Two variants of a server are alive at once, on two ports if the command names its port once, otherwise in two networks, which
/// needs root. Load alternates between them in short blocks.
#[test]
fn two_servers_are_measured_side_by_side() {
    attempts(two_servers_side_by_side);
}

fn two_servers_side_by_side() {
    let folder = Folder::new();
    let (command, url) = bundled();
    let port = url.rsplit(':').next().unwrap().split('/').next().unwrap().to_owned();
    for command in [command.clone(), format!("true {port}; {command}")] {
        let flags = ["--url", &url, "--server-cmd", &command, "--for", "cpu", "-c4"];
        let variant = ["--variant", "log", "--with-args", "--access-log log"];
        let short = ["-d200ms", "--pairs-max", "8", "--profile", "0s"];
        let found = climbed(&folder, &[&flags[..], &variant, &short].concat());
        let rung = &found["rungs"][0];
        let is_root = rustix::process::geteuid().is_root();
        if rung["how"] == "side-by-side" {
            assert!(rung["gain"].as_f64().unwrap() < 0.0, "a log of each request costs something: {found}");
            assert!(found["noise"]["high"].as_f64().unwrap() > 0.0, "{found}");
        } else {
            assert!(!is_root || command.starts_with("true"), "{found}");
        }
        assert!(is_there(&folder, "log"), "{found}");
    }
}

/// A variant that does not start is refused, and the others are measured side by side all the same.
#[test]
fn a_variant_that_does_not_start_is_refused_beside_others() {
    let folder = Folder::new();
    let (command, url) = bundled();
    let flags = ["--url", &url, "--server-cmd", &command, "--for", "cpu", "-c2"];
    let variants = [
        "--variant",
        "broken",
        "--with-args",
        "--no-such-flag",
        "--variant",
        "metrics",
        "--with-args",
        "--metrics",
    ];
    let short = ["-d100ms", "--pairs-max", "5", "--profile", "0s"];
    let found = climbed(&folder, &[&flags[..], &variants, &short].concat());
    assert_eq!(found["rungs"][0]["status"], "skipped", "{found}");
    assert!(
        found["rungs"][0]["reason"].as_str().unwrap().contains("ended before it accepted connections"),
        "{found}"
    );
    assert_eq!(found["rungs"][1]["how"], "side-by-side", "{found}");
}
