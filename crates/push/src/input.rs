//! Input from subscribers, of which there should be almost none. One that sends too much is disconnected.

use flatout_engine::Moved;
use flatout_lane::slab::Key;
use flatout_wire::websocket::{MessageLimits, Opcode, Reader, ReaderEvent, Role, write_frame};

use super::message::Format;
use super::worker::{WorkerChannels, WorkerState, is_websocket};

/// Subscribers' messages have no meaning yet.
const LIMITS: MessageLimits = MessageLimits { message_bytes_max: 4 << 10, fragments_max: 16 };

/// Receives per subscriber at a time, and how many of them may fill the buffer; one that sends more is disconnected.
const RECEIVES_MAX: usize = 64;
const FULL_RECEIVES_MAX: usize = 4;

/// The reader of a WebSocket.
pub(super) fn reader(format: Format) -> Reader {
    Reader::new(Role::Server, format == Format::PackedFrames)
}

/// The effect of a piece of input.
enum InputEffect {
    Nothing,
    /// A frame is to be sent.
    Send(Vec<u8>),
    /// The connection ends, with this code if the fault is the client's.
    End(u16),
}

impl WorkerChannels {
    /// Receives a subscriber's input. Returns whether it stays.
    pub(super) fn receive_input(&self, state: &mut WorkerState, key: Key) -> bool {
        let mut full = 0;
        for _ in 0..RECEIVES_MAX {
            let Some(subscriber) = state.subscribers.get_mut(key) else { return true };
            let (guest, format) = (subscriber.guest, subscriber.format);
            let is_heard = is_websocket(format) && !subscriber.is_leaving;
            let input = subscriber.more.as_mut().and_then(|more| more.input.take());
            let (mut reader, earlier) = input.unwrap_or_else(|| (reader(format), Vec::new()));
            let mut buffer = self.lane.buffer();
            // Only the rest of a request's input, or the start of a frame, is kept.
            let earlier_bytes = earlier.len().min(buffer.len() / 2);
            let (start, room) = buffer.split_at_mut(earlier_bytes);
            start.copy_from_slice(earlier.get(..earlier_bytes).unwrap_or_default());
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
            if is_heard && earlier_bytes + came > 0 {
                subscriber.was_pinged &= came == 0;
                let there = buffer.get_mut(..earlier_bytes + came).unwrap_or_default();
                let (effects, rest) = read(&mut reader, there);
                if !(reader.is_idle() && rest.is_empty()) {
                    subscriber.more().input = Some((reader, rest));
                }
                drop(buffer);
                for effect in effects {
                    match effect {
                        InputEffect::Nothing => {}
                        InputEffect::Send(frame) => self.send_between(state, key, &frame),
                        InputEffect::End(code) => {
                            self.disconnect(state, key, code, "");
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
fn read(reader: &mut Reader, bytes: &mut [u8]) -> (Vec<InputEffect>, Vec<u8>) {
    let (mut effects, mut at) = (Vec::new(), 0);
    loop {
        let (used, effect) = match reader.step(bytes.get_mut(at..).unwrap_or_default(), &LIMITS) {
            Ok((used, ReaderEvent::NeedMore)) => {
                return (effects, bytes.get(at + used..).unwrap_or_default().to_vec());
            }
            Ok((used, ReaderEvent::Data { .. } | ReaderEvent::Pong(_))) => (used, InputEffect::Nothing),
            Ok((used, ReaderEvent::Ping(payload))) => {
                let mut frame = Vec::new();
                write_frame(Opcode::Pong, false, payload, None, &mut frame);
                (used, InputEffect::Send(frame))
            }
            Ok((used, ReaderEvent::Close(close))) => (used, InputEffect::End(close.code.unwrap_or(1000))),
            Err(fault) => (0, InputEffect::End(fault.code())),
        };
        at += used;
        let is_over = matches!(effect, InputEffect::End(_));
        // If several pings came, respond to the last one only (RFC 6455 section 5.5.3).
        match (effects.last(), &effect) {
            (_, InputEffect::Nothing) => {}
            (Some(InputEffect::Send(_)), InputEffect::Send(_)) => {
                effects.pop();
                effects.push(effect);
            }
            _ => effects.push(effect),
        }
        if is_over {
            return (effects, Vec::new());
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
        let (effects, _) = read(&mut reader(Format::Frames), &mut bytes);
        assert!(
            matches!(&effects[..], [InputEffect::Send(pong), InputEffect::End(4000)] if pong == b"\x8a\x01b")
        );
        let (effects, _) = read(&mut reader(Format::Frames), &mut frame(Opcode::Binary, &[0; 5000]));
        assert!(matches!(effects[..], [InputEffect::End(1009)]));
        let (effects, _) = read(&mut reader(Format::Frames), &mut [0x81, 0x01, 0x20]);
        assert!(matches!(effects[..], [InputEffect::End(1002)]));
    }
}
