//! Input from subscribers, of which there should be almost none. One that sends too much is disconnected.

use flatout_engine::Moved;
use flatout_lane::slab::Key;
use flatout_wire::websocket::{Event, Limits, Opcode, Reader, Role, write_frame};

use super::desk::{Desk, State, is_websocket};
use super::message::Format;

/// Subscribers' messages have no meaning yet.
const LIMITS: Limits = Limits { message_bytes_max: 4 << 10, fragments_max: 16 };

/// Receives per subscriber at a time, and how many of them may fill the buffer; one that sends more is disconnected.
const RECEIVES_MAX: usize = 64;
const FULL_RECEIVES_MAX: usize = 4;

/// The reader of a WebSocket.
pub(super) fn reader(format: Format) -> Reader {
    Reader::new(Role::Server, format == Format::PackedFrames)
}

/// The effect of a piece of input.
enum Wish {
    Nothing,
    /// A frame is to be sent.
    Say(Vec<u8>),
    /// The connection ends, with this code if the fault is the client's.
    End(u16),
}

impl Desk {
    /// Receives a subscriber's input. Returns whether it stays.
    pub(super) fn hear(&self, state: &mut State, key: Key) -> bool {
        let mut full = 0;
        for _ in 0..RECEIVES_MAX {
            let Some(subscriber) = state.subscribers.get_mut(key) else { return true };
            let (guest, format) = (subscriber.guest, subscriber.format);
            let is_heard = is_websocket(format) && !subscriber.is_leaving;
            let input = subscriber.more.as_mut().and_then(|more| more.input.take());
            let (mut reader, held) = input.unwrap_or_else(|| (reader(format), Vec::new()));
            let mut buffer = self.lane.buffer();
            // Only the rest of a request's input, or the start of a frame, is kept.
            let held_bytes = held.len().min(buffer.len() / 2);
            let (start, room) = buffer.split_at_mut(held_bytes);
            start.copy_from_slice(held.get(..held_bytes).unwrap_or_default());
            let room_bytes = room.len();
            let moved = self.lane.receive(guest, room);
            let came = match moved {
                Moved::Bytes(0) | Moved::Broken => return false,
                Moved::Bytes(came) => came,
                Moved::WouldBlock => 0,
            };
            full += usize::from(came == room_bytes);
            if full > FULL_RECEIVES_MAX {
                return false;
            }
            if is_heard && held_bytes + came > 0 {
                subscriber.was_pinged &= came == 0;
                let there = buffer.get_mut(..held_bytes + came).unwrap_or_default();
                let (wishes, rest) = read(&mut reader, there);
                if !(reader.is_idle() && rest.is_empty()) {
                    subscriber.more().input = Some((reader, rest));
                }
                drop(buffer);
                for wish in wishes {
                    match wish {
                        Wish::Nothing => {}
                        Wish::Say(frame) => self.send_between(state, key, &frame),
                        Wish::End(code) => {
                            self.dismiss(state, key, code, "");
                            return true;
                        }
                    }
                }
            }
            if moved == Moved::WouldBlock {
                return true;
            }
        }
        false
    }
}

/// All effects of these bytes, and the unused rest.
fn read(reader: &mut Reader, bytes: &mut [u8]) -> (Vec<Wish>, Vec<u8>) {
    let (mut wishes, mut at) = (Vec::new(), 0);
    loop {
        let (used, wish) = match reader.step(bytes.get_mut(at..).unwrap_or_default(), &LIMITS) {
            Ok((used, Event::NeedMore)) => {
                return (wishes, bytes.get(at + used..).unwrap_or_default().to_vec());
            }
            Ok((used, Event::Data { .. } | Event::Pong(_))) => (used, Wish::Nothing),
            Ok((used, Event::Ping(payload))) => {
                let mut frame = Vec::new();
                write_frame(Opcode::Pong, false, payload, None, &mut frame);
                (used, Wish::Say(frame))
            }
            Ok((used, Event::Close(close))) => (used, Wish::End(close.code.unwrap_or(1000))),
            Err(fault) => (0, Wish::End(fault.code())),
        };
        at += used;
        let is_over = matches!(wish, Wish::End(_));
        // If several pings came, respond to the last one only (RFC 6455 section 5.5.3).
        match (wishes.last(), &wish) {
            (_, Wish::Nothing) => {}
            (Some(Wish::Say(_)), Wish::Say(_)) => {
                wishes.pop();
                wishes.push(wish);
            }
            _ => wishes.push(wish),
        }
        if is_over {
            return (wishes, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::websocket::close_payload;

    fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(opcode, false, payload, Some([1, 2, 3, 4]), &mut out);
        out
    }

    #[test]
    fn pings_are_answered_and_faults_end_the_connection() {
        let mut bytes = [
            frame(Opcode::Ping, b"a"),
            frame(Opcode::Text, b"hello"),
            frame(Opcode::Ping, b"b"),
            frame(Opcode::Close, &close_payload(4000, "bye")),
        ]
        .concat();
        let (wishes, _) = read(&mut reader(Format::Frames), &mut bytes);
        assert!(matches!(&wishes[..], [Wish::Say(pong), Wish::End(4000)] if pong == b"\x8a\x01b"));
        let (wishes, _) = read(&mut reader(Format::Frames), &mut frame(Opcode::Binary, &[0; 5000]));
        assert!(matches!(wishes[..], [Wish::End(1009)]));
        let (wishes, _) = read(&mut reader(Format::Frames), &mut [0x81, 0x01, 0x20]);
        assert!(matches!(wishes[..], [Wish::End(1002)]));
    }
}
