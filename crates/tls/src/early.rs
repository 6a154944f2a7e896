//! Sessions of a server that accepts early data (0-RTT, RFC 8446 section 8.1). They are stored here, and each
//! is valid for one connection: a replayed ClientHello with early data does not find its session.
//!
//! Encrypted tickets, as used without early data, could be replayed any number of times.

use std::fmt;
use std::sync::Arc;

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

/// Maximum early data of a connection: enough for heads of requests.
pub(crate) const EARLY_BYTES_MAX: u32 = 16 << 10;

/// Maximum number of sessions. A handshake creates two. Above it, older ones are dropped.
const SESSIONS_MAX: usize = 16 << 10;

/// Maximum size of a session, which contains the client's certificate, if any. Larger ones are not stored.
const SESSION_BYTES_MAX: usize = 4 << 10;

/// The stored sessions of a server. Clones share them.
#[derive(Clone)]
pub(crate) struct SessionStore {
    sessions: Arc<ServerSessionMemoryCache>,
    /// A hash of the requirements for client certificates: they are not checked again when a session is
    /// resumed.
    pub(crate) trust: Vec<u8>,
}

impl SessionStore {
    pub(crate) fn new(trust: Vec<u8>) -> SessionStore {
        SessionStore { sessions: ServerSessionMemoryCache::new(SESSIONS_MAX), trust }
    }
}

impl StoresServerSessions for SessionStore {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        session.len() <= SESSION_BYTES_MAX && self.sessions.put(id, session)
    }

    /// Used for TLS 1.2, which has no early data.
    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.sessions.get(id)
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(id)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").finish_non_exhaustive()
    }
}
