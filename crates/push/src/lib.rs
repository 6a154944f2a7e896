//! Push: channels whose messages go to many subscribers, by Server-Sent Events, WebSocket and long poll.
//!
//! ```text
//! Hub (one a process): channels, history ── wake ──> WorkerChannels (one a worker): subscribers, guests of its lane
//!  ^ publish: POST, program                            └─ walk: slices of its list, the same bytes to each
//! ```
//!
//! A subscriber's connection leaves HTTP after the head of its response and is a guest of the lane. A message
//! is encoded once for each transport. There is no queue for a slow subscriber: only its position is stored,
//! and it gets the missing messages from the history when its socket has room again.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod carrier;
mod channels;
mod client;
mod delivery;
mod fetched;
mod figures;
mod groups;
mod handover;
mod history;
mod hub;
mod hub_state;
mod input;
mod line;
mod message;
mod plan;
mod poll;
mod position;
mod request;
mod sequence;
mod serve;
mod snapshot;
mod subscriber;
#[cfg(test)]
mod tests;
mod token;
mod waiting_publishes;
mod worker;

pub use carrier::{Arrival, Carry, Incoming};
pub use client::Client;
pub use figures::Counted;
pub use groups::GroupCount;
pub use handover::{About, Parcel, REST_BYTES_MAX, SubscriberBatch, is_sound};
pub use hub::{Fetched, Hub, Refused};
pub use line::Line;
pub use message::{Mark, Message, Publication};
pub use plan::{ChannelName, GROUP_BYTES_MAX, is_name};
pub use plan::{History, Kind, Limits, Plan};
pub use request::Who;
pub use sequence::{SequenceTracker, Step};
pub use snapshot::{ChannelSnapshot, Snapshot, Tip};
pub use waiting_publishes::{Batch, WaitingPublish};
pub use worker::WorkerChannels;
