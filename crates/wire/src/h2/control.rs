//! Frames without heads and content.

use super::connection::{Connection, LEAVING_PING, Leaving, Phase, Side};
use super::event::{ConnectionFault, Event, StreamId};
use super::frame::{
    Code, FrameHead, PAYLOAD_BYTES_CEILING, PAYLOAD_BYTES_MAX, WINDOW_MAX, flag, kind, read_u32, setting,
    write_head, write_ping,
};
use super::limits::WINDOW_CHANGE_FRAMES;
use super::priority::Priority;

impl Connection {
    /// Dependencies of RFC 7540 are ignored, except that a stream must not depend on itself.
    pub(super) fn priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event<'static>, ConnectionFault> {
        self.budgets.frames(1)?;
        if read_u32(payload).is_some_and(|on| on & 0x7fff_ffff == head.stream) {
            if self.is_unopened(head.stream) {
                return Err(ConnectionFault::protocol("a stream depends on itself"));
            }
            return self.stream_fault(head.stream, Code::PROTOCOL_ERROR, out);
        }
        Ok(Event::Handled)
    }

    /// Resets an active stream because of the peer's fault; ignores other streams.
    pub(super) fn stream_fault(
        &mut self,
        id: u32,
        code: Code,
        out: &mut Vec<u8>,
    ) -> Result<Event<'static>, ConnectionFault> {
        match self.reset_for_fault(id, code, out)? {
            true => Ok(Event::Reset { stream: StreamId(id), code }),
            false => Ok(Event::Handled),
        }
    }

    /// Every reset counts, even of a stream that has ended; each served stream returns one to the budget.
    pub(super) fn reset_by_peer(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Event<'static>, ConnectionFault> {
        if self.is_unopened(head.stream) {
            return Err(ConnectionFault::protocol("RST_STREAM on an idle stream"));
        }
        let code = Code(read_u32(payload).unwrap_or_default());
        let Some(stream) = self.streams.get(head.stream) else {
            self.budgets.frames(1)?;
            return Ok(Event::Handled);
        };
        let was_over = stream.is_over();
        // A server may stop a client's body with it after a complete response (RFC 9113 section 8.1).
        let is_fair = self.role == Side::Client && !stream.is_remote_open && code == Code::NO_ERROR;
        if is_fair {
            self.budgets.frames(1)?;
        } else {
            self.budgets.reset()?;
        }
        let is_held = self.break_off(head.stream);
        match is_held && !was_over {
            true => Ok(Event::Reset { stream: StreamId(head.stream), code }),
            false => Ok(Event::Handled),
        }
    }

    pub(super) fn settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event<'static>, ConnectionFault> {
        let is_first = self.phase == Phase::Settings;
        if !is_first {
            self.budgets.frames(1)?;
        }
        if head.has(flag::ACK) {
            if is_first {
                return Err(ConnectionFault::protocol("the first frame is not SETTINGS"));
            }
            self.are_settings_known = true;
            return match payload.is_empty() {
                true => Ok(Event::Handled),
                false => Err(ConnectionFault::size("SETTINGS ACK with a payload")),
            };
        }
        let (entries, []) = payload.as_chunks::<6>() else {
            return Err(ConnectionFault::size("SETTINGS whose length is not a multiple of 6"));
        };
        let mut has_more_room = false;
        for &[n0, n1, v0, v1, v2, v3] in entries {
            let (name, value) = (u16::from_be_bytes([n0, n1]), u32::from_be_bytes([v0, v1, v2, v3]));
            has_more_room |= self.setting(name, value)?;
        }
        self.phase = Phase::Open;
        write_head(0, kind::SETTINGS, flag::ACK, 0, out);
        Ok(if has_more_room { Event::Room { stream: None } } else { Event::Handled })
    }

    /// Returns whether it allows us to send more.
    fn setting(&mut self, name: u16, value: u32) -> Result<bool, ConnectionFault> {
        match name {
            setting::ENABLE_PUSH if value > 1 || (value == 1 && self.role == Side::Client) => {
                Err(ConnectionFault::protocol("invalid ENABLE_PUSH"))
            }
            setting::ENABLE_CONNECT_PROTOCOL if value > 1 => {
                Err(ConnectionFault::protocol("ENABLE_CONNECT_PROTOCOL is neither 0 nor 1"))
            }
            setting::ENABLE_CONNECT_PROTOCOL => {
                self.peer.connect_protocol |= value == 1;
                Ok(false)
            }
            setting::NO_RFC7540_PRIORITIES if value > 1 => {
                Err(ConnectionFault::protocol("NO_RFC7540_PRIORITIES is neither 0 nor 1"))
            }
            setting::MAX_CONCURRENT_STREAMS => {
                let had = std::mem::replace(&mut self.peer.streams_max, value);
                Ok(self.role == Side::Client && value > had)
            }
            setting::INITIAL_WINDOW_SIZE => self.change_windows(value),
            setting::MAX_FRAME_SIZE => {
                if !(PAYLOAD_BYTES_MAX as u32..=PAYLOAD_BYTES_CEILING).contains(&value) {
                    return Err(ConnectionFault::protocol("MAX_FRAME_SIZE is below 16384, or too large"));
                }
                // Only for field blocks, between whose frames there can be no others: with larger frames of content, one stream
                // could delay the others for longer.
                self.peer.block_frame_bytes = value as usize;
                Ok(false)
            }
            // Our encoder has no dynamic table, and our heads are always small enough.
            setting::HEADER_TABLE_SIZE | setting::MAX_HEADER_LIST_SIZE => Ok(false),
            _ => Ok(false),
        }
    }

    /// The initial window of streams changes, and with it the window of each existing stream, even below 0.
    fn change_windows(&mut self, value: u32) -> Result<bool, ConnectionFault> {
        let window = i64::from(value);
        if window > WINDOW_MAX {
            return Err(ConnectionFault {
                code: Code::FLOW_CONTROL_ERROR,
                reason: "INITIAL_WINDOW_SIZE is too large",
            });
        }
        if self.streams.len() > 0 {
            self.budgets.frames(WINDOW_CHANGE_FRAMES)?;
        }
        let step = window - std::mem::replace(&mut self.peer.stream_window, window);
        for stream in self.streams.iter_mut() {
            stream.send_window += step;
            if stream.send_window > WINDOW_MAX {
                let reason = "INITIAL_WINDOW_SIZE makes a window too large";
                return Err(ConnectionFault { code: Code::FLOW_CONTROL_ERROR, reason });
            }
        }
        Ok(step > 0)
    }

    pub(super) fn ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event<'static>, ConnectionFault> {
        self.budgets.frames(1)?;
        let Some(opaque) = payload.first_chunk() else { return Ok(Event::Handled) };
        if !head.has(flag::ACK) {
            write_ping(flag::ACK, opaque, out);
        } else if *opaque == LEAVING_PING && self.leaving == Leaving::Announced {
            self.leave_now(out);
        }
        Ok(Event::Handled)
    }

    pub(super) fn goaway(&mut self, said: [u8; 8]) -> Event<'static> {
        let [l0, l1, l2, l3, c0, c1, c2, c3] = said;
        let last = u32::from_be_bytes([l0, l1, l2, l3]) & 0x7fff_ffff;
        self.is_peer_leaving = true;
        Event::GoAway { last: StreamId(last), code: Code(u32::from_be_bytes([c0, c1, c2, c3])) }
    }

    pub(super) fn window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event<'static>, ConnectionFault> {
        self.budgets.frames(1)?;
        let step = i64::from(read_u32(payload).unwrap_or_default() & 0x7fff_ffff);
        if head.stream == 0 {
            if step == 0 {
                return Err(ConnectionFault::protocol("WINDOW_UPDATE by 0"));
            }
            self.send_window += step;
            if self.send_window > WINDOW_MAX {
                return Err(ConnectionFault {
                    code: Code::FLOW_CONTROL_ERROR,
                    reason: "the window is too large",
                });
            }
            return Ok(Event::Room { stream: None });
        }
        if self.is_unopened(head.stream) {
            return Err(ConnectionFault::protocol("WINDOW_UPDATE on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(head.stream).filter(|stream| stream.is_local_open) else {
            return Ok(Event::Handled);
        };
        if step == 0 {
            return self.stream_fault(head.stream, Code::PROTOCOL_ERROR, out);
        }
        stream.send_window += step;
        if stream.send_window > WINDOW_MAX {
            return self.stream_fault(head.stream, Code::FLOW_CONTROL_ERROR, out);
        }
        Ok(Event::Room { stream: Some(StreamId(head.stream)) })
    }

    /// The client changes the priority of a stream (RFC 9218 section 7.1). Ignored for streams that do not exist.
    pub(super) fn priority_update(&mut self, payload: &[u8]) -> Result<Event<'static>, ConnectionFault> {
        self.budgets.frames(1)?;
        let id = read_u32(payload).unwrap_or_default() & 0x7fff_ffff;
        if id == 0 {
            return Err(ConnectionFault::protocol("PRIORITY_UPDATE for stream 0"));
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.priority = Priority::read(payload.get(4..).unwrap_or_default());
        }
        Ok(Event::Handled)
    }
}
