//! `flatout bench`, the real binary, with the real engine and with servers that misbehave.

#[path = "../../crates/engine/tests/support/attempts.rs"]
mod attempts;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use attempts::attempts;
use flatout_tests::authority::Authority;
use flatout_tests::{Folder, PATIENCE, Server, Signal, program};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let begun = Instant::now();
    let output = Command::new(program("flatout")).arg("bench").args(arguments).output().unwrap();
    assert!(begun.elapsed() < PATIENCE, "{arguments:?} took {:?}", begun.elapsed());
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address)
}

fn json(arguments: &[&str]) -> Value {
    let output = bench(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server that does this with each connection, on a thread of its own.
fn serving(with_each: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, with_each) = (stream.unwrap(), with_each.clone());
            thread::spawn(move || with_each(stream));
        }
    });
    address
}

/// A server that sends these bytes on every connection, with or without a request, and closes.
fn saying(answer: &'static str) -> SocketAddr {
    serving(move |mut stream| {
        if stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
            let _ = stream.write_all(answer.as_bytes());
        }
    })
}

#[test]
fn the_engine_is_measured() {
    let server = Server::json();
    let output =
        bench(&[&url(&server, "/json"), "-t2", "-c8", "-d", "300ms", "--warmup", "100ms", "--latency"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for expected in [
        "limit: ",
        " requests/s   p50 ",
        "no errors",
        "2 threads and 8 connections",
        "Requests/sec:",
        "Transfer/sec:",
        "p99.9",
        "CPU of the server",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let found = json(&[&url(&server, "/json"), "-n", "1000", "--expect", "{\"message\":\"Hello, World!\"}"]);
    assert_eq!(
        (found["requests"].as_u64(), found["latency_ns"]["p50"].as_u64() > Some(0)),
        (Some(1000), true)
    );
}

/// Thresholds decide about the exit status, and are reported to a CI system.
#[test]
fn requirements_decide_the_exit_status() {
    let server = Server::json();
    let (url, folder) = (url(&server, "/json"), Folder::new());
    let (xml, summary) = (folder.0.join("a.xml"), folder.0.join("a.md"));
    let files = ["--junit", xml.to_str().unwrap(), "--markdown", summary.to_str().unwrap()];
    let run = |requirements: &[&str]| bench(&[&[url.as_str(), "-n", "200"], requirements, &files].concat());
    let output = run(&["--require", "p99<60s", "--require", "errors<0.1%"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = std::fs::read_to_string(&xml).unwrap();
    assert!(report.contains("tests=\"2\" failures=\"0\""), "{report}");
    // Without one, a run must have no errors.
    assert_eq!(run(&[]).status.code(), Some(0));
    let report = std::fs::read_to_string(&xml).unwrap();
    assert!(
        report.contains("tests=\"1\" failures=\"0\"") && report.contains("name=\"errors&lt;=0\""),
        "{report}"
    );
    let output = run(&["--require", "p99<1ns", "--require", "rps>1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("requirement not met: p99<1ns (measured "), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&xml).unwrap().contains("failures=\"1\""));
    assert!(std::fs::read_to_string(&summary).unwrap().contains("**not met**"));

    let missing = url.replace("/json", "/missing");
    let with_errors = |requirement| bench(&[&missing, "-n", "10", "--require", requirement]).status.code();
    assert_eq!((with_errors("errors<=100%"), with_errors("errors<50%")), (Some(0), Some(1)));
    let many: &[&str] = &["--junit", "a.xml", "--vs", &url];
    for wrong in [&["--require", "p99"][..], many, &["--require", "rps>1", "--vs", &url]] {
        assert_eq!(bench(&[&[url.as_str()], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

/// Programs read these names: none may be removed or change its meaning.
#[test]
fn json_has_its_fields() {
    attempts(fields_of_json);
}

fn fields_of_json() {
    let server = Server::json();
    let found = json(&[&url(&server, "/json"), "-R", "500", "-d", "200ms"]);
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&found),
        "bytes_read client_cpu_share client_cpu_us_per_request command connections_held connections_made date errors errors_sum latency_ns \
         latency_raw_ns limit machine machine_cpu_us_per_request requests requests_each_second requests_per_s seconds send_lag_ns \
         server_cpu_us_per_request setup statuses trials_requests_per_s unanswered unsent warnings"
    );
    assert_eq!(
        names(&found["errors"]),
        "bad_status closed connect goaway handshake malformed reset short_body stream_reset timeout unexpected_body"
    );
    assert_eq!(names(&found["latency_ns"]), "max mean p50 p90 p99 p99_9 p99_99");
    assert_eq!(names(&found["latency_raw_ns"]), names(&found["latency_ns"]));
    assert_eq!(names(&found["server_cpu_us_per_request"]), "kernel user");
    assert_eq!(
        names(&found["setup"]),
        "arrival close connect_timeout_s connections cpus duration_s events expect_body_bytes expect_status head_bytes http2 \
         pipeline rate_per_s remote requests requests_max seed sources streams threads timeout_s tls transport url warmup_s"
    );
    assert_eq!(found["setup"]["rate_per_s"].as_f64(), Some(500.0));
    assert_eq!(found["setup"]["warmup_s"].as_f64(), Some(0.0), "the open loop counts from its first request");
    let closed = json(&[&url(&server, "/json"), "-d", "200ms"]);
    assert_eq!(
        closed["setup"]["warmup_s"].as_f64(),
        Some(0.2),
        "the closed loop is warmed up unless told otherwise"
    );
    assert_eq!(found["requests"].as_u64(), Some(100));
    assert_eq!(found["statuses"], serde_json::json!({ "200": 100 }));
}

#[test]
fn csv_has_its_columns() {
    let server = Server::json();
    let output = bench(&[&url(&server, "/json"), "-n", "10", "--csv"]);
    let text = stdout(&output);
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "url,threads,connections,seconds,requests,requests_per_s,errors_connect,errors_closed,errors_reset,\
         errors_timeout,errors_short_body,errors_bad_status,errors_malformed,errors_unexpected_body,\
         errors_handshake,errors_stream_reset,errors_goaway,latency_ns_p50,latency_ns_p90,latency_ns_p99,latency_ns_p99_9,latency_ns_p99_99,latency_ns_max,latency_raw_ns_p50,\
         latency_raw_ns_p90,latency_raw_ns_p99,latency_raw_ns_p99_9,latency_raw_ns_p99_99,latency_raw_ns_max,\
         server_cpu_us_user,server_cpu_us_kernel,warnings"
    );
    assert_eq!(lines[0].split(',').count(), lines[1].split(',').count(), "{text}");
}

/// A server with a certificate for this machine, its port for TLS, and the CA that signed the certificate.
fn secured() -> (Server, u16, Authority) {
    let authority = Authority::new();
    authority.sign("server", "a.test");
    authority.0.write("site/json", "{}");
    let mut command = Command::new(program("flatout"));
    command.args(["serve", &authority.path("site"), "--workers", "1"]);
    // The plain listener stands last, where the helper of all tests looks for it.
    command.args(["--listen", "127.0.0.1:0", "--listen-plain", "127.0.0.1:0"]);
    command.args(["--tls", &authority.path("server.pem"), &authority.path("server.key")]);
    let server = Server::start(command);
    let port = server.secure_port.expect("it speaks TLS");
    (server, port, authority)
}

#[test]
fn tls_and_http2_are_measured() {
    let (server, port, authority) = secured();
    let ca = authority.path("ca.pem");
    let secure = format!("https://127.0.0.1:{port}/json");
    let found = json(&[&secure, "--ca", &ca, "-n", "200", "-c4"]);
    assert_eq!((found["requests"].as_u64(), found["tls"]["version"].as_str()), (Some(200), Some("TLSv1.3")));
    assert_eq!(found["tls"]["protocol"].as_str(), Some("http/1.1"));
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        names(&found["tls"]),
        "cipher handshakes_full handshakes_per_s handshakes_resumed key_exchange protocol version"
    );
    assert_eq!(names(&found["setup"]["tls"]), "ca cipher key_exchange resume server_name verify");
    let close = [&secure, "--ca", &ca, "-n", "100", "-c4", "--close"];
    let resumed = json(&close)["tls"]["handshakes_resumed"].as_u64();
    assert!(resumed >= Some(90), "{resumed:?}");
    assert_eq!(json(&[&close[..], &["--no-resume"]].concat())["tls"]["handshakes_resumed"].as_u64(), Some(0));
    let streams = ["--http2", "-m", "50", "-n", "2000", "-c2"];
    let found = json(&[&[&secure[..], "--ca", &ca], &streams[..]].concat());
    assert_eq!((found["requests"].as_u64(), found["tls"]["protocol"].as_str()), (Some(2000), Some("h2")));
    let found = json(&[&[&url(&server, "/json")[..]], &streams[..]].concat());
    assert_eq!((found["requests"].as_u64(), found.get("tls")), (Some(2000), None));
    assert_eq!(
        (found["setup"]["http2"].as_bool(), found["setup"]["streams"].as_u64()),
        (Some(true), Some(50))
    );
    let output = bench(&[
        &secure,
        "--ca",
        &ca,
        "-n",
        "20",
        "--tls-name",
        "a.test",
        "--cipher",
        "TLS_AES_128_GCM_SHA256",
    ]);
    let text = stdout(&output);
    for expected in
        ["TLSv1.3, TLS_AES_128_GCM_SHA256, X25519MLKEM768, ALPN http/1.1", "Handshakes: 10 full, 0 resumed"]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let output = bench(&[&secure, "-n", "20"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is not trusted: its certificate"), "{}", stderr(&output));
    assert!(stderr(&output).contains("skip the check with --insecure"), "{}", stderr(&output));
    assert_eq!(bench(&[&secure, "-n", "20", "--insecure"]).status.code(), Some(0));
    let output = bench(&[&format!("http://{}/", saying("HTTP/1.1 400 Bad Request\r\n\r\n")), "--http2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("does not support HTTP/2"), "{}", stderr(&output));
}

#[test]
fn every_kind_of_load_runs() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    folder.write("b.txt", "b");
    folder.write("urls", "3 /a.txt\n1 /b.txt\n");
    let socket = folder.0.join("s");
    let listen = format!("unix:{}", socket.display());
    let server = Server::site(&folder.0, &["--listen", &listen]);
    let list = folder.0.join("urls");
    let (url, unix) = (url(&server, "/a.txt"), format!("{listen}:/a.txt"));
    for flags in [
        &[&url, "-n200", "--close"][..],
        &[&url, "-n20", "--pipeline", "8"],
        &[&url, "-n200", "--urls", list.to_str().unwrap()],
        &[&url, "-n200", "-H", "Accept-Encoding: gzip", "--expect-status", "200"],
        &[&url, "-n200", "-X", "HEAD"],
        &[&url, "-d200ms", "-R", "500", "--arrival", "poisson"],
        &[&url, "-d200ms", "--hold", "200", "--source", "127.0.0.2-127.0.0.5"],
        &[&unix, "-n200"],
    ] {
        let found = json(flags);
        assert!(found["requests"].as_u64() > Some(0), "{flags:?}");
        assert_eq!(found["errors"]["connect"].as_u64(), Some(0));
    }
}

#[test]
fn files_are_written() {
    let server = Server::json();
    let folder = Folder::new();
    let (page, log) = (folder.0.join("r.html"), folder.0.join("r.hdr"));
    let (page_name, log_name) = (page.to_str().unwrap(), log.to_str().unwrap());
    let output =
        bench(&[&url(&server, "/json?<&>"), "-R200", "-d300ms", "--report", page_name, "--hdr", log_name]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("<svg") && page.contains("/json?&lt;&amp;&gt;") && !page.contains("src="),
        "{page}"
    );
    assert!(!page.contains("<script") && !page.contains("NaN"), "{page}");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("Tag=latency,") && log.contains("Tag=raw,") && log.contains("HIST"), "{log}");
}

#[test]
fn the_same_server_twice_is_compared() {
    let server = Server::json();
    let url = url(&server, "/json");
    // On a busy host a run may fail: allow a few pairs more than an interval needs.
    let found = json(&[&url, "--vs", &url, "-d200ms", "--pairs", "6"]);
    let [low, ratio, high] = ["ratio_low", "ratio", "ratio_high"].map(|name| found[name].as_f64().unwrap());
    assert!(low <= ratio && ratio <= high, "{found}");
    assert!(["faster", "slower", "no significant difference"].contains(&found["verdict"].as_str().unwrap()));
}

#[test]
fn commands_that_start_servers_are_compared() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = Folder::new();
    folder.write("index.html", "x");
    let command =
        format!("exec {} serve {} --listen {free}", program("flatout").display(), folder.0.display());
    let url = format!("http://{free}/");
    let found = json(&[&url, "--vs-cmd", &command, "--vs-cmd", &command, "-d50ms", "--pairs", "4"]);
    assert_eq!(found["pairs_requests_per_s"].as_array().unwrap().len(), 4);
    let output = bench(&[&url, "--vs-cmd", "exit 3", "--vs-cmd", &command]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`exit 3` ended before it accepted"), "{}", stderr(&output));
}

#[test]
fn the_highest_rate_is_searched() {
    let server = Server::json();
    let found =
        json(&[&url(&server, "/json"), "--find-max", "--slo", "p50=50ms", "-d50ms", "--max-errors", "9999"]);
    assert!(!found["steps"].as_array().unwrap().is_empty(), "{found}");
}

/// A server that takes at least this time for each request, one after the other on each connection.
fn serving_in(time: Duration) -> String {
    let address = serving(move |mut stream| {
        while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
            thread::sleep(time);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    format!("http://{address}/")
}

/// One connection to a server of 20 ms has at most 50 responses a second, whatever is offered.
#[test]
fn rates_are_those_of_the_measured_time() {
    let url = serving_in(Duration::from_millis(20));
    let found = json(&[&url, "-c1", "-R", "100", "-d", "1s"]);
    let [rate, seconds] = ["requests_per_s", "seconds"].map(|name| found[name].as_f64().unwrap());
    assert!(rate <= 52.0 && (seconds - 1.0).abs() < 1e-6, "{found}");
    // What came in the measured time counts, also for requests that were due in the warm-up.
    for warmup in ["300ms", "600ms"] {
        let found = json(&[&url, "-c1", "-R", "100", "-d", "1s", "--warmup", warmup]);
        let rate = found["requests_per_s"].as_f64().unwrap();
        assert!((40.0..=52.0).contains(&rate), "{warmup}: {found}");
    }
    let output = bench(&[&url, "-c1", "-R", "100", "-d", "500ms"]);
    let text = stdout(&output);
    assert!(text.contains("Running 500.0ms test, then "), "{text}");
    assert!(text.contains(" responses in the measured 500.00ms"), "{text}");

    let found = json(&[&url, "-c1", "--stage", "1s:80", "--stage", "1s:1"]);
    let stage = &found["stages"][0];
    assert_eq!(stage["requests"].as_u64(), Some(80), "all that became due: {found}");
    assert!(stage["responses_per_s"].as_f64().unwrap() <= 52.0, "those that came meanwhile: {found}");
}

#[test]
fn a_search_begins_with_its_answer() {
    let url = serving_in(Duration::from_millis(5));
    let folder = Folder::new();
    let page = folder.0.join("r.html");
    let flags = ["--find-max", "--slo", "p50=50ms", "-d50ms", "-c1", "--max-errors", "9999"];
    let output = bench(&[&[url.as_str()], &flags[..], &["--report", page.to_str().unwrap()]].concat());
    let text = stdout(&output);
    assert!(text.lines().next().unwrap().contains("p50 ≤ 50ms"), "{text}");
    assert!(text.contains("  missed: ") && text.contains("│ 50ms"), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("objective: 50ms") && page.contains("p50, missed"), "{page}");
}

#[test]
fn a_comparison_begins_with_its_ratio() {
    let (one, other) = (serving_in(Duration::from_millis(2)), serving_in(Duration::from_millis(20)));
    let output = bench(&[&one, "--vs", &other, "-c1", "-d200ms", "--pairs", "4"]);
    let text = stdout(&output);
    assert!(text.lines().next().unwrap().contains("times its requests/s"), "{text}");
    for expected in
        [&format!("  A: {one}"), &format!("  B: {other}"), "median run of each", "The median run of A:"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let found = json(&[&one, "--vs", &other, "-c1", "-d200ms", "--pairs", "4"]);
    assert!(found["vs_run"]["latency_ns"]["p50"].as_u64() >= Some(19_900_000), "{found}");
}

#[test]
fn a_run_without_a_response_has_no_figures() {
    let url = format!("http://{}/", saying("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"));
    let text = stdout(&bench(&[&url, "-n", "5"]));
    assert!(text.contains("p50 –") && !text.contains(" 0ns") && !text.contains("per request"), "{text}");
}

#[test]
fn errors_decide_the_exit_status() {
    let server = Server::json();
    let missing = url(&server, "/missing");
    let output = bench(&[&missing, "-n", "20"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("bad_status 20"), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("requirement not met: errors<=0 (measured 20: bad_status 20)"),
        "{}",
        stderr(&output)
    );
    assert_eq!(bench(&[&missing, "-n", "20", "--max-errors", "20"]).status.code(), Some(0));
    for (answer, kind) in
        [("garbage\r\n", "malformed 5"), ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "short_body 5")]
    {
        let output = bench(&[&format!("http://{}/", saying(answer)), "-n5", "-c1"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stdout(&output).contains(kind), "{}", stdout(&output));
    }
}

#[test]
fn wrong_usage_is_reported() {
    for (arguments, expected) in [
        (&[][..], "required arguments were not provided"),
        (&["http://"], "has no host"),
        (&["127.0.0.1:80"], "need a URL"),
        (&["http://127.0.0.1:99999/"], "got port `99999`"),
        (&["ftp://127.0.0.1/"], "give an http or https URL"),
        (&["http://127.0.0.1/", "-m", "2"], "--streams is for --http2"),
        (&["http://127.0.0.1/", "--http2", "--pipeline", "2"], "leave out pipeline"),
        (&["http://127.0.0.1/", "http://127.0.0.1/"], "unexpected argument"),
        (&["http://127.0.0.1/", "-c", "0"], "connections: got 0"),
        (&["http://127.0.0.1/", "-R", "0"], "rate: got 0"),
        (&["http://127.0.0.1/", "--find-max"], "needs an objective"),
        (&["http://127.0.0.1/", "--vs-cmd", "x"], "need two"),
        (&["http://127.0.0.1/", "--urls", "/nowhere"], "cannot read `/nowhere`"),
        (&["http://127.0.0.1/", "-H", "A: \u{1}"], "need `Name: value`"),
        (&["http://127.0.0.1/", "--durration", "1s"], "a similar argument exists: '--duration'"),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected) && output.stdout.is_empty(), "{}", stderr(&output));
    }
}

#[test]
fn a_missing_server_is_reported() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = bench(&[&format!("http://{free}/")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is the server running there?"), "{}", stderr(&output));
}

#[test]
fn an_interrupt_prints_the_result_so_far() {
    let server = Server::json();
    let child = Command::new(program("flatout"))
        .args(["bench", &url(&server, "/json"), "-d", "60s", "--warmup", "0s", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let begun = Instant::now();
    // Wait until it loads the server: an interrupt before that prints nothing.
    flatout_tests::until("the server works", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(12).unwrap().parse::<u64>().unwrap() > 5
    });
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(begun.elapsed() < PATIENCE && output.status.code() == Some(0), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["requests"].as_u64() > Some(0), "{found}");
    assert!(found["warnings"].to_string().contains("the result so far"), "{found}");
    assert!(Duration::from_secs_f64(found["seconds"].as_f64().unwrap()) < PATIENCE);
}
