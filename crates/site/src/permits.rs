//! Bodies that hold the permits of their request: it is in progress until the last byte was sent, or its client has left.

use std::fmt;
use std::fs::{File, Metadata};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_engine::{Body, BoxBody, BoxError, FileRange, Part, Response, Witness};
use http_body::{Frame, SizeHint};

use super::concurrency::Permit;

/// The permits of one request. They are given back when the last of those who hold them is gone.
pub(crate) type Permits = Vec<Arc<Permit>>;

/// Bytes of a body.
struct HeldBytes {
    bytes: Bytes,
    _permits: Permits,
}

/// A file of a body.
struct HeldFile {
    witness: Option<Arc<dyn Witness>>,
    _permits: Permits,
}

/// A body that is made while it is sent.
struct HeldStream {
    body: BoxBody,
    _permits: Permits,
}

/// Lets the body of a response hold permits, if it is sent after the response was made. Whoever pushes a body has its rules, and with them
/// the permits, until it ends.
pub(crate) fn hold(permits: &Permits, response: &mut Response) {
    let file = |range: FileRange| {
        let held = HeldFile { witness: range.witness, _permits: permits.clone() };
        FileRange { witness: Some(Arc::new(held)), ..range }
    };
    let shared = |bytes: Bytes| Bytes::from_owner(HeldBytes { bytes, _permits: permits.clone() });
    let body = match response.body() {
        Body::File(_) | Body::Parts(_) | Body::Shared(_) | Body::Stream(_) => response.take_body(),
        _ => return,
    };
    response.set_body(match body {
        Body::File(range) => Body::File(file(range)),
        Body::Shared(bytes) => Body::Shared(shared(bytes)),
        Body::Stream(body) => Body::Stream(Box::pin(HeldStream { body, _permits: permits.clone() })),
        Body::Parts(parts) => {
            let held = |part| match part {
                Part::Bytes(bytes) => Part::Bytes(shared(bytes)),
                Part::File(range) => Part::File(file(range)),
            };
            Body::Parts(parts.into_iter().map(held).collect())
        }
        body => body,
    });
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Witness for HeldFile {
    fn is_unchanged(&self, file: &File, now: &Metadata) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.is_unchanged(file, now))
    }
}

impl http_body::Body for HeldStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.body.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for HeldFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldFile").field("witness", &self.witness).finish_non_exhaustive()
    }
}
