//! Messages that NATS keeps (JetStream), for servers that were away or come later: one stream for a group.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::Client;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use futures_core::Stream;

use super::session::shown;

/// Messages of one channel, or values of one key, that are kept.
const PER_SUBJECT_MAX: i64 = 1000;

/// Bytes of all that is kept.
const BYTES_MAX: i64 = 1 << 30;

/// How far this server has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// In the stream that was made at this time.
    pub(super) stream_ns: i128,
    /// Up to this message of it; 0 is none.
    pub(super) sequence: u64,
}

/// What is kept, from the first that this server has not seen.
pub(super) struct Kept {
    messages: Option<Box<Ordered>>,
    /// When the stream was made.
    pub(super) stream_ns: i128,
    /// So many come that were kept; after them come new ones.
    pub(super) pending: u64,
    /// Some that this server has not seen are not kept any more.
    pub(super) has_missed: bool,
}

/// One of them.
pub(super) struct One {
    pub(super) bytes: Bytes,
    /// Its number in the stream.
    pub(super) sequence: u64,
    /// How long ago it was sent.
    pub(super) age: Duration,
}

impl Kept {
    /// For a bus that keeps nothing.
    pub(super) fn nothing() -> Kept {
        Kept { messages: None, stream_ns: 0, pending: 0, has_missed: false }
    }

    /// Opens the stream of a group, which is made if there is none, behind what was seen of it.
    ///
    /// # Errors
    /// Why that is not possible, in words.
    pub(super) async fn open(
        client: &Client,
        group: &str,
        age_max: Duration,
        seen: Seen,
    ) -> Result<Kept, String> {
        let failed = |error: String| format!("messages cannot be kept by JetStream: {}", shown(&error));
        let subject = format!("{group}.push.>");
        let config = stream::Config {
            name: format!("{group}_push"),
            subjects: vec![subject.clone()],
            max_age: age_max,
            max_messages_per_subject: PER_SUBJECT_MAX,
            max_bytes: BYTES_MAX,
            ..stream::Config::default()
        };
        let stream = jetstream::new(client.clone()).get_or_create_stream(config).await;
        let stream = stream.map_err(|error| failed(error.to_string()))?;
        let info = stream.get_info().await.map_err(|error| failed(error.to_string()))?;
        let (stream_ns, last) = (info.created.unix_timestamp_nanos(), info.state.last_sequence);
        // All of another stream is new: what this server has seen before is known by its numbers.
        let after = seen.sequence;
        let is_same = after > 0 && after <= last && stream_ns == seen.stream_ns;
        let deliver_policy = match is_same {
            true => DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
            false => DeliverPolicy::All,
        };
        let config = OrderedConfig {
            deliver_subject: client.new_inbox(),
            filter_subject: subject,
            deliver_policy,
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| failed(error.to_string()))?;
        let pending = consumer.cached_info().num_pending;
        let has_missed = match is_same {
            true => pending < last - after,
            false => after > 0,
        };
        let messages = consumer.messages().await.map_err(|error| failed(error.to_string()))?;
        Ok(Kept { messages: Some(Box::new(messages)), stream_ns, pending, has_missed })
    }

    /// The next message; never, if nothing is kept.
    ///
    /// # Errors
    /// The stream is gone, in words.
    pub(super) async fn next(&mut self) -> Result<One, String> {
        let Some(messages) = &mut self.messages else { return pending().await };
        loop {
            let next = poll_fn(|context| Pin::new(&mut **messages).poll_next(context)).await;
            let message = match next {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(format!("JetStream: {}", shown(&error.to_string()))),
                None => return Err("the connection has ended".to_owned()),
            };
            // Without the words of JetStream it is none of its messages.
            let Ok(info) = message.info() else { continue };
            let sent_ns = info.published.unix_timestamp_nanos();
            let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
            let age = Duration::from_nanos(u64::try_from(now_ns - sent_ns).unwrap_or(0));
            let sequence = info.stream_sequence;
            self.pending = self.pending.min(info.pending);
            return Ok(One { bytes: message.payload.clone(), sequence, age });
        }
    }
}
