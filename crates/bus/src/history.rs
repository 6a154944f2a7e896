//! The history in NATS (JetStream), for servers that were disconnected or are new: one stream per group.

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

/// Maximum number of messages kept for one channel, or values for one key.
const PER_SUBJECT_MAX: i64 = 1000;

/// Maximum size of the stream.
const BYTES_MAX: i64 = 1 << 30;

/// The position of this server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StreamPosition {
    /// The creation time of the stream.
    pub(super) stream_ns: i128,
    /// The sequence number of the last message seen; 0 for none.
    pub(super) sequence: u64,
}

/// The history from the first message that this server has not seen.
pub(super) struct StreamHistory {
    messages: Option<Box<Ordered>>,
    /// The creation time of the stream.
    pub(super) stream_ns: i128,
    /// The number of stored messages still to come; new ones follow.
    pub(super) pending: u64,
    /// Some messages were deleted before this server received them.
    pub(super) has_missed: bool,
}

/// A stored message.
pub(super) struct StoredMessage {
    pub(super) bytes: Bytes,
    /// Its sequence number.
    pub(super) sequence: u64,
    /// Its age.
    pub(super) age: Duration,
}

impl StreamHistory {
    /// For a bus without a history.
    pub(super) fn nothing() -> StreamHistory {
        StreamHistory { messages: None, stream_ns: 0, pending: 0, has_missed: false }
    }

    /// Opens the stream of a group after the last message seen, and creates the stream if it does not exist.
    ///
    /// # Errors
    /// Why it failed.
    pub(super) async fn open(
        client: &Client,
        group: &str,
        age_max: Duration,
        seen: StreamPosition,
    ) -> Result<StreamHistory, String> {
        let failed = |error: String| format!("JetStream cannot store messages: {}", shown(&error));
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
        // A new stream is read from the start: messages seen before are recognised by their numbers.
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
        Ok(StreamHistory { messages: Some(Box::new(messages)), stream_ns, pending, has_missed })
    }

    /// The next message. Without a history it never returns.
    ///
    /// # Errors
    /// The stream was lost.
    pub(super) async fn next(&mut self) -> Result<StoredMessage, String> {
        let Some(messages) = &mut self.messages else { return pending().await };
        loop {
            let next = poll_fn(|context| Pin::new(&mut **messages).poll_next(context)).await;
            let message = match next {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(format!("JetStream: {}", shown(&error.to_string()))),
                None => return Err("the connection has ended".to_owned()),
            };
            // A message without JetStream's metadata does not belong to the stream.
            let Ok(info) = message.info() else { continue };
            let sent_ns = info.published.unix_timestamp_nanos();
            let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i128);
            let age = Duration::from_nanos(u64::try_from(now_ns - sent_ns).unwrap_or(0));
            let sequence = info.stream_sequence;
            self.pending = self.pending.min(info.pending);
            return Ok(StoredMessage { bytes: message.payload.clone(), sequence, age });
        }
    }
}
