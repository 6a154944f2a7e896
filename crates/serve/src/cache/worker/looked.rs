//! What the fields of a request say to a cache, and which of them are not passed on.

use flatout_wire::Head;
use flatout_wire::cache::Asks;

use crate::cache::respond::Wishes;
use crate::proxy::withholds;

/// Fields of clients that are not passed on where a response is to be stored: the cache asks for the whole of it, and some
/// applications build what they respond with of the others, which are not in the key.
pub(in crate::cache) const LEFT_OUT: [&[u8]; 20] = [
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"range",
    b"forwarded",
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

/// How many of them are about conditions and ranges: what is not stored is asked for as the client does.
const OF_CONDITIONS: usize = 6;

/// What is not passed on of a request whose response is not stored.
pub(in crate::cache) fn left_out_always() -> &'static [&'static [u8]] {
    LEFT_OUT.get(OF_CONDITIONS..).unwrap_or_default()
}

/// What the fields of a request say to a cache.
#[derive(Debug, Clone, Copy)]
pub(in crate::cache) struct Looked {
    pub(in crate::cache) asks: Asks,
    pub(in crate::cache) wishes: Wishes,
    pub(in crate::cache) is_authorized: bool,
    /// It asks for what only the origin can answer.
    pub(super) is_for_origin: bool,
}

impl Looked {
    /// One pass over the fields; nearly all are passed over by the length of their names.
    #[inline]
    pub(in crate::cache) fn at(head: &Head<'_>) -> Looked {
        let wishes = Wishes { has_conditions: false, has_range: false };
        let mut looked = Looked { asks: Asks::default(), wishes, is_authorized: false, is_for_origin: false };
        let mut asks = false;
        for (name, value) in head.fields() {
            let is = |this: &[u8]| name.eq_ignore_ascii_case(this);
            match name.len() {
                5 => looked.wishes.has_range |= is(b"range"),
                6 => asks |= is(b"pragma"),
                7 => looked.is_for_origin |= is(b"upgrade"),
                8 => looked.is_for_origin |= is(b"if-match"),
                // The upstream does not see all that selects a variant or is in the key.
                10 => looked.is_for_origin |= is(b"connection") && withholds(value, head),
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
