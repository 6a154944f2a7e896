//! What the cache serves, against an oracle written directly from RFC 9111, RFC 5861 and RFC 9213: with random
//! clocks, responses and directives, nothing is served that they forbid.

use flatout_wire::Status;
use flatout_wire::cache::{Exchange, RequestDirectives, Rules, Verdict, store};
use flatout_wire::date;
use proptest::prelude::*;

/// A response as its origin intends it, without any parsing.
#[derive(Debug, Clone)]
struct Origin {
    status: u16,
    no_store: bool,
    no_cache: bool,
    private: bool,
    public: bool,
    must_revalidate: bool,
    proxy_revalidate: bool,
    max_age: Option<u32>,
    s_maxage: Option<u32>,
    stale_while_revalidate: Option<u32>,
    stale_if_error: Option<u32>,
    /// Seconds after `Date`; `None` if absent.
    expires: Option<i32>,
    /// Seconds before `Date`.
    modified: Option<u32>,
    /// Added by other caches.
    age: Option<u32>,
    sets_cookie: bool,
    varies_by_all: bool,
    has_etag: bool,
    targeted_max_age: Option<u32>,
}

/// The directives of a client.
#[derive(Debug, Clone)]
struct Client {
    authorized: bool,
    no_store: bool,
    no_cache: bool,
    max_age: Option<u32>,
    min_fresh: Option<u32>,
    max_stale: Option<u32>,
}

fn seconds() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..20, 0u32..200, Just(u32::MAX)]
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

prop_compose! {
    fn origin()(
        status in prop::sample::select(vec![200u16, 203, 204, 206, 299, 301, 302, 304, 400, 404, 410, 431, 500, 599]),
        (no_store, no_cache, private, public) in (rarely(), rarely(), rarely(), rarely()),
        (must_revalidate, proxy_revalidate) in (rarely(), rarely()),
        (max_age, s_maxage) in (prop::option::of(seconds()), prop::option::weighted(0.2, seconds())),
        (stale_while_revalidate, stale_if_error) in (prop::option::of(seconds()), prop::option::of(seconds())),
        expires in prop::option::of(-50i32..200),
        modified in prop::option::of(0u32..100_000),
        age in prop::option::of(seconds()),
        (sets_cookie, varies_by_all, has_etag) in (rarely(), rarely(), any::<bool>()),
        targeted_max_age in prop::option::weighted(0.1, 0u32..200),
    ) -> Origin {
        Origin {
            status, no_store, no_cache, private, public, must_revalidate, proxy_revalidate, max_age, s_maxage,
            stale_while_revalidate, stale_if_error, expires, modified, age, sets_cookie, varies_by_all, has_etag,
            targeted_max_age,
        }
    }
}

prop_compose! {
    fn client()(
        (authorized, no_store, no_cache) in (rarely(), rarely(), rarely()),
        max_age in prop::option::weighted(0.2, seconds()),
        min_fresh in prop::option::weighted(0.2, seconds()),
        max_stale in prop::option::weighted(0.2, seconds()),
    ) -> Client {
        Client { authorized, no_store, no_cache, max_age, min_fresh, max_stale }
    }
}

impl Origin {
    fn fields(&self, date_s: u64) -> Vec<(String, String)> {
        let mut control = Vec::new();
        for (is_said, name) in [
            (self.no_store, "no-store"),
            (self.no_cache, "No-Cache"),
            (self.private, "private"),
            (self.public, "public"),
            (self.must_revalidate, "must-revalidate"),
            (self.proxy_revalidate, "proxy-revalidate"),
        ] {
            if is_said {
                control.push(name.to_owned());
            }
        }
        for (seconds, name) in [
            (self.max_age, "max-age"),
            (self.s_maxage, "s-maxage"),
            (self.stale_while_revalidate, "stale-while-revalidate"),
            (self.stale_if_error, "stale-if-error"),
        ] {
            control.extend(seconds.map(|seconds| format!("{name}={seconds}")));
        }
        let at = |seconds: u64| String::from_utf8(date::format(seconds).to_vec()).unwrap();
        let mut fields = vec![("Date".to_owned(), at(date_s))];
        // On separate lines, which form one list.
        fields.extend(control.into_iter().map(|directive| ("Cache-Control".to_owned(), directive)));
        let mut add = |name: &str, value: Option<String>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("Expires", self.expires.map(|after| at(date_s.saturating_add_signed(after.into()))));
        add("Last-Modified", self.modified.map(|before| at(date_s - u64::from(before))));
        add("Age", self.age.map(|age| age.to_string()));
        add("Set-Cookie", self.sets_cookie.then(|| "a=b".to_owned()));
        add("Vary", self.varies_by_all.then(|| "a, *".to_owned()));
        add("ETag", self.has_etag.then(|| "\"a\"".to_owned()));
        add("CDN-Cache-Control", self.targeted_max_age.map(|seconds| format!("max-age={seconds}")));
        fields
    }

    /// RFC 9213 section 2.2: if there is a targeted field, `Cache-Control` and `Expires` are ignored.
    fn as_it_counts(&self) -> Origin {
        let Some(max_age) = self.targeted_max_age else { return self.clone() };
        Origin {
            no_store: false,
            no_cache: false,
            private: false,
            public: false,
            must_revalidate: false,
            proxy_revalidate: false,
            max_age: Some(max_age),
            s_maxage: None,
            stale_while_revalidate: None,
            stale_if_error: None,
            expires: None,
            ..self.clone()
        }
    }

    /// Section 4.2.1 and 4.2.2: the longest lifetime.
    fn lifetime(&self) -> u64 {
        let limited = |seconds: u32| u64::from(seconds.min(1 << 31));
        if let Some(seconds) = self.s_maxage.or(self.max_age) {
            return limited(seconds);
        }
        if let Some(after) = self.expires {
            return after.max(0) as u64;
        }
        // "a typical setting of this fraction might be 10%"
        self.modified.map_or(0, |before| u64::from(before) / 10)
    }

    /// Section 3: whether a shared cache may store it at all.
    fn may_be_stored(&self, client: &Client) -> bool {
        let is_for_all = self.public || self.must_revalidate || self.s_maxage.is_some();
        let heuristic = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501].contains(&self.status);
        let is_said =
            self.public || self.expires.is_some() || self.max_age.is_some() || self.s_maxage.is_some();
        !self.no_store
            && !client.no_store
            && !self.private
            && (!client.authorized || is_for_all)
            && (heuristic || is_said)
            && ![206, 304].contains(&self.status)
            && !self.varies_by_all
            && !self.sets_cookie
    }
}

/// The times of the events, in milliseconds; the cache only knows them by its own clock.
#[derive(Debug, Clone)]
struct Times {
    /// When the origin made the response.
    made: u64,
    asked_after: u64,
    came_after: u64,
    used_after: u64,
}

fn times() -> impl Strategy<Value = Times> {
    let short = || prop_oneof![0u64..3000, 0u64..100_000];
    (1_000_000_000_000u64..2_000_000_000_000, short(), short(), prop_oneof![0u64..5000, 0u64..400_000])
        .prop_map(|(made, asked_after, came_after, used_after)| Times {
            made: made / 1000 * 1000,
            asked_after,
            came_after,
            used_after,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn every_served_response_is_allowed(origin in origin(), first in client(), second in client(), times in times()) {
        let fields = origin.fields(times.made / 1000);
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let request_ms = times.made + times.asked_after;
        let response_ms = request_ms + times.came_after;
        let now_ms = response_ms + times.used_after;
        let exchange = Exchange {
            request_ms,
            response_ms,
            is_authorized: first.authorized,
            has_authorization_key: false,
            asks_no_store: first.no_store,
        };
        let status = Status::from_code(origin.status).unwrap();
        let Ok(kept) = store(status, fields, &exchange, &Rules::default()) else { return Ok(()) };
        let origin = origin.as_it_counts();
        prop_assert!(origin.may_be_stored(&first), "it must not be stored");

        let asks = RequestDirectives {
            no_cache: second.no_cache,
            no_store: second.no_store,
            max_age: second.max_age,
            min_fresh: second.min_fresh,
            max_stale: second.max_stale,
            ..RequestDirectives::default()
        };
        // It is at least as old as by the origin's clock and by other caches; a cache counts whole seconds.
        let since_made = (now_ms - times.made) / 1000;
        let by_others = u64::from(origin.age.unwrap_or(0).min(1 << 31)) + (now_ms - response_ms) / 1000;
        let age = since_made.saturating_sub(1).max(by_others).min(1 << 31);
        let lifetime = origin.lifetime();
        let stale_for = age.saturating_sub(lifetime);
        let is_fresh = age < lifetime;
        let verdict = kept.policy.judge(&asks, now_ms, false);
        if verdict == Verdict::Validate {
            return Ok(());
        }
        prop_assert!(!origin.no_cache && !second.no_cache, "it must be validated");
        if let Some(max_age) = second.max_age {
            prop_assert!(age <= u64::from(max_age), "older than the client takes");
        }
        if let Some(min_fresh) = second.min_fresh.filter(|&seconds| seconds > 0) {
            prop_assert!(lifetime.saturating_sub(age) >= u64::from(min_fresh), "less fresh than the client takes");
        }
        if !is_fresh {
            prop_assert!(!origin.must_revalidate && !origin.proxy_revalidate, "it must not be served stale");
            match verdict {
                Verdict::Refresh => {
                    let allowed = u64::from(origin.stale_while_revalidate.unwrap_or(0).min(1 << 31));
                    prop_assert!(stale_for <= allowed, "stale for longer than while it is validated");
                }
                Verdict::Stale => {
                    prop_assert!(origin.s_maxage.is_none(), "s-maxage is proxy-revalidate too");
                    prop_assert!(stale_for <= u64::from(second.max_stale.unwrap_or(0)), "staler than the client takes");
                }
                _ => prop_assert!(false, "{verdict:?} though it is stale by {stale_for} s"),
            }
        }
    }

    #[test]
    fn stale_responses_are_used_only_where_allowed(origin in origin(), asks in client(), times in times(), cut_off in prop::option::of(0u32..100)) {
        let fields = origin.fields(times.made / 1000);
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let response_ms = times.made + times.asked_after;
        let now_ms = response_ms + times.used_after;
        let exchange = Exchange { request_ms: response_ms, response_ms, is_authorized: false, has_authorization_key: false, asks_no_store: false };
        let Ok(kept) = store(Status::from_code(origin.status).unwrap(), fields, &exchange, &Rules::default()) else {
            return Ok(());
        };
        let origin = origin.as_it_counts();
        let said = RequestDirectives { no_cache: asks.no_cache, max_age: asks.max_age, ..RequestDirectives::default() };
        if kept.policy.stands_in(&said, now_ms, cut_off) {
            prop_assert!(!origin.no_cache && !origin.must_revalidate && !origin.proxy_revalidate && !asks.no_cache);
            let since_made = ((now_ms - times.made) / 1000).saturating_sub(1);
            let stale_for = since_made.saturating_sub(origin.lifetime());
            let unsaid = if origin.s_maxage.is_some() { 0 } else { cut_off.unwrap_or(0) };
            let allowed = origin.stale_if_error.unwrap_or(0).max(unsaid);
            prop_assert!(stale_for <= u64::from(allowed), "{stale_for} > {allowed}");
        }
    }
}
