//! The generator against servers that follow a script: exact counts, and every kind of invalid response.

#[path = "../../engine/tests/support/attempts.rs"]
mod attempts;
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use attempts::attempts;
use flatout_load::{
    Arrival, Control, Error, ErrorKind, Expect, Outcome, Pacing, Plan, Request, Sequence, Stage, Target,
    Transport, run, trials,
};
use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::websocket::{Opcode, UpgradeOffer, write_frame};
use support::{GOOD, PATIENCE, failed, go, request};

/// A scripted server, as a target.
fn serve(script: impl Fn(TcpStream, u64) + Send + Sync + 'static) -> Target {
    Target::parse(&format!("http://{}/", support::serve(script))).unwrap()
}

/// A server that sends these bytes in response to each request.
fn answering(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> Target {
    serve(move |mut stream, _| while request(&mut stream) && stream.write_all(answer.as_ref()).is_ok() {})
}

/// A server that sends these bytes in response to the first request of each connection, and closes.
fn closing(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> Target {
    serve(move |mut stream, _| {
        if request(&mut stream) {
            let _ = stream.write_all(answer.as_ref());
        }
    })
}

fn plan(target: &Target) -> Plan {
    let mut plan = Plan::new(target.remote.clone(), vec![Request::get(&target.host, &target.path)]);
    plan.connections = 3;
    plan.duration = PATIENCE;
    plan
}

/// Exactly `count` requests against the target.
fn by_count(target: &Target, count: u64) -> Outcome {
    go(&Plan { requests_max: Some(count), ..plan(target) })
}

#[test]
fn counts_are_exact() {
    let served = Arc::new(AtomicU64::new(0));
    let seen = served.clone();
    let target = serve(move |mut stream, _| {
        while request(&mut stream) {
            seen.fetch_add(1, Ordering::Relaxed);
            if stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    for (threads, connections, count) in [(1, 1, 1), (1, 3, 100), (3, 7, 1000), (2, 8, 3)] {
        served.store(0, Ordering::Relaxed);
        let is_spread = count == 100;
        let outcome =
            go(&Plan { threads, connections, is_spread, requests_max: Some(count), ..plan(&target) });
        assert_eq!((outcome.requests, served.load(Ordering::Relaxed)), (count, count));
        assert_eq!((outcome.errors.sum(), outcome.latency.count(), outcome.unanswered), (0, count, 0));
        assert_eq!(outcome.bytes_read, count * GOOD.len() as u64);
        assert_eq!((outcome.connections_made, outcome.series.iter().sum()), (connections as u64, count));
    }
}

#[test]
fn answers_in_every_form_are_good() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let interim = format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{GOOD}");
    for answer in [GOOD, chunked, &interim, "HTTP/1.1 204 No Content\r\n\r\n"] {
        let outcome = by_count(&answering(answer.to_owned()), 50);
        assert_eq!(
            (outcome.requests, outcome.errors.sum(), outcome.connections_made),
            (50, 0, 3),
            "{answer}"
        );
    }
    // One byte at a time.
    let target = serve(|mut stream, _| {
        while request(&mut stream) {
            if GOOD.as_bytes().iter().any(|byte| stream.write_all(&[*byte]).is_err()) {
                return;
            }
        }
    });
    assert_eq!(by_count(&target, 20).requests, 20);
}

#[test]
fn connections_that_the_server_ends_are_made_again() {
    for answer in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\n\r\nuntil the end",
    ] {
        let outcome = by_count(&closing(answer), 40);
        assert_eq!((outcome.requests, outcome.errors.sum()), (40, 0), "{answer}");
        assert!(outcome.connections_made >= 40, "{}", outcome.connections_made);
    }
    let outcome = go(&Plan { close: true, requests_max: Some(30), ..plan(&answering(GOOD)) });
    assert_eq!((outcome.requests, outcome.errors.sum()), (30, 0));
    assert!(outcome.connections_made >= 30);
}

#[test]
fn pipelined_responses_are_distinguished() {
    let outcome = go(&Plan { pipeline: 16, requests_max: Some(10), ..plan(&answering(GOOD)) });
    // A batch is sent whole.
    assert_eq!((outcome.requests, outcome.errors.sum(), outcome.latency.count()), (160, 0, 160));
}

/// The generator receives a stage into one buffer: responses that arrive together, of which some fill their slices
/// and continue, must not be confused.
#[test]
fn responses_in_one_read_are_distinguished() {
    let connections = 20;
    for body_bytes in [5, 32 << 10, 100_000, 400_000] {
        // No response is sent before all requests have arrived.
        let barrier = Arc::new(Barrier::new(connections));
        let body: Vec<u8> = (0..body_bytes).map(|at: usize| (at % 251) as u8).collect();
        let answer =
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {body_bytes}\r\n\r\n").as_bytes(), &body].concat();
        let target = serve(move |mut stream, _| {
            for _ in 0..3 {
                if !request(&mut stream) {
                    return;
                }
                barrier.wait();
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        });
        let count = connections as u64 * 3;
        let expect = Expect { body: Some(body), ..Expect::default() };
        let outcome = go(&Plan { connections, expect, requests_max: Some(count), ..plan(&target) });
        assert_eq!(
            (outcome.requests, outcome.errors.sum()),
            (count, 0),
            "{body_bytes}: {:?}",
            outcome.errors
        );
    }
}

#[test]
fn wrong_answers_are_counted_apart() {
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "A: b\r\n".repeat(10_000));
    let malformed = [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "\0\0\0\0",
        &endless,
    ];
    for answer in malformed {
        let outcome = by_count(&closing(answer.to_owned()), 10);
        failed(&outcome, ErrorKind::Malformed, 10);
        assert_eq!(outcome.requests, 0);
    }
    let short = by_count(&closing("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhello"), 10);
    failed(&short, ErrorKind::ShortBody, 10);
    let cut = by_count(&closing("HTTP/1.1 200 OK\r\nContent-"), 10);
    failed(&cut, ErrorKind::Closed, 10);
    let status = by_count(&answering("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), 10);
    failed(&status, ErrorKind::BadStatus, 10);
    assert_eq!((status.requests, status.latency.count()), (10, 10), "they are answers all the same");
}

#[test]
fn surplus_bytes_are_malformed() {
    let outcome = by_count(&closing(format!("{GOOD}{GOOD}")), 10);
    failed(&outcome, ErrorKind::Malformed, 10);
    assert_eq!(outcome.requests, 10, "the first of each was good");
}

#[test]
fn expectations_are_compared_with_responses() {
    let target = answering(GOOD);
    for (status, body, kind) in [
        (Some(200), Some("hello"), None),
        (Some(201), None, Some(ErrorKind::BadStatus)),
        (None, Some("hellO"), Some(ErrorKind::UnexpectedBody)),
        (None, Some("hello!"), Some(ErrorKind::UnexpectedBody)),
    ] {
        let expect = Expect { status, body: body.map(|body| body.as_bytes().to_vec()) };
        let outcome = go(&Plan { expect, requests_max: Some(10), ..plan(&target) });
        assert_eq!(outcome.requests, 10);
        match kind {
            Some(kind) => failed(&outcome, kind, 10),
            None => assert_eq!(outcome.errors.sum(), 0),
        }
    }
}

#[test]
fn a_server_that_closes_at_once_is_counted_and_not_hung_on() {
    let outcome = by_count(&serve(|_, _| ()), 10);
    assert_eq!((outcome.requests, outcome.errors.sum()), (0, 10), "{:?}", outcome.errors);
    let lost = outcome.errors.of(ErrorKind::Closed) + outcome.errors.of(ErrorKind::Reset);
    assert_eq!(lost, 10, "{:?}", outcome.errors);
}

#[test]
fn a_server_that_never_answers_is_timed_out() {
    attempts(a_silent_server);
}

fn a_silent_server() {
    let target = serve(|mut stream, _| while request(&mut stream) {});
    let mut silent = plan(&target);
    silent.answer_time_max = Duration::from_millis(200);
    silent.requests_max = Some(6);
    failed(&go(&silent), ErrorKind::Timeout, 6);
    // If the counted time ends first, open requests are waited for.
    silent.answer_time_max = Duration::from_millis(400);
    silent.requests_max = None;
    silent.duration = Duration::from_millis(200);
    let outcome = go(&silent);
    failed(&outcome, ErrorKind::Timeout, 3);
    assert_eq!((outcome.unanswered, outcome.latency.count()), (0, 3));
    assert!(outcome.latency.percentile(50.0) >= 399_000_000, "{}", outcome.latency.percentile(50.0));
}

/// A server that responds for a while and then hangs: its open requests are errors, and their waits are latencies.
#[test]
fn a_server_that_hangs_for_good_is_reported() {
    let target = serve(|mut stream, _| {
        for _ in 0..10 {
            if !request(&mut stream) || stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
        while request(&mut stream) {}
    });
    let timeout = Duration::from_secs(2);
    let outcome = go(&Plan { duration: Duration::from_secs(1), answer_time_max: timeout, ..plan(&target) });
    assert_eq!((outcome.requests, outcome.errors.of(ErrorKind::Timeout)), (30, 3), "{:?}", outcome.errors);
    assert_eq!(outcome.latency.count(), 33);
    assert!(outcome.latency.percentile(99.0) >= 1_999_000_000);
}

/// Bytes are those of counted responses.
#[test]
fn bytes_of_the_warm_up_are_not_counted() {
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    let target = serve(move |mut stream, _| {
        while request(&mut stream) && stream.write_all(GOOD.as_bytes()).is_ok() {
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    for pacing in [Pacing::Closed, Pacing::Open { per_s: 200.0, arrival: Arrival::Constant }] {
        count.store(0, Ordering::Relaxed);
        let times = (Duration::from_millis(300), Duration::from_millis(300));
        let outcome = go(&Plan { warmup: times.0, duration: times.1, pacing, ..plan(&target) });
        assert_eq!(outcome.bytes_read, outcome.requests * GOOD.len() as u64, "{pacing:?}");
        assert!(outcome.requests < count.load(Ordering::Relaxed), "{pacing:?}: the warm-up has requests too");
    }
}

#[test]
fn an_unreachable_server_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let error = run(&plan(&target), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Connect(..)), "{error}");
    assert!(error.to_string().contains("is the server running there?"), "{error}");
}

#[test]
fn a_server_that_goes_away_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    thread::spawn(move || {
        // Accepts the probe and one connection; then connections are refused.
        let _ = listener.accept().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        for _ in 0..5 {
            request(&mut stream);
            stream.write_all(GOOD.as_bytes()).unwrap();
        }
    });
    let outcome = go(&Plan { connections: 1, requests_max: Some(8), ..plan(&target) });
    assert_eq!(outcome.requests, 5);
    assert!(outcome.errors.of(ErrorKind::Connect) > 0, "{:?}", outcome.errors);
    assert_eq!(outcome.errors.sum(), 3, "{:?}", outcome.errors);
}

#[test]
fn the_stop_flag_gives_the_result_so_far() {
    let target = answering(GOOD);
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let outcome = run(&plan(&target), &stop, &mut |live| {
        if live.requests > 10 {
            stop.store(true, Ordering::Relaxed);
        }
    })
    .unwrap();
    assert!(begun.elapsed() < PATIENCE && outcome.is_stopped && outcome.requests > 10);
    assert!(outcome.elapsed < PATIENCE, "{:?}", outcome.elapsed);
}

#[test]
fn an_open_loop_sends_due_requests() {
    attempts(constant_and_random_arrivals);
}

fn constant_and_random_arrivals() {
    let target = answering(GOOD);
    for arrival in [Arrival::Constant, Arrival::Poisson] {
        let pacing = Pacing::Open { per_s: 1000.0, arrival };
        let outcome = go(&Plan { pacing, threads: 2, duration: Duration::from_millis(500), ..plan(&target) });
        let answered = outcome.requests + outcome.unsent;
        match arrival {
            Arrival::Constant => assert_eq!(answered, 500),
            Arrival::Poisson => assert!(answered.abs_diff(500) < 120, "{answered}"),
        }
        assert_eq!(outcome.errors.sum(), 0);
        assert!(outcome.latency_raw.is_some());
    }
}

/// From the 101st request on, the server takes 5 ms: all of the second stage.
#[test]
fn each_stage_has_its_own_rate_and_latency() {
    attempts(|| {
        let served = Arc::new(AtomicU64::new(0));
        let target = serve(move |mut stream, _| {
            while request(&mut stream) {
                if served.fetch_add(1, Ordering::Relaxed) >= 100 {
                    thread::sleep(Duration::from_millis(5));
                }
                let _ = stream.write_all(GOOD.as_bytes());
            }
        });
        let stages: Vec<Stage> =
            ["200ms:500", "400ms:0..100", "100ms:0"].map(|text| text.parse().unwrap()).to_vec();
        let pacing = Pacing::Staged { arrival: Arrival::Constant };
        let duration = Duration::from_millis(700);
        let outcome = go(&Plan { pacing, stages, duration, threads: 2, connections: 2, ..plan(&target) });
        let counted: Vec<(u64, u64)> =
            outcome.stages.iter().map(|stage| (stage.requests, stage.errors)).collect();
        assert_eq!(counted, [(100, 0), (20, 0), (0, 0)]);
        assert_eq!(outcome.requests, 120);
        let p50 = |at: usize| Duration::from_nanos(outcome.stages[at].latency.percentile(50.0));
        assert!(
            p50(0) < Duration::from_millis(5) && p50(1) >= Duration::from_millis(5),
            "{:?} {:?}",
            p50(0),
            p50(1)
        );
    });
}

/// One stall of half a second in two seconds at 1000 requests per second: a quarter of the requests become due in it
/// and wait from 0 to 500 ms, evenly spread. Corrected percentiles follow by arithmetic; raw ones do not show it.
#[test]
fn a_stall_delays_all_requests_due_during_it() {
    attempts(a_stall_in_an_open_loop);
}

fn a_stall_in_an_open_loop() {
    let stall = Duration::from_millis(500);
    let began = Instant::now();
    let target = serve(move |mut stream, _| {
        let mut is_stalled = false;
        while request(&mut stream) {
            if !is_stalled && began.elapsed() > Duration::from_millis(800) {
                is_stalled = true;
                thread::sleep(stall);
            }
            if stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    let pacing = Pacing::Open { per_s: 1000.0, arrival: Arrival::Constant };
    let outcome = go(&Plan { connections: 1, pacing, duration: Duration::from_secs(2), ..plan(&target) });
    assert_eq!((outcome.requests, outcome.errors.sum()), (2000, 0));
    let milliseconds = |percent| outcome.latency.percentile(percent) as f64 / 1e6;
    // The 100 slowest of 2000 waited 400 ms or more, the 20 slowest 480. A busy machine adds some.
    assert!((390.0..700.0).contains(&milliseconds(95.0)), "{}", milliseconds(95.0));
    assert!((475.0..800.0).contains(&milliseconds(99.0)), "{}", milliseconds(99.0));
    let raw = outcome.latency_raw.unwrap().percentile(99.0) as f64 / 1e6;
    assert!(raw < 300.0, "one request of 2000 was in flight: raw p99 {raw}");
}

#[test]
fn warm_up_is_not_counted() {
    let served = Arc::new(AtomicU64::new(0));
    let seen = served.clone();
    let target = serve(move |mut stream, _| {
        while request(&mut stream) {
            seen.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let outcome = go(&Plan { warmup: Duration::from_millis(200), requests_max: Some(20), ..plan(&target) });
    assert_eq!(outcome.requests, 20);
    assert!(served.load(Ordering::Relaxed) > 20, "{}", served.load(Ordering::Relaxed));
}

/// 64 connections to a server that responds after 100 ms make 640 requests per second, no matter how long is counted
/// and what was in flight when counting began. On a busy machine it takes longer, but requests per second times the mean
/// latency are still 64 (Little's law). Phases are spread, so that no burst of responses is at the window's edge.
#[test]
fn requests_that_end_in_the_window_are_counted() {
    attempts(windows_of_a_closed_loop);
}

fn windows_of_a_closed_loop() {
    let target = serve(|mut stream, number| {
        thread::sleep(Duration::from_micros(number % 64 * 100_000 / 64));
        while request(&mut stream) {
            thread::sleep(Duration::from_millis(100));
            if stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    for milliseconds in [500, 1200] {
        let (duration, warmup) = (Duration::from_millis(milliseconds), Duration::from_millis(300));
        let outcome = go(&Plan { connections: 64, duration, warmup, ..plan(&target) });
        let per_s = outcome.requests_per_s();
        let under_way = per_s * outcome.latency.mean() / 1e9;
        // Half of the error of counting 64 responses too many or too few at an edge of the window.
        let half_a_wave = 64.0 * 50.0 / milliseconds as f64;
        assert!(
            (under_way - 64.0).abs() < half_a_wave,
            "{per_s} a second in {milliseconds} ms: {under_way} at once"
        );
        assert_eq!(outcome.latency.count(), outcome.requests);
        let fastest = outcome.latency.percentile(0.0);
        assert!(fastest >= 99_000_000, "also of those that began before it is the whole latency: {fastest}");
    }
}

/// One request in ten is never answered: percentiles without it would be those of the lucky ones.
#[test]
fn timed_out_requests_are_in_the_percentiles() {
    let target = serve(|mut stream, number| {
        while request(&mut stream) {
            if number % 10 != 0 && stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    let timeout = Duration::from_millis(300);
    for pacing in [Pacing::Closed, Pacing::Open { per_s: 100.0, arrival: Arrival::Constant }] {
        let silent = Plan {
            connections: 10,
            requests_max: Some(100),
            answer_time_max: timeout,
            pacing,
            ..plan(&target)
        };
        let outcome = go(&silent);
        let timed_out = outcome.errors.of(ErrorKind::Timeout);
        assert!(timed_out > 0 && outcome.errors.sum() == timed_out, "{:?}", outcome.errors);
        assert_eq!(outcome.latency.count(), outcome.requests + timed_out);
        let slowest = outcome.latency.percentile(100.0);
        assert!(u128::from(slowest) >= timeout.as_nanos(), "{slowest}");
        let share = 100.0 * outcome.requests as f64 / outcome.latency.count() as f64;
        let beyond = outcome.latency.percentile(share + 0.1);
        assert!(u128::from(beyond) >= timeout.as_nanos(), "those above {share} % waited {beyond} ns");
    }
}

#[test]
fn large_requests_are_sent_in_parts() {
    let body = vec![b'x'; 8 << 20];
    let length = body.len();
    let target = serve(move |mut stream, _| {
        let mut buffer = vec![0; 1 << 20];
        while request(&mut stream) {
            let mut left = length;
            while left > 0 {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => left -= count,
                }
            }
            let _ = stream.write_all(GOOD.as_bytes());
        }
    });
    let request =
        Request { method: "POST".to_owned(), body: Some(body), ..Request::get(&target.host, &target.path) };
    let outcome = go(&Plan { requests: vec![request], requests_max: Some(6), ..plan(&target) });
    assert_eq!((outcome.requests, outcome.errors.sum()), (6, 0));
}

#[test]
fn sources_take_turns() {
    let addresses = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let seen = addresses.clone();
    let target = serve(move |mut stream, _| {
        seen.lock().unwrap().insert(stream.peer_addr().unwrap().ip());
        while request(&mut stream) && stream.write_all(GOOD.as_bytes()).is_ok() {}
    });
    let sources = vec!["127.0.0.3".parse().unwrap(), "127.0.0.4".parse().unwrap()];
    let plan = Plan { sources: sources.clone(), connections: 4, requests_max: Some(8), ..plan(&target) };
    assert_eq!(go(&plan).requests, 8);
    assert!(addresses.lock().unwrap().iter().eq(&sources));
}

#[test]
fn subscribers_measure_the_latency_of_messages() {
    attempts(subscribers_of_late_messages);
}

fn subscribers_of_late_messages() {
    let target = serve(|mut stream, number| {
        if !request(&mut stream) {
            return;
        }
        let chunked = number % 2 == 0;
        let coding = if chunked { "Transfer-Encoding: chunked\r\n" } else { "" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{coding}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        loop {
            let sent = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_millis(100);
            let message = format!("data: {{\"at\": {}}}\n\n", sent.as_millis());
            let bytes = if chunked { format!("{:x}\r\n{message}\r\n", message.len()) } else { message };
            if stream.write_all(bytes.as_bytes()).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    let outcome = go(&Plan {
        subscribe: Some(Transport::Events),
        duration: Duration::from_millis(600),
        ..plan(&target)
    });
    assert_eq!((outcome.errors.sum(), outcome.unanswered), (0, 0));
    assert!((60..=183).contains(&outcome.requests), "{}", outcome.requests);
    let p50 = outcome.latency.percentile(50.0) / 1_000_000;
    assert!((99..500).contains(&p50), "sent 100 ms ago, came {p50} ms later");
    let ended = go(&Plan {
        subscribe: Some(Transport::Events),
        duration: Duration::from_millis(100),
        ..plan(&closing(GOOD))
    });
    assert!(ended.errors.of(ErrorKind::Closed) > 0 && ended.requests == 0, "{:?}", ended.errors);
}

/// A message as the scripted server sends it, stamped 100 ms ago.
fn numbered(number: u64) -> String {
    let sent = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - Duration::from_millis(100);
    format!("{{\"id\":\"x-{number}\",\"data\":{{\"seq\":{number},\"at\":{}}}}}", sent.as_micros())
}

/// Reads the head of a request.
fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The expected result for 28 messages on each of 3 connections, where numbers 5, 6 and 7 are skipped and 20 is
/// repeated.
#[track_caller]
fn is_by_arithmetic(outcome: &Outcome) {
    assert_eq!((outcome.errors.sum(), outcome.unanswered), (0, 0), "{:?}", outcome.errors);
    assert_eq!(outcome.requests, 3 * 28);
    assert_eq!(outcome.sequence, Some(Sequence { missed: 3 * 3, repeated: 3, gaps: 3 }));
    let p50 = outcome.latency.percentile(50.0) / 1_000_000;
    assert!((99..500).contains(&p50), "sent 100 ms ago, came {p50} ms later");
}

const NUMBERS: [&[u64]; 3] = [
    &[1, 2, 3, 4, 8, 9],
    &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 20],
    &[21, 22, 23, 24, 25, 26, 27, 28, 29, 30],
];

#[test]
fn websockets_are_counted_by_arithmetic() {
    attempts(numbered_messages_of_websockets);
}

fn numbered_messages_of_websockets() {
    let target = serve(|mut stream, _| {
        let Some(head) = head(&mut stream) else { return };
        let mut fields = Vec::new();
        let asked =
            UpgradeOffer::of(&parse(head.as_bytes(), &mut fields, &HeadLimits::default()).unwrap().unwrap());
        let accept = asked.unwrap().unwrap().accept.unwrap();
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        write_frame(Opcode::Text, false, b"{\"gap\":true}", None, &mut bytes);
        for number in NUMBERS.concat() {
            write_frame(Opcode::Text, false, numbered(number).as_bytes(), None, &mut bytes);
        }
        write_frame(Opcode::Ping, false, b"are you there?", None, &mut bytes);
        // In pieces with arbitrary boundaries.
        for piece in bytes.chunks(97) {
            stream.write_all(piece).unwrap();
        }
        let mut pong = [0; 20];
        stream.read_exact(&mut pong).unwrap();
        assert_eq!(pong[..2], [0x8a, 0x80 | 14]);
        let _ = stream.read(&mut pong);
    });
    let subscribe = Some(Transport::WebSocket);
    is_by_arithmetic(&go(&Plan { subscribe, duration: Duration::from_millis(1500), ..plan(&target) }));
    let refused = go(&Plan { subscribe, duration: Duration::from_millis(100), ..plan(&answering(GOOD)) });
    assert!(refused.errors.of(ErrorKind::BadStatus) > 0 && refused.requests == 0, "{:?}", refused.errors);
    let strange = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n";
    let strange = go(&Plan { subscribe, duration: Duration::from_millis(100), ..plan(&answering(strange)) });
    assert!(strange.errors.of(ErrorKind::Malformed) > 0, "{:?}", strange.errors);
}

#[test]
fn long_polls_go_on_where_they_were() {
    attempts(numbered_messages_of_long_polls);
}

fn numbered_messages_of_long_polls() {
    let target = serve(|mut stream, _| {
        let respond = |stream: &mut TcpStream, expected: Option<&str>, fields: &str, body: &str| {
            let Some(head) = head(stream) else { return };
            assert_eq!(field(&head, "Last-Event-ID"), expected, "{head}");
            let length = if fields.starts_with("204") {
                String::new()
            } else {
                format!("Content-Length: {}\r\n", body.len())
            };
            stream.write_all(format!("HTTP/1.1 {fields}\r\n{length}\r\n{body}").as_bytes()).unwrap();
        };
        let body = |numbers: &[u64]| {
            let all: Vec<String> = numbers.iter().map(|number| numbered(*number)).collect();
            format!("[{}]", all.join(","))
        };
        respond(&mut stream, None, "200 OK\r\nLast-Event-ID: x-9", &body(NUMBERS[0]));
        respond(&mut stream, Some("x-9"), "204 No Content\r\nLast-Event-ID: x-9", "");
        respond(&mut stream, Some("x-9"), "200 OK\r\nLast-Event-ID: x-20", &body(NUMBERS[1]));
        let last = body(NUMBERS[2]).replacen('[', "[{\"gap\":true},", 1);
        respond(&mut stream, Some("x-20"), "200 OK\r\nLast-Event-ID: x-30", &last);
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.read(&mut [0]);
    });
    let outcome = go(&Plan {
        subscribe: Some(Transport::LongPoll),
        duration: Duration::from_millis(1500),
        ..plan(&target)
    });
    is_by_arithmetic(&outcome);
    assert_eq!(outcome.statuses.iter().collect::<Vec<_>>(), [(200, 9), (204, 3)]);
}

/// Its first two connections end after five messages each, and no message is missing.
#[test]
fn subscribers_that_are_cut_off_come_back_to_their_place() {
    attempts(subscribers_that_are_cut_off);
}

fn subscribers_that_are_cut_off() {
    let ids = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = ids.clone();
    let target = serve(move |mut stream, number| {
        let Some(head) = head(&mut stream) else { return };
        let id = field(&head, "Last-Event-ID").map(str::to_owned);
        seen.lock().unwrap().push(id.clone());
        let from: u64 = id.map_or(0, |id| id.strip_prefix("x-").unwrap().parse().unwrap());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        for next in from + 1..=from + 5 {
            let _ = stream.write_all(format!("id: x-{next}\ndata: {{\"seq\":{next}}}\n\n").as_bytes());
        }
        // Number 0 was only the probe.
        if number == 3 {
            let _ = stream.read(&mut [0]);
        }
    });
    let subscribe = Some(Transport::Events);
    let plan = Plan { connections: 1, subscribe, duration: Duration::from_secs(2), ..plan(&target) };
    let outcome = go(&plan);
    let ids = ids.lock().unwrap();
    assert_eq!(ids[..], [None, Some("x-5".to_owned()), Some("x-10".to_owned())]);
    assert_eq!((outcome.requests, outcome.errors.of(ErrorKind::Closed)), (15, 2));
    assert_eq!(outcome.sequence, Some(Sequence::default()));
}

#[test]
fn trials_have_a_median() {
    let target = answering(GOOD);
    let stop = AtomicBool::new(false);
    let mut control = Control { stop: &stop, watch: &mut |_| {} };
    let plan = Plan { duration: Duration::from_millis(100), ..plan(&target) };
    let (outcome, mut figures) = trials(&plan, 3, &mut control).unwrap();
    figures.sort_by(f64::total_cmp);
    assert_eq!((figures.len(), figures[1]), (3, outcome.requests_per_s()));
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let target = answering(GOOD);
    let good = || plan(&target);
    let staged = |text: &str| Plan {
        pacing: Pacing::Staged { arrival: Arrival::Constant },
        stages: vec![text.parse().unwrap()],
        ..good()
    };
    for (plan, expected) in [
        (Plan { threads: 0, ..good() }, "threads: got 0"),
        (Plan { connections: 0, ..good() }, "connections: got 0"),
        (Plan { connections: 1 << 31, ..good() }, "the descriptor limit allows"),
        (Plan { duration: Duration::ZERO, ..good() }, "duration: got 0ns"),
        (Plan { answer_time_max: Duration::MAX, ..good() }, "at most 7 days"),
        (Plan { requests_max: Some(0), ..good() }, "requests: got 0"),
        (
            Plan { pacing: Pacing::Open { per_s: f64::NAN, arrival: Arrival::Constant }, ..good() },
            "rate: got NaN",
        ),
        (Plan { pacing: Pacing::Open { per_s: 0.0, arrival: Arrival::Constant }, ..good() }, "rate: got 0"),
        (Plan { stages: staged("60s:5").stages, ..good() }, "staged pacing"),
        (Plan { stages: Vec::new(), ..staged("60s:5") }, "got 0"),
        (staged("60s:0"), "got a highest rate of 0"),
        (staged("9s:5"), "they take 9s, and the duration is 60s"),
        (Plan { requests_max: Some(1), ..staged("60s:5") }, "leave out the warm-up"),
        (Plan { close: true, pipeline: 2, ..good() }, "leave out close or pipeline"),
        (Plan { requests: Vec::new(), ..good() }, "no request"),
    ] {
        let error = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
