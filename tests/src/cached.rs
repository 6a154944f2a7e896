//! Shared by tests of the response cache: an origin whose bodies can be checked, and requests for all of
//! them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Server, program};

/// An origin with a different body for each path. Returns its request counter.
pub fn origin() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counted = counted.clone();
            std::thread::spawn(move || serve(stream, &counted));
        }
    });
    (address, count)
}

fn serve(mut stream: TcpStream, count: &AtomicUsize) {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|read| read == 1) {
        bytes.push(byte[0]);
        if !bytes.ends_with(b"\r\n\r\n") {
            continue;
        }
        let request = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
        let path = request.split(' ').nth(1).unwrap();
        count.fetch_add(1, Ordering::SeqCst);
        let body = body_of(path);
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nCache-Tag: all\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
            return;
        }
    }
}

/// The body of a path: long enough for several pages of a file, and different for each path.
pub fn body_of(path: &str) -> Vec<u8> {
    let mut state = path.bytes().fold(7u32, |state, byte| state.wrapping_mul(31).wrapping_add(byte.into()));
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..9000).map(|_| next()).collect()
}

/// The paths requested by [`check_all`].
pub fn paths() -> impl Iterator<Item = String> {
    (0..12).map(|at| format!("/path/{at}"))
}

/// Requests all paths. Returns how many responses came from the cache. Every body must be the origin's.
///
/// # Panics
/// If one is not.
pub fn check_all(server: &Server) -> usize {
    paths()
        .filter(|path| {
            let answer = server.get(path, "");
            assert_eq!(answer.status, 200);
            assert!(answer.body == body_of(path), "the body of {path} is not the origin's");
            answer.field("X-Cache-Status") == Some("HIT")
        })
        .count()
}

/// Runs `flatout purge` with the server of this admin listener. Returns its output.
///
/// # Panics
/// If it does not.
pub fn purge(dir: &Path, arguments: &[&str]) -> String {
    let admin = format!("unix:{}", dir.join("admin").display());
    let output =
        Command::new(program("flatout")).args(["purge", "--admin", &admin]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
