//! A response body that is produced while it is sent: from its frames to the connection's queue.

use bytes::{BufMut, Bytes, BytesMut};
use flatout_lane::slab::Key;
use http::HeaderMap;

use std::os::fd::AsFd;

use crate::connection::{Connection, Making};
use crate::output::{Drained, StreamCoding};
use crate::serving::{Fate, Serving};

/// Queued bytes of one body over which its producer waits.
pub(crate) const QUEUE_BYTES_MAX: u64 = 256 << 10;

/// Queued bytes over which they are sent before the body is asked for more.
const QUEUE_BYTES_PER_SEND: u64 = 64 << 10;

/// Data of a chunk up to this size is copied between its framing; larger ones are sent from where they lie.
const COPY_BYTES_MAX: usize = 4 << 10;

impl Serving {
    /// Queues a piece of a body.
    pub(crate) fn body_data(&mut self, connection: &mut Connection, data: Bytes) -> Fate {
        let socket = connection.socket.as_fd();
        let Some(work) = connection.work.as_mut() else { return Fate::Keep };
        let Some(exchange) = work.exchange.as_mut() else { return Fate::Keep };
        let Making::Stream(coding, _) = &mut exchange.making else { return Fate::Keep };
        match coding {
            StreamCoding::UntilClose => exchange.queue.push_bytes(data),
            StreamCoding::Length(left) => match left.checked_sub(data.len() as u64) {
                Some(after) => {
                    *left = after;
                    exchange.queue.push_bytes(data);
                }
                // More than its Content-Length: the client would take the rest for the next answer.
                None => return Fate::Close,
            },
            StreamCoding::Chunked => {
                for piece in chunk(data).into_iter().flatten() {
                    exchange.queue.push_bytes(piece);
                }
            }
        }
        if exchange.queue.bytes() < QUEUE_BYTES_PER_SEND {
            return Fate::Keep;
        }
        let before = exchange.queue.bytes();
        let drained = exchange.queue.drain(socket);
        work.moved_bytes += before - exchange.queue.bytes();
        match drained {
            Drained::Broken => Fate::Close,
            Drained::All | Drained::Full | Drained::Yield => Fate::Keep,
        }
    }

    /// Sends what is queued, because the body has nothing more for now.
    pub(crate) fn body_flush(&mut self, key: Key, connection: &mut Connection) -> Fate {
        self.writable(key, connection)
    }

    /// Ends a body.
    pub(crate) fn body_end(
        &mut self,
        key: Key,
        connection: &mut Connection,
        trailers: Option<HeaderMap>,
    ) -> Fate {
        let Some(exchange) = connection.exchange() else { return Fate::Keep };
        let Making::Stream(coding, after) = std::mem::replace(&mut exchange.making, Making::Response) else {
            return Fate::Close;
        };
        match coding {
            // Less than its Content-Length: the client must not take the next answer for the rest.
            StreamCoding::Length(1..) => return Fate::Close,
            StreamCoding::Length(0) | StreamCoding::UntilClose => {}
            StreamCoding::Chunked => exchange.queue.push_bytes(last_chunk(trailers)),
        }
        exchange.making = Making::Done(after);
        if exchange.queue.is_empty() { self.settle(key, connection) } else { self.writable(key, connection) }
    }

    /// Cuts the connection: the client sees that the body is not whole.
    pub(crate) fn body_cut(&mut self, _connection: &mut Connection) -> Fate {
        Fate::Close
    }
}

fn chunk(data: Bytes) -> [Option<Bytes>; 3] {
    let mut head = Vec::with_capacity(20 + if data.len() <= COPY_BYTES_MAX { data.len() } else { 0 });
    flatout_wire::chunk::chunk_head(data.len(), &mut head);
    if data.len() <= COPY_BYTES_MAX {
        head.extend_from_slice(&data);
        head.extend_from_slice(b"\r\n");
        return [Some(head.into()), None, None];
    }
    [Some(head.into()), Some(data), Some(Bytes::from_static(b"\r\n"))]
}

fn last_chunk(trailers: Option<HeaderMap>) -> Bytes {
    let Some(trailers) = trailers else { return Bytes::from_static(b"0\r\n\r\n") };
    let mut out = BytesMut::from(&b"0\r\n"[..]);
    for (name, value) in &trailers {
        out.put_slice(name.as_str().as_bytes());
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
    out.put_slice(b"\r\n");
    out.freeze()
}
