//! Output that a connection's socket has not accepted yet.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use flatout_lane::file::is_cached;
use flatout_lane::socket::Moved;

use crate::exchange::PooledPipe;
use crate::service::FileRange;
use crate::transport::Transport;

/// Pieces per system call.
const SLICES_MAX: usize = 32;

/// Bytes of one file sent before other connections get their turn: a tenth of a millisecond of copying.
const FILE_BYTES_PER_TURN: u64 = 512 << 10;

/// Bytes of a file per check whether they are in memory.
const WINDOW_BYTES: u64 = 512 << 10;

/// Bytes that are read ahead if they are not in memory.
const AHEAD_BYTES: u64 = 2 * WINDOW_BYTES;

/// Bytes that are sent anyway if no thread reads ahead.
const COLD_BYTES: u64 = 64 << 10;

/// A piece of output.
pub(crate) enum Piece {
    Bytes(Bytes),
    File(FileRange),
    Pipe(PooledPipe),
}

/// Pieces in the order in which they are sent.
#[derive(Default)]
pub(crate) struct Queue {
    pieces: VecDeque<Piece>,
    bytes: u64,
    /// Up to which offset the first piece, a file, is known to be in memory.
    warm_until: u64,
}

/// The result of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All was sent.
    All,
    /// The socket accepts no more; an event will report when it does.
    Full,
    /// The connection has used up its turn; the socket may accept more.
    Yield,
    /// The next bytes are not in memory, and would block.
    Cold,
    /// As many bytes as were allowed are sent.
    Held,
    /// The connection has failed, or a file has changed.
    Broken,
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Waiting bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        let bytes = piece.bytes();
        if bytes > 0 {
            self.bytes += bytes;
            self.pieces.push_back(piece);
        }
    }

    /// What is not in memory: the file, the offset, and how much to read ahead.
    pub(crate) fn cold(&self) -> Option<(Arc<File>, u64, u64)> {
        match self.pieces.front() {
            Some(Piece::File(range)) => {
                Some((range.file.clone(), range.offset, range.bytes.min(AHEAD_BYTES)))
            }
            _ => None,
        }
    }

    /// Treats the file as in memory up to this offset.
    pub(crate) fn trust(&mut self, until: u64) {
        self.warm_until = until;
    }

    /// Treats a little of it as in memory: no thread reads ahead.
    pub(crate) fn trust_little(&mut self) {
        if let Some(Piece::File(range)) = self.pieces.front() {
            self.warm_until = range.offset + COLD_BYTES;
        }
    }

    /// Sends as much as the socket accepts, at most `bytes_max`.
    pub(crate) fn drain(&mut self, transport: &mut Transport, bytes_max: u64) -> Drained {
        let mut file_bytes_left = FILE_BYTES_PER_TURN;
        let mut bytes_left = bytes_max;
        while let Some(piece) = self.pieces.front_mut() {
            if bytes_left == 0 {
                return Drained::Held;
            }
            let (moved, wanted) = match piece {
                Piece::File(_) if file_bytes_left == 0 => return Drained::Yield,
                Piece::File(range) => {
                    if self.warm_until <= range.offset {
                        let window = range.bytes.min(WINDOW_BYTES);
                        if !is_cached(&range.file, range.offset, window) {
                            return Drained::Cold;
                        }
                        self.warm_until = range.offset + window;
                    }
                    let warm_bytes = self.warm_until - range.offset;
                    let wanted = range.bytes.min(file_bytes_left).min(warm_bytes).min(bytes_left);
                    if wanted == range.bytes && !range.is_current() {
                        return Drained::Broken;
                    }
                    let moved = transport.send_file(range, wanted);
                    if let Moved::Bytes(sent) = moved {
                        file_bytes_left -= sent as u64;
                    }
                    (moved, wanted)
                }
                Piece::Pipe(pipe) => {
                    let wanted = (pipe.bytes() as u64).min(bytes_left);
                    match pipe.pipe() {
                        // Sent alone: the pipe counts its own content.
                        Some(pipe) => (transport.send_pipe(pipe, wanted as usize, false), wanted),
                        None => (Moved::Broken, wanted),
                    }
                }
                Piece::Bytes(_) => self.send_memory(transport, bytes_left),
            };
            match moved {
                Moved::Bytes(0) | Moved::Broken => return Drained::Broken,
                Moved::WouldBlock => return Drained::Full,
                Moved::Bytes(sent) => {
                    self.advance(sent as u64);
                    bytes_left -= sent as u64;
                    // A file may be sent in part because its pages are slow: try again. Memory may not.
                    if (sent as u64) < wanted && matches!(self.pieces.front(), Some(Piece::Bytes(_))) {
                        return Drained::Full;
                    }
                }
            }
        }
        Drained::All
    }

    fn send_memory(&self, transport: &mut Transport, bytes_max: u64) -> (Moved, u64) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut wanted = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let Piece::Bytes(bytes) = piece else { break };
            let left = usize::try_from(bytes_max - wanted).unwrap_or(usize::MAX);
            if left == 0 {
                break;
            }
            let bytes = bytes.get(..left).unwrap_or(bytes);
            *slice = IoSlice::new(bytes);
            wanted += bytes.len() as u64;
            count += 1;
        }
        let more = self.pieces.len() > count;
        (transport.send_slices(slices.get(..count).unwrap_or_default(), more), wanted)
    }

    fn advance(&mut self, sent: u64) {
        self.bytes -= sent;
        let mut left = sent;
        while left > 0 {
            let Some(piece) = self.pieces.front_mut() else { return };
            // A pipe counts its own content; it is sent alone.
            let is_pipe = matches!(piece, Piece::Pipe(_));
            if is_pipe && piece.bytes() > 0 {
                return;
            }
            if piece.bytes() > left {
                piece.advance(left);
                return;
            }
            left -= if is_pipe { left } else { piece.bytes() };
            self.pieces.pop_front();
            self.warm_until = 0;
        }
    }
}

impl Piece {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File(range) => range.bytes,
            Piece::Pipe(pipe) => pipe.bytes() as u64,
        }
    }

    fn advance(&mut self, sent: u64) {
        match self {
            Piece::Bytes(bytes) => bytes::Buf::advance(bytes, sent as usize),
            Piece::File(range) => {
                range.offset += sent;
                range.bytes -= sent;
            }
            Piece::Pipe(_) => {}
        }
    }
}
