//! Streamed bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_engine::{Body, BoxError, Response};
use futures_core::Stream;
use http_body::Frame;
use pin_project_lite::pin_project;

use super::Respond;

/// A body made of a stream's pieces, with back-pressure. On an error the connection is closed, so that the client detects
/// an incomplete body.
///
/// ```
/// use flatout::{App, Bytes, Streaming, test::Client};
///
/// let pieces = || futures_util::stream::iter(["a", "b"].map(|text| Ok::<_, std::io::Error>(Bytes::from(text))));
/// let client = Client::new(App::new().get("/", move || Streaming(pieces())))?;
/// assert_eq!(client.get("/").send().text(), "ab");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Streaming<S>(pub S);

/// The stream is boxed before it is polled.
impl<S> Unpin for Streaming<S> {}

pin_project! {
    struct Pieces<S> {
        #[pin]
        stream: S,
    }
}

impl<S, E> http_body::Body for Pieces<S>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = self.project().stream.poll_next(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data).map_err(Into::into)))
    }
}

impl<S, E> Respond for Streaming<S>
where
    S: Stream<Item = Result<Bytes, E>> + 'static,
    E: Into<BoxError> + 'static,
{
    fn respond(self, response: &mut Response) {
        response.set_body(Body::Stream(Box::pin(Pieces { stream: self.0 })));
    }
}
