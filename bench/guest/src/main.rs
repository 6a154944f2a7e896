//! The cost of a round trip to an upstream: through guests of the lane, and through tokio.
//!
//! `guest guest|tokio ADDRESS UPSTREAM` serves on one worker: each request sends a fixed question to the upstream on
//! a persistent connection, and responds with the reply. `guest echo ADDRESS` is such an upstream, and `guest origin
//! ADDRESS…` is the origin for measuring proxies. `guest messages ADDRESS…` is an upstream that switches protocols and
//! then echoes, `guest ask ADDRESS CONNECTIONS SECONDS` its client, `guest keep ADDRESS CONNECTIONS SECONDS` one that sends
//! a message over each connection every so many seconds. `by_guest.rs` is also the short example of a
//! service with guests.
#![forbid(unsafe_code)]

mod by_guest;
mod by_tokio;
mod echo;
mod messages;
mod origin;

use std::net::SocketAddr;

use flatout_engine::{Plan, Service, Worker, start};

const QUESTION: &[u8] = b"What is the time in Samarkand, and how is the weather?\n";

/// Connections to the upstream, used and idle; a request that needs one more is refused with 503.
const LINKS_MAX: usize = 1024;

/// The limit for the upstream's reply, including its newline; beyond that the response is 502.
const LINE_BYTES_MAX: usize = 4 << 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo", address] => Ok(echo::run(address.parse()?)?),
        ["messages", ref addresses @ ..] => messages::serve(addresses),
        ["ask", address, connections, seconds] => {
            messages::ask(address.parse()?, connections.parse()?, seconds.parse()?)
        }
        ["keep", address, connections, seconds] => {
            messages::keep(address.parse()?, connections.parse()?, seconds.parse()?)
        }
        ["origin", ref addresses @ ..] => origin::run(addresses),
        ["guest", address, upstream] => serve(address, upstream, by_guest::service),
        ["tokio", address, upstream] => serve(address, upstream, by_tokio::service),
        _ => {
            Err("usage: guest echo ADDRESS, guest messages|origin ADDRESS…, guest ask|keep ADDRESS CONNECTIONS SECONDS, or \
                 guest guest|tokio ADDRESS UPSTREAM"
                .into())
        }
    }
}

fn serve(
    address: &str,
    upstream: &str,
    make: fn(Worker, SocketAddr) -> Box<dyn Service>,
) -> Result<(), Failure> {
    let upstream = upstream.parse()?;
    let plan = Plan { listen: vec![address.parse()?], workers: Some(1), ..Plan::default() };
    Ok(start(plan, move |worker| make(worker, upstream))?.run()?)
}
