//! The frames of a connection of HTTP/2 (RFC 9113, section 4.1), as they pass by: how much of the connection's window its sender has left.

/// What a client sends before its first frame (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const UPDATE_BYTES: usize = 4;

/// The window that a connection begins with.
const WINDOW_FIRST: i64 = 65_535;

/// One direction.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes that are no heads.
    skipped: usize,
    /// What has come of the next head, and of what is behind it in an update of a window.
    head: Vec<u8>,
}

/// The window of one end of a connection.
#[derive(Debug)]
pub(crate) struct Window {
    sent: Frames,
    received: Frames,
    bytes: i64,
    bytes_max: i64,
}

impl Frames {
    /// How much is wanted of the next frame.
    fn head_bytes(&self) -> usize {
        HEAD_BYTES + if self.head.get(3) == Some(&WINDOW_UPDATE) { UPDATE_BYTES } else { 0 }
    }

    /// Takes bytes, and calls `each` with the type, the stream, the length and, for an update, the increment.
    fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8, u32, usize, u32)) {
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            (self.skipped, bytes) = (self.skipped - skipped, &bytes[skipped..]);
            let wanted = self.head_bytes();
            let taken = (wanted - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.head.len() < self.head_bytes() {
                continue;
            }
            let number = |at: usize| {
                u32::from_be_bytes([0, 1, 2, 3].map(|it| self.head.get(at + it).copied().unwrap_or(0)))
            };
            let (kind, length) = (self.head[3], (number(0) >> 8) as usize);
            each(kind, number(5), length, number(HEAD_BYTES));
            self.skipped = if kind == WINDOW_UPDATE { 0 } else { length };
            self.head.clear();
        }
    }
}

impl Window {
    pub(crate) fn new(is_client: bool) -> Window {
        let sent = Frames { skipped: if is_client { PREFACE.len() } else { 0 }, ..Frames::default() };
        Window { sent, received: Frames::default(), bytes: WINDOW_FIRST, bytes_max: WINDOW_FIRST }
    }

    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        let window = &mut self.bytes;
        self.sent.take(bytes, |kind, _, length, _| *window -= if kind == DATA { length as i64 } else { 0 });
    }

    pub(crate) fn received(&mut self, bytes: &[u8]) {
        let window = &mut self.bytes;
        self.received.take(bytes, |kind, stream, _, more| {
            *window += if kind == WINDOW_UPDATE && stream == 0 { i64::from(more) } else { 0 };
        });
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    /// When nothing is on its way, the other end has given back nearly all: it may keep less than half of a window, so as not to send an
    /// update for each frame.
    pub(crate) fn check(&self) -> Result<(), String> {
        match 2 * self.bytes >= self.bytes_max {
            true => Ok(()),
            false => Err(format!(
                "a connection of HTTP/2 is at rest, and of its window only {} bytes are left of {}",
                self.bytes, self.bytes_max
            )),
        }
    }
}
