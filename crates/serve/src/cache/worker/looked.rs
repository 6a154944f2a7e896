//! The request fields that concern a cache, and those that are not forwarded.

use flatout_wire::Head;
use flatout_wire::cache::Asks;

use crate::cache::respond::Wishes;

/// Request fields that are not forwarded if the response may be stored. Conditions and ranges: the cache
/// requests the whole response. The others: some applications build responses from them, and they are not
/// part of the key.
pub(in crate::cache) const LEFT_OUT: [&[u8]; 19] = [
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"range",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-prefix",
    b"x-forwarded-scheme",
    b"x-forwarded-server",
    b"x-host",
    b"x-http-host-override",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-host",
    b"x-original-url",
    b"x-rewrite-url",
];

/// The first ones are about conditions and ranges. They are forwarded if the response will not be stored.
const OF_CONDITIONS: usize = 6;

/// The fields that are not forwarded even if the response will not be stored.
pub(in crate::cache) fn left_out_always() -> &'static [&'static [u8]] {
    LEFT_OUT.get(OF_CONDITIONS..).unwrap_or_default()
}

/// The parsed fields of a request that concern a cache.
#[derive(Debug, Clone, Copy)]
pub(in crate::cache) struct Looked {
    pub(in crate::cache) asks: Asks,
    pub(in crate::cache) wishes: Wishes,
    pub(in crate::cache) is_authorized: bool,
    /// Only the origin can serve it: it has an upgrade or a precondition.
    pub(super) is_for_origin: bool,
}

impl Looked {
    /// One pass over the fields; most are skipped by the length of their names.
    #[inline]
    pub(in crate::cache) fn at(head: &Head<'_>) -> Looked {
        let wishes = Wishes { has_conditions: false, has_range: false };
        let mut looked = Looked { asks: Asks::default(), wishes, is_authorized: false, is_for_origin: false };
        let mut asks = false;
        for (name, _) in head.fields() {
            let is = |this: &[u8]| name.eq_ignore_ascii_case(this);
            match name.len() {
                5 => looked.wishes.has_range |= is(b"range"),
                6 => asks |= is(b"pragma"),
                7 => looked.is_for_origin |= is(b"upgrade"),
                8 => looked.is_for_origin |= is(b"if-match"),
                13 => {
                    asks |= is(b"cache-control");
                    looked.is_authorized |= is(b"authorization");
                    looked.wishes.has_conditions |= is(b"if-none-match");
                }
                17 => looked.wishes.has_conditions |= is(b"if-modified-since"),
                19 => looked.is_for_origin |= is(b"if-unmodified-since"),
                _ => {}
            }
        }
        if asks {
            looked.asks = Asks::of(head.fields());
        }
        looked
    }
}
