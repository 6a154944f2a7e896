//! Compressed responses.

use std::cell::RefCell;

use flate2::{Compress, FlushCompress, Status as Progress};
use flatout_engine::{Body, Reply, Response};
use flatout_wire::Status;
use flatout_wire::accept::{Coding, choose};

use super::{Inner, Middleware};
use crate::Context;

/// Smaller bodies are not worth compressing.
const BYTES_MIN: usize = 1 << 10;

/// A body up to this size is compressed on the worker, in about a millisecond; a larger one on another thread.
const WORKER_BYTES_MAX: usize = 64 << 10;

/// Bits of gzip's window: 32 KiB, the largest.
const WINDOW_BITS: u8 = 15;

/// A larger body is not compressed.
const BYTES_MAX: usize = 8 << 20;

/// Compresses text of 1 KiB to 8 MiB in memory with gzip, for clients that accept it. Streams and files are not
/// compressed: use tower-http's `CompressionLayer` for streams; [`App::files`](crate::App::files) compresses files in
/// advance.
///
/// A strong `ETag` becomes a weak one. Responses with `Content-Encoding` or `no-transform` are not changed.
///
/// ```
/// use flatout::middleware::Compression;
/// use flatout::{App, test::Client};
///
/// let app = App::new().with(Compression::new().level(6)).get("/", || "hello ".repeat(1000));
/// let answer = Client::new(app)?.get("/").header("Accept-Encoding", "gzip").send();
/// assert_eq!(answer.header("Content-Encoding"), Some("gzip"));
/// assert!(answer.bytes().len() < 100);
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Compression {
    level: u32,
}

impl Compression {
    /// At level 4: half the work of the usual level 6, for a few percent more bytes.
    pub fn new() -> Compression {
        Compression { level: 4 }
    }

    /// Another level, from 1 to 9.
    pub fn level(mut self, level: u32) -> Compression {
        self.level = level;
        self
    }
}

impl Default for Compression {
    fn default() -> Self {
        Compression::new()
    }
}

impl Middleware for Compression {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let accepts = choose(context.header("accept-encoding"), &[Coding::Gzip, Coding::Identity])
            == Some(Coding::Gzip);
        let level = self.level;
        match inner.call(context, response) {
            Reply::Now => match job(response, accepts) {
                Some(bytes) if bytes.len() > WORKER_BYTES_MAX => {
                    let response = std::mem::take(response);
                    Reply::Later(Box::pin(elsewhere(response, bytes, level)))
                }
                Some(bytes) => {
                    finish(response, compress(&bytes, level), bytes);
                    Reply::Now
                }
                None => Reply::Now,
            },
            Reply::Later(future) => Reply::Later(Box::pin(async move {
                let mut response = future.await;
                match job(&mut response, accepts) {
                    Some(bytes) if bytes.len() > WORKER_BYTES_MAX => elsewhere(response, bytes, level).await,
                    Some(bytes) => {
                        finish(&mut response, compress(&bytes, level), bytes);
                        response
                    }
                    None => response,
                }
            })),
            reply @ (Reply::Parked | Reply::Leave(_)) => reply,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self.level {
            1..=9 => Ok(()),
            level => Err(format!("compression level: got {level}, allowed 1 to 9")),
        }
    }
}

async fn elsewhere(mut response: Response, bytes: Vec<u8>, level: u32) -> Response {
    let work = tokio::task::spawn_blocking(move || (compress(&bytes, level), bytes));
    match work.await {
        Ok((compressed, bytes)) => finish(&mut response, compressed, bytes),
        Err(_) => {
            response = Response::with_status(Status::INTERNAL_SERVER_ERROR);
        }
    }
    response
}

/// Takes the body out if it has to be compressed; adds `Vary`.
fn job(response: &mut Response, accepts: bool) -> Option<Vec<u8>> {
    let bytes = response.body_bytes()?;
    let is_partial = matches!(response.status(), Status::PARTIAL_CONTENT | Status::NOT_MODIFIED);
    let is_fit = (BYTES_MIN..=BYTES_MAX).contains(&bytes.len())
        && !is_partial
        && response.field("content-encoding").is_none()
        && response.field("content-type").is_some_and(is_text)
        && response.declared_length().is_none()
        && !response.field("cache-control").is_some_and(|value| has(value, b"no-transform"));
    if !is_fit {
        return None;
    }
    let bytes = accepts.then(|| bytes.to_vec());
    super::vary(response, "Accept-Encoding");
    bytes
}

thread_local! {
    /// The encoder that this thread used last, with its level: a new one costs more than to compress a small body.
    static ENCODER: RefCell<Option<(u32, Compress)>> = const { RefCell::new(None) };
}

/// `None` if the result is not shorter.
fn compress(bytes: &[u8], level: u32) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|kept| {
        let mut encoder = match kept.take().filter(|(of, _)| *of == level) {
            Some((_, mut encoder)) => {
                encoder.reset();
                encoder
            }
            None => Compress::new_gzip(flate2::Compression::new(level), WINDOW_BITS),
        };
        let mut out = Vec::with_capacity(bytes.len());
        let progress = encoder.compress_vec(bytes, &mut out, FlushCompress::Finish);
        *kept = Some((level, encoder));
        let is_complete = matches!(progress, Ok(Progress::StreamEnd));
        (is_complete && out.len() < bytes.len()).then_some(out)
    })
}

fn finish(response: &mut Response, compressed: Option<Vec<u8>>, bytes: Vec<u8>) {
    let Some(compressed) = compressed else {
        response.set_body(Body::Shared(bytes.into()));
        return;
    };
    response.header("Content-Encoding", "gzip").set_body(Body::Shared(compressed.into()));
    // Its bytes are different now.
    let strong = response.field("etag").filter(|tag| tag.starts_with(b"\"")).map(<[u8]>::to_vec);
    if let Some(tag) = strong {
        response.remove_header("ETag").header("ETag", [b"W/", &tag[..]].concat());
    }
}

fn is_text(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    // Events are sent one by one.
    (essence.starts_with(b"text/") && essence != b"text/event-stream")
        || essence.ends_with(b"+json")
        || essence.ends_with(b"+xml")
        || [&b"application/json"[..], b"application/javascript", b"application/xml", b"application/wasm"]
            .contains(&&essence[..])
}

fn has(value: &[u8], directive: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(directive))
}
