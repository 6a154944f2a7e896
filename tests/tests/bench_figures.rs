//! Every figure that `flatout bench` prints equals what the server itself has counted: one table of servers, each with another habit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatout_tests::{program, until};
use serde_json::Value;

/// What a server has counted.
#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    bytes_sent: AtomicU64,
}

/// What a server does with its requests, by their number from 0.
enum Habit {
    /// Sends this.
    Send(Vec<u8>),
    /// Sends this, and closes the connection.
    SendAndClose(Vec<u8>),
    /// Closes the connection without a response.
    Close,
    /// Sends nothing, and leaves the connection open.
    Hang,
    /// Sends a part, waits, and sends the rest.
    Slowly(Vec<u8>, Duration),
}

use Habit::{Close, Hang, Send, SendAndClose, Slowly};

struct Case {
    name: &'static str,
    habit: fn(u64) -> Habit,
    flags: &'static [&'static str],
    /// Figures, by their path in the JSON.
    figures: &'static [(&'static str, u64)],
}

fn response(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Reads the head of a request; false at the end of the connection.
fn request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    true
}

fn serve(habit: fn(u64) -> Habit) -> (SocketAddr, Arc<Counts>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Arc::new(Counts::default());
    let shared = counts.clone();
    std::thread::spawn(move || {
        // Connections that hang stay open until the test ends.
        let hanging = Arc::new(Mutex::new(Vec::new()));
        for stream in listener.incoming() {
            shared.connections.fetch_add(1, SeqCst);
            let (mut stream, counts, hanging) = (stream.unwrap(), shared.clone(), hanging.clone());
            std::thread::spawn(move || {
                stream.set_nodelay(true).unwrap();
                let send = |stream: &mut TcpStream, bytes: &[u8]| {
                    counts.bytes_sent.fetch_add(bytes.len() as u64, SeqCst);
                    stream.write_all(bytes).is_ok()
                };
                while request(&mut stream) {
                    match habit(counts.requests.fetch_add(1, SeqCst)) {
                        Send(bytes) => {
                            if !send(&mut stream, &bytes) {
                                return;
                            }
                        }
                        SendAndClose(bytes) => {
                            send(&mut stream, &bytes);
                            return;
                        }
                        Close => return,
                        Hang => return hanging.lock().unwrap().push(stream),
                        Slowly(bytes, time) => {
                            let (start, rest) = bytes.split_at(bytes.len() / 2);
                            if !send(&mut stream, start) {
                                return;
                            }
                            std::thread::sleep(time);
                            if !send(&mut stream, rest) {
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    (address, counts)
}

const CASES: &[Case] = &[
    Case {
        name: "plain responses",
        habit: |_| Send(response("200 OK", "hello")),
        flags: &["-n", "500", "-c", "5"],
        figures: &[("requests", 500), ("statuses/200", 500), ("errors/bad_status", 0)],
    },
    Case {
        name: "responses in chunks",
        habit: |_| {
            Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;a=b\r\n123\r\n0\r\nT: x\r\n\r\n".to_vec())
        },
        flags: &["-n", "100", "-c", "2"],
        figures: &[("requests", 100), ("statuses/200", 100)],
    },
    Case {
        name: "heads alone",
        habit: |_| Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        flags: &["-n", "100", "-c", "1"],
        figures: &[("requests", 100), ("statuses/204", 100), ("errors/bad_status", 0)],
    },
    Case {
        name: "statuses of all kinds",
        habit: |number| {
            Send(response(["200 OK", "404 Not Found", "503 Busy", "301 Moved"][(number % 4) as usize], ""))
        },
        flags: &["-n", "400", "-c", "1"],
        figures: &[
            ("statuses/200", 100),
            ("statuses/404", 100),
            ("statuses/503", 100),
            ("statuses/301", 100),
            ("errors/bad_status", 200),
        ],
    },
    Case {
        name: "connections that end",
        habit: |_| {
            SendAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".to_vec())
        },
        flags: &["-n", "60", "-c", "3"],
        figures: &[("requests", 60), ("statuses/200", 60), ("errors/closed", 0)],
    },
    Case {
        name: "bodies until the end of the connection",
        habit: |_| SendAndClose(b"HTTP/1.1 200 OK\r\n\r\nall of it".to_vec()),
        flags: &["-n", "40", "-c", "2"],
        figures: &[("requests", 40), ("statuses/200", 40), ("errors/short_body", 0)],
    },
    Case {
        name: "bodies that are too short",
        habit: |number| match number % 2 {
            0 => Send(response("200 OK", "whole")),
            _ => SendAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()),
        },
        flags: &["-n", "40", "-c", "1"],
        figures: &[("errors/short_body", 20)],
    },
    Case {
        name: "connections without a response",
        habit: |number| if number % 10 == 9 { Close } else { Send(response("200 OK", "x")) },
        flags: &["-n", "100", "-c", "1"],
        figures: &[("errors/closed", 10), ("statuses/200", 90)],
    },
    Case {
        name: "responses that are none",
        habit: |number| {
            if number % 5 == 0 {
                SendAndClose(b"SPDY/9 what\r\n\r\n".to_vec())
            } else {
                Send(response("200 OK", "x"))
            }
        },
        flags: &["-n", "50", "-c", "1"],
        figures: &[("errors/malformed", 10), ("statuses/200", 40)],
    },
    Case {
        name: "other bodies than expected",
        habit: |number| Send(response("200 OK", if number % 4 == 0 { "b" } else { "a" })),
        flags: &["-n", "80", "-c", "1", "--expect", "a"],
        figures: &[("errors/unexpected_body", 20), ("statuses/200", 80)],
    },
    Case {
        name: "requests that hang",
        habit: |number| if number % 20 == 19 { Hang } else { Send(response("200 OK", "x")) },
        flags: &["-n", "40", "-c", "1", "--timeout", "200ms"],
        figures: &[("errors/timeout", 2), ("statuses/200", 38)],
    },
    Case {
        name: "responses in two parts",
        habit: |_| Slowly(response("200 OK", "a body in two parts"), Duration::from_millis(10)),
        flags: &["-n", "20", "-c", "2"],
        figures: &[("requests", 20), ("statuses/200", 20)],
    },
    Case {
        name: "informational responses first",
        habit: |_| {
            Send([&b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"[..], &response("200 OK", "x")].concat())
        },
        flags: &["-n", "50", "-c", "1"],
        figures: &[("requests", 50), ("statuses/200", 50)],
    },
];

fn bench(address: SocketAddr, flags: &[&str]) -> Value {
    let mut command = Command::new(program("flatout"));
    command.args(["bench", &format!("http://{address}/"), "--json", "--max-errors", "1000"]).args(flags);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figure(found: &Value, path: &str) -> u64 {
    path.split('/')
        .fold(found, |value, name| &value[name])
        .as_u64()
        .unwrap_or_else(|| panic!("no {path} in {found}"))
}

#[test]
fn every_figure_equals_the_count_of_the_server() {
    for Case { name, habit, flags, figures } in CASES {
        let (address, counts) = serve(*habit);
        let found = bench(address, flags);
        for (path, expected) in *figures {
            assert_eq!(figure(&found, path), *expected, "{name}: {path} in {found}");
        }
        let counted = |count: &AtomicU64| count.load(SeqCst);
        let statuses: u64 =
            found["statuses"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        let errors = found["errors"].as_object().unwrap();
        let errors = |names: &[&str]| names.iter().map(|name| errors[*name].as_u64().unwrap()).sum::<u64>();
        // Each request of the server is a response with a status, or an error without one.
        let without_status = errors(&["closed", "reset", "malformed", "timeout", "short_body"]);
        assert_eq!(statuses + without_status, counted(&counts.requests), "{name}: {found}");
        assert_eq!(figure(&found, "bytes_read"), counted(&counts.bytes_sent), "{name}: {found}");
        // With a first one, `bench` finds out whether the server is there; those that were just made may not be accepted yet.
        let made = figure(&found, "connections_made");
        until(name, || counted(&counts.connections) == made + 1);
        let seconds = found["seconds"].as_f64().unwrap();
        let rate = found["requests_per_s"].as_f64().unwrap();
        let requests = figure(&found, "requests") as f64;
        assert!(
            (rate * seconds - requests).abs() <= requests * 0.001,
            "{name}: {rate} × {seconds} is not {requests}"
        );
        let each_second = found["requests_each_second"].as_array().unwrap();
        let sum: f64 = each_second.iter().map(|count| count.as_f64().unwrap()).sum();
        assert_eq!(sum, requests, "{name}: {found}");
        let latency = |name: &str| found["latency_ns"][name].as_f64().unwrap();
        let order = ["p50", "p90", "p99", "p99_9", "p99_99", "max"].map(latency);
        assert!(order.is_sorted() && latency("mean") <= latency("max"), "{name}: {found}");
    }
}

/// An open loop sends what is due: the rate times the time, and not one more.
#[test]
fn requests_of_an_open_loop_are_rate_times_time() {
    for (rate, duration, expected) in [("200", "1s", 200), ("50", "2s", 100), ("1000", "500ms", 500)] {
        let (address, counts) = serve(|_| Send(response("200 OK", "x")));
        let found = bench(address, &["-R", rate, "-d", duration, "-c", "4"]);
        let unsent = figure(&found, "unsent");
        assert_eq!(figure(&found, "requests") + unsent, expected, "{rate}/s for {duration}: {found}");
        assert_eq!(counts.requests.load(SeqCst) + unsent, expected, "{rate}/s for {duration}: {found}");
    }
}

/// A request that hangs is given up at its timeout, and its wait is in the latencies. A busy machine may be late: five attempts.
#[test]
fn timeouts_are_those_that_were_asked_for() {
    let precise = |timeout: &str, ms: f64| {
        let (address, _) = serve(|number| if number == 0 { Send(response("200 OK", "x")) } else { Hang });
        let found = bench(address, &["-n", "4", "-c", "1", "--timeout", timeout]);
        assert_eq!(figure(&found, "errors/timeout"), 3, "{found}");
        let waits = ["p50", "max"].map(|name| found["latency_ns"][name].as_f64().unwrap() / 1e6);
        assert!(waits.iter().all(|wait| *wait >= ms - 0.5), "earlier than {timeout}: {waits:?} ms");
        waits.iter().all(|wait| *wait <= ms + 5.0)
    };
    for (timeout, ms) in [("100ms", 100.0), ("300ms", 300.0)] {
        assert!((0..5).any(|_| precise(timeout, ms)), "{timeout}");
    }
}
