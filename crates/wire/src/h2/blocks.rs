//! Handles field blocks: HEADERS and CONTINUATION.

use super::connection::{Block, Connection, Inside, Side};
use super::event::{ConnectionFault, Event, StreamId};
use super::frame::{Code, FrameHead, flag, read_u32};
use super::head::{Builder, Flaw, H2Request, HeadKind, Room};
use super::hpack::{self, BlockLimits};
use super::limits::{BLOCK_BYTES_FACTOR, BLOCK_FRAMES_MAX, FRAMES_REFUNDED, INTERIM_ANSWERS_MAX};
use super::priority::Priority;
use crate::{Method, Status, head};

/// How a block is handled.
enum Fate {
    /// It opens a stream of the peer.
    Request,
    /// It is a response, final or interim.
    Answer,
    /// It ends a message.
    Trailers,
    /// It is decoded to keep the table in sync, and the stream is reset with this code.
    Refuse(Code),
    /// It is decoded only to keep the table in sync.
    PassOver,
    /// It is decoded, and then the connection ends.
    End(ConnectionFault),
}

impl Connection {
    pub(super) fn headers<'b>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &'b mut Room,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let (mut block, padding) = unpad(head, payload)?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let Some((dependency, rest)) = block.split_at_checked(5) else {
                return Err(ConnectionFault::size("HEADERS is too short for its priority"));
            };
            depends_on_itself = read_u32(dependency).is_some_and(|on| on & 0x7fff_ffff == head.stream);
            block = rest;
        }
        if depends_on_itself {
            return Err(ConnectionFault::protocol("a stream depends on itself"));
        }
        if padding > block.len() {
            self.budgets.frames(1)?;
        }
        let ends_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.block(head.stream, ends_stream, block, room, out);
        }
        let (stream, bytes) = (head.stream, block.to_vec());
        self.inside = Inside::Block(Box::new(Block { stream, ends_stream, bytes, frames: 1 }));
        Ok(Event::Handled)
    }

    pub(super) fn continuation<'b>(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        room: &'b mut Room,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let bytes_max = self.limits.head.head_bytes_max * BLOCK_BYTES_FACTOR;
        let Inside::Block(block) = &mut self.inside else { return Ok(Event::Handled) };
        block.frames += 1;
        if block.frames > BLOCK_FRAMES_MAX || block.bytes.len() + payload.len() > bytes_max {
            return Err(ConnectionFault::calm("a field block is too long, or in too many frames"));
        }
        block.bytes.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            return Ok(Event::Handled);
        }
        let Inside::Block(block) = std::mem::replace(&mut self.inside, Inside::None) else {
            return Ok(Event::Handled);
        };
        self.block(block.stream, block.ends_stream, &block.bytes, room, out)
    }

    fn block<'b>(
        &mut self,
        id: u32,
        ends_stream: bool,
        block: &[u8],
        room: &'b mut Room,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let fate = self.fate(id, ends_stream)?;
        let kind = match fate {
            Fate::Request => HeadKind::Request,
            Fate::Answer => HeadKind::Answer,
            _ => HeadKind::Trailers,
        };
        let mut builder = Builder::new(room, kind, self.limits.head);
        let limits = BlockLimits {
            bytes_max: self.limits.head.head_bytes_max,
            fields_max: self.limits.head.fields_max,
        };
        let is_complete = self.decoder.block(block, limits, &mut builder).map_err(|fault| match fault {
            hpack::BlockFault::Malformed => {
                ConnectionFault { code: Code::COMPRESSION_ERROR, reason: "invalid field block" }
            }
            hpack::BlockFault::Flood => ConnectionFault::calm("a field block is too large"),
        })?;
        match fate {
            Fate::Request => self.request(id, ends_stream, builder, is_complete, out),
            Fate::Answer => self.answer(id, ends_stream, builder, is_complete, out),
            Fate::Trailers => self.trailers_came(id, builder, is_complete, out),
            Fate::Refuse(code) => self.stream_fault(id, code, out),
            Fate::PassOver => {
                self.budgets.frames(1)?;
                Ok(Event::Handled)
            }
            Fate::End(fault) => Err(fault),
        }
    }

    /// RFC 9113 section 5.1.
    fn fate(&mut self, id: u32, ends_stream: bool) -> Result<Fate, ConnectionFault> {
        if let Some(stream) = self.streams.get(id) {
            return Ok(match (stream.is_remote_open, self.role) {
                (false, _) if self.was_reset(id) => Fate::PassOver,
                (false, _) => Fate::Refuse(Code::STREAM_CLOSED),
                (true, Side::Client) if !stream.has_answer => Fate::Answer,
                // A second head without END_STREAM cannot be trailers.
                (true, _) if !ends_stream => Fate::Refuse(Code::PROTOCOL_ERROR),
                (true, _) => Fate::Trailers,
            });
        }
        if self.role == Side::Client || id.is_multiple_of(2) {
            // A server opens no streams, and a client none with an even number.
            if self.role == Side::Server || id.is_multiple_of(2) || self.is_unopened(id) {
                return Err(ConnectionFault::protocol("HEADERS with an invalid stream id"));
            }
        }
        if !self.is_unopened(id) {
            return Ok(match self.was_reset(id) {
                true => Fate::PassOver,
                false => Fate::End(ConnectionFault {
                    code: Code::STREAM_CLOSED,
                    reason: "HEADERS on a closed stream",
                }),
            });
        }
        self.last_peer_stream = id;
        if id > self.last_taken {
            return Ok(Fate::PassOver);
        }
        Ok(match self.streams.len() >= self.limits.streams_max as usize {
            true => Fate::Refuse(Code::REFUSED_STREAM),
            false => Fate::Request,
        })
    }

    fn request<'b>(
        &mut self,
        id: u32,
        ends_stream: bool,
        builder: Builder<'b>,
        is_complete: bool,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let mut stream = self.new_stream(id);
        stream.is_remote_open = !ends_stream;
        let event = match builder.request(ends_stream, is_complete) {
            Ok(H2Request { is_websocket: true, .. }) | Err(Flaw::Refused(head::Fault::Protocol))
                if !self.limits.connect_protocol =>
            {
                return self.stream_fault(id, Code::PROTOCOL_ERROR, out);
            }
            Ok(asked) => {
                stream.length_left = asked.length;
                stream.is_head = asked.head.method == Method::Head;
                stream.is_connect = asked.is_websocket || asked.head.method == Method::Connect;
                if let Some(value) = asked.priority {
                    stream.priority = Priority::read(value);
                }
                let (head, is_websocket) = (asked.head, asked.is_websocket);
                Event::Request { stream: StreamId(id), head, is_websocket, is_whole: ends_stream }
            }
            Err(Flaw::Refused(fault)) => Event::Refused { stream: StreamId(id), fault },
            Err(Flaw::Malformed) => return self.stream_fault(id, Code::PROTOCOL_ERROR, out),
        };
        self.streams.insert(stream);
        Ok(event)
    }

    fn answer<'b>(
        &mut self,
        id: u32,
        ends_stream: bool,
        builder: Builder<'b>,
        is_complete: bool,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let Ok(head) = builder.answer(is_complete) else {
            return self.stream_fault(id, Code::PROTOCOL_ERROR, out);
        };
        let Some(stream) = self.streams.get_mut(id) else { return Ok(Event::Handled) };
        let is_interim = head.status.code() < 200;
        if is_interim {
            stream.interims += 1;
            // HTTP/2 has no upgrade (RFC 9113 section 8.6).
            let is_wrong = ends_stream || head.status == Status::SWITCHING_PROTOCOLS;
            if is_wrong || stream.interims > INTERIM_ANSWERS_MAX {
                return self.stream_fault(id, Code::PROTOCOL_ERROR, out);
            }
            return Ok(Event::Interim { stream: StreamId(id), head });
        }
        stream.has_answer = true;
        let is_tunnel = stream.is_connect && head.status.code() < 300;
        let has_content = !stream.is_head && !head.status.is_bodyless();
        stream.length_left = match has_content {
            true if is_tunnel => None,
            true => head.length,
            false => Some(0),
        };
        if ends_stream && has_content && !is_tunnel && head.length.is_some_and(|length| length > 0) {
            return self.stream_fault(id, Code::PROTOCOL_ERROR, out);
        }
        if ends_stream {
            self.remote_ended(id);
        }
        Ok(Event::Answer { stream: StreamId(id), head, is_whole: ends_stream })
    }

    fn trailers_came<'b>(
        &mut self,
        id: u32,
        builder: Builder<'b>,
        is_complete: bool,
        out: &mut Vec<u8>,
    ) -> Result<Event<'b>, ConnectionFault> {
        let is_short =
            self.streams.get(id).is_none_or(|stream| stream.length_left.is_some_and(|left| left > 0));
        match builder.trailers(is_complete) {
            Ok(trailers) if !is_short => {
                self.remote_ended(id);
                Ok(Event::End { stream: StreamId(id), trailers })
            }
            _ => self.stream_fault(id, Code::PROTOCOL_ERROR, out),
        }
    }

    /// The peer's message has ended.
    pub(super) fn remote_ended(&mut self, id: u32) {
        self.budgets.useful(FRAMES_REFUNDED);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_remote_open = false;
        }
        self.forget_if_over(id);
    }
}

/// A payload without its padding, and the length of the padding.
fn unpad(head: FrameHead, payload: &[u8]) -> Result<(&[u8], usize), ConnectionFault> {
    if !head.has(flag::PADDED) {
        return Ok((payload, 0));
    }
    let too_long = ConnectionFault::protocol("the padding is longer than the frame");
    let (&padding, rest) =
        payload.split_first().ok_or(ConnectionFault::size("a padded frame without pad length"))?;
    let bytes = rest.len().checked_sub(usize::from(padding)).ok_or(too_long)?;
    Ok((rest.get(..bytes).unwrap_or_default(), usize::from(padding)))
}
