//! The body of a response served from slices: it gets one slice after the other, and holds one at a time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use flatout_engine::BoxError;
use flatout_lane::clock;
use http_body::{Frame, SizeHint};

use crate::entry::{Entry, body_of};
use crate::fetch::flight::Outcome;
use crate::slices::fill::{SharedClient, SliceSource};
use crate::slices::manifest::Representation;
use crate::slices::store::Slice;

/// Gets the slices of one response.
pub(crate) struct SliceReader {
    pub(crate) source: Rc<SliceSource>,
    pub(crate) whole: Representation,
}

impl SliceReader {
    /// A slice: from memory, from disk, or from the upstream.
    async fn slice(self: Rc<Self>, index: u64) -> Result<Arc<Entry>, BoxError> {
        let SliceReader { source, whole } = &*self;
        let store = &source.worker.store;
        let (key, selected, now_ms) = (source.key(), whole.selected(index), clock::unix_milliseconds());
        let place = whole.place(&key, index, store);
        match store.slice(&key, place, &selected, now_ms) {
            Slice::Here(entry) => return Ok(entry),
            Slice::Cold => {
                if let Some(entry) = self.clone().slice_slowly(index, now_ms).await {
                    return Ok(entry);
                }
            }
            Slice::Nothing => {}
        }
        let flight = source.flight((place.0, index), Some(whole.expected()), SharedClient::default());
        match flight.outcome().await {
            Outcome::Whole(entry) if entry.selected() == selected => Ok(entry),
            _ => Err("a part of the response could not be fetched, or it has changed".into()),
        }
    }

    /// Makes another thread read a slice on disk.
    async fn slice_slowly(self: Rc<Self>, index: u64, now_ms: u64) -> Option<Arc<Entry>> {
        let SliceReader { source, whole } = &*self;
        let store = source.worker.store.clone();
        let key = source.key.clone();
        let selected = whole.selected(index);
        let place = whole.place(&source.key(), index, &store);
        let read = tokio::task::spawn_blocking(move || {
            store.slice_slowly(&store.key_of(&key), place, &selected, now_ms)
        });
        read.await.ok().flatten()
    }
}

/// The future of the next slice.
type PendingSlice = Pin<Box<dyn Future<Output = Result<Arc<Entry>, BoxError>>>>;

/// A part of a body, read slice by slice. It holds one slice at a time.
pub(crate) struct SliceBody {
    pub(crate) reader: Rc<SliceReader>,
    pub(crate) next: u64,
    pub(crate) end: u64,
    pub(crate) pending: Option<PendingSlice>,
}

impl http_body::Body for SliceBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let SliceBody { reader, next, end, pending } = &mut *self;
        if *next >= *end {
            return Poll::Ready(None);
        }
        let index = *next / reader.whole.slice_bytes.max(1);
        let slice = pending.get_or_insert_with(|| Box::pin(reader.clone().slice(index)));
        let polled = match slice.as_mut().poll(context) {
            Poll::Ready(polled) => polled,
            Poll::Pending => return Poll::Pending,
        };
        *pending = None;
        let part = reader.whole.part(index);
        let wanted = (*next - part.start)..((*end).min(part.end) - part.start);
        let piece = polled.and_then(|entry| {
            let body = body_of(&entry);
            let wanted = wanted.start as usize..wanted.end as usize;
            match wanted.end <= body.len() && !wanted.is_empty() {
                true => Ok(body.slice(wanted)),
                false => Err("a stored part is too short".into()),
            }
        });
        match &piece {
            Ok(piece) => *next += piece.len() as u64,
            Err(_) => *next = *end,
        }
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.next)
    }
}
