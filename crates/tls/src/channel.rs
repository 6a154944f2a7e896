//! One connection: its socket, its session, and the data between the two.
//!
//! ```text
//! socket ──> incoming ──> session ──> the reader's buffer │ plain: what did not fit
//! socket <── outgoing <── session <── the sender's bytes
//! ```
//!
//! The connections of a worker share their work buffers. A connection keeps only leftovers: a partial record,
//! undelivered contents of a record, or records that the socket has not accepted. An idle one keeps nothing.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flatout_lane::pipe::Pipe;
use flatout_lane::socket::{self, Moved};

use crate::clients::PeerCertificate;
use crate::counts::Counts;
use crate::fault::Fault;
use crate::proofs::PROTOCOL;
use crate::session::{Output, Plain, Progress, Session};

/// The receive buffer: several records, and the largest handshake message.
const INCOMING_BYTES: usize = 64 << 10;

/// The limit for an incomplete handshake message on a server. A ClientHello takes 2 KiB, and client certificates fit
/// as well.
const HELLO_BYTES_MAX: usize = 16 << 10;

/// Bytes encrypted per send: one system call, and some 20 microseconds of work.
const BATCH_BYTES: usize = 64 << 10;

/// The initial record size: it fits in one packet, so its contents can be used as soon as that arrives.
const RECORD_BYTES_FIRST: usize = 1370;

/// Bytes sent in such records.
const FIRST_BYTES: usize = 4 * RECORD_BYTES_FIRST;

/// The record size after that.
const RECORD_BYTES_SECOND: usize = 4 << 10;

/// Bytes sent in records up to this size; the rest is sent in the largest records.
const SECOND_BYTES: usize = 64 << 10;

/// The largest record (RFC 8446 section 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;

/// The number of receives, and their bytes, without any contents, after which the peer is considered a flooder.
const EMPTY_RECEIVES_MAX: usize = 256;
const EMPTY_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// The work buffers of this thread's connections. No data of a connection stays in them.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    incoming: Vec<u8>,
    /// Gathered bytes to be sent.
    plain: Vec<u8>,
    /// Records to be sent.
    records: Vec<u8>,
}

/// A connection that is encrypted.
pub struct Channel {
    socket: OwnedFd,
    session: Session,
    /// A partial message, or undelivered records.
    incoming: Vec<u8>,
    /// The latter.
    has_more: bool,
    /// Undelivered decrypted bytes, from `plain_at` on.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records that the socket has not accepted, from `outgoing_at` on.
    outgoing: Vec<u8>,
    outgoing_at: usize,
    /// The sender's bytes in these records. They count as sent once the socket has accepted all of the records; until
    /// then the sender keeps them and offers them again.
    promised_bytes: usize,
    /// Bytes sent since something was received.
    burst_bytes: usize,
    /// The handshake is complete, or early data has arrived: data can be sent.
    is_open: bool,
    /// The caller has been notified that it is open.
    was_told: bool,
    /// The peer has sent close_notify.
    has_ended: bool,
    /// Our sending side is closed.
    is_shut: bool,
    fault: Option<Box<Fault>>,
    counts: Option<Arc<Counts>>,
    /// The reply to a peer that does not speak TLS.
    plaintext_reply: &'static [u8],
}

/// The progress of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shake {
    /// It waits for the peer.
    GoesOn,
    /// It is complete: data can be sent.
    Done,
    /// It has failed; [`Channel::fault`] knows why.
    Failed,
}

/// The result of flushing queued records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flushed {
    All,
    Full,
    Broken,
}

/// The data to send.
enum Source<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many bytes, copied from this position into the given buffer; returns how many.
    Copied(usize, &'a mut dyn FnMut(usize, &mut [u8]) -> io::Result<usize>),
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd, session: Session, counts: Option<Arc<Counts>>) -> Channel {
        Channel {
            socket,
            session,
            incoming: Vec::new(),
            has_more: false,
            plain: Vec::new(),
            plain_at: 0,
            outgoing: Vec::new(),
            outgoing_at: 0,
            promised_bytes: 0,
            burst_bytes: 0,
            is_open: false,
            was_told: false,
            has_ended: false,
            is_shut: false,
            fault: None,
            counts,
            plaintext_reply: b"",
        }
    }

    /// Sends `reply` as it is, in place of an alert, if the first byte of the peer is a letter: it speaks another protocol, in
    /// which the reply is readable.
    pub fn set_plaintext_reply(&mut self, reply: &'static [u8]) {
        self.plaintext_reply = reply;
    }

    /// The socket, for polling.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether data can be sent: the handshake is complete, or early data has arrived.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the data received so far is early data: it could be a replay by an attacker. Once the
    /// handshake is complete, earlier data is known to be from the client.
    pub fn is_early(&self) -> bool {
        self.is_open && self.session.is_handshaking()
    }

    /// Whether bytes can be sent since this was asked last.
    pub fn has_opened(&mut self) -> bool {
        self.is_open && !std::mem::replace(&mut self.was_told, true)
    }

    /// Why it has failed.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// The negotiated protocol (ALPN).
    pub fn protocol(&self) -> Option<&[u8]> {
        self.session.protocol()
    }

    /// Version and cipher suite, such as `TLSv1.3` and `TLS_AES_128_GCM_SHA256`.
    pub fn cipher(&self) -> Option<(&'static str, String)> {
        self.session.cipher()
    }

    /// The group of the key exchange, such as `X25519`; `None` for a resumption without key exchange.
    pub fn key_exchange(&self) -> Option<String> {
        self.session.key_exchange()
    }

    /// The name that the client asks for (SNI), in lower case; `None` before its ClientHello has arrived, and for a client's own connection.
    pub fn server_name(&self) -> Option<&str> {
        self.session.server_name()
    }

    /// Whether it resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.session.is_resumed()
    }

    /// The number of the rules that the client had to follow ([`Acceptor::rules`](crate::Acceptor::rules)); `None` before its
    /// ClientHello has arrived, and for a client's own connection.
    pub fn rules(&self) -> Option<u16> {
        self.session.rules()
    }

    /// The peer's certificate, if any (DER). That of a server is verified.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.session.peer_certificate()
    }

    /// The certificate of a client, if it has presented one.
    pub fn client_certificate(&self) -> Option<PeerCertificate> {
        let der = self.session.peer_certificate()?.to_vec();
        Some(PeerCertificate { der, is_verified: self.session.has_verified_peer() })
    }

    /// Whether EOF or a fault is already known and follows the received data. No event reports it.
    pub fn holds_end(&self) -> bool {
        self.has_ended || self.fault.is_some()
    }

    /// Whether records wait for room in the socket.
    pub fn wants_room(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Bytes of the heap that it keeps besides its session.
    pub fn bytes_kept(&self) -> usize {
        self.incoming.capacity() + self.plain.capacity() + self.outgoing.capacity()
    }

    /// Continues the handshake when the socket is ready.
    pub fn shake(&mut self) -> Shake {
        if self.is_open || self.holds_end() {
            return if self.fault.is_some() { Shake::Failed } else { Shake::Done };
        }
        SCRATCH.with_borrow_mut(|scratch| self.advance(scratch, &mut [], true));
        match () {
            () if self.fault.is_some() => Shake::Failed,
            () if self.is_open => Shake::Done,
            () => Shake::GoesOn,
        }
    }

    /// Receives into `buffer`. A short result means that the socket is empty, unless [`Channel::holds_end`] is set;
    /// [`Moved::Bytes`]`(0)` is the peer's close_notify.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Moved {
        let mut written = self.take_plain(buffer);
        if written < buffer.len() && self.plain.is_empty() && !self.holds_end() {
            let room = buffer.get_mut(written..).unwrap_or_default();
            written += SCRATCH.with_borrow_mut(|scratch| self.advance(scratch, room, false));
        }
        if written > 0 {
            self.burst_bytes = 0;
            return Moved::Bytes(written);
        }
        self.nothing()
    }

    /// Sends `bytes`, or the start of them. Unsent bytes have to be offered again, unchanged.
    pub fn send(&mut self, bytes: &[u8]) -> Moved {
        self.send_from(Source::Bytes(bytes), false)
    }

    /// The same with slices, one after another; `more` holds back a packet that is not full.
    pub fn send_slices(&mut self, slices: &[IoSlice<'_>], more: bool) -> Moved {
        if let [only] = slices {
            return self.send_from(Source::Bytes(only), more);
        }
        let bytes_count = slices.iter().map(|slice| slice.len()).sum();
        let copy = &mut |at, room: &mut [u8]| Ok(copy_slices(slices, at, room));
        self.send_from(Source::Copied(bytes_count, copy), more)
    }

    /// The same with `bytes` bytes of a file from `offset` on; [`Moved::Bytes`]`(0)` means end of file.
    pub fn send_file(&mut self, file: &File, offset: u64, bytes: u64) -> Moved {
        let bytes_count = usize::try_from(bytes).unwrap_or(usize::MAX);
        let copy = &mut |at, room: &mut [u8]| {
            loop {
                match file.read_at(room, offset + at as u64) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => return read,
                }
            }
        };
        self.send_from(Source::Copied(bytes_count, copy), false)
    }

    /// The same with up to `bytes` bytes of the contents of a pipe.
    pub fn send_pipe(&mut self, pipe: &mut Pipe, bytes: usize, more: bool) -> Moved {
        let bytes_count = pipe.bytes().min(bytes);
        let sent = self.send_from(Source::Copied(bytes_count, &mut |_, room| pipe.copy_out(room)), more);
        if let Moved::Bytes(sent) = sent {
            pipe.count_out(sent);
        }
        sent
    }

    /// Receives up to `bytes` bytes into an empty pipe, as far as they fit; see [`Channel::receive`].
    pub fn fill_pipe(&mut self, pipe: &mut Pipe, bytes: usize) -> Moved {
        if self.plain.is_empty() && !self.holds_end() {
            // With an empty buffer, received data is kept in the channel.
            SCRATCH.with_borrow_mut(|scratch| self.advance(scratch, &mut [], false));
        }
        let left = self.plain.get(self.plain_at..).unwrap_or_default();
        let left = left.get(..bytes).unwrap_or(left);
        if left.is_empty() {
            return self.nothing();
        }
        let moved = pipe.copy_in(left);
        if let Moved::Bytes(count) = moved {
            self.burst_bytes = 0;
            self.pass_plain(count);
        }
        moved
    }

    /// Sends close_notify, if everything before it was sent.
    pub fn shut_down(&mut self) {
        self.end();
        socket::shutdown_write(self.socket.as_fd());
    }

    /// The same for a socket that is about to be closed. If data is left unsent, the peer has to see that it is
    /// missing.
    pub fn end(&mut self) {
        if self.is_shut || !self.is_open || self.fault.is_some() || self.flush() != Flushed::All {
            return;
        }
        self.is_shut = true;
        let mut record = Vec::new();
        if self.say(Output::End, &mut record).is_ok() {
            // If the socket has no room for it, the peer does not read anyway.
            let _ = socket::send(self.socket.as_fd(), &record);
        }
    }

    /// Sent bytes that the peer has not acknowledged.
    pub fn unacknowledged_bytes(&self) -> u64 {
        let waiting = self.outgoing.len() - self.outgoing_at;
        // Unsent bytes are counted by the sender.
        (socket::unacknowledged_bytes(self.socket.as_fd()) + waiting as u64)
            .saturating_sub(self.promised_bytes as u64)
    }

    fn say(&mut self, what: Output<'_>, out: &mut Vec<u8>) -> Result<(), rustls::Error> {
        // Complete records were left because their contents had no room: do not decrypt them now.
        let mut none = Vec::new();
        let part = if self.has_more { &mut none } else { &mut self.incoming };
        self.session.say(what, part, out)
    }

    /// Delivers leftover decrypted bytes.
    fn take_plain(&mut self, buffer: &mut [u8]) -> usize {
        let left = self.plain.get(self.plain_at..).unwrap_or_default();
        let count = left.len().min(buffer.len());
        if count > 0 {
            buffer[..count].copy_from_slice(&left[..count]);
            self.pass_plain(count);
        }
        count
    }

    /// Marks leftover decrypted bytes as delivered.
    fn pass_plain(&mut self, count: usize) {
        self.plain_at += count;
        if self.plain_at >= self.plain.len() {
            self.plain = Vec::new();
            self.plain_at = 0;
        }
    }

    /// Why there is nothing to receive.
    fn nothing(&self) -> Moved {
        match (&self.fault, self.has_ended) {
            (Some(_), _) => Moved::Broken,
            (None, true) => Moved::Bytes(0),
            (None, false) => Moved::WouldBlock,
        }
    }

    /// Receives until the buffer is full, the socket is empty or, if requested, the handshake is complete. Returns
    /// the number of decrypted bytes in the buffer. Records faults and EOF.
    fn advance(&mut self, scratch: &mut Scratch, buffer: &mut [u8], until_open: bool) -> usize {
        scratch.incoming.resize(INCOMING_BYTES, 0);
        let records = &mut scratch.incoming[..];
        let mut filled = self.incoming.len().min(records.len());
        records[..filled].copy_from_slice(&self.incoming[..filled]);
        self.incoming = Vec::new();
        let mut left = Vec::new();
        let mut plain = Plain::new(buffer, &mut left);
        let mut received = Received::default();
        loop {
            let starts_with_letter =
                !self.is_open && records[..filled].first().is_some_and(u8::is_ascii_alphabetic);
            let (used, came) = self.session.take(&mut records[..filled], &mut plain, &mut self.outgoing);
            if starts_with_letter && came.is_err() && !self.plaintext_reply.is_empty() {
                self.outgoing = self.plaintext_reply.to_vec();
            }
            records.copy_within(used..filled, 0);
            filled -= used;
            // Handshake messages, and the alert for a fault.
            let is_broken = self.flush() == Flushed::Broken;
            if let Err(error) = came {
                self.fail(Fault::Protocol(error));
                break;
            }
            self.note_open(plain.has_early());
            self.has_ended |= came == Ok(Progress::Closed);
            self.has_more = came == Ok(Progress::Full);
            if came != Ok(Progress::Drained) || (until_open && self.is_open) {
                break;
            }
            // A short receive has emptied the socket.
            if received.was_short && plain.written() > 0 {
                break;
            }
            let next = match records.get_mut(filled..).filter(|room| !room.is_empty()) {
                _ if is_broken => Err(Fault::Broken),
                Some(room) => received.more(self.socket.as_fd(), room),
                None => Err(Fault::TooLarge),
            };
            match next {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(fault) => {
                    self.fail(fault);
                    break;
                }
            }
        }
        let written = plain.written();
        self.plain = left;
        if self.fault.is_none() {
            self.keep_records(&records[..filled]);
        }
        written
    }

    fn keep_records(&mut self, records: &[u8]) {
        if !self.session.is_client() && !self.is_open && records.len() > HELLO_BYTES_MAX {
            return self.fail(Fault::TooLarge);
        }
        self.incoming = records.to_vec();
    }

    fn note_open(&mut self, has_early: bool) {
        if self.is_open || (self.session.is_handshaking() && !has_early) {
            return;
        }
        self.is_open = true;
        if let Some(counts) = &self.counts {
            counts.note_done(self.session.is_resumed());
            // A CA's validation needs only the handshake; this protocol has no application data.
            self.has_ended = self.session.protocol() == Some(PROTOCOL);
        }
    }

    fn fail(&mut self, fault: Fault) {
        if let Some(counts) = self.counts.as_ref().filter(|_| !self.is_open) {
            counts.note_failed();
        }
        self.incoming = Vec::new();
        self.fault.get_or_insert_with(|| Box::new(fault));
    }

    /// Sends queued records.
    fn flush(&mut self) -> Flushed {
        while let Some(rest) = self.outgoing.get(self.outgoing_at..).filter(|rest| !rest.is_empty()) {
            match socket::send(self.socket.as_fd(), rest) {
                Moved::Bytes(sent) => self.outgoing_at += sent,
                Moved::WouldBlock => return Flushed::Full,
                Moved::Broken => return Flushed::Broken,
            }
        }
        if !self.outgoing.is_empty() {
            self.outgoing = Vec::new();
            self.outgoing_at = 0;
        }
        Flushed::All
    }

    fn send_from(&mut self, mut source: Source<'_>, more: bool) -> Moved {
        if self.is_shut || self.fault.is_some() {
            return Moved::Broken;
        }
        if !self.is_open {
            return Moved::WouldBlock;
        }
        let wanted = source.bytes_count();
        let mut sent = 0;
        loop {
            match self.flush() {
                Flushed::Broken => return Moved::Broken,
                Flushed::Full => return moved(sent),
                Flushed::All => {}
            }
            let promised = self.promised_bytes.min(wanted - sent);
            self.promised_bytes -= promised;
            sent += promised;
            if sent == wanted {
                return Moved::Bytes(sent);
            }
            let batch = SCRATCH.with_borrow_mut(|scratch| self.send_batch(scratch, &mut source, sent, more));
            match batch {
                // End of file.
                Some(0) => return Moved::Bytes(sent),
                Some(_) => {}
                None => return Moved::Broken,
            }
        }
    }

    /// Encrypts the data from `at` on, and sends as much of it as the socket accepts. The rest is queued; all of it
    /// counts as promised. Returns how much that is.
    fn send_batch(
        &mut self,
        scratch: &mut Scratch,
        source: &mut Source<'_>,
        at: usize,
        more: bool,
    ) -> Option<usize> {
        let Scratch { plain, records, .. } = scratch;
        let bytes = match source {
            Source::Bytes(bytes) => bytes.get(at..).unwrap_or_default(),
            Source::Copied(bytes_count, copy) => {
                plain.resize(BATCH_BYTES, 0);
                let room = plain.get_mut(..(*bytes_count - at).min(BATCH_BYTES))?;
                let copied = copy(at, room).ok()?;
                plain.get(..copied)?
            }
        };
        records.clear();
        let mut batch = 0;
        while let Some(rest) = bytes.get(batch..bytes.len().min(BATCH_BYTES)).filter(|rest| !rest.is_empty())
        {
            let contents = rest.get(..record_bytes(self.burst_bytes)).unwrap_or(rest);
            if let Err(error) = self.say(Output::Bytes(contents), records) {
                self.fail(Fault::Protocol(error));
                return None;
            }
            batch += contents.len();
            self.burst_bytes = self.burst_bytes.saturating_add(contents.len());
        }
        let taken = match socket::send_slices(self.socket.as_fd(), &[IoSlice::new(records)], more) {
            Moved::Bytes(taken) => taken,
            Moved::WouldBlock => 0,
            Moved::Broken => return None,
        };
        self.promised_bytes = batch;
        self.outgoing = records.get(taken..).unwrap_or_default().to_vec();
        Some(batch)
    }
}

impl Source<'_> {
    fn bytes_count(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Copied(bytes_count, _) => *bytes_count,
        }
    }
}

/// Received data without contents so far.
#[derive(Default)]
struct Received {
    count: usize,
    bytes: usize,
    was_short: bool,
}

impl Received {
    /// Receives more: returns how many bytes, 0 if there are none now.
    fn more(&mut self, socket: BorrowedFd<'_>, room: &mut [u8]) -> Result<usize, Fault> {
        if self.count >= EMPTY_RECEIVES_MAX || self.bytes >= EMPTY_BYTES_MAX {
            return Err(Fault::Flood);
        }
        match socket::recv(socket, room) {
            Moved::Bytes(0) => Err(Fault::Truncated),
            Moved::Broken => Err(Fault::Broken),
            Moved::WouldBlock => Ok(0),
            Moved::Bytes(count) => {
                self.was_short = count < room.len();
                self.count += 1;
                self.bytes += count;
                Ok(count)
            }
        }
    }
}

/// The size of the next record, after this many bytes of the same response.
fn record_bytes(burst_bytes: usize) -> usize {
    match burst_bytes {
        0..FIRST_BYTES => RECORD_BYTES_FIRST,
        FIRST_BYTES..SECOND_BYTES => RECORD_BYTES_SECOND,
        _ => RECORD_BYTES_MAX,
    }
}

fn moved(sent: usize) -> Moved {
    match sent {
        0 => Moved::WouldBlock,
        sent => Moved::Bytes(sent),
    }
}

/// Copies data of the slices from `at` on, as far as there is room.
fn copy_slices(slices: &[IoSlice<'_>], at: usize, room: &mut [u8]) -> usize {
    let mut skip = at;
    let mut copied = 0;
    for slice in slices {
        let bytes = slice.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(slice.len());
        let fits = bytes.len().min(room.len() - copied);
        room[copied..copied + fits].copy_from_slice(&bytes[..fits]);
        copied += fits;
        if copied == room.len() {
            break;
        }
    }
    copied
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("socket", &self.socket).field("is_open", &self.is_open).finish()
    }
}
