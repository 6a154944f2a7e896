//! The body of a flight as the engine reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_engine::BoxError;
use http_body::{Body, Frame, SizeHint};

use super::Flight;

/// The body of a flight, for one client.
pub(crate) struct FlightBody {
    pub(super) flight: Arc<Flight>,
    pub(super) reader: usize,
    /// Bytes still to be received, if known.
    pub(super) left: Option<u64>,
}

impl Body for FlightBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.flight.next(self.reader, context);
        if let (Poll::Ready(Some(Ok(bytes))), Some(left)) = (&polled, &mut self.left) {
            *left = left.saturating_sub(bytes.len() as u64);
        }
        polled.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for FlightBody {
    fn drop(&mut self) {
        self.flight.leave(self.reader);
    }
}
