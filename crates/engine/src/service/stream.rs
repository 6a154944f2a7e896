//! A request body that is read while it arrives.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use flatout_lane::limit;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::BoxError;

/// A request body that is being received: an [`http_body::Body`] that may be read on any thread, also after the response
/// was sent. If it is dropped unread, the engine skips a small rest or closes the connection after the response. A client
/// that waits for `100 Continue` gets it when the body is first polled.
///
/// ```
/// use bytes::Bytes;
/// use flatout_engine::BodyStream;
/// use http_body::Body;
///
/// assert_eq!(BodyStream::whole(Bytes::from_static(b"hello")).size_hint().exact(), Some(5));
/// ```
pub struct BodyStream {
    shared: Arc<StreamInner>,
}

/// Why a body ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// The client disconnected before the body was complete.
    Aborted,
    /// The client was too slow.
    TooSlow,
    /// The response was sent before the body had arrived: the client waited for `100 Continue`, and now does not send it.
    Responded,
    /// The server was stopped.
    Stopped,
    /// Something between the server and the handler, such as a layer, could not read the body.
    Unreadable,
    /// The chunked coding was malformed.
    Malformed,
    /// The body was longer than its limit.
    TooLarge,
    /// The server's memory for request bodies is used up.
    Starved,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyFault::Aborted => "the client disconnected before its request body was complete",
            BodyFault::TooSlow => "the client was too slow in sending its request body",
            BodyFault::Responded => "the response was sent before the request body had arrived",
            BodyFault::Stopped => "the server was stopped before the request body was complete",
            BodyFault::Unreadable => "middleware could not read the request body",
            BodyFault::Malformed => "the chunked request body is malformed",
            BodyFault::TooLarge => "the request body is larger than its limit",
            BodyFault::Starved => "the server has no memory left for request bodies; try again later",
        })
    }
}

impl std::error::Error for BodyFault {}

/// Asks the worker to look again; called when a reader has emptied a full stream, when it first wants a body whose client
/// waits, and when it drops an incomplete one.
type Resume = Box<dyn Fn() + Send + Sync>;

struct StreamInner {
    /// Bytes that may wait before the peer is held back.
    bytes_max: usize,
    state: Mutex<StreamState>,
    resume: Resume,
}

#[derive(Default)]
struct StreamState {
    ready: std::collections::VecDeque<Frame<Bytes>>,
    /// Their memory.
    ready_bytes: usize,
    end: Option<Result<(), BodyFault>>,
    length_left: Option<u64>,
    paused: bool,
    /// The sender waits until the body is first polled.
    is_unwanted: bool,
    reader_gone: bool,
    reader: Option<Waker>,
}

/// The engine's end of a [`BodyStream`].
pub(crate) struct BodySender {
    shared: Arc<StreamInner>,
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
    let state = StreamState { length_left: length, ..StreamState::default() };
    let bytes_max = limit::bytes(bytes_max);
    let shared = Arc::new(StreamInner { bytes_max, state: Mutex::new(state), resume });
    (BodySender { shared: shared.clone() }, BodyStream { shared })
}

impl StreamInner {
    fn lock(&self) -> std::sync::MutexGuard<'_, StreamState> {
        // Every change under the lock is a single step, so a panic leaves it consistent.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl BodyStream {
    /// Any other body, such as one that a layer has wrapped: a task on this thread's `LocalSet` reads it, as far as this one
    /// is read. Above `bytes_max` bytes it ends with [`BodyFault::TooLarge`]; an error becomes the [`BodyFault`] in it, or
    /// [`BodyFault::Unreadable`].
    ///
    /// # Panics
    /// Outside of a `LocalSet`; the worker's service and its tasks are inside of one.
    pub fn of<B>(body: B, bytes_max: u64) -> BodyStream
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let resumed = Arc::new(Notify::new());
        let resume = {
            let resumed = resumed.clone();
            Box::new(move || resumed.notify_one())
        };
        let (sender, stream) = stream(body.size_hint().exact(), resume);
        // Nothing is read before the reader wants it.
        sender.wait();
        spawn_local(pump(body, bytes_max, sender, resumed));
        stream
    }

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

/// A body as a reader of another kind of body sees it: what is read of it, one by one, by a task of the worker.
async fn pump<B>(body: B, bytes_max: u64, sender: BodySender, resumed: Arc<Notify>)
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    let mut bytes = 0;
    loop {
        let frame = tokio::select! {
            biased;
            () = resumed.notified() => continue_with(&sender),
            frame = poll_fn(|context| body.as_mut().poll_frame(context)), if !sender.is_full() => PumpEvent::Frame(frame),
        };
        match frame {
            PumpEvent::Resumed => {}
            PumpEvent::Dropped => return,
            PumpEvent::Frame(None) => return sender.end(Ok(())),
            PumpEvent::Frame(Some(Err(error))) => return sender.end(Err(BodyFault::of(&error.into()))),
            PumpEvent::Frame(Some(Ok(frame))) => {
                bytes += data_bytes(&frame) as u64;
                if bytes > bytes_max {
                    return sender.end(Err(BodyFault::TooLarge));
                }
                sender.send(frame);
            }
        }
    }
}

/// What a pump has to do next.
enum PumpEvent<E> {
    Frame(Option<Result<Frame<Bytes>, E>>),
    Resumed,
    Dropped,
}

fn continue_with<E>(sender: &BodySender) -> PumpEvent<E> {
    if sender.reader_gone() { PumpEvent::Dropped } else { PumpEvent::Resumed }
}

impl BodyFault {
    /// The fault in an error of a body that middleware has wrapped.
    fn of(error: &BoxError) -> BodyFault {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
        while let Some(error) = source {
            if let Some(fault) = error.downcast_ref() {
                return *fault;
            }
            source = error.source();
        }
        BodyFault::Unreadable
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

    /// Sends nothing until the body is first polled: the client waits for `100 Continue`.
    pub(crate) fn wait(&self) {
        self.shared.lock().is_unwanted = true;
    }

    /// Whether nobody has polled the body for which the client [waits](BodySender::wait).
    pub(crate) fn is_unwanted(&self) -> bool {
        self.shared.lock().is_unwanted
    }

    /// Whether the reader is behind. If so, it will call `resume` once it has caught up.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.shared.lock();
        if state.is_unwanted {
            return true;
        }
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
        // After the response, this ends what the engine still does for the request.
        let is_incomplete = state.end.is_none();
        state.paused |= is_incomplete;
        resume_if_paused(&self.shared, state);
    }
}

fn data_bytes(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

fn wake(mut state: std::sync::MutexGuard<'_, StreamState>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

fn resume_if_paused(shared: &StreamInner, mut state: std::sync::MutexGuard<'_, StreamState>) {
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
                state.paused |= std::mem::take(&mut state.is_unwanted);
                resume_if_paused(&self.shared, state);
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
    fn small_pieces_count_with_their_overhead() {
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
