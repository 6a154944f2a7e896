//! The HTTP server: workers, connections, limits, and the [`Service`] that responds.
//!
//! A worker is one thread pinned to one CPU, with its own listeners, connections and buffers; workers share nothing
//! while they serve. Inside a worker a plain connection is an entry in the lane (see `ARCHITECTURE.md`). This crate
//! does not know files, upstreams or configuration text.
//!
//! ```
//! use flatout_engine::{Body, Plan, Reply, Request, Response, Service};
//!
//! struct Hello;
//!
//! impl Service for Hello {
//!     fn call(&self, _: Request<'_>, response: &mut Response) -> Reply {
//!         response.header("Content-Type", "text/plain").set_body(Body::Static(b"hello"));
//!         Reply::Now
//!     }
//! }
//!
//! let plan = Plan { listen: vec!["127.0.0.1:0".parse()?], workers: Some(1), ..Plan::default() };
//! let server = flatout_engine::start(plan, |_| Box::new(Hello))?;
//! println!("listening on {}", server.addresses()[0]);
//! server.handle().drain();
//! server.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
// The data path: what a client, a file or a plan brings must not end a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod address;
mod bug;
mod connection;
mod error;
mod error_page;
mod exchange;
mod h1;
mod h2;
mod listeners;
mod output;
mod plan;
mod readers;
mod record;
mod say;
mod secured;
mod server;
mod service;
mod serving;
mod shared;
mod transport;
pub mod websocket;
mod worker;

pub use bug::{bugs_total, report_bug};
pub use error::Error;
pub use error_page::{adapt_error_page, write_error, write_error_page, write_error_page_of};
pub use exchange::{
    BodyMemory, GuestEvent, GuestKey, Guests, Lane, Mailbox, MailboxFull, PIPE_BYTES, PooledPipe, Pull, Push,
    Tunnel, TunnelEnd, TunnelProgress, Worker, WorkerHold,
};
pub use flatout_lane::poll::Ready;
pub use flatout_lane::process::user_ids;
pub use flatout_lane::socket::Moved;
pub use flatout_tls as tls;
pub use listeners::{AddressChanges, Inherited};
pub use plan::{
    Address, BUSY_POLL_TIME_MAX, DESCRIPTORS_RESERVED, HEAD_BYTES_MAX_CEILING, Limits, Listen, Locality,
    PROXY_HEADER_TIME_MAX, Plan, ProxyHeader, SocketPlan,
};
pub use say::{MessagePlan, Quoted, RecentMessage, Severity, recent_messages, report, say};
pub use server::{Bound, Change, Figures, Handle, Server, WorkerFigures, bind, bind_inherited, start};
pub use service::{
    Announced, Begun, Body, BodyFault, BodyPlan, BodyStream, BoxBody, BoxError, Carrier, Collected,
    ConnectionPermit, DetachedConnection, Ended, ExchangeKey, FileRange, Filter, Outcome, OwnedBody,
    OwnedRequest, Part, Prepared, Reply, Request, RequestBody, RequestOrigin, Response, SendRate, Service,
    Takeover, Ticket, Tls, TlsRoute, Witness, collect, request_random, sent_request_id, write_request_id,
};
pub use serving::State;
#[cfg(feature = "simulation")]
pub use worker::SteppedWorker;
