//! TLS handshakes: their count, and what was negotiated.

use flatout_tls::{Channel, ClientPlan, Connector};

/// ALPN protocol names.
pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// How connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    /// The server's name, for SNI and for the verification of its certificate.
    pub name: String,
    /// Which certificates we trust, and what we offer. The protocol follows from
    /// [`Plan::streams`](crate::Plan::streams). If sessions are kept, their number follows from the number of
    /// connections.
    pub client: ClientPlan,
}

/// TLS handshakes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// Full handshakes, including those before counting starts.
    pub full: u64,
    /// Resumed sessions, including those before counting starts.
    pub resumed: u64,
    /// Both kinds, in the counted time.
    pub counted: u64,
    /// What was negotiated in a thread's first handshake.
    pub agreed: Option<Agreed>,
}

/// Negotiated parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// Such as `TLSv1.3`.
    pub version: &'static str,
    /// Such as `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
    /// Such as `X25519`; `None` for a resumption with the old secret alone.
    pub key_exchange: Option<String>,
    /// Such as `h2` (ALPN).
    pub protocol: Option<String>,
}

/// Fewest and most sessions that a thread keeps: one per connection, within these limits.
const SESSIONS_MIN: usize = 256;
const SESSIONS_MAX: usize = 16 << 10;

impl Security {
    /// A connector for HTTP/2 or HTTP/1.1 and this many connections.
    ///
    /// # Errors
    /// An invalid name or file.
    pub(crate) fn connector(&self, is_http2: bool, connections: usize) -> Result<Connector, String> {
        let protocol = if is_http2 { HTTP2 } else { HTTP1 };
        let sessions_max = match self.client.sessions_max {
            0 => 0,
            _ => connections.clamp(SESSIONS_MIN, SESSIONS_MAX),
        };
        let client = ClientPlan { protocols: vec![protocol.to_vec()], sessions_max, ..self.client.clone() };
        Connector::open(&client, &self.name)
    }
}

impl Handshakes {
    /// Counts a completed handshake.
    pub(crate) fn note(&mut self, channel: &Channel, is_counted: bool) {
        match channel.is_resumed() {
            true => self.resumed += 1,
            false => self.full += 1,
        }
        self.counted += u64::from(is_counted);
        if self.agreed.is_none() {
            self.agreed = Agreed::of(channel);
        }
    }

    pub(crate) fn merge(&mut self, other: &Handshakes) {
        self.full += other.full;
        self.resumed += other.resumed;
        self.counted += other.counted;
        if self.agreed.is_none() {
            self.agreed.clone_from(&other.agreed);
        }
    }
}

impl Agreed {
    fn of(channel: &Channel) -> Option<Agreed> {
        let (version, cipher) = channel.cipher()?;
        Some(Agreed {
            version,
            cipher,
            key_exchange: channel.key_exchange(),
            protocol: channel.protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
        })
    }
}
