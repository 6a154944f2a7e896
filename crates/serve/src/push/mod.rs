//! Push: channels whose messages go to many subscribers, by Server-Sent Events, WebSocket and long poll.
//!
//! ```text
//! Hub (one a process): channels, history ── wake ──> Desk (one a worker): subscribers, guests of its lane
//!  ^ publish: POST, program                            └─ walk: slices of its list, the same bytes to each
//! ```
//!
//! A subscriber's connection leaves HTTP after the head of its response and is a guest of the lane. A message
//! is encoded once for each transport. There is no queue for a slow subscriber: only its position is stored,
//! and it gets the missing messages from the history when its socket has room again.

mod carrying;
mod client;
mod delivery;
mod desk;
mod elsewhere;
mod figures;
mod history;
mod holding;
mod hub;
mod incoming;
mod line;
mod message;
mod moving;
mod plan;
mod poll;
mod request;
mod serve;
mod snapshot;
mod subscriber;
mod token;

pub(crate) use carrying::{Arrived, Carry, Incoming};
pub use client::Client;
pub use desk::Desk;
pub use figures::Counted;
pub(crate) use holding::{Batch, Held};
pub use hub::{Hub, Refused};
pub use line::Line;
pub(crate) use message::Message;
pub use message::Publication;
#[cfg(test)]
pub(crate) use moving::encoded;
pub(crate) use moving::{About, Parcel, REST_BYTES_MAX, is_sound};
pub(crate) use plan::is_name;
pub use plan::{History, Kind, Limits, Plan};
pub use request::Who;
pub(crate) use snapshot::{Channel, Tip};
