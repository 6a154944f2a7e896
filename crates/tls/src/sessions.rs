//! The sessions that a client keeps for resumption with one server.
//!
//! rustls's own store keeps eight tickets for a server. A client that opens many connections at a time would run out
//! of them, and do full handshakes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Sessions with one server, up to a given number.
pub(crate) struct Sessions {
    tickets_max: usize,
    kept: Mutex<StoredSession>,
}

#[derive(Default)]
struct StoredSession {
    group: Option<NamedGroup>,
    /// TLS 1.2 can resume the same session several times.
    session: Option<Tls12ClientSessionValue>,
    /// TLS 1.3 uses each ticket once; the newest is at the end.
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    pub(crate) fn new(tickets_max: usize) -> Sessions {
        Sessions { tickets_max, kept: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, StoredSession> {
        // Values are moved as a whole, so a panic leaves the data consistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.lock().session = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.lock();
        if kept.tickets.len() >= self.tickets_max {
            kept.tickets.pop_front();
        }
        kept.tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tickets.pop_back()
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("tickets", &self.lock().tickets.len()).finish()
    }
}
