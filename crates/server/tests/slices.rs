//! Ranges of large responses, which the cache fetches and stores in slices.

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime};

use flatout_cache::{DiskPlan, Plan, Rules};
use flatout_proxy::Upstream;
use support::cached::{Cached, is};
use support::{body_of, one, read_request, upstream};

const SLICE_BYTES: usize = 16 << 10;
const LENGTH: usize = 10 * SLICE_BYTES + 1234;

/// The file that an upstream serves.
struct File {
    body: String,
    /// Header fields of its responses.
    lines: String,
    honours_ranges: bool,
    /// The number of the request from which on another version is served.
    changes_at: usize,
    /// Bytes after which a response is cut.
    breaks_at: usize,
}

impl File {
    fn new() -> File {
        let lines = "ETag: \"1\"\r\nCache-Control: max-age=60\r\n".to_owned();
        let (body, changes_at, breaks_at) = (text(7), usize::MAX, usize::MAX);
        File { body, lines, honours_ranges: true, changes_at, breaks_at }
    }

    fn response(&self, request: &str) -> Vec<u8> {
        let length = self.body.len();
        let range = field(request, "Range").filter(|_| self.honours_ranges);
        let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (first, last) = match range {
            None => {
                let head = format!("HTTP/1.1 200 OK\r\n{}Content-Length: {length}\r\n\r\n", self.lines);
                return self.cut(head, &self.body);
            }
            Some(("", suffix)) => (length.saturating_sub(suffix.parse().unwrap()), length - 1),
            Some((first, "")) => (first.parse().unwrap(), length - 1),
            Some((first, last)) => (first.parse().unwrap(), last.parse::<usize>().unwrap().min(length - 1)),
        };
        if first >= length {
            let head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n";
            return format!("{head}Content-Range: bytes */{length}\r\n\r\n").into_bytes();
        }
        let part = &self.body[first..=last];
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\n{}Content-Range: bytes {first}-{last}/{length}\r\nContent-Length: {}\r\n\r\n",
            self.lines,
            part.len()
        );
        self.cut(head, part)
    }

    fn cut(&self, head: String, body: &str) -> Vec<u8> {
        (head + &body[..body.len().min(self.breaks_at)]).into_bytes()
    }
}

/// Pseudo-random letters.
fn text(seed: u32) -> String {
    let mut random = Random(seed);
    (0..LENGTH).map(|_| char::from(b'a' + (random.next() % 26) as u8)).collect()
}

struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// An upstream that serves a file, and reports the requests it got.
fn serving(file: File) -> (SocketAddr, Receiver<String>) {
    let (sender, asked) = channel();
    let state = Mutex::new((file, sender, 0));
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let (bytes, is_cut) = {
                let (file, sender, count) = &mut *state.lock().unwrap();
                *count += 1;
                if *count == file.changes_at {
                    (file.body, file.lines) = (text(8), file.lines.replace("\"1\"", "\"2\""));
                }
                let bytes = file.response(&request);
                let _ = sender.send(request);
                (bytes, file.breaks_at < usize::MAX)
            };
            if stream.write_all(&bytes).is_err() || is_cut {
                return;
            }
        }
    });
    (address, asked)
}

fn rules() -> Rules {
    Rules { slice_bytes: Some(SLICE_BYTES as u64), ..Rules::default() }
}

fn slicing(address: SocketAddr) -> Cached {
    Cached::with(one(address), rules(), 4 << 20)
}

fn range(server: &Cached, range: &str) -> String {
    server.get("/", &format!("Range: {range}\r\n"))
}

/// The ranges that were requested.
fn asked_ranges(asked: &Receiver<String>) -> Vec<String> {
    asked.try_iter().map(|request| field(&request, "Range").unwrap_or("all").to_owned()).collect()
}

#[test]
fn every_range_matches_the_file() {
    let (address, asked) = serving(File::new());
    let server = slicing(address);
    let file = text(7);
    let seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos());
    let mut random = Random(seed);
    for _ in 0..300 {
        let mut below = |limit: usize| random.next() as usize % limit;
        let bytes_max = [1, 100, SLICE_BYTES, LENGTH][below(4)];
        let (first, bytes) = (below(LENGTH + 2000), below(bytes_max));
        let (wanted, expected) = match below(4) {
            0 => (format!("bytes={first}-"), first.min(LENGTH)..LENGTH),
            1 => (format!("bytes=-{bytes}"), LENGTH - bytes..LENGTH),
            _ => (
                format!("bytes={first}-{}", first + bytes),
                first.min(LENGTH)..(first + bytes + 1).min(LENGTH),
            ),
        };
        let got = range(&server, &wanted);
        if expected.is_empty() {
            assert!(
                got.starts_with("HTTP/1.1 416 "),
                "{wanted}, seed {seed}: {}",
                &got[..200.min(got.len())]
            );
            continue;
        }
        assert!(got.starts_with("HTTP/1.1 206 "), "{wanted}, seed {seed}: {}", &got[..200.min(got.len())]);
        let said = format!("Content-Range: bytes {}-{}/{LENGTH}\r\n", expected.start, expected.end - 1);
        assert_eq!(got.matches(&said).count(), 1, "{wanted}, seed {seed}");
        assert!(body_of(&got) == &file[expected], "{wanted}, seed {seed}");
    }
    let all = server.get("/", "");
    assert!(all.starts_with("HTTP/1.1 200 ") && is(&all, "HIT") && body_of(&all) == file);
    assert!(!all.contains("Content-Range"), "it is whole");
    // Each slice was requested once, unless a range beyond the end came first.
    let mut ranges = asked_ranges(&asked);
    ranges.sort();
    ranges.dedup();
    let aligned = |range: &String| {
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        first % SLICE_BYTES == 0 && last + 1 == first + SLICE_BYTES
    };
    assert!(ranges.iter().all(aligned) && ranges.len() <= 12, "seed {seed}: {ranges:?}");
}

#[test]
fn the_first_request_may_be_for_a_suffix() {
    let (address, asked) = serving(File::new());
    let server = slicing(address);
    let got = range(&server, "bytes=-10");
    assert!(is(&got, "MISS") && body_of(&got) == &text(7)[LENGTH - 10..], "{got}");
    // The first slice reports the complete length.
    assert_eq!(asked_ranges(&asked), ["bytes=0-16383", "bytes=163840-180223"]);
    assert!(is(&range(&server, "bytes=-10"), "HIT") && is(&range(&server, "bytes=1-2"), "HIT"));
    assert!(asked_ranges(&asked).is_empty());
}

#[test]
fn a_change_during_a_response_ends_it() {
    let (address, _asked) = serving(File { changes_at: 4, ..File::new() });
    let server = slicing(address);
    let cut = range(&server, "bytes=100-");
    assert!(cut.contains(&format!("Content-Length: {}\r\n", LENGTH - 100)), "what was begun");
    let body = body_of(&cut);
    assert!(body.len() < LENGTH - 100 && text(7)[100..].starts_with(body), "{} bytes", body.len());
    // Everything after that comes from the other version.
    for wanted in ["bytes=100-", "bytes=0-9", "bytes=-9"] {
        let whole = range(&server, wanted);
        assert!(whole.contains("ETag: \"2\"\r\n") && text(8).contains(body_of(&whole)), "{wanted}");
    }
}

#[test]
fn an_upstream_without_ranges_is_passed_by() {
    let (address, asked) = serving(File { honours_ranges: false, ..File::new() });
    let server = slicing(address);
    for expected in ["bytes=0-16383", "bytes=5-9"] {
        let got = range(&server, "bytes=5-9");
        assert!(got.starts_with("HTTP/1.1 200 ") && is(&got, "MISS") && body_of(&got) == text(7));
        assert_eq!(asked_ranges(&asked), [expected]);
    }
    // Requested as a whole, it is stored as a whole.
    assert!(is(&server.get("/", ""), "MISS"));
    let got = range(&server, "bytes=5-9");
    assert!(got.starts_with("HTTP/1.1 206 ") && is(&got, "HIT") && body_of(&got) == &text(7)[5..=9], "{got}");
}

#[test]
fn unsuitable_responses_are_not_stored_in_slices() {
    for lines in [
        "Cache-Control: max-age=60\r\n",
        "Cache-Control: max-age=60\r\nETag: W/\"1\"\r\n",
        "Cache-Control: max-age=60\r\nETag: \"1\"\r\nVary: X-A\r\n",
        "Cache-Control: no-store\r\nETag: \"1\"\r\n",
        "Cache-Control: max-age=60\r\nETag: \"1\"\r\nSet-Cookie: a=b\r\n",
    ] {
        let (address, asked) = serving(File { lines: lines.to_owned(), ..File::new() });
        let server = slicing(address);
        for _ in 0..2 {
            let got = range(&server, "bytes=20000-20009");
            assert!(is(&got, "MISS") && body_of(&got) == &text(7)[20_000..=20_009], "{lines}: {got}");
        }
        let own = "bytes=20000-20009";
        assert_eq!(asked_ranges(&asked), ["bytes=16384-32767", own, own], "{lines}");
        assert_eq!(server.cache.figures().memory_entries, 0, "{lines}");
    }
}

#[test]
fn several_ranges_and_other_methods_are_forwarded() {
    let (address, asked) = serving(File { honours_ranges: false, ..File::new() });
    let server = slicing(address);
    for wanted in ["bytes=1-2,5-9", "lines=1-2", "bytes=9-1"] {
        range(&server, wanted);
        assert_eq!(asked_ranges(&asked), [wanted]);
    }
    server.get("/", "Range: bytes=5-9\r\nCache-Control: no-store\r\n");
    server.get("/", "Range: bytes=5-9\r\nAuthorization: x\r\n");
    assert_eq!(asked_ranges(&asked), ["bytes=5-9", "bytes=5-9"]);
}

#[test]
fn a_file_that_is_too_large_is_stored_in_slices() {
    let (address, asked) = serving(File::new());
    // Entries of at most 64 KiB.
    let server = Cached::with(one(address), rules(), 1 << 20);
    assert!(is(&server.get("/", ""), "MISS") && body_of(&range(&server, "bytes=0-9")) == &text(7)[..10]);
    assert_eq!(asked_ranges(&asked), ["all", "bytes=0-16383"]);
    assert!(body_of(&server.get("/", "")) == text(7));
    assert_eq!(asked_ranges(&asked).len(), 10, "the other slices");
}

#[test]
fn conditions_are_answered_from_slices() {
    let (address, asked) = serving(File::new());
    let server = slicing(address);
    range(&server, "bytes=0-9");
    asked_ranges(&asked);
    let known = server.get("/", "Range: bytes=0-9\r\nIf-None-Match: \"1\"\r\n");
    assert!(known.starts_with("HTTP/1.1 304 ") && is(&known, "HIT"), "{known}");
    let same = server.get("/", "Range: bytes=0-9\r\nIf-Range: \"1\"\r\n");
    assert!(same.starts_with("HTTP/1.1 206 ") && body_of(&same).len() == 10);
    assert!(asked_ranges(&asked).is_empty());
    let other = server.get("/", "Range: bytes=0-9\r\nIf-Range: \"0\"\r\n");
    assert!(other.starts_with("HTTP/1.1 200 ") && body_of(&other) == text(7));
}

#[test]
fn slices_are_removed_with_their_response() {
    let (address, asked) = serving(File::new());
    let server = slicing(address);
    let fill = || {
        range(&server, "bytes=0-");
        asked_ranges(&asked).len()
    };
    assert_eq!((fill(), fill()), (11, 0));
    assert_eq!(server.purge("hard url http://t/"), 12);
    assert_eq!(server.cache.figures().memory_entries, 0);
    assert_eq!((fill(), fill()), (11, 0));
    server.ask("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    asked_ranges(&asked);
    assert_eq!((fill(), fill()), (11, 0));
    // Revalidating one stale slice revalidates them all.
    assert!(server.purge("soft all") >= 12);
    let got = range(&server, "bytes=0-");
    assert!(is(&got, "EXPIRED") && body_of(&got) == text(7));
    assert_eq!((asked_ranges(&asked), fill()), (vec!["bytes=0-16383".to_owned()], 0));
}

#[test]
fn many_that_ask_together_make_one_request() {
    let (address, asked) = serving(File::new());
    let server = slicing(address);
    let barrier = Barrier::new(20);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                barrier.wait();
                assert!(body_of(&range(&server, "bytes=1000-100000")) == &text(7)[1000..=100_000]);
            });
        }
    });
    assert_eq!(asked_ranges(&asked).len(), 7);
}

#[test]
fn a_slice_that_breaks_off_is_not_stored() {
    let (address, _asked) = serving(File { breaks_at: 9000, ..File::new() });
    let server = slicing(address);
    let got = range(&server, "bytes=0-9");
    assert!(got.starts_with("HTTP/1.1 502 "), "{got}");
    assert_eq!(server.cache.figures().memory_entries, 0);
}

#[test]
fn errors_are_passed_to_clients() {
    let (sender, asked) = channel();
    let sender = Mutex::new(sender);
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            sender.lock().unwrap().send(request).unwrap();
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone").unwrap();
        }
    });
    let server = slicing(address);
    let got = range(&server, "bytes=0-9");
    assert!(got.starts_with("HTTP/1.1 404 ") && body_of(&got) == "none", "{got}");
    assert_eq!(asked.try_iter().count(), 1);
}

#[test]
fn each_slice_has_the_time_of_a_request() {
    let file = Mutex::new(File::new());
    let address = upstream(move |_, mut stream| {
        while let Some(request) = read_request(&mut stream) {
            std::thread::sleep(Duration::from_millis(250));
            let bytes = file.lock().unwrap().response(&request);
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let plan = Upstream { request_time_max: Some(Duration::from_millis(1500)), ..one(address) };
    let server = Cached::with(plan, rules(), 4 << 20);
    // Eleven of them take longer.
    let got = range(&server, "bytes=0-");
    assert!(body_of(&got) == text(7), "{} bytes", body_of(&got).len());
}

#[test]
fn slices_larger_than_an_entry_may_be_are_not_used() {
    let (address, asked) = serving(File::new());
    let server = Cached::with(one(address), Rules { slice_bytes: Some(1 << 20), ..rules() }, 4 << 20);
    range(&server, "bytes=0-9");
    assert_eq!(asked_ranges(&asked), ["bytes=0-9"]);
}

#[test]
fn slices_survive_a_restart() {
    struct Dir(PathBuf);
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
    let dir = Dir(std::env::temp_dir().join(format!("flatout-slices-{}", std::process::id())));
    let (address, asked) = serving(File::new());
    let open = || {
        let disk = Some(DiskPlan { dir: dir.0.clone(), bytes_max: 16 << 20 });
        Cached::with_plan(one(address), rules(), Plan { memory_bytes: 4 << 20, disk, ..Plan::default() })
    };
    let server = open();
    range(&server, "bytes=0-");
    assert_eq!(asked_ranges(&asked).len(), 11);
    drop(server);
    let server = open();
    // The disk index is read while the server is already serving.
    let began = Instant::now();
    while server.cache.figures().disk.is_none_or(|(entries, _)| entries < 12) {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let got = range(&server, "bytes=0-");
    assert!(body_of(&got) == text(7));
    // A request that comes before the index is complete fetches one slice.
    assert!(asked_ranges(&asked).len() <= 1 && is(&range(&server, "bytes=0-"), "HIT"));
}
