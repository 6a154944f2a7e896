//! Logins that were found correct, as keyed hashes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Login;

/// Correct passwords and connections that are remembered, 64 bytes each.
pub(super) const REMEMBERED_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct LoginCache {
    /// By the first bytes of the tag.
    entries: Mutex<HashMap<u64, LoginEntry>>,
    /// A random key of the process: the table reveals no passwords.
    key: [u8; 64],
}

#[derive(Debug)]
pub(super) struct LoginEntry {
    tag: [u8; 32],
    until: Instant,
}

impl LoginCache {
    pub(super) fn new() -> LoginCache {
        let random = RandomState::new();
        let mut key = [0; 64];
        for (part, at) in key.chunks_exact_mut(8).zip(0u64..) {
            part.copy_from_slice(&random.hash_one(at).to_le_bytes());
        }
        LoginCache { entries: Mutex::default(), key }
    }

    /// The keyed hash of a login, or of a login on a connection.
    fn mac(&self, login: &Login<'_>, peer: Option<SocketAddr>) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        mac.update(&login.users.id);
        mac.update(&(login.name.len() as u64).to_le_bytes());
        mac.update(login.name);
        // Of the same length for all peers, so that the password begins at a known place.
        let (address, port) = match peer {
            Some(peer) => (Some(peer.ip()), peer.port()),
            None => (None, 0),
        };
        mac.update(&[u8::from(address.is_some())]);
        let address = address.map_or([0; 16], |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        });
        mac.update(&address);
        mac.update(&port.to_le_bytes());
        mac.update(login.password);
        mac
    }

    pub(super) fn has(&self, login: &Login<'_>, peer: Option<SocketAddr>, now: Instant) -> bool {
        let mac = self.mac(login, peer);
        let tag: [u8; 32] = mac.clone().finalize().into_bytes().into();
        let entries = self.lock();
        let found = entries.get(&start_of(&tag)).filter(|entry| now < entry.until);
        // In constant time.
        found.is_some_and(|entry| mac.verify_slice(&entry.tag).is_ok())
    }

    /// Remembers a login, unless it is remembered already or the table is full.
    pub(super) fn add(&self, login: &Login<'_>, peer: Option<SocketAddr>, until: Instant, now: Instant) {
        let tag: [u8; 32] = self.mac(login, peer).finalize().into_bytes().into();
        let mut entries = self.lock();
        if entries.len() >= REMEMBERED_MAX {
            entries.retain(|_, entry| now < entry.until);
        }
        if entries.len() >= REMEMBERED_MAX && !entries.contains_key(&start_of(&tag)) {
            return;
        }
        let entry = entries.entry(start_of(&tag)).or_insert(LoginEntry { tag, until });
        if entry.until <= now {
            *entry = LoginEntry { tag, until };
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u64, LoginEntry>> {
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_of(tag: &[u8; 32]) -> u64 {
    tag.first_chunk().map_or(0, |start| u64::from_le_bytes(*start))
}
