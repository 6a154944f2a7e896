//! How many pages are rendered for one client, and for one site: the generic cell rate algorithm.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::plan::RenderRate;

/// The most clients, or sites, whose budgets are tracked. Beyond that, the one whose budget is nearest to full is forgotten.
const KEYS_MAX: usize = 10_000;

/// The part of an IPv6 address that counts as one client: a client usually has a /64.
const CLIENT_IPV6_BITS: u32 = 64;

/// The budgets of one kind, by their key. None without a rate.
pub(crate) struct Budgets<K> {
    rate: Option<RenderRate>,
    /// When the budget of a key is full again.
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Eq + Hash + Clone> Budgets<K> {
    pub(crate) fn new(rate: Option<RenderRate>) -> Budgets<K> {
        Budgets { rate, full_at: Mutex::default() }
    }

    /// Whether there is a page left in the budget of this key; takes it.
    pub(crate) fn take(&self, key: &K, now: Instant) -> bool {
        let Some(RenderRate { pages, window }) = self.rate else { return true };
        let step = window / pages.max(1);
        let mut keys = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let full_at = keys.get(key).copied().unwrap_or(now).max(now) + step;
        if full_at > now + window.max(step) + Duration::from_nanos(u64::from(pages)) {
            return false;
        }
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, full_at| *full_at > now);
            let nearest = keys.iter().min_by_key(|(_, full_at)| **full_at).map(|(key, _)| key.clone());
            if let Some(nearest) = nearest.filter(|_| keys.len() >= KEYS_MAX) {
                keys.remove(&nearest);
            }
        }
        keys.insert(key.clone(), full_at);
        true
    }
}

/// The client of a request by its `X-Forwarded-For`, which our proxy has written: the last address, or behind a trusted proxy, which is
/// the last one then, the address before it.
pub(crate) fn client_of(forwarded: &str) -> Option<IpAddr> {
    let mut addresses = forwarded.rsplit(',').map(str::trim);
    let last = addresses.next();
    let address: IpAddr = addresses.next().or(last)?.parse().ok()?;
    Some(match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> CLIENT_IPV6_BITS << CLIENT_IPV6_BITS))
        }
        address => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(pages: u32, seconds: u64) -> Option<RenderRate> {
        Some(RenderRate { pages, window: Duration::from_secs(seconds) })
    }

    #[test]
    fn a_budget_is_for_one_key_and_comes_back_with_time() {
        let budgets = Budgets::new(rate(3, 60));
        let now = Instant::now();
        let taken = |key, now| (0..10).filter(|_| budgets.take(&key, now)).count();
        assert_eq!((taken("a", now), taken("a", now), taken("b", now)), (3, 0, 3));
        assert_eq!(taken("a", now + Duration::from_secs(21)), 1);
        assert_eq!(taken("a", now + Duration::from_secs(600)), 3);
        let none = Budgets::new(None);
        assert!((0..1000).all(|_| none.take(&"a", now)));
    }

    #[test]
    fn clients_beyond_the_limit_do_not_make_the_table_grow() {
        let budgets = Budgets::new(rate(1, 60));
        let now = Instant::now();
        assert!((0..KEYS_MAX + 100).all(|key| budgets.take(&key, now)));
        assert_eq!(budgets.full_at.lock().unwrap().len(), KEYS_MAX);
        assert!(!budgets.take(&(KEYS_MAX + 99), now), "the last ones are known");
    }

    #[test]
    fn the_client_is_the_one_that_our_proxy_or_a_trusted_one_has_seen() {
        for (forwarded, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("10.9.9.9, 192.0.2.1, 10.0.0.1", Some("192.0.2.1")),
            ("2001:db8:1:2:3:4:5:6", Some("2001:db8:1:2::")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(client_of(forwarded), expected.map(|text| text.parse().unwrap()), "{forwarded}");
        }
    }
}
