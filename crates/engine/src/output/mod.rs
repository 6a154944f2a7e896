//! From a [`Response`] to bytes on the socket.
//!
//! ```text
//! encode ──> Output { bytes: head body head body …, cuts: (position, large piece) }
//!                 │ all of it small: one send            │ else
//!                 └──────> socket <── drain ── Queue of pieces ──> what the socket did not take stays queued
//! ```
//!
//! One buffer serves a whole stage of a turn: each connection's responses are a span of it, after the previous
//! connection's.

mod encode;
mod encode_h2;
mod pace;
mod prelude;
mod queue;

use std::ops::Range;

use bytes::Bytes;
use flatout_lane::socket::Moved;

pub(crate) use encode::Follow;
pub(crate) use encode_h2::Content;
pub(crate) use pace::Pace;
pub(crate) use prelude::Prelude;
pub(crate) use queue::{Drained, Piece, Queue};

use crate::exchange::PooledPipe;
use crate::transport::Transport;

/// Pieces up to this size are copied into the buffer; larger ones are sent from their own memory.
const COPY_BYTES_MAX: usize = 4 << 10;

/// Capacity of the buffer that is kept between stages.
const BYTES_KEPT: usize = 256 << 10;

/// Encoded responses.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// Where the span of the current connection starts.
    start: usize,
    /// Pieces of its span that are not in the buffer, and their positions.
    cuts: Vec<(usize, Piece)>,
    cut_bytes: u64,
    /// The end of the head that was encoded last, within the span.
    head_ends_at: u64,
}

/// A position in an [`Output`].
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    bytes: usize,
    cuts: usize,
    cut_bytes: u64,
}

impl Output {
    /// Whether nothing was encoded for the current connection.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.start && self.cuts.is_empty()
    }

    /// Bytes encoded for the current connection, including those that are not copied.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        (self.bytes.len() - self.start) as u64 + self.cut_bytes
    }

    /// Memory of its buffer.
    pub(crate) fn bytes_kept(&self) -> usize {
        self.bytes.capacity()
    }

    /// The end of the head that was encoded last, in terms of [`Output::len`].
    #[inline]
    pub(crate) fn head_ends_at(&self) -> u64 {
        self.head_ends_at
    }

    /// The current position, for [`Output::back_to`].
    #[inline]
    fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), cuts: self.cuts.len(), cut_bytes: self.cut_bytes }
    }

    /// Drops everything after a mark.
    fn back_to(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes);
        self.cuts.truncate(mark.cuts);
        self.cut_bytes = mark.cut_bytes;
    }

    fn cut(&mut self, piece: Piece) {
        self.cut_bytes += piece.bytes();
        self.cuts.push((self.bytes.len(), piece));
    }

    /// The buffer, for the state machines.
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

    /// Adds the content of a pipe.
    pub(crate) fn add_pipe(&mut self, pipe: PooledPipe) {
        self.cut(Piece::Pipe(pipe));
    }

    /// Leaves the span of the current connection in the buffer, to be sent at the end of the stage. `None` if part of
    /// it is not in the buffer.
    #[inline]
    pub(crate) fn stage(&mut self) -> Option<Range<usize>> {
        if !self.cuts.is_empty() {
            return None;
        }
        let span = self.start..self.bytes.len();
        self.start = span.end;
        Some(span)
    }

    /// Sends a span that was left; bytes that the socket does not accept are queued. Costs one system call.
    #[inline]
    pub(crate) fn send_span(
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

    /// Clears it at the end of a stage.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if self.bytes.capacity() > BYTES_KEPT {
            self.bytes = Vec::new();
        }
    }

    /// Drops what was encoded for the current connection.
    pub(crate) fn forget(&mut self) {
        self.back_to(Mark { bytes: self.start, cuts: 0, cut_bytes: 0 });
    }

    /// Sends what was encoded for the current connection, if it is all in the buffer, nothing waits before it, and nothing limits its rate
    /// (`needs_queue`). Returns the result, and the unsent bytes. Costs one system call. `None` if it has to be
    /// [queued](Output::move_to) first.
    pub(crate) fn send(
        &mut self,
        transport: &mut Transport,
        needs_queue: bool,
    ) -> Option<(Drained, Option<Bytes>)> {
        if needs_queue || !self.cuts.is_empty() {
            return None;
        }
        let sent = self.send_span(self.start..self.bytes.len(), transport);
        self.bytes.truncate(self.start);
        Some(sent)
    }

    /// Queues what was encoded for the current connection, after what is already waiting.
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
