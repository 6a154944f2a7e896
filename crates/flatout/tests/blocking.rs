//! Blocking handlers, over real sockets.

mod socket;

use std::io::{Read, Write};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use flatout::{App, Path, State, blocking};
use socket::{ask, connect, get, serve};

/// All tests of this process share the threads.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_worker_goes_on_while_its_handlers_block() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let both = Arc::new(Barrier::new(3));
    let app = App::new()
        .state(both.clone())
        .get(
            "/block/{id}",
            blocking(|State(both): State<Arc<Barrier>>, Path(id): Path<u32>| {
                both.wait();
                format!("was blocked {id}")
            }),
        )
        .post("/body", blocking(|body: String| body))
        .get("/bad/{id}", blocking(|Path(id): Path<u32>| format!("{id}")))
        .get("/", || "free");
    let server = serve(app);
    let mut blocked: Vec<_> = (0..2).map(|_| connect(&server)).collect();
    for stream in &mut blocked {
        stream.write_all(get("/block/7").as_bytes()).unwrap();
    }
    // The only worker serves others meanwhile, and both handlers run at once: neither passes the barrier alone.
    assert!(ask(&server, &get("/")).ends_with("free"));
    both.wait();
    for mut stream in blocked {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("was blocked 7"), "{answer}");
    }
    let post = "POST /body HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";
    assert!(ask(&server, post).ends_with("\r\n\r\nbody"));
    assert!(ask(&server, &get("/bad/seven")).starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_panic_costs_one_connection() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = serve(App::new().get("/", blocking(|| -> &'static str { panic!("as the test wants it") })));
    for _ in 0..100 {
        // More panics than there are threads: none is lost.
        assert!(ask(&server, &get("/")).starts_with("HTTP/1.1 500 "));
    }
}

#[test]
fn requests_above_the_queue_limit_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    // Ends when the sender is dropped.
    let wait = move || gate.lock().map(|gate| gate.recv().is_err()).unwrap_or(false).to_string();
    let server = serve(App::new().get("/", blocking(wait)).get("/free", || "free"));
    let one = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
    // All threads, all queue slots, and one more.
    let mut streams: Vec<_> = (0..64 + 256 + 1).map(|_| connect(&server)).collect();
    let (last, waiting) = streams.split_last_mut().unwrap();
    for stream in waiting {
        stream.write_all(one.as_bytes()).unwrap();
    }
    // Served after all that were sent before it.
    assert!(ask(&server, &get("/free")).ends_with("free"));
    last.write_all(get("/").as_bytes()).unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1\r\n"), "{answer}");
    drop(open);
    let mut start = [0; 13];
    streams[0].read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 ");
}
