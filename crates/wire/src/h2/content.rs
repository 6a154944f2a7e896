//! Incoming content, and its flow control.

use super::connection::{Connection, Data, Inside, Side};
use super::event::{ConnectionFault, Event, StreamId};
use super::frame::{Code, FRAME_HEAD_BYTES, FrameHead, flag, write_window_update};
use super::limits::TINY_DATA_BYTES;
use crate::h1::Trailers;

impl Connection {
    /// Handles the head of a DATA frame: its payload is passed on as it arrives.
    pub(super) fn data<'b>(
        &mut self,
        head: FrameHead,
        rest: &'b [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event<'b>), ConnectionFault> {
        let id = head.stream;
        let mut used = FRAME_HEAD_BYTES;
        let mut padding = 0;
        if head.has(flag::PADDED) {
            match rest.first() {
                _ if head.bytes == 0 => {
                    return Err(ConnectionFault::size("a padded frame without pad length"));
                }
                None => return Ok((0, Event::NeedMore)),
                Some(&bytes) => padding = usize::from(bytes),
            }
            used += 1;
            if padding >= head.bytes {
                return Err(ConnectionFault::protocol("the padding is longer than the frame"));
            }
        }
        if self.is_unopened(id) {
            return Err(ConnectionFault::protocol("DATA on an idle stream"));
        }
        let bytes = head.bytes - padding - (used - FRAME_HEAD_BYTES);
        let is_last = head.has(flag::END_STREAM);
        self.count_content(bytes, padding, is_last)?;
        // Padding counts for flow control, and is returned at once.
        self.receive_window -= head.bytes as i64;
        if self.receive_window < 0 {
            return Err(ConnectionFault {
                code: Code::FLOW_CONTROL_ERROR,
                reason: "more data than the window allows",
            });
        }
        self.give_back(0, head.bytes - bytes, out);
        let (is_lost, event) = self.admit_content(id, head.bytes, bytes, is_last, out)?;
        if !is_lost {
            self.give_back(id, head.bytes - bytes, out);
        }
        self.inside = Inside::Data(Data { stream: id, bytes, padding, is_last, is_lost });
        Ok((used, event))
    }

    /// Counts useless frames.
    #[inline]
    fn count_content(&mut self, bytes: usize, padding: usize, is_last: bool) -> Result<(), ConnectionFault> {
        let is_tiny = bytes < TINY_DATA_BYTES && !is_last;
        if is_tiny || padding > bytes { self.budgets.frames(1) } else { Ok(()) }
    }

    /// Whether content is discarded because its stream has ended or is invalid; and the event for the application.
    fn admit_content(
        &mut self,
        id: u32,
        frame_bytes: usize,
        bytes: usize,
        is_last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(bool, Event<'static>), ConnectionFault> {
        let role = self.role;
        let Some(stream) = self.streams.get_mut(id).filter(|stream| stream.is_remote_open) else {
            if self.was_reset(id) {
                self.budgets.frames(1)?;
                return Ok((true, Event::Handled));
            }
            return Ok((true, self.stream_fault(id, Code::STREAM_CLOSED, out)?));
        };
        // A response has to start with its head (RFC 9113 section 8.1).
        let is_early = role == Side::Client && !stream.has_answer;
        stream.receive_window -= frame_bytes as i64;
        let left = stream.length_left.map(|left| left.checked_sub(bytes as u64));
        stream.length_left = left.flatten();
        let code = match left {
            _ if stream.receive_window < 0 => Code::FLOW_CONTROL_ERROR,
            _ if is_early => Code::PROTOCOL_ERROR,
            // Longer or shorter than declared.
            Some(None) => Code::PROTOCOL_ERROR,
            Some(Some(1..)) if is_last => Code::PROTOCOL_ERROR,
            _ => return Ok((false, Event::Handled)),
        };
        Ok((true, self.stream_fault(id, code, out)?))
    }

    /// Handles bytes of a frame's payload.
    pub(super) fn data_goes_on<'b>(
        &mut self,
        data: Data,
        bytes: &'b [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event<'b>), ConnectionFault> {
        let Data { stream: id, bytes: wanted, padding, is_last, .. } = data;
        // The stream may have been reset since the frame started.
        let is_lost = data.is_lost || self.streams.get(id).is_none_or(|stream| !stream.is_remote_open);
        if wanted > 0 {
            let here = wanted.min(bytes.len());
            let Some(piece) = bytes.get(..here).filter(|piece| !piece.is_empty()) else {
                return Ok((0, Event::NeedMore));
            };
            self.inside = Inside::Data(Data { bytes: wanted - here, is_lost, ..data });
            if is_lost {
                self.give_back(0, here, out);
                return Ok((here, Event::Handled));
            }
            return Ok((here, Event::Data { stream: StreamId(id), bytes: piece }));
        }
        if padding > 0 {
            let here = padding.min(bytes.len());
            self.inside = Inside::Data(Data { padding: padding - here, is_lost, ..data });
            return Ok((here, if here == 0 { Event::NeedMore } else { Event::Handled }));
        }
        self.inside = Inside::None;
        if !is_last || is_lost {
            return Ok((0, Event::Handled));
        }
        self.remote_ended(id);
        Ok((0, Event::End { stream: StreamId(id), trailers: Trailers::new() }))
    }

    /// The application has consumed this many bytes of a stream's content: the peer may send as many more.
    pub fn consumed(&mut self, stream: StreamId, bytes: usize, out: &mut Vec<u8>) {
        if self.is_closed() {
            return;
        }
        self.give_back(0, bytes, out);
        self.give_back(stream.0, bytes, out);
    }

    /// Lets the peer send this many bytes more of a stream's content before the application has consumed any.
    pub fn widen(&mut self, stream: StreamId, bytes: u32, out: &mut Vec<u8>) {
        if bytes == 0 || self.is_closed() {
            return;
        }
        if let Some(stream) = self.streams.get_mut(stream.0).filter(|stream| stream.is_remote_open) {
            stream.receive_window += i64::from(bytes);
            write_window_update(stream.id, bytes, out);
        }
    }

    /// Returns window to the peer, half a window at a time, so that not every frame causes an update.
    fn give_back(&mut self, id: u32, bytes: usize, out: &mut Vec<u8>) {
        let (credit, window, window_max) = match id {
            0 => (&mut self.credit, &mut self.receive_window, self.limits.connection_window),
            id => match self.streams.get_mut(id).filter(|stream| stream.is_remote_open) {
                Some(stream) => (&mut stream.credit, &mut stream.receive_window, self.limits.stream_window),
                None => return,
            },
        };
        *credit += bytes as u32;
        if *credit > 0 && *credit >= window_max / 2 {
            *window += i64::from(*credit);
            write_window_update(id, *credit, out);
            *credit = 0;
        }
    }
}
