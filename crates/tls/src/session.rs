//! The only adapter to rustls: a session in either role, without its own buffers. Received data is decrypted in
//! place, and data to send is appended to a buffer of the caller.
//!
//! The rustls interface used here is replaced in its next version; no other file depends on it.

use std::cell::OnceCell;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, ReadEarlyData, UnbufferedStatus,
};
use rustls::{CipherSuite, ClientConfig, CommonState, Error, HandshakeKind};

use crate::clients::Lenient;
use crate::profile::OpenProfile;
use crate::server::Live;

/// The maximum overhead of a record: head, nonce, padding and tag of any supported cipher.
const RECORD_OVERHEAD_BYTES_MAX: usize = 256;

/// A fatal alert before anything is encrypted (RFC 8446, sections 5.1 and 6): its type, two bytes of a version, two of its
/// length, its level, and the reason.
const ALERT: u8 = 21;
const ALERT_BYTES: usize = 7;
const FATAL: u8 = 2;
const ACCESS_DENIED: u8 = 49;
const UNRECOGNIZED_NAME: u8 = 112;

/// One connection's session.
pub(crate) enum Session {
    /// A server's, before its ClientHello has told which profile it gets.
    Undecided(Box<Undecided>),
    /// A server's, and what its client had to follow.
    Server(UnbufferedServerConnection, Followed),
    Client(UnbufferedClientConnection),
}

/// The rules of a server's session.
pub(crate) struct Followed {
    /// Their number.
    rules: u16,
    /// The name that the client asks for (SNI).
    server_name: Option<Box<str>>,
    lenient: Option<Arc<Lenient>>,
    has_verified: OnceCell<bool>,
}

/// The destination of decrypted bytes: a reader's buffer, and the connection's buffer for the excess.
pub(crate) struct Plain<'a> {
    buffer: &'a mut [u8],
    written: usize,
    left: &'a mut Vec<u8>,
    has_early: bool,
}

/// What to send.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// These bytes, at most as many as fit in a record.
    Bytes(&'a [u8]),
    /// close_notify.
    End,
}

/// How far received bytes were processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All complete records.
    Drained,
    /// Until the reader had no more room.
    Full,
    /// Up to the peer's close_notify.
    Closed,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(buffer: &'a mut [u8], left: &'a mut Vec<u8>) -> Plain<'a> {
        Plain { buffer, written: 0, left, has_early: false }
    }

    /// Whether some of the bytes came before the end of the handshake. Such a session can send too.
    pub(crate) fn has_early(&self) -> bool {
        self.has_early
    }

    /// Bytes in the reader's buffer.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.left.is_empty() || (self.written > 0 && self.written == self.buffer.len())
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = self.buffer.get_mut(self.written..).unwrap_or_default();
        let (fits, rest) = bytes.split_at(bytes.len().min(room.len()));
        room[..fits.len()].copy_from_slice(fits);
        self.written += fits.len();
        self.left.extend_from_slice(rest);
    }
}

impl Session {
    pub(crate) fn server(profile: &OpenProfile, server_name: Option<Box<str>>) -> Result<Session, Error> {
        let session = UnbufferedServerConnection::new(profile.config.clone())?;
        let followed = Followed {
            rules: profile.rules,
            server_name,
            lenient: profile.lenient.clone(),
            has_verified: OnceCell::new(),
        };
        Ok(Session::Server(session, followed))
    }

    /// A server's whose profile depends on the ClientHello.
    pub(crate) fn undecided(live: Arc<Live>, listener: u16) -> Session {
        Session::Undecided(Box::new(Undecided { live, listener }))
    }

    /// The number of the rules that its client had to follow; `None` for a client's, and before the ClientHello.
    pub(crate) fn rules(&self) -> Option<u16> {
        match self {
            Session::Server(_, followed) => Some(followed.rules),
            Session::Undecided(_) | Session::Client(_) => None,
        }
    }

    /// The name that a server's client asks for, in lower case.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match self {
            Session::Server(_, followed) => followed.server_name.as_deref(),
            Session::Undecided(_) | Session::Client(_) => None,
        }
    }

    /// Whether it is a client's.
    pub(crate) fn is_client(&self) -> bool {
        matches!(self, Session::Client(_))
    }

    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Session, Error> {
        UnbufferedClientConnection::new(config, name).map(Session::Client)
    }

    /// Processes records: decrypted bytes go to `plain`, and handshake messages are appended to `out`. Returns how
    /// many bytes were used, also on an error; then `out` has the alert.
    pub(crate) fn take(
        &mut self,
        records: &mut [u8],
        plain: &mut Plain<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Result<Progress, Error>) {
        if let Session::Undecided(undecided) = self {
            match undecided.decide(records, out) {
                Ok(Some(session)) => *self = session,
                Ok(None) => return (0, Ok(Progress::Drained)),
                Err(error) => return (records.len(), Err(error)),
            }
        }
        match self {
            Session::Undecided(_) => (0, Ok(Progress::Drained)),
            Session::Server(session, _) => take(session, records, plain, out),
            Session::Client(session) => take(session, records, plain, out),
        }
    }

    /// Sends something, after the session's own messages; bytes become one record. `part` is the incomplete rest left
    /// by the last [`Session::take`].
    pub(crate) fn say(
        &mut self,
        what: Output<'_>,
        part: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match self {
            Session::Undecided(_) => Err(Error::HandshakeNotComplete),
            Session::Server(session, _) => say(session, what, part, out),
            Session::Client(session) => say(session, what, part, out),
        }
    }

    /// Whether the handshake is still in progress.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.common().is_none_or(CommonState::is_handshaking)
    }

    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        self.common()?.alpn_protocol()
    }

    /// Version and cipher suite.
    pub(crate) fn cipher(&self) -> Option<(&'static str, String)> {
        let common = self.common()?;
        let version = match common.protocol_version()? {
            rustls::ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLSv1.2",
        };
        Some((version, suite_name(common.negotiated_cipher_suite()?.suite())))
    }

    /// The group of the key exchange; `None` for a resumption without key exchange.
    pub(crate) fn key_exchange(&self) -> Option<String> {
        self.common()?.negotiated_key_exchange_group().map(|group| format!("{:?}", group.name()))
    }

    /// Whether it resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.common().and_then(|common| common.handshake_kind()) == Some(HandshakeKind::Resumed)
    }

    /// The peer's certificate (DER), if it has sent one. It is verified only if [`has_verified_peer`](Session::has_verified_peer) says so.
    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        self.common()?.peer_certificates()?.first().map(|certificate| certificate.as_ref())
    }

    /// Whether the peer's certificate is from a CA that the plan trusts. Computed once for a connection, and only where other
    /// certificates are accepted too.
    pub(crate) fn has_verified_peer(&self) -> bool {
        let Session::Server(session, Followed { lenient: Some(lenient), has_verified, .. }) = self else {
            return true;
        };
        let verify = || lenient.has_verified(session.peer_certificates().unwrap_or_default());
        *has_verified.get_or_init(verify)
    }

    /// `None` before the ClientHello.
    fn common(&self) -> Option<&CommonState> {
        match self {
            Session::Undecided(_) => None,
            Session::Server(session, _) => Some(session),
            Session::Client(session) => Some(session),
        }
    }
}

/// What a server's session is made of when its ClientHello has arrived.
pub(crate) struct Undecided {
    live: Arc<Live>,
    listener: u16,
}

impl Undecided {
    /// Makes the session, if these records have the whole ClientHello; they are left for it.
    ///
    /// # Errors
    /// It is none; `out` has the alert.
    fn decide(&self, records: &[u8], out: &mut Vec<u8>) -> Result<Option<Session>, Error> {
        let mut acceptor = Acceptor::default();
        let mut rest = records;
        while !rest.is_empty() {
            // A full buffer: this is no ClientHello of a size that anybody sends.
            if acceptor.read_tls(&mut rest).is_err() {
                return Err(Error::General("the ClientHello is too large".to_owned()));
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(hello)) => {
                    let profile = self.live.profile(self.listener, &hello);
                    let lower = |name: &str| name.to_ascii_lowercase().into();
                    let named = hello.client_hello();
                    let name = named.server_name().filter(|_| self.live.keeps_names()).map(lower);
                    return profile.map(|profile| Session::server(profile, name)).transpose();
                }
                Err((error, mut alert)) => {
                    // Nothing fails here: it writes to memory.
                    let _ = alert.write_all(out);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }
}

/// A cipher suite's IANA name.
pub(crate) fn suite_name(suite: CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

/// The interface common to both roles, which rustls has twice.
trait Records {
    type Data;

    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Whether the session has messages to send; these are sent before records are read.
    fn has_to_say(&self) -> bool;

    /// Corrects the alert for a fault.
    fn correct_alert(_error: &Error, _sent: &mut [u8]) {}

    /// Takes early data, which only a server gets. Returns how many bytes of records were used.
    fn take_early(early: ReadEarlyData<'_, '_, Self::Data>, plain: &mut Plain<'_>) -> Result<usize, Error>;
}

impl Records for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn has_to_say(&self) -> bool {
        CommonState::wants_write(self)
    }

    /// rustls sends `access_denied` for a name without a certificate. The right one is `unrecognized_name` (RFC 6066,
    /// section 3).
    fn correct_alert(error: &Error, sent: &mut [u8]) {
        if let (Error::General(_), Some([ALERT, _, _, 0, 2, FATAL, reason @ ACCESS_DENIED])) =
            (error, sent.last_chunk_mut::<ALERT_BYTES>())
        {
            *reason = UNRECOGNIZED_NAME;
        }
    }

    fn take_early(
        mut early: ReadEarlyData<'_, '_, Self::Data>,
        plain: &mut Plain<'_>,
    ) -> Result<usize, Error> {
        plain.has_early = true;
        let mut used = 0;
        while let Some(record) = early.next_record() {
            let record = record?;
            used += record.discard;
            plain.add(record.payload);
        }
        Ok(used)
    }
}

impl Records for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(records)
    }

    fn has_to_say(&self) -> bool {
        CommonState::wants_write(self)
    }

    fn take_early(_: ReadEarlyData<'_, '_, Self::Data>, _: &mut Plain<'_>) -> Result<usize, Error> {
        Err(Error::General("early data from a server".to_owned()))
    }
}

fn take<R: Records>(
    session: &mut R,
    records: &mut [u8],
    plain: &mut Plain<'_>,
    out: &mut Vec<u8>,
) -> (usize, Result<Progress, Error>) {
    let mut used = 0;
    let mut has_closed = false;
    loop {
        if plain.is_full() {
            return (used, Ok(Progress::Full));
        }
        let status = session.process(records.get_mut(used..).unwrap_or_default());
        let mut discarded = status.discard;
        let went = match status.state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    Some(Ok(record)) => {
                        discarded += record.discard;
                        plain.add(record.payload);
                    }
                    Some(Err(error)) => break Err(error),
                    None => break Ok(None),
                }
            },
            Ok(ConnectionState::ReadEarlyData(early)) => R::take_early(early, plain).map(|used| {
                discarded += used;
                None
            }),
            Ok(ConnectionState::EncodeTlsData(mut message)) => {
                append(out, 0, |room| message.encode(room).map_err(too_small)).map(|()| None)
            }
            Ok(ConnectionState::TransmitTlsData(message)) => {
                message.done();
                Ok(None)
            }
            Ok(ConnectionState::PeerClosed) => {
                has_closed = true;
                Ok(None)
            }
            Ok(ConnectionState::Closed) => Ok(Some(Progress::Closed)),
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                Ok(Some(if has_closed { Progress::Closed } else { Progress::Drained }))
            }
            // There is no other state now.
            Ok(_) => Err(Error::General("an unexpected state".to_owned())),
            Err(error) => Err(error),
        };
        used += discarded;
        match went {
            Ok(None) => {}
            Ok(Some(came)) => return (used, Ok(came)),
            Err(error) => {
                let begins_at = out.len();
                alert(session, out);
                R::correct_alert(&error, out.get_mut(begins_at..).unwrap_or_default());
                return (used, Err(error));
            }
        }
    }
}

fn say<R: Records>(
    session: &mut R,
    what: Output<'_>,
    part: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    loop {
        // It remembers how far it has read an incomplete message, without checking that the bytes are still there.
        let status = session.process(part);
        let discarded = status.discard;
        match status.state? {
            ConnectionState::EncodeTlsData(mut message) => {
                append(out, 0, |room| message.encode(room).map_err(too_small))?;
            }
            ConnectionState::TransmitTlsData(message) => message.done(),
            // It was handled on reception.
            ConnectionState::PeerClosed => {}
            ConnectionState::WriteTraffic(mut writer) => {
                let bytes_count = if let Output::Bytes(bytes) = what { bytes.len() } else { 0 };
                return append(out, bytes_count, |room| {
                    let written = match what {
                        Output::Bytes(bytes) => writer.encrypt(bytes, room),
                        Output::End => writer.queue_close_notify(room),
                    };
                    written.map_err(|error| match error {
                        EncryptError::InsufficientSize(size) => Room::Needs(size),
                        error => Room::Fault(Error::General(error.to_string())),
                    })
                });
            }
            _ => return Err(Error::HandshakeNotComplete),
        }
        part.drain(..discarded.min(part.len()));
    }
}

/// Appends the alert for a fault. Do not use the session afterwards, because the data it has read is gone.
fn alert<R: Records>(session: &mut R, out: &mut Vec<u8>) {
    while session.has_to_say() {
        let Ok(ConnectionState::EncodeTlsData(mut message)) = session.process(&mut []).state else { return };
        if append(out, 0, |room| message.encode(room).map_err(too_small)).is_err() {
            return;
        }
    }
}

/// Why nothing was written.
enum Room {
    Needs(InsufficientSizeError),
    Fault(Error),
}

fn too_small(error: EncodeError) -> Room {
    match error {
        EncodeError::InsufficientSize(size) => Room::Needs(size),
        error => Room::Fault(Error::General(error.to_string())),
    }
}

/// Appends a record with this many bytes to `out`. If it needs more room, it is called again with that.
fn append(
    out: &mut Vec<u8>,
    bytes_count: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Room>,
) -> Result<(), Error> {
    let at = out.len();
    let mut room = bytes_count + RECORD_OVERHEAD_BYTES_MAX;
    loop {
        out.resize(at + room, 0);
        match write(out.get_mut(at..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(at + written);
                return Ok(());
            }
            Err(Room::Needs(size)) if size.required_size > room => room = size.required_size,
            Err(Room::Needs(_)) => {
                out.truncate(at);
                return Err(Error::General("no room for a record".to_owned()));
            }
            Err(Room::Fault(error)) => {
                out.truncate(at);
                return Err(error);
            }
        }
    }
}
