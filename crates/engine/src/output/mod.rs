//! From a [`Response`] to bytes on the socket.
//!
//! ```text
//! encode ──> Output { bytes: head body head body …, cuts: (position, large piece) }
//!                 │ all of it small: one send            │ else
//!                 └──────> socket <── drain ── Queue of pieces ──> what the socket did not take stays queued
//! ```
//!
//! One buffer serves a whole stage of a turn: each connection's responses are a span of it, behind those of the one
//! before.

mod encode;
mod encode_h2;
mod prelude;
mod queue;

use std::ops::Range;

use bytes::Bytes;
use flatout_lane::socket::Moved;

pub(crate) use encode::Follow;
pub(crate) use encode_h2::Content;
pub(crate) use prelude::Prelude;
pub(crate) use queue::{Drained, Piece, Queue};

use crate::exchange::PooledPipe;
use crate::transport::Transport;

/// Pieces up to this size are copied into the buffer; larger ones are sent from where they lie.
const COPY_BYTES_MAX: usize = 4 << 10;

/// Capacity of the buffer that is kept from stage to stage.
const BYTES_KEPT: usize = 256 << 10;

/// Encoded responses.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// Where the span of the connection in hand begins.
    start: usize,
    /// Pieces of its span that are not in the buffer, and where they belong.
    cuts: Vec<(usize, Piece)>,
    cut_bytes: u64,
    /// Where the head ended that was encoded last, in bytes of the span.
    head_ends_at: u64,
}

/// A place in an [`Output`].
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    bytes: usize,
    cuts: usize,
    cut_bytes: u64,
}

impl Output {
    /// Whether nothing was encoded for the connection in hand.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.start && self.cuts.is_empty()
    }

    /// Bytes encoded for the connection in hand, those that are not copied too.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        (self.bytes.len() - self.start) as u64 + self.cut_bytes
    }

    /// Memory of its buffer.
    pub(crate) fn bytes_kept(&self) -> usize {
        self.bytes.capacity()
    }

    /// Where the head of the response ends that was encoded last, as [`Output::len`] was then.
    #[inline]
    pub(crate) fn head_ends_at(&self) -> u64 {
        self.head_ends_at
    }

    /// How far it is made, to come [back to](Output::back_to).
    #[inline]
    fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), cuts: self.cuts.len(), cut_bytes: self.cut_bytes }
    }

    /// Drops what was made since.
    fn back_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.cuts.truncate(mark.cuts);
        self.cut_bytes = mark.cut_bytes;
    }

    fn cut(&mut self, piece: Piece) {
        self.cut_bytes += piece.bytes();
        self.cuts.push((self.bytes.len(), piece));
    }

    /// The buffer, for what frames messages.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Adds a piece of a body: copied if it is small.
    #[inline]
    pub(crate) fn add(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.bytes.extend_from_slice(&bytes);
        } else {
            self.cut(Piece::Bytes(bytes));
        }
    }

    /// Adds a piece of any kind.
    pub(crate) fn add_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Bytes(bytes) => self.add(bytes),
            piece => self.cut(piece),
        }
    }

    /// Adds a piece that is in a pipe.
    pub(crate) fn add_pipe(&mut self, pipe: PooledPipe) {
        self.cut(Piece::Pipe(pipe));
    }

    /// Leaves the span of the connection in hand in the buffer, to be sent at the end of the stage. `None` where part of
    /// it is not in the buffer.
    #[inline]
    pub(crate) fn leave(&mut self) -> Option<Range<usize>> {
        if !self.cuts.is_empty() {
            return None;
        }
        let span = self.start..self.bytes.len();
        self.start = span.end;
        Some(span)
    }

    /// Sends a span that was left; what the socket does not take is queued. Costs one system call.
    #[inline]
    pub(crate) fn send_left(
        &self,
        span: Range<usize>,
        transport: &mut Transport,
    ) -> (Drained, Option<Bytes>) {
        let bytes = self.bytes.get(span).unwrap_or_default();
        match transport.send(bytes) {
            Moved::Bytes(sent) if sent == bytes.len() => (Drained::All, None),
            Moved::Bytes(sent) => {
                let rest = bytes.get(sent..).unwrap_or_default();
                (Drained::Full, Some(Bytes::copy_from_slice(rest)))
            }
            Moved::WouldBlock => (Drained::Full, Some(Bytes::copy_from_slice(bytes))),
            Moved::Broken => (Drained::Broken, None),
        }
    }

    /// Empties it, at the end of a stage.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if self.bytes.capacity() > BYTES_KEPT {
            self.bytes = Vec::new();
        }
    }

    /// Drops what was encoded for the connection in hand.
    pub(crate) fn forget(&mut self) {
        self.back_to(Mark { bytes: self.start, cuts: 0, cut_bytes: 0 });
    }

    /// Sends what was encoded for the connection in hand, if it is all in the buffer and nothing waits before it (`has_queue`):
    /// what came of it, and what the socket has not taken. Costs one system call. `None` where it has to be
    /// [queued](Output::move_to) first.
    pub(crate) fn send(
        &mut self,
        transport: &mut Transport,
        has_queue: bool,
    ) -> Option<(Drained, Option<Bytes>)> {
        if has_queue || !self.cuts.is_empty() {
            return None;
        }
        let sent = self.send_left(self.start..self.bytes.len(), transport);
        self.bytes.truncate(self.start);
        Some(sent)
    }

    /// Queues what was encoded for the connection in hand, behind what waits already.
    pub(crate) fn move_to(&mut self, queue: &mut Queue) {
        let mut at = self.start;
        self.cut_bytes = 0;
        for (position, piece) in self.cuts.drain(..) {
            push_copy(self.bytes.get(at..position), queue);
            at = position;
            queue.push(piece);
        }
        push_copy(self.bytes.get(at..), queue);
        self.bytes.truncate(self.start);
    }
}

fn push_copy(bytes: Option<&[u8]>, queue: &mut Queue) {
    if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
        queue.push(Piece::Bytes(Bytes::copy_from_slice(bytes)));
    }
}
