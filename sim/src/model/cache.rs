//! Which stored responses a shared cache may serve: RFC 9111, RFC 5861 and our settings, as slow and plain as they can be written.
//!
//! ```text
//! a stored response, and the 304 that confirmed it last ──┐
//! the request that gets it ───────────────────────────────┼── check ──> allowed, or which rule is broken
//! purges, and requests that change the resource ──────────┘
//! ```
//!
//! The server decides at some moment between the request's first byte and its response. What is not allowed at any of these moments is
//! a mistake; so times are those that favour the server.

use super::Planned;

/// Resources whose responses may be stored. The first ones are always fresh for an hour.
pub(crate) const RESOURCES: u8 = 6;
pub(crate) const PLAIN_RESOURCES: u8 = 2;

/// Each has a tag, by which its responses are purged.
pub(crate) const TAGS: u8 = 3;

pub(crate) fn tag_name(tag: u8) -> String {
    format!("tag-{tag}")
}

/// What a request says to a cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestDirectives {
    /// One of some values of `Accept-Language`.
    pub(crate) language: u8,
    /// The user in `Authorization`.
    pub(crate) user: Option<u8>,
    pub(crate) no_cache: bool,
    pub(crate) no_store: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) max_age: Option<u32>,
    /// The first and the last byte.
    pub(crate) range: Option<(usize, usize)>,
    pub(crate) if_none_match: Option<String>,
}

impl RequestDirectives {
    pub(crate) fn draw(
        random: &mut fastrand::Rng,
        is_plain: bool,
        etag: Option<&String>,
    ) -> RequestDirectives {
        let mut sometimes = |of| random.u8(..of) == 0;
        let (is_user, no_cache, no_store) = (sometimes(5) && !is_plain, sometimes(12), sometimes(16));
        let (only_if_cached, has_max_age, has_range) = (sometimes(16), sometimes(12), sometimes(8));
        let is_conditional = sometimes(6);
        let first = random.usize(..2000);
        RequestDirectives {
            language: random.u8(..2),
            user: is_user.then(|| random.u8(..2)),
            no_cache,
            no_store,
            only_if_cached,
            max_age: has_max_age.then(|| random.u32(..10)),
            range: has_range.then(|| (first, first + random.usize(..2000))),
            if_none_match: etag.filter(|_| is_conditional).cloned(),
        }
    }

    /// Its fields, as lines.
    pub(crate) fn lines(&self) -> String {
        let mut control = Vec::new();
        control.extend(self.no_cache.then(|| "no-cache".to_owned()));
        control.extend(self.no_store.then(|| "no-store".to_owned()));
        control.extend(self.only_if_cached.then(|| "only-if-cached".to_owned()));
        control.extend(self.max_age.map(|seconds| format!("max-age={seconds}")));
        let mut lines = format!("Accept-Language: l{}\r\n", self.language);
        if let Some(user) = self.user {
            lines += &format!("Authorization: Bearer user{user}\r\n");
        }
        if !control.is_empty() {
            lines += &format!("Cache-Control: {}\r\n", control.join(", "));
        }
        if let Some((first, last)) = self.range {
            lines += &format!("Range: bytes={first}-{last}\r\n");
        }
        if let Some(etag) = &self.if_none_match {
            lines += &format!("If-None-Match: \"{etag}\"\r\n");
        }
        lines
    }

    /// Whether a fresh stored response is all that it needs.
    pub(crate) fn is_plain(&self) -> bool {
        self.user.is_none()
            && !self.no_cache
            && !self.no_store
            && self.max_age.is_none()
            && self.range.is_none()
    }
}

/// What a response says to a cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResponseDirectives {
    pub(crate) max_age: Option<u32>,
    pub(crate) s_maxage: Option<u32>,
    pub(crate) public: bool,
    pub(crate) private: bool,
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) stale_while_revalidate: Option<u32>,
    pub(crate) stale_if_error: Option<u32>,
    pub(crate) age: u32,
    /// `Vary: Accept-Language`.
    pub(crate) varies: bool,
    pub(crate) sets_cookie: bool,
}

impl ResponseDirectives {
    pub(crate) fn draw(random: &mut fastrand::Rng, planned: &Planned) -> ResponseDirectives {
        let Some(resource) = planned.resource.filter(|resource| *resource >= PLAIN_RESOURCES) else {
            return ResponseDirectives { max_age: Some(3600), ..ResponseDirectives::default() };
        };
        let mut sometimes = |of| random.u8(..of) == 0;
        let (public, private, no_store) = (sometimes(4), sometimes(10), sometimes(16));
        let (no_cache, must_revalidate, sets_cookie) = (sometimes(10), sometimes(8), sometimes(10));
        // Short ones end within a run.
        let is_short = random.bool();
        let mut seconds = |of, most: u32| {
            (random.u8(..of) == 0).then(|| random.u32(..if is_short { most / 5 } else { most }))
        };
        ResponseDirectives {
            max_age: seconds(2, 20),
            s_maxage: seconds(6, 20),
            public,
            private,
            no_store,
            no_cache,
            must_revalidate,
            stale_while_revalidate: seconds(4, 20),
            stale_if_error: seconds(6, 20),
            age: seconds(8, 10).unwrap_or(0),
            // A resource varies always, or never.
            varies: resource % 2 == 0,
            sets_cookie,
        }
    }

    /// Its fields, as lines. `Cache-Control` is always there, so that a 304 replaces the former one.
    pub(crate) fn lines(&self) -> String {
        let mut control = vec!["x-sim".to_owned()];
        let mut flag = |is_set: bool, name: &str| control.extend(is_set.then(|| name.to_owned()));
        flag(self.public, "public");
        flag(self.private, "private");
        flag(self.no_store, "no-store");
        flag(self.no_cache, "no-cache");
        flag(self.must_revalidate, "must-revalidate");
        let mut number = |value: Option<u32>, name: &str| {
            control.extend(value.map(|seconds| format!("{name}={seconds}")));
        };
        number(self.max_age, "max-age");
        number(self.s_maxage, "s-maxage");
        number(self.stale_while_revalidate, "stale-while-revalidate");
        number(self.stale_if_error, "stale-if-error");
        let mut lines = format!("Cache-Control: {}\r\nAge: {}\r\n", control.join(", "), self.age);
        if self.varies {
            lines += "Vary: Accept-Language\r\n";
        }
        if self.sets_cookie {
            lines += "Set-Cookie: a=b\r\n";
        }
        lines
    }
}

/// A moment: its place in the order of all events, and its time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) order: u64,
    pub(crate) ns: u64,
}

/// A request that an upstream got, and its response.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) planned: Planned,
    /// When the request's first byte was sent by its client, when the upstream had its head, and when it responded.
    pub(crate) began: Moment,
    pub(crate) seen: Moment,
    pub(crate) responded: Moment,
    pub(crate) status: u16,
    pub(crate) says: ResponseDirectives,
    /// When the first client had all of it.
    pub(crate) whole: Option<Moment>,
}

/// A request that gets a response of another one.
#[derive(Debug)]
pub(crate) struct Receiver<'r> {
    pub(crate) planned: &'r Planned,
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    /// `Age` of the response that it gets.
    pub(crate) age: Option<u32>,
}

/// The settings of all configurations together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The longest lifetime of a response that says none.
    pub(crate) fresh_s: u32,
    /// How long stale responses are served if the upstream cannot be reached.
    pub(crate) stale_s: u32,
    /// Whether it can happen that it cannot.
    pub(crate) upstreams_fail: bool,
}

/// A stored response must not be served any more to a request that begins after this, if it was there before.
#[derive(Debug, Clone)]
pub(crate) struct Removal {
    pub(crate) target: String,
    /// A response that was requested before is removed (a purge), or one that was stored before (an unsafe request).
    pub(crate) before: Moment,
    pub(crate) is_purge: bool,
    /// It only makes responses stale.
    pub(crate) is_soft: bool,
    /// When it was confirmed.
    pub(crate) confirmed: Moment,
    /// It is on disk: it holds after a crash.
    pub(crate) is_written: bool,
}

/// Whether a stored response may be served. `latest` is the exchange that confirmed it last, or its own.
pub(crate) fn check(
    stored: &Exchange,
    latest: &Exchange,
    to: &Receiver<'_>,
    removals: &[Removal],
    settings: Settings,
) -> Result<(), String> {
    let asks = &to.planned.asks;
    if stored.planned.target() != to.planned.target() {
        return Err("of another URL".to_owned());
    }
    if stored.planned.method != "GET" || !matches!(to.planned.method, "GET" | "HEAD") {
        return Err(format!("to {} for {}", stored.planned.method, to.planned.method));
    }
    storable(stored)?;
    if stored.says.varies && stored.planned.asks.language != asks.language {
        return Err("selected by Vary for another language".to_owned());
    }
    let target = to.planned.target();
    let of_target = || removals.iter().filter(|removal| removal.target == target);
    for removal in of_target().filter(|removal| !removal.is_soft) {
        let was_there = match removal.is_purge {
            true => stored.seen.order < removal.before.order,
            false => stored.whole.is_some_and(|whole| whole.order < removal.before.order),
        };
        if was_there && removal.confirmed.order < to.began.order {
            let by = if removal.is_purge { "a purge" } else { "an unsafe request" };
            return Err(format!("that {by} had removed"));
        }
    }
    if latest.planned.named == to.planned.named && to.began.order <= latest.responded.order {
        // It was validated for this request.
        return Ok(());
    }
    storable(latest)?;
    if latest.says.no_cache {
        return Err("with no-cache, without validation".to_owned());
    }
    check_age(latest, to)?;
    // All who wait for a response get it, however short its life is.
    if to.began.order <= latest.responded.order {
        return Ok(());
    }
    if asks.no_cache {
        return Err("to a request with no-cache".to_owned());
    }
    let age_s = age_at(latest, to.began.ns);
    if asks.max_age.is_some_and(|most_s| age_s > most_s) {
        return Err(format!("of age {age_s} to a request that says max-age"));
    }
    let is_expired = of_target().any(|removal| {
        removal.is_soft
            && latest.seen.order < removal.before.order
            && removal.confirmed.order < to.began.order
    });
    may_be_so_old(&latest.says, age_s, is_expired, settings)
}

/// Whether a response may be stored at all.
fn storable(exchange: &Exchange) -> Result<(), String> {
    let (says, asks) = (&exchange.says, &exchange.planned.asks);
    let is_for_all = says.public || says.must_revalidate || says.s_maxage.is_some();
    let has_lifetime = says.max_age.is_some() || says.s_maxage.is_some() || says.public;
    let rules = [
        (says.no_store, "with no-store"),
        (says.private, "with private"),
        (says.sets_cookie, "with Set-Cookie"),
        (asks.no_store, "whose request said no-store"),
        (asks.user.is_some() && !is_for_all, "of another user"),
        (
            !matches!(exchange.status, 200 | 204 | 304 | 404) && !has_lifetime,
            "of a status that is not stored",
        ),
    ];
    match rules.into_iter().find(|(is_broken, _)| *is_broken) {
        Some((_, rule)) => Err(rule.to_owned()),
        None => Ok(()),
    }
}

/// How old it is at least. The time on its way and the time in the cache are both rounded down, as RFC 9111 section 4.2.3 does.
fn age_at(latest: &Exchange, at_ns: u64) -> u32 {
    let elapsed_s = (at_ns.saturating_sub(latest.responded.ns) / 1_000_000_000) as u32;
    latest.says.age + elapsed_s.saturating_sub(1)
}

/// `is_expired`: a soft purge has made it stale before its time.
fn may_be_so_old(
    says: &ResponseDirectives,
    age_s: u32,
    is_expired: bool,
    settings: Settings,
) -> Result<(), String> {
    let lifetime_s = says.s_maxage.or(says.max_age).unwrap_or(settings.fresh_s);
    if age_s < lifetime_s && !is_expired {
        return Ok(());
    }
    let stale_s = age_s.saturating_sub(lifetime_s);
    let of_settings = settings.upstreams_fail && says.s_maxage.is_none() && stale_s <= settings.stale_s;
    let allows = |window: Option<u32>| window.is_some_and(|window_s| window_s > 0 && stale_s <= window_s);
    // An upstream may respond with 500 at any time.
    let is_allowed = allows(says.stale_while_revalidate) || allows(says.stale_if_error) || of_settings;
    match is_allowed && !says.must_revalidate {
        true => Ok(()),
        false if is_expired => Err("that a soft purge had made stale".to_owned()),
        false => Err(format!("of age {age_s}, with a lifetime of {lifetime_s}")),
    }
}

/// `Age` is between what it was at the request's begin and at the response's end.
fn check_age(latest: &Exchange, to: &Receiver<'_>) -> Result<(), String> {
    let least_s = age_at(latest, to.began.ns);
    let most_ns = to.ended.ns.saturating_sub(latest.began.ns);
    let most_s = latest.says.age + most_ns.div_ceil(1_000_000_000) as u32 + 1;
    match to.age {
        Some(age_s) if (least_s..=most_s).contains(&age_s) => Ok(()),
        age => Err(format!("with Age {age:?}; it is {least_s} to {most_s}")),
    }
}
