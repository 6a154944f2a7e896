//! Sessions of a server that takes early data (0-RTT, RFC 8446 section 8.1): they are kept here, and each is good for one connection.
//! Whoever records a hello with early data and sends it again finds its session gone.
//!
//! A ticket that only the server can read, as without early data, could be used any number of times.

use std::fmt;
use std::sync::Arc;

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

/// Bytes that a client may send before its handshake is over: heads of requests.
pub(crate) const EARLY_BYTES_MAX: u32 = 16 << 10;

/// Sessions that are kept; a handshake makes two. Older ones make room.
const SESSIONS_MAX: usize = 16 << 10;

/// Bytes of a session. One of a client with a certificate has that in it; a larger one is not kept.
const SESSION_BYTES_MAX: usize = 4 << 10;

/// Sessions of a server that trusts these clients. Clones are the same.
#[derive(Clone)]
pub(crate) struct Kept {
    sessions: Arc<ServerSessionMemoryCache>,
    /// What the server's trust in clients depends on: a session that goes on is not checked again.
    pub(crate) trust: Vec<u8>,
}

impl Kept {
    pub(crate) fn new(trust: Vec<u8>) -> Kept {
        Kept { sessions: ServerSessionMemoryCache::new(SESSIONS_MAX), trust }
    }
}

impl StoresServerSessions for Kept {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        session.len() <= SESSION_BYTES_MAX && self.sessions.put(id, session)
    }

    /// TLS 1.2, which has no early data.
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

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}
