//! Whether a response may be stored, and for how long it is fresh (RFC 9111 sections 3 and 4.2).

use super::SECONDS_MAX;
use super::age::{initial_age, parse_date, said_age};
use super::control::Control;
use super::reuse::Policy;
use super::targeted::targeted;
use super::vary::is_any;
use crate::Status;

/// A heuristic lifetime is this fraction of the time since the last modification (RFC 9111 section 4.2.2).
const HEURISTIC_SHARE: u64 = 10;

/// The longest heuristic lifetime, in seconds.
const HEURISTIC_MAX: u64 = 24 * 3600;

/// Statuses whose responses may be stored without an explicit lifetime (RFC 9110 section 15.1).
const HEURISTIC: [u16; 11] = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501];

/// Statuses that blame a single client's request: stored, they would refuse other clients too. A rule may name them.
const CLIENTS_FAULT: [u16; 5] = [400, UNAUTHORIZED, 411, 413, 415];

/// Without `Authorization` in the key, a stored one would refuse clients with valid credentials too.
const UNAUTHORIZED: u16 = 401;

/// Statuses that describe one connection, or one sender, and not the resource. No rule stores them.
const NEVER: [u16; 14] = [
    // A part, or an update of what is stored. Slices are stored as whole responses.
    206, 304,
    // Credentials for a proxy (RFC 9110 section 15.5.8), and a connection that was too slow (15.5.9).
    407, 408,
    // Preconditions, ranges and expectations, which are not in the key (15.5.13, 15.5.17, 15.5.18).
    412, 416, 417, // The wrong connection (15.5.20), and early data (RFC 8470 section 5.2).
    421, 425, // Another protocol is required (15.5.22).
    426, // "MUST NOT be stored by a cache" (RFC 6585 sections 3 to 6).
    428, 429, 431, 511,
];

/// The targeted fields for this cache, the most specific first (RFC 9213 section 2.2).
const TARGETED: [&[u8]; 2] = [b"flatout-cache-control", b"cdn-cache-control"];

/// Facts about an exchange that its fields do not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// When the request was sent, in milliseconds since 1970.
    pub request_ms: u64,
    /// When the head of the response arrived.
    pub response_ms: u64,
    /// Whether the request had `Authorization`, unless that is part of the cache's key.
    pub is_authorized: bool,
    /// Whether `Authorization` is part of the cache's key.
    pub has_authorization_key: bool,
    /// Whether the request said `no-store`.
    pub asks_no_store: bool,
}

/// The operator's settings for responses with one status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// The lifetime, in seconds, of a response without its own; `None` if no rule names the status.
    pub validity: Option<u32>,
    /// How long at least a response with a lifetime may be served stale while it is revalidated, in seconds.
    pub while_revalidate: u32,
    /// Fields of the response to ignore.
    pub ignored: Ignored,
}

/// Fields of responses to ignore.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are called as the fields are")]
pub struct Ignored {
    /// Including targeted fields.
    pub cache_control: bool,
    pub expires: bool,
    /// The cookie is not stored, but the rest of the response is.
    pub set_cookie: bool,
    pub vary: bool,
    pub x_accel_expires: bool,
}

/// How a response is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageDecision {
    /// When it may be used.
    pub policy: Policy,
    /// Names of its fields that are not stored, in lower case.
    pub withheld: Vec<Vec<u8>>,
}

/// Why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The request or the response says `no-store`.
    NoStore,
    /// `private`.
    Private,
    /// The request was authorized, and the response does not say that it is public.
    Authorization,
    /// It sets a cookie.
    SetCookie,
    /// `Vary: *`.
    VaryAny,
    /// A status that is not stored: a partial or interim response, a client's fault, or one without a lifetime.
    Status,
    /// Without any lifetime, and without a validator.
    Worthless,
}

/// Whether responses with this status are not stored, whatever they and the rules allow.
pub fn is_never_stored(code: u16) -> bool {
    code < 200 || NEVER.contains(&code)
}

/// Decides whether to store a response; `fields` are those of its head.
///
/// # Errors
/// Why it is not stored.
pub fn store<'a>(
    status: Status,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    exchange: &Exchange,
    rules: &Rules,
) -> Result<StorageDecision, Reason> {
    let lines = |name: &'static [u8]| {
        fields.clone().filter(move |(this, _)| this.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let ignored = rules.ignored;
    let target = TARGETED.iter().find_map(|name| targeted(lines(name)));
    let control = match target {
        _ if ignored.cache_control => Control::default(),
        Some(ref control) => control.clone(),
        None => Control::of(lines(b"cache-control")),
    };
    let is_targeted = target.is_some() && !ignored.cache_control;
    let code = status.code();
    let is_named = rules.validity.is_some();
    let is_fault = CLIENTS_FAULT.contains(&code) && !is_named;
    let is_shared_refusal = code == UNAUTHORIZED && !exchange.has_authorization_key;
    if is_never_stored(code) || is_fault || is_shared_refusal {
        return Err(Reason::Status);
    }
    // A cache that knows the status may store responses that others may not (RFC 9111 section 5.2.2.3).
    let is_understood = !status.reason().is_empty();
    let forbids = match control.must_understand {
        true => !is_understood,
        false => control.no_store,
    };
    if forbids || exchange.asks_no_store {
        return Err(Reason::NoStore);
    }
    if control.private {
        return Err(Reason::Private);
    }
    let is_for_all = control.public || control.must_revalidate || control.s_maxage.is_some();
    if exchange.is_authorized && !is_for_all {
        return Err(Reason::Authorization);
    }
    let mut withheld = control.withheld.clone();
    if ignored.set_cookie {
        withheld.push(b"set-cookie".to_vec());
    }
    let sets_cookie = lines(b"set-cookie").next().is_some() || lines(b"set-cookie2").next().is_some();
    if sets_cookie && !withheld.iter().any(|name| name == b"set-cookie") {
        return Err(Reason::SetCookie);
    }
    if !ignored.vary && is_any(lines(b"vary")) {
        return Err(Reason::VaryAny);
    }

    let date = lines(b"date").next().and_then(parse_date);
    let modified = lines(b"last-modified").next().and_then(parse_date);
    let expires = expires(lines(b"expires"), date.unwrap_or(exchange.response_ms / 1000))
        .filter(|_| !ignored.expires && !is_targeted);
    let is_guessable = HEURISTIC.contains(&code) || control.public;
    let said = control.s_maxage.or(control.max_age).or(expires);
    let guessed = || match (modified, is_guessable) {
        (Some(modified), true) => {
            let now = date.unwrap_or(exchange.response_ms / 1000);
            (now.saturating_sub(modified) / HEURISTIC_SHARE).min(HEURISTIC_MAX) as u32
        }
        _ => 0,
    };
    if said.is_none() && !is_guessable && !is_named {
        return Err(Reason::Status);
    }
    let lifetime = said.or(rules.validity.filter(|&seconds| seconds > 0)).unwrap_or_else(guessed);
    let is_strict = control.must_revalidate || control.proxy_revalidate;
    // `s-maxage` limits what the response does not allow itself (RFC 9111 section 5.2.2.10).
    let while_revalidate = match lifetime > 0 && control.s_maxage.is_none() {
        true => rules.while_revalidate,
        false => 0,
    };
    let policy = Policy {
        stored_ms: exchange.response_ms,
        initial_age: initial_age(said_age(lines(b"age")), date, exchange.request_ms, exchange.response_ms),
        lifetime,
        stale_while_revalidate: control.stale_while_revalidate.unwrap_or(0).max(while_revalidate),
        stale_if_error: control.stale_if_error.unwrap_or(0),
        is_validated_always: control.no_cache,
        is_never_stale: is_strict,
        is_stale_where_said: control.s_maxage.is_some(),
    };
    let is_validated = modified.is_some() || lines(b"etag").next().is_some();
    let serves = !policy.is_validated_always
        && (lifetime > 0 || policy.stale_while_revalidate > 0 || policy.stale_if_error > 0);
    if !serves && !is_validated {
        return Err(Reason::Worthless);
    }
    Ok(StorageDecision { policy, withheld })
}

/// The lifetime by `Expires`: `None` without it, 0 if it is not a date or has several values.
fn expires<'a>(mut lines: impl Iterator<Item = &'a [u8]>, date: u64) -> Option<u32> {
    let first = lines.next()?;
    if lines.any(|line| line != first) {
        return Some(0);
    }
    let seconds = parse_date(first).map_or(0, |expires| expires.saturating_sub(date));
    Some(seconds.min(u64::from(SECONDS_MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Exchange = Exchange {
        request_ms: 784_111_777_000,
        response_ms: 784_111_777_000,
        is_authorized: false,
        has_authorization_key: false,
        asks_no_store: false,
    };
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const TEN_SECONDS_BEFORE: &str = "Sun, 06 Nov 1994 08:49:27 GMT";
    const TEN_SECONDS_AFTER: &str = "Sun, 06 Nov 1994 08:49:47 GMT";

    fn stored(
        code: u16,
        lines: &[(&str, &str)],
        exchange: &Exchange,
        rules: &Rules,
    ) -> Result<StorageDecision, Reason> {
        let fields = lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        store(Status::from_code(code).unwrap(), fields, exchange, rules)
    }

    fn lifetime(code: u16, lines: &[(&str, &str)]) -> Result<u32, Reason> {
        stored(code, lines, &NOW, &Rules::default()).map(|kept| kept.policy.lifetime)
    }

    #[test]
    fn the_most_specific_lifetime_counts() {
        let cc = |value| ("Cache-Control", value);
        for (lines, expected) in [
            (vec![cc("max-age=60")], Ok(60)),
            (vec![cc("max-age=60, s-maxage=5")], Ok(5)),
            (vec![cc("max-age=60"), ("Expires", DATE)], Ok(60)),
            (vec![("Date", DATE), ("Expires", TEN_SECONDS_AFTER)], Ok(10)),
            (vec![("Expires", TEN_SECONDS_AFTER)], Ok(10)),
            (vec![("Expires", "0"), ("ETag", "\"a\"")], Ok(0)),
            (vec![("Expires", "0")], Err(Reason::Worthless)),
            (vec![("Expires", TEN_SECONDS_AFTER), ("Expires", DATE), ("ETag", "\"a\"")], Ok(0)),
            (vec![cc("max-age=60"), ("CDN-Cache-Control", "max-age=7")], Ok(7)),
            (vec![cc("no-store"), ("CDN-Cache-Control", "max-age=7")], Ok(7)),
            (vec![cc("max-age=60"), ("CDN-Cache-Control", "MAX-AGE=7")], Ok(60)),
            (vec![("CDN-Cache-Control", "max-age=7"), ("Flatout-Cache-Control", "max-age=8")], Ok(8)),
            (vec![("CDN-Cache-Control", "foo"), ("Expires", TEN_SECONDS_AFTER)], Err(Reason::Worthless)),
            (vec![("Date", DATE), ("Last-Modified", "Sun, 06 Nov 1994 08:47:57 GMT")], Ok(10)),
            (vec![("Last-Modified", "Sun, 06 Nov 1904 08:47:57 GMT")], Err(Reason::Worthless)),
            (vec![("Last-Modified", "Sun, 06 Nov 1983 08:47:57 GMT")], Ok(86_400)),
            (vec![cc("no-cache"), ("ETag", "x")], Ok(0)),
            (vec![cc("no-cache, max-age=9")], Err(Reason::Worthless)),
            (vec![], Err(Reason::Worthless)),
        ] {
            assert_eq!(lifetime(200, &lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn statuses_are_stored_where_they_may_be() {
        let fresh = [("Cache-Control", "max-age=60")];
        for (code, expected) in [
            (200, Ok(60)),
            (302, Ok(60)),
            (404, Ok(60)),
            (500, Ok(60)),
            (599, Ok(60)),
            (206, Err(Reason::Status)),
            (304, Err(Reason::Status)),
            (103, Err(Reason::Status)),
            (400, Err(Reason::Status)),
            (431, Err(Reason::Status)),
        ] {
            assert_eq!(lifetime(code, &fresh), expected, "{code}");
        }
        let changed = [("Last-Modified", "Sun, 06 Nov 1983 08:47:57 GMT")];
        assert_eq!((lifetime(404, &changed), lifetime(302, &changed)), (Ok(86_400), Err(Reason::Status)));
        let said = [changed[0], ("Cache-Control", "public")];
        assert_eq!(lifetime(302, &said), Ok(86_400));
        let both = [("Cache-Control", "no-store, must-understand, max-age=5")];
        assert_eq!((lifetime(200, &both), lifetime(299, &both)), (Ok(5), Err(Reason::NoStore)));
    }

    /// The larger of the two times counts, and neither where the response is stale from the start.
    #[test]
    fn rules_may_allow_stale_responses_while_they_are_revalidated() {
        let rules = Rules { while_revalidate: 30, ..Rules::default() };
        for (control, expected) in [
            ("max-age=5", 30),
            ("max-age=5, stale-while-revalidate=7", 30),
            ("max-age=5, stale-while-revalidate=70", 70),
            ("max-age=0", 0),
            ("max-age=0, stale-while-revalidate=7", 7),
            ("s-maxage=5", 0),
            ("s-maxage=5, stale-while-revalidate=7", 7),
        ] {
            let lines = [("Cache-Control", control), ("ETag", "\"a\"")];
            let policy = stored(200, &lines, &NOW, &rules).unwrap().policy;
            assert_eq!(policy.stale_while_revalidate, expected, "{control}");
        }
        let lines = [("Cache-Control", "max-age=5, must-revalidate")];
        assert!(stored(200, &lines, &NOW, &rules).unwrap().policy.is_never_stale);
    }

    /// Whatever the response says and the rules name.
    #[test]
    fn some_statuses_are_never_stored() {
        let named = Rules {
            validity: Some(30),
            ignored: Ignored { cache_control: true, ..Ignored::default() },
            ..Rules::default()
        };
        let keyed = Exchange { has_authorization_key: true, ..NOW };
        let none = Rules::default();
        let lines = [("Cache-Control", "public, max-age=60"), ("ETag", "\"a\"")];
        for code in 100..600 {
            let is_never = matches!(
                code,
                100..200 | 206 | 304 | 407 | 408 | 412 | 416 | 417 | 421 | 425 | 426 | 428 | 429 | 431 | 511
            );
            assert_eq!(is_never_stored(code), is_never, "{code}");
            let is_stored =
                |exchange: &Exchange, rules: &Rules| stored(code, &lines, exchange, rules).is_ok();
            // Without a rule that names them, a client's faults are not stored either.
            let is_fault = matches!(code, 400 | 401 | 411 | 413 | 415);
            assert_eq!(is_stored(&NOW, &none), !is_never && !is_fault, "{code}");
            // 401 needs the credentials in the key.
            assert_eq!(is_stored(&NOW, &named), !is_never && code != 401, "{code}");
            assert_eq!(is_stored(&keyed, &named), !is_never, "{code}");
        }
    }

    #[test]
    fn private_responses_are_not_stored() {
        let own = Exchange { is_authorized: true, ..NOW };
        let none = Rules::default();
        for (value, expected) in [
            ("max-age=60", Err(Reason::Authorization)),
            ("max-age=60, public", Ok(60)),
            ("max-age=60, must-revalidate", Ok(60)),
            ("s-maxage=60", Ok(60)),
            ("max-age=60, proxy-revalidate", Err(Reason::Authorization)),
            ("private, max-age=60", Err(Reason::Private)),
        ] {
            let got = stored(200, &[("Cache-Control", value)], &own, &none).map(|kept| kept.policy.lifetime);
            assert_eq!(got, expected, "{value}");
        }
        let cookie = [("Set-Cookie", "a=b"), ("Cache-Control", "max-age=60")];
        assert_eq!(lifetime(200, &cookie), Err(Reason::SetCookie));
        let withheld = [cookie[0], ("Cache-Control", "max-age=60, no-cache=\"set-cookie\"")];
        assert_eq!(lifetime(200, &withheld), Ok(60));
        assert_eq!(lifetime(200, &[("Vary", "a, *"), ("Cache-Control", "max-age=60")]), Err(Reason::VaryAny));
        let asked = Exchange { asks_no_store: true, ..NOW };
        assert_eq!(stored(200, &[cookie[1]], &asked, &none), Err(Reason::NoStore));
    }

    #[test]
    fn rules_apply_to_responses_without_cache_control() {
        let rules = Rules { validity: Some(30), ..Rules::default() };
        let by = |code, lines: &[(&str, &str)], rules: &Rules| {
            stored(code, lines, &NOW, rules).map(|kept| kept.policy.lifetime)
        };
        assert_eq!(by(200, &[], &rules), Ok(30));
        assert_eq!(by(302, &[], &rules), Ok(30));
        assert_eq!(by(400, &[], &rules), Ok(30));
        assert_eq!(by(200, &[("Cache-Control", "max-age=5")], &rules), Ok(5));
        assert_eq!(by(200, &[("Cache-Control", "no-store")], &rules), Err(Reason::NoStore));
        assert_eq!(by(200, &[("Last-Modified", TEN_SECONDS_BEFORE)], &rules), Ok(30));
        let ignored = Ignored {
            cache_control: true,
            expires: true,
            set_cookie: true,
            vary: true,
            x_accel_expires: true,
        };
        let deaf = Rules { ignored, ..rules };
        let lines = [
            ("Cache-Control", "private, no-store"),
            ("Expires", "0"),
            ("Set-Cookie", "a=b"),
            ("Vary", "*"),
            ("CDN-Cache-Control", "max-age=1"),
        ];
        let kept = stored(200, &lines, &NOW, &deaf).unwrap();
        assert_eq!((kept.policy.lifetime, kept.withheld), (30, vec![b"set-cookie".to_vec()]));
    }

    #[test]
    fn the_age_on_arrival_counts() {
        let lines = [("Age", "7"), ("Date", TEN_SECONDS_BEFORE), ("Cache-Control", "max-age=60")];
        let kept = stored(200, &lines, &NOW, &Rules::default()).unwrap();
        assert_eq!(kept.policy.initial_age, 10);
        let slow = Exchange { request_ms: NOW.request_ms - 8000, ..NOW };
        assert_eq!(stored(200, &lines, &slow, &Rules::default()).unwrap().policy.initial_age, 15);
    }
}
