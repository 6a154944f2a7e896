//! What a request asks of caches, by its fields, and which fields are not forwarded. What may be stored and served is decided by
//! [`flatout_wire::cache`].

use flatout_engine::Request;
use flatout_gateway::Forwarded;
use flatout_wire::Head;
use flatout_wire::cache::{RequestDirectives, write_selected};

use flatout_proxy::withholds;

/// Request fields that are not forwarded if the response may be stored. Conditions and ranges: the cache
/// requests the whole response. The others: some applications build responses from them, and they are not
/// part of the key.
pub(crate) const LEFT_OUT: [&[u8]; 20] = [
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

/// The first ones are about conditions and ranges. They are forwarded if the response will not be stored.
const OF_CONDITIONS: usize = 6;

/// The fields that are not forwarded even if the response will not be stored.
pub(crate) fn left_out_always() -> &'static [&'static [u8]] {
    LEFT_OUT.get(OF_CONDITIONS..).unwrap_or_default()
}

/// The conditional and range fields of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestConditions {
    /// It has a field that starts with `If-`, and none that a cache leaves to the origin.
    pub(crate) has_conditions: bool,
    pub(crate) has_range: bool,
}

/// The parsed fields of a request that concern a cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheFields {
    pub(crate) directives: RequestDirectives,
    pub(crate) conditions: RequestConditions,
    pub(crate) is_authorized: bool,
    /// Only the origin can serve it: it has a precondition, or fields that the origin does not get.
    pub(crate) is_for_origin: bool,
}

impl CacheFields {
    /// One pass over the fields; most are skipped by the length of their names.
    #[inline]
    pub(crate) fn at(head: &Head<'_>) -> CacheFields {
        let conditions = RequestConditions { has_conditions: false, has_range: false };
        let mut cache_fields = CacheFields {
            directives: RequestDirectives::default(),
            conditions,
            is_authorized: false,
            is_for_origin: false,
        };
        let mut has_directives = false;
        for (name, value) in head.fields() {
            let is = |this: &[u8]| name.eq_ignore_ascii_case(this);
            match name.len() {
                5 => cache_fields.conditions.has_range |= is(b"range"),
                6 => has_directives |= is(b"pragma"),
                8 => cache_fields.is_for_origin |= is(b"if-match"),
                // A field that the upstream does not get must not select a variant, nor be in the key.
                10 => cache_fields.is_for_origin |= is(b"connection") && withholds(value, head),
                13 => {
                    has_directives |= is(b"cache-control");
                    cache_fields.is_authorized |= is(b"authorization");
                    cache_fields.conditions.has_conditions |= is(b"if-none-match");
                }
                17 => cache_fields.conditions.has_conditions |= is(b"if-modified-since"),
                19 => cache_fields.is_for_origin |= is(b"if-unmodified-since"),
                _ => {}
            }
        }
        if has_directives {
            cache_fields.directives = RequestDirectives::of(head.fields());
        }
        cache_fields
    }
}

/// Writes the request's values of the fields named in `Vary`.
pub(crate) fn select(head: &Head<'_>, names: &[u8], out: &mut Vec<u8>) {
    let of = |name: &[u8]| {
        let name = name.to_vec();
        head.fields().filter(move |(this, _)| this.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
    };
    write_selected(names, of, out);
}

/// Whether the upstream may see it as early data (RFC 8470): it arrived so, or its client says that.
pub(crate) fn is_early(request: &Request<'_>, forwarded: &Forwarded<'_>) -> bool {
    forwarded.client.is_early || request.head.field("early-data").is_some()
}
