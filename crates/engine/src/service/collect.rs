//! Bodies that are collected after the service has judged their requests.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flatout_lane::clock;
use flatout_wire::h1::Trailers;
use http_body::Body;
use tokio::time::Instant;

use super::{BodyFault, BodyStream};
use crate::exchange::{BodyMemory, Lane};

/// How long a body waits for memory, as one that the engine collects.
const STARVED_TIME_MAX: Duration = Duration::from_secs(5);

/// Between two attempts.
const STARVED_PAUSE: Duration = Duration::from_millis(100);

/// A whole body, with its part of the server's memory for bodies.
pub struct Collected {
    /// The decoded bytes.
    pub bytes: Bytes,
    /// The trailer fields of a chunked body.
    pub trailers: Trailers,
    /// Released when it is dropped.
    pub memory: Option<BodyMemory>,
}

/// Collects a body of at most `bytes_max` bytes, within the memory for bodies of the lane's server. With
/// [`BodyPlan::Stream`](crate::BodyPlan::Stream) and this, a service sees the head of a request before the client sends the
/// body; with [`BodyPlan::Whole`](crate::BodyPlan::Whole) it does not.
///
/// # Errors
/// The body is too large or cannot be read, or there was no memory for it ([`BodyFault::Starved`]).
pub async fn collect(
    mut body: BodyStream,
    bytes_max: u64,
    lane: Option<&Lane>,
) -> Result<Collected, BodyFault> {
    let mut memory = lane.map(Lane::body_memory);
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    let mut trailers = Trailers::new();
    let mut bytes = 0;
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        match frame?.into_data() {
            Ok(data) => {
                bytes += data.len() as u64;
                if bytes > bytes_max {
                    return Err(BodyFault::TooLarge);
                }
                reserve(memory.as_mut(), data.len() as u64).await?;
                if first.is_empty() && rest.is_empty() {
                    first = data;
                } else {
                    rest.extend_from_slice(&std::mem::take(&mut first));
                    rest.extend_from_slice(&data);
                }
            }
            Err(frame) => {
                let fields = frame.into_trailers().unwrap_or_default();
                let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                    (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec())
                };
                trailers.extend(fields.iter().map(field));
            }
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Collected { bytes, trailers, memory })
}

async fn reserve(memory: Option<&mut BodyMemory>, bytes: u64) -> Result<(), BodyFault> {
    let Some(memory) = memory else { return Ok(()) };
    let began = Instant::now();
    while !memory.grow(bytes) {
        if began.elapsed() >= STARVED_TIME_MAX {
            return Err(BodyFault::Starved);
        }
        clock::sleep(STARVED_PAUSE).await;
    }
    Ok(())
}
