//! What TLS came to: what both sides agreed on, and how many handshakes there were.

use flatout_tls::{Channel, ClientPlan, Connector};

/// The names of protocols (ALPN).
pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// How connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    /// The server's name: what its certificate has to be for, and what it is asked for (SNI).
    pub name: String,
    /// Whom we trust, and what we offer. The protocol follows from [`Plan::streams`](crate::Plan::streams), and how many sessions
    /// are kept from the number of connections, where it is not 0.
    pub client: ClientPlan,
}

/// Handshakes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// With a key exchange and a certificate; those of the preparation and of the warm-up too.
    pub full: u64,
    /// Going on from an earlier session; those of the preparation and of the warm-up too.
    pub resumed: u64,
    /// Of either kind, in the counted time.
    pub counted: u64,
    /// What the first one of a thread has agreed on.
    pub agreed: Option<Agreed>,
}

/// What both sides have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// Such as `TLSv1.3`.
    pub version: &'static str,
    /// Such as `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
    /// Such as `X25519`; none where the secret of an earlier session was used alone.
    pub key_exchange: Option<String>,
    /// Such as `h2` (ALPN).
    pub protocol: Option<String>,
}

/// Sessions that a thread keeps at least and at most: one for each connection, between these.
const SESSIONS_MIN: usize = 256;
const SESSIONS_MAX: usize = 16 << 10;

impl Security {
    /// Begins connections of HTTP/2 or HTTP/1.1, so many at a time.
    ///
    /// # Errors
    /// What is wrong with a name or a file.
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
    /// Notes one that is done.
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
