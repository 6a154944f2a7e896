//! The body of a response as layers see it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flatout_engine::{Body as EngineBody, BoxError, FileRange, Part};
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;

/// Bytes of a file that are read at a time, if a layer reads the body.
const CHUNK_BYTES: usize = 64 << 10;

/// The body of a response inside layers. If no layer touches it, files are still sent by the kernel.
///
/// ```
/// use flatout::middleware::{InnerBody, InnerService};
/// use flatout::{App, test::Client};
/// use tower::util::MapResponseLayer;
///
/// /// Adds a field to responses, whatever their body is.
/// fn marked(mut response: http::Response<InnerBody>) -> http::Response<InnerBody> {
///     response.headers_mut().insert("x-marked", http::HeaderValue::from_static("yes"));
///     response
/// }
///
/// let client = Client::new(App::new().layer(MapResponseLayer::new(marked)).get("/", || "hello"))?;
/// assert_eq!(client.get("/").send().header("X-Marked"), Some("yes"));
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct InnerBody {
    body: EngineBody,
    /// A piece of a file on its way from the disk, and what follows it.
    reading: Option<(JoinHandle<std::io::Result<Bytes>>, FileRange)>,
}

impl InnerBody {
    pub(super) fn new(body: EngineBody) -> InnerBody {
        InnerBody { body, reading: None }
    }

    pub(super) fn into_engine(self) -> EngineBody {
        self.body
    }

    fn poll_file(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some((reading, range)) = &mut self.reading else { return Poll::Ready(None) };
        let bytes = ready!(Pin::new(reading).poll(context))??;
        let mut range = range.clone();
        range.offset += bytes.len() as u64;
        range.bytes -= bytes.len() as u64;
        if bytes.is_empty() || (range.bytes == 0 && !is_current(&range)?) {
            return Poll::Ready(Some(Err("the file was modified while it was sent".into())));
        }
        self.reading = (range.bytes > 0).then(|| read(range));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// Whether the file still has the announced version.
fn is_current(range: &FileRange) -> std::io::Result<bool> {
    let now = range.file.metadata()?;
    let is_same = now.modified()? == range.modified;
    Ok(is_same || range.witness.as_ref().is_some_and(|witness| witness.is_unchanged(&range.file, &now)))
}

fn read(range: FileRange) -> (JoinHandle<std::io::Result<Bytes>>, FileRange) {
    let (file, offset): (Arc<File>, u64) = (range.file.clone(), range.offset);
    let bytes = usize::try_from(range.bytes).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    let reading = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; bytes];
        let read = file.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        Ok(buffer.into())
    });
    (reading, range)
}

/// No body, for responses of layers.
impl Default for InnerBody {
    fn default() -> Self {
        InnerBody::new(EngineBody::Empty)
    }
}

impl From<Bytes> for InnerBody {
    fn from(bytes: Bytes) -> Self {
        InnerBody::new(EngineBody::Shared(bytes))
    }
}

impl Body for InnerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.reading.is_some() {
            return self.poll_file(context);
        }
        let bytes = match std::mem::take(&mut self.body) {
            EngineBody::Shared(bytes) => bytes,
            EngineBody::Static(bytes) => Bytes::from_static(bytes),
            EngineBody::Stream(mut stream) => {
                let polled = stream.as_mut().poll_frame(context);
                self.body = EngineBody::Stream(stream);
                return polled;
            }
            EngineBody::File(range) => {
                if range.bytes == 0 {
                    return Poll::Ready(None);
                }
                self.reading = Some(read(range));
                return self.poll_file(context);
            }
            EngineBody::Parts(mut parts) => {
                if parts.is_empty() {
                    return Poll::Ready(None);
                }
                let first = parts.remove(0);
                self.body = EngineBody::Parts(parts);
                match first {
                    Part::Bytes(bytes) => bytes,
                    Part::File(range) => {
                        self.reading = Some(read(range));
                        return self.poll_file(context);
                    }
                }
            }
            EngineBody::Empty | EngineBody::Buffered | EngineBody::Pushed | EngineBody::Take(_) => {
                return Poll::Ready(None);
            }
        };
        Poll::Ready((!bytes.is_empty()).then_some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none() && matches!(self.body, EngineBody::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        let reading = self.reading.as_ref().map_or(0, |(_, range)| range.bytes);
        let bytes = match &self.body {
            EngineBody::Shared(bytes) => bytes.len() as u64,
            EngineBody::Static(bytes) => bytes.len() as u64,
            EngineBody::Stream(stream) => return stream.size_hint(),
            EngineBody::File(range) => range.bytes,
            EngineBody::Parts(parts) => parts.iter().map(part_bytes).sum(),
            EngineBody::Empty | EngineBody::Buffered | EngineBody::Pushed | EngineBody::Take(_) => 0,
        };
        SizeHint::with_exact(reading + bytes)
    }
}

fn part_bytes(part: &Part) -> u64 {
    match part {
        Part::Bytes(bytes) => bytes.len() as u64,
        Part::File(range) => range.bytes,
    }
}
