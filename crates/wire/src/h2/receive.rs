//! Splits received bytes into frames, and dispatches them.

use super::connection::{Connection, Inside, Phase, Side};
use super::event::{ConnectionFault, Event};
use super::frame::{FRAME_HEAD_BYTES, FrameHead, PAYLOAD_BYTES_MAX, PREFACE, kind};
use super::head::Room;
use super::limits::{PRIORITY_BYTES_MAX, SETTINGS_MAX};

impl Connection {
    /// Processes bytes: returns how many were used, and the event. Heads are built in `room`, and replies to the peer
    /// are written to `out`.
    ///
    /// Call it until it returns [`Event::NeedMore`], and again when there are more bytes. Unused bytes must be passed
    /// again: at most one frame, 16 393 bytes. Do not call it while written bytes wait to be sent: from a peer that
    /// does not read, nothing is read either (CVE-2019-9512, 9515).
    ///
    /// # Errors
    /// The connection has ended. GOAWAY was written, and all further bytes are ignored.
    pub fn receive<'b>(
        &mut self,
        bytes: &'b [u8],
        room: &'b mut Room,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event<'b>), ConnectionFault> {
        let received = match self.phase {
            Phase::Open | Phase::Settings => match self.inside {
                Inside::None | Inside::Block(_) => self.frame(bytes, room, out),
                Inside::Data(data) => self.data_goes_on(data, bytes, out),
                Inside::Skip(left) => {
                    let here = left.min(bytes.len());
                    self.inside = if here == left { Inside::None } else { Inside::Skip(left - here) };
                    Ok((here, if here == 0 { Event::NeedMore } else { Event::Handled }))
                }
            },
            Phase::Preface => self.preface(bytes),
            Phase::Closed => Ok((bytes.len(), Event::NeedMore)),
        };
        received.map_err(|fault| self.fail(fault, out))
    }

    fn preface<'b>(&mut self, bytes: &[u8]) -> Result<(usize, Event<'b>), ConnectionFault> {
        let here = bytes.len().min(PREFACE.len());
        match PREFACE.split_at_checked(here) {
            Some((start, rest)) if bytes.starts_with(start) => {
                if !rest.is_empty() {
                    return Ok((0, Event::NeedMore));
                }
                self.phase = Phase::Settings;
                Ok((here, Event::Handled))
            }
            _ => Err(ConnectionFault::protocol("invalid connection preface")),
        }
    }

    /// Processes a frame. Errors in its head are found before its payload arrives.
    fn frame<'b>(
        &mut self,
        bytes: &'b [u8],
        room: &'b mut Room,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event<'b>), ConnectionFault> {
        let Some((head, rest)) = FrameHead::read(bytes) else { return Ok((0, Event::NeedMore)) };
        self.check(head)?;
        if head.kind == kind::GOAWAY {
            let Some(said) = rest.first_chunk() else { return Ok((0, Event::NeedMore)) };
            self.budgets.frames(1)?;
            let event = self.goaway(*said);
            // The debug data is ignored.
            return Ok((FRAME_HEAD_BYTES + said.len(), self.skip(head.bytes - said.len(), event)));
        }
        if head.kind == kind::DATA {
            return self.data(head, rest, out);
        }
        match head.kind {
            kind::PRIORITY_UPDATE if head.bytes <= PRIORITY_BYTES_MAX => {}
            kind::HEADERS..=kind::CONTINUATION => {}
            _ => {
                self.budgets.frames(1)?;
                return Ok((FRAME_HEAD_BYTES, self.skip(head.bytes, Event::Handled)));
            }
        }
        let Some(payload) = rest.get(..head.bytes) else { return Ok((0, Event::NeedMore)) };
        let event = match head.kind {
            kind::HEADERS => self.headers(head, payload, room, out)?,
            kind::CONTINUATION => self.continuation(head, payload, room, out)?,
            kind::PRIORITY => self.priority(head, payload, out)?,
            kind::RST_STREAM => self.reset_by_peer(head, payload)?,
            kind::SETTINGS => self.settings(head, payload, out)?,
            kind::PING => self.ping(head, payload, out)?,
            kind::WINDOW_UPDATE => self.window_update(head, payload, out)?,
            kind::PRIORITY_UPDATE => self.priority_update(payload)?,
            _ => Event::Handled,
        };
        Ok((FRAME_HEAD_BYTES + head.bytes, event))
    }

    fn skip<'b>(&mut self, bytes: usize, event: Event<'b>) -> Event<'b> {
        if bytes > 0 {
            self.inside = Inside::Skip(bytes);
        }
        event
    }

    /// Checks a frame by its head.
    #[inline]
    fn check(&mut self, head: FrameHead) -> Result<(), ConnectionFault> {
        if head.bytes > PAYLOAD_BYTES_MAX {
            return Err(ConnectionFault::size("the frame is longer than 16384 bytes"));
        }
        if let Inside::Block(block) = &self.inside {
            if head.kind != kind::CONTINUATION || head.stream != block.stream {
                return Err(ConnectionFault::protocol("a field block was interrupted"));
            }
        } else if head.kind == kind::CONTINUATION {
            return Err(ConnectionFault::protocol("CONTINUATION without HEADERS"));
        }
        if self.phase == Phase::Settings && head.kind != kind::SETTINGS {
            return Err(ConnectionFault::protocol("the first frame is not SETTINGS"));
        }
        self.check_kind(head)
    }

    fn check_kind(&self, head: FrameHead) -> Result<(), ConnectionFault> {
        let is_of_connection = head.stream == 0;
        match head.kind {
            kind::DATA | kind::HEADERS if !is_of_connection => Ok(()),
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION
                if is_of_connection =>
            {
                Err(ConnectionFault::protocol("stream id is 0"))
            }
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE if !is_of_connection => {
                Err(ConnectionFault::protocol("stream id is not 0"))
            }
            kind::PUSH_PROMISE => Err(ConnectionFault::protocol("PUSH_PROMISE is not allowed")),
            kind::PRIORITY if head.bytes != 5 => Err(ConnectionFault::size("PRIORITY is not 5 bytes long")),
            kind::RST_STREAM | kind::WINDOW_UPDATE if head.bytes != 4 => {
                Err(ConnectionFault::size("RST_STREAM or WINDOW_UPDATE is not 4 bytes long"))
            }
            kind::PING if head.bytes != 8 => Err(ConnectionFault::size("PING is not 8 bytes long")),
            kind::GOAWAY if head.bytes < 8 => Err(ConnectionFault::size("GOAWAY has fewer than 8 bytes")),
            kind::SETTINGS if head.bytes > SETTINGS_MAX * 6 => {
                Err(ConnectionFault::calm("too many settings"))
            }
            kind::PRIORITY_UPDATE if head.bytes < 4 => {
                Err(ConnectionFault::size("PRIORITY_UPDATE has fewer than 4 bytes"))
            }
            kind::PRIORITY_UPDATE if self.role == Side::Client => {
                Err(ConnectionFault::protocol("PRIORITY_UPDATE from a server"))
            }
            _ => Ok(()),
        }
    }
}
