//! From a response to HTTP/2 frames: its head, and content that is small and fits the window.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use flatout_wire::Status;
use flatout_wire::h2::hpack::{encode_field, encode_lines, encode_status};
use flatout_wire::h2::{Connection, StreamId};

use super::encode::length_of;
use super::{COPY_BYTES_MAX, Output, Piece, Prelude};
use crate::exchange::panicked;
use crate::service::{Body, BoxBody, Part, Response, Takeover};

/// What follows the head of a response.
pub(crate) enum Content {
    /// Nothing more: all was written, or nothing may follow.
    Over,
    /// Pieces that wait for room, trailers as whole field lines, and the memory that only this response holds, in bytes.
    Waits(Vec<Piece>, Vec<u8>, u64),
    /// A task makes it.
    Stream(BoxBody),
    /// It is pushed by key.
    Pushed,
    /// The code that takes the stream over writes it to a socket.
    Take(Takeover),
    /// It is not possible in HTTP/2.
    Failed,
}

impl Output {
    /// Adds the head of a response, and its content if it is small, fits the window and is not limited. Leaves the response to be
    /// reset.
    #[inline]
    pub(crate) fn encode_h2(
        &mut self,
        response: &mut Response,
        machine: &mut Connection,
        stream: StreamId,
        prelude: &Prelude,
    ) -> Content {
        if response.is_plain() {
            return self.encode_h2_memory(response, machine, stream, prelude);
        }
        let before = self.mark();
        // Its body may be the application's own type, and panic when it is asked for its length.
        match catch_unwind(AssertUnwindSafe(|| self.encode_h2_other(response, machine, stream, prelude))) {
            Ok(content) => content,
            Err(_) if machine.owes_response(stream) => {
                self.back_to(before);
                self.encode_h2_memory(&mut panicked(), machine, stream, prelude)
            }
            Err(_) => Content::Failed,
        }
    }

    fn encode_h2_memory(
        &mut self,
        response: &mut Response,
        machine: &mut Connection,
        stream: StreamId,
        prelude: &Prelude,
    ) -> Content {
        let carried = response.body_bytes().map_or(0, <[u8]>::len);
        let length = match response.declared_length() {
            Some(bytes) if carried == 0 => Some(bytes),
            _ if response.status().is_bodyless() => None,
            _ => Some(carried as u64),
        };
        if !self.head_h2(response, machine, stream, length, carried == 0, prelude) {
            return Content::Over;
        }
        if carried <= COPY_BYTES_MAX && machine.room(stream) >= carried && response.rate_limit().is_none() {
            return match machine.content(stream, carried, 0, true, &mut self.bytes) {
                true => {
                    // The head of the frame is not of the body.
                    self.head_ends_at = self.len();
                    self.bytes.extend_from_slice(response.body_bytes().unwrap_or_default());
                    Content::Over
                }
                false => Content::Failed,
            };
        }
        let memory_bytes = match response.body() {
            Body::Buffered => carried as u64,
            _ => 0,
        };
        let bytes = match response.take_body() {
            Body::Shared(bytes) => bytes,
            Body::Static(bytes) => Bytes::from_static(bytes),
            _ => Bytes::new(),
        };
        Content::Waits(vec![Piece::Bytes(bytes)], Vec::new(), memory_bytes)
    }

    fn encode_h2_other(
        &mut self,
        response: &mut Response,
        machine: &mut Connection,
        stream: StreamId,
        prelude: &Prelude,
    ) -> Content {
        if !response.hints().is_empty() {
            let encode = |block: &mut Vec<u8>| {
                encode_status(Status::EARLY_HINTS, block);
                encode_lines(response.hints(), block);
            };
            machine.inform(stream, encode, &mut self.bytes);
        }
        let trailers = response.trailers().to_vec();
        let body = response.take_body();
        let length = match &body {
            // A stream cannot change to another protocol.
            Body::Take(_) if response.status().is_bodyless() => return Content::Failed,
            _ if !trailers.is_empty() || response.status().is_bodyless() => None,
            Body::Stream(body) => response.length_of_stream(body),
            Body::Pushed => response.declared_length(),
            Body::Take(_) => None,
            body => Some(match response.declared_length() {
                Some(bytes) if length_of(body) == 0 => bytes,
                _ => length_of(body),
            }),
        };
        if !self.head_h2(response, machine, stream, length, false, prelude) {
            return Content::Over;
        }
        match body {
            Body::Stream(body) => Content::Stream(body),
            Body::Pushed => Content::Pushed,
            Body::Take(takeover) => Content::Take(takeover),
            body => Content::Waits(pieces(body), trailers, 0),
        }
    }

    /// Writes the head. Returns whether content follows.
    #[inline]
    fn head_h2(
        &mut self,
        response: &Response,
        machine: &mut Connection,
        stream: StreamId,
        length: Option<u64>,
        ends: bool,
        prelude: &Prelude,
    ) -> bool {
        let is_bodyless = response.status().is_bodyless();
        let status = if is_bodyless { response.final_status() } else { response.status() };
        let encode = |block: &mut Vec<u8>| {
            encode_status(status, block);
            prelude.write_h2(response, block);
            response.encode_fields(block);
            if let Some(bytes) = length {
                encode_field(b"content-length", itoa::Buffer::new().format(bytes).as_bytes(), block);
            }
        };
        let ends = ends || is_bodyless;
        let follows = machine.respond(stream, length, ends, encode, &mut self.bytes);
        self.head_ends_at = self.len();
        follows
    }
}

/// The pieces of a complete body.
fn pieces(body: Body) -> Vec<Piece> {
    match body {
        Body::Shared(bytes) => vec![Piece::Bytes(bytes)],
        Body::Static(bytes) => vec![Piece::Bytes(Bytes::from_static(bytes))],
        Body::File(range) => vec![Piece::File(range)],
        Body::Parts(parts) => parts
            .into_iter()
            .map(|part| match part {
                Part::Bytes(bytes) => Piece::Bytes(bytes),
                Part::File(range) => Piece::File(range),
            })
            .collect(),
        Body::Empty | Body::Buffered | Body::Stream(_) | Body::Pushed | Body::Take(_) => Vec::new(),
    }
}
