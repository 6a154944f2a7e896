//! A request body that is read while it arrives.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A request body that is being received: an [`http_body::Body`] that may be read on any thread. If it is dropped
/// unread, the engine skips a small rest or closes the connection after the response.
///
/// ```
/// use bytes::Bytes;
/// use flatout_engine::BodyStream;
/// use http_body::Body;
///
/// assert_eq!(BodyStream::whole(Bytes::from_static(b"hello")).size_hint().exact(), Some(5));
/// ```
pub struct BodyStream {
    shared: Arc<Shared>,
}

/// Why a body ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// The client closed the connection, or was too slow, before the body was complete.
    Aborted,
    /// The chunked coding was malformed.
    Malformed,
    /// The body was longer than its limit.
    TooLarge,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyFault::Aborted => "the client disconnected before its request body was complete",
            BodyFault::Malformed => "the chunked request body is malformed",
            BodyFault::TooLarge => "the request body is larger than its limit",
        })
    }
}

impl std::error::Error for BodyFault {}

/// Asks the worker to read on; called when a reader has emptied a full stream.
type Resume = Box<dyn Fn() + Send + Sync>;

struct Shared {
    /// Bytes that may wait before the peer is held back.
    bytes_max: usize,
    state: Mutex<State>,
    resume: Resume,
}

#[derive(Default)]
struct State {
    ready: std::collections::VecDeque<Frame<Bytes>>,
    /// Their memory.
    ready_bytes: usize,
    end: Option<Result<(), BodyFault>>,
    length_left: Option<u64>,
    paused: bool,
    reader_gone: bool,
    reader: Option<Waker>,
}

/// The engine's end of a [`BodyStream`].
pub(crate) struct BodySender {
    shared: Arc<Shared>,
}

/// Memory of the frames waiting in one stream before the peer is held back.
pub(crate) const STREAM_BYTES_MAX: usize = 256 << 10;

/// Memory of a frame besides its data: chunks may be as small as a byte.
const FRAME_BYTES: usize = size_of::<Frame<Bytes>>();

/// A connected pair; `length` is the Content-Length, if there is one.
pub(crate) fn stream(length: Option<u64>, resume: Resume) -> (BodySender, BodyStream) {
    stream_with(length, STREAM_BYTES_MAX, resume)
}

/// The same, in which at most `bytes_max` bytes wait before the peer is held back.
pub(crate) fn stream_with(length: Option<u64>, bytes_max: usize, resume: Resume) -> (BodySender, BodyStream) {
    let state = State { length_left: length, ..State::default() };
    let shared = Arc::new(Shared { bytes_max, state: Mutex::new(state), resume });
    (BodySender { shared: shared.clone() }, BodyStream { shared })
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change under the lock is a single step, so a panic leaves it consistent.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl BodyStream {
    /// A body that is already complete.
    pub fn whole(bytes: Bytes) -> BodyStream {
        let (sender, stream) = stream(Some(bytes.len() as u64), Box::new(|| ()));
        if !bytes.is_empty() {
            sender.send(Frame::data(bytes));
        }
        sender.end(Ok(()));
        stream
    }
}

impl BodySender {
    /// Passes on a piece; afterwards [`BodySender::is_full`] says whether to continue reading.
    pub(crate) fn send(&self, frame: Frame<Bytes>) {
        let mut state = self.shared.lock();
        state.ready_bytes += FRAME_BYTES + data_bytes(&frame);
        state.ready.push_back(frame);
        wake(state);
    }

    /// Ends the stream, successfully or not.
    pub(crate) fn end(&self, end: Result<(), BodyFault>) {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        wake(state);
    }

    /// Whether the reader is behind. If so, it will call `resume` once it has caught up.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.shared.lock();
        // Only the reader ends a pause: it alone decides when to continue.
        state.paused |= state.ready_bytes >= self.shared.bytes_max && !state.reader_gone;
        state.paused
    }

    /// Whether the receiver is gone.
    pub(crate) fn reader_gone(&self) -> bool {
        self.shared.lock().reader_gone
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        self.end(Err(BodyFault::Aborted));
    }
}

impl Drop for BodyStream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.reader_gone = true;
        state.ready.clear();
        state.ready_bytes = 0;
        resume_if_paused(&self.shared, state);
    }
}

fn data_bytes(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

fn wake(mut state: std::sync::MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

fn resume_if_paused(shared: &Shared, mut state: std::sync::MutexGuard<'_, State>) {
    let paused = std::mem::take(&mut state.paused);
    drop(state);
    if paused {
        (shared.resume)();
    }
}

impl Body for BodyStream {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let mut state = self.shared.lock();
        if let Some(frame) = state.ready.pop_front() {
            let bytes = data_bytes(&frame);
            state.ready_bytes -= FRAME_BYTES + bytes;
            state.length_left = state.length_left.map(|left| left.saturating_sub(bytes as u64));
            if state.ready_bytes < self.shared.bytes_max / 2 {
                resume_if_paused(&self.shared, state);
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(fault)) => {
                state.end = Some(Ok(()));
                Poll::Ready(Some(Err(fault)))
            }
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.shared.lock();
        state.ready.is_empty() && state.end == Some(Ok(()))
    }

    fn size_hint(&self) -> SizeHint {
        self.shared.lock().length_left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl fmt::Debug for BodyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyStream").field("ready_bytes", &self.shared.lock().ready_bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_count_with_what_they_cost() {
        let (sender, _stream) = stream(None, Box::new(|| ()));
        let mut pieces = 0;
        while !sender.is_full() {
            sender.send(Frame::data(Bytes::from(vec![b'x'])));
            pieces += 1;
        }
        let bytes = pieces * size_of::<Frame<Bytes>>();
        assert!(bytes <= 2 * STREAM_BYTES_MAX, "{pieces} pieces wait in {bytes} bytes");
    }
}
