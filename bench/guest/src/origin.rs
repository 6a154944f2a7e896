//! The origin for measuring proxies and caches. `/N.bin` has N bytes and is never stored, `/slow` is slow, and every
//! request body is accepted. `/c/N/NAME` has N bytes and may be stored for a day; so may `/late/MS/NAME`, which takes
//! MS milliseconds. `/count` is the number of requests for those two. `/json/N` and `/json5/N` have N bytes of JSON, which can be
//! compressed.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{Address, Body, BodyPlan, Plan, Prepared, Reply, Request, Response, Service, start};
use flatout_wire::{Head, Status};

use crate::Failure;

/// The largest body, in either direction.
const BYTES_MAX: usize = 8 << 20;

/// How long `/slow` takes.
const SLOW: Duration = Duration::from_secs(30);

/// The longest `/late/…` may take.
const LATE_MS_MAX: u64 = 60_000;

/// The size of late responses.
const LATE_BYTES: usize = 1 << 10;

struct Origin {
    bytes: Bytes,
    json: Bytes,
    /// Requests for responses that may be stored.
    count: Cell<u64>,
}

impl Service for Origin {
    fn prepare(&self, _: &Head<'_>, _: &[u8], _: u16) -> Prepared {
        BodyPlan::Whole { bytes_max: Some(BYTES_MAX as u64) }.into()
    }

    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        if request.path == b"/slow" {
            return Reply::Later(Box::pin(async {
                tokio::time::sleep(SLOW).await;
                Response::with_status(Status::NO_CONTENT)
            }));
        }
        if request.path == b"/count" {
            response.header("Cache-Control", "no-store");
            response.buffer().extend_from_slice(self.count.get().to_string().as_bytes());
            return Reply::Now;
        }
        if let Some(rest) = request.path.strip_prefix(b"/late/") {
            self.count.set(self.count.get() + 1);
            let (late, bytes) = (number(rest).unwrap_or(0).min(LATE_MS_MAX), self.bytes.slice(..LATE_BYTES));
            return Reply::Later(Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(late)).await;
                let mut response = Response::new();
                write(STORED, bytes, &mut response);
                response
            }));
        }
        let json = [&b"/json/"[..], b"/json5/"].iter().find_map(|prefix| request.path.strip_prefix(*prefix));
        if let Some(bytes) = json.and_then(number).and_then(|bytes| usize::try_from(bytes).ok()) {
            response.header("Content-Type", "application/json");
            response.set_body(Body::Shared(self.json.slice(..bytes.min(self.json.len()))));
            return Reply::Now;
        }
        let stored = request.path.strip_prefix(b"/c/");
        if stored.is_some() {
            self.count.set(self.count.get() + 1);
        }
        let bytes = number(stored.unwrap_or(request.path.get(1..).unwrap_or_default())).unwrap_or(2);
        let bytes = self.bytes.slice(..usize::try_from(bytes).unwrap_or(BYTES_MAX).min(BYTES_MAX));
        write(if stored.is_some() { STORED } else { "no-store" }, bytes, response);
        Reply::Now
    }
}

/// `Cache-Control` of responses that may be stored.
const STORED: &str = "public, max-age=86400";

fn write(cache_control: &str, bytes: Bytes, response: &mut Response) {
    response.header("Content-Type", "application/octet-stream");
    response.header("Cache-Control", cache_control);
    response.set_body(Body::Shared(bytes));
}

/// The most bytes of JSON.
const JSON_BYTES_MAX: usize = 1 << 20;

/// Records as an API lists them, always the same.
fn records() -> Vec<u8> {
    const WORDS: [&str; 8] = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour"];
    let (mut text, mut seed, mut id) = (String::from("["), 1u64, 0);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    while text.len() < JSON_BYTES_MAX {
        let [first, second] = [0; 2].map(|_| WORDS[random(WORDS.len() as u64) as usize]);
        let (price, stock, rating) = (random(100_000), random(500), random(50));
        text += &format!(
            "{{\"id\":{id},\"name\":\"{first} {second} {stock}\",\"price\":{}.{:02},\"in_stock\":{},\"rating\":{}.{}}},",
            price / 100,
            price % 100,
            stock > 100,
            rating / 10,
            rating % 10
        );
        id += 1;
    }
    text.truncate(JSON_BYTES_MAX);
    text.into_bytes()
}

/// The number at the start of a path segment, up to a `/` or a `.`.
fn number(piece: &[u8]) -> Option<u64> {
    let end = piece.iter().position(|byte| matches!(byte, b'/' | b'.')).unwrap_or(piece.len());
    std::str::from_utf8(piece.get(..end)?).ok()?.parse().ok()
}

pub(crate) fn run(addresses: &[&str]) -> Result<(), Failure> {
    let listen = addresses.iter().map(|address| address.parse()).collect::<Result<Vec<Address>, _>>()?;
    let plan =
        Plan { listen: listen.into_iter().map(Into::into).collect(), workers: Some(1), ..Plan::default() };
    let bytes = Bytes::from(vec![b'x'; BYTES_MAX]);
    let json = Bytes::from(records());
    let origin = move |_| -> Box<dyn Service> {
        Box::new(Origin { bytes: bytes.clone(), json: json.clone(), count: Cell::new(0) })
    };
    Ok(start(plan, origin)?.run()?)
}
