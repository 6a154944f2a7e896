//! Rate limits for many keys: the generic cell rate algorithm.
//!
//! Each key has one number: the time when its bucket will be full again. A request advances it by the time of one
//! request, and is refused if that would move it further ahead of now than the burst allows.
//!
//! Keys are in small sets, chosen by a randomly keyed hash. If a set is full, the key with the fullest bucket is
//! evicted, because that loses least: a client with many addresses cannot make the table grow, and gains at most one
//! request for each key that it evicts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Delayed requests of one rate in the whole server; beyond that requests are refused. Each keeps its head and its
/// body.
const WAITING_MAX: u32 = 8192;

/// Keys in one set.
const SET_KEYS: usize = 8;

/// Sets that are allocated together, at their first key: a rate without requests has nearly no memory.
const CHUNK_SETS: usize = 64;

/// The keys of one rate, shared by all workers. A lookup takes a lock for some nanoseconds.
#[derive(Debug)]
pub(crate) struct Buckets {
    chunks: Box<[OnceLock<Box<[KeySet]>>]>,
    sets: usize,
    /// The time of one request at an even rate.
    step_ns: u64,
    /// Requests delayed to an even rate.
    waiting: AtomicU32,
}

/// The buckets of the keys with some hashes.
type KeySet = Mutex<[Bucket; SET_KEYS]>;

/// A request delayed to an even rate.
#[derive(Debug)]
pub(crate) struct PaceDelay {
    pub(crate) time: Duration,
    buckets: Arc<Buckets>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// The hash of its key.
    key: u64,
    /// When its bucket will be full; 0 is an unused entry.
    full_at_ns: u64,
}

/// The result for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) is_allowed: bool,
    /// How many more requests are allowed now.
    pub(crate) remaining: u64,
    /// How long until the next request is allowed, if none is now; otherwise until the bucket is full.
    pub(crate) wait: Duration,
    /// How far ahead of an even rate it is.
    pub(crate) ahead: Duration,
}

/// Too many requests are delayed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Drop for PaceDelay {
    fn drop(&mut self) {
        self.buckets.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Buckets {
    /// Delays an accepted request to an even rate, except for the first `at_once` of a burst. `Ok(None)` if no delay
    /// is needed.
    ///
    /// # Errors
    /// Too many requests are delayed already.
    pub(crate) fn pace(
        self: &Arc<Self>,
        taken: Admission,
        at_once: u32,
    ) -> Result<Option<PaceDelay>, TooMany> {
        let free = Duration::from_nanos(self.step_ns.saturating_mul(u64::from(at_once)));
        let time = taken.ahead.saturating_sub(free);
        if time.is_zero() {
            return Ok(None);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        // Create it in either case: dropping it undoes the count.
        let waits = PaceDelay { time, buckets: self.clone() };
        if before < WAITING_MAX { Ok(Some(waits)) } else { Err(TooMany) }
    }

    /// `requests` in `window`, for at most this many keys; all three at least 1.
    pub(crate) fn new(requests: u32, window: Duration, keys_max: usize) -> Buckets {
        let sets = keys_max.div_ceil(SET_KEYS).max(1);
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Buckets {
            chunks: (0..sets.div_ceil(CHUNK_SETS)).map(|_| OnceLock::new()).collect(),
            sets,
            step_ns: (window_ns / u64::from(requests.max(1))).max(1),
            waiting: AtomicU32::new(0),
        }
    }

    /// Takes one request from a key's bucket, if one is left.
    pub(crate) fn take(&self, key: u64, burst: u32, now_ns: u64) -> Admission {
        // The low bits identify the key within its set, too: the whole key is compared.
        let at = ((u128::from(key) * self.sets as u128) >> 64) as usize;
        let chunk = self.chunks[at / CHUNK_SETS]
            .get_or_init(|| (0..CHUNK_SETS.min(self.sets)).map(|_| Mutex::default()).collect());
        let set = &chunk[at % CHUNK_SETS];
        // Each change under the lock is a single step, so a panic leaves the data consistent.
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let known = set.iter().position(|bucket| bucket.key == key && bucket.full_at_ns > 0);
        let place = known.or_else(|| {
            let places = set.iter().enumerate();
            places.min_by_key(|(_, bucket)| bucket.full_at_ns).map(|(at, _)| at)
        });
        let full_at_ns = known.and_then(|at| set.get(at)).map_or(0, |bucket| bucket.full_at_ns);
        let (full_at_ns, taken) = step(full_at_ns, self.step_ns, burst, now_ns);
        if let Some(bucket) = place.and_then(|at| set.get_mut(at)) {
            *bucket = Bucket { key, full_at_ns };
        }
        taken
    }
}

/// One step of the algorithm: the new time when the bucket is full, and the result for the request.
fn step(full_at_ns: u64, step_ns: u64, burst: u32, now_ns: u64) -> (u64, Admission) {
    let tolerance_ns = step_ns.saturating_mul(u64::from(burst));
    let missing_ns = full_at_ns.saturating_sub(now_ns);
    if missing_ns > tolerance_ns {
        let wait = Duration::from_nanos(missing_ns - tolerance_ns);
        return (full_at_ns, Admission { is_allowed: false, remaining: 0, wait, ahead: Duration::ZERO });
    }
    let ahead = Duration::from_nanos(missing_ns);
    let missing_ns = missing_ns.saturating_add(step_ns);
    let (remaining, wait_ns) = match tolerance_ns.checked_sub(missing_ns) {
        Some(left_ns) => (left_ns / step_ns + 1, missing_ns),
        None => (0, missing_ns - tolerance_ns),
    };
    let taken = Admission { is_allowed: true, remaining, wait: Duration::from_nanos(wait_ns), ahead };
    (now_ns.saturating_add(missing_ns), taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The textbook leaky bucket: a level that falls continuously, and each request adds one.
    struct Leaky {
        level_ns: u128,
        seen_ns: u64,
    }

    impl Leaky {
        fn take(&mut self, step_ns: u64, burst: u32, now_ns: u64) -> bool {
            self.level_ns = self.level_ns.saturating_sub(u128::from(now_ns - self.seen_ns));
            self.seen_ns = now_ns;
            let fits = self.level_ns <= u128::from(step_ns) * u128::from(burst);
            self.level_ns += if fits { u128::from(step_ns) } else { 0 };
            fits
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

        #[test]
        fn rate_is_a_leaky_bucket(
            requests in 1..20u32,
            burst in 0..10u32,
            gaps in vec((0..3u64, 0..200u64), 1..100),
        ) {
            let buckets = Buckets::new(requests, Duration::from_nanos(1000), 64);
            let step_ns = 1000 / u64::from(requests);
            let mut oracles = [(); 3].map(|()| Leaky { level_ns: 0, seen_ns: 0 });
            let mut now_ns = 1;
            for (key, gap) in gaps {
                now_ns += gap;
                let taken = buckets.take(key, burst, now_ns);
                let oracle = &mut oracles[key as usize];
                prop_assert_eq!(taken.is_allowed, oracle.take(step_ns, burst, now_ns));
                // The reported `remaining` and `wait` are correct.
                let mut next = Leaky { level_ns: oracle.level_ns, seen_ns: now_ns };
                let more = (0..100).take_while(|_| next.take(step_ns, burst, now_ns)).count();
                prop_assert_eq!(taken.remaining, more as u64);
                if taken.remaining == 0 {
                    let wait_ns = taken.wait.as_nanos() as u64;
                    let mut early = Leaky { level_ns: oracle.level_ns, seen_ns: now_ns };
                    prop_assert!(wait_ns == 0 || !early.take(step_ns, burst, now_ns + wait_ns - 1));
                    let mut due = Leaky { level_ns: oracle.level_ns, seen_ns: now_ns };
                    prop_assert!(due.take(step_ns, burst, now_ns + wait_ns));
                }
            }
        }
    }

    #[test]
    fn bursts_are_paced_and_delayed_requests_are_bounded() {
        let buckets = Arc::new(Buckets::new(10, Duration::from_secs(1), 8));
        let times = |at_once: u32, key: u64| -> Vec<u128> {
            let times = (0..4).map(|_| {
                let taken = buckets.take(key, 3, 1);
                assert!(taken.is_allowed);
                buckets.pace(taken, at_once).unwrap().map_or(0, |waits| waits.time.as_millis())
            });
            let times = times.collect();
            assert!(!buckets.take(key, 3, 1).is_allowed);
            times
        };
        assert_eq!(times(0, 1), [0, 100, 200, 300], "as nginx has them without nodelay");
        assert_eq!(times(2, 2), [0, 0, 0, 100]);
        let taken = Admission { ahead: Duration::from_secs(1), ..buckets.take(3, 3, 1) };
        let all: Vec<_> = (0..WAITING_MAX).map(|_| buckets.pace(taken, 0).unwrap().unwrap()).collect();
        assert_eq!(buckets.pace(taken, 0).unwrap_err(), TooMany);
        drop(all);
        assert!(buckets.pace(taken, 0).unwrap().is_some());
        assert_eq!(buckets.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_flood_of_keys_takes_no_memory_and_forgets_the_fullest_buckets() {
        let buckets = Buckets::new(1, Duration::from_secs(60), SET_KEYS);
        assert_eq!((buckets.sets, buckets.chunks.len()), (1, 1));
        // One key far over its rate, and many that send one request.
        for _ in 0..=5 {
            buckets.take(u64::MAX, 5, 1);
        }
        for key in 1..1000 {
            assert!(buckets.take(key, 5, 2).is_allowed);
        }
        assert!(!buckets.take(u64::MAX, 5, 3).is_allowed);
    }

    #[test]
    fn sets_are_allocated_at_their_first_key() {
        let buckets = Buckets::new(1, Duration::from_secs(1), 100_000);
        let allocated =
            || buckets.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk.len()).sum::<usize>();
        assert!(buckets.chunks.len() < 200);
        assert_eq!(allocated(), 0);
        for key in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(buckets.take(key, 0, 1).is_allowed && !buckets.take(key, 0, 1).is_allowed);
        }
        assert_eq!(allocated(), 3 * CHUNK_SETS);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let buckets = Buckets::new(1, Duration::MAX, 1);
        assert!(buckets.take(7, u32::MAX, u64::MAX).is_allowed);
        buckets.take(7, u32::MAX, u64::MAX);
        let buckets = Buckets::new(u32::MAX, Duration::from_nanos(1), 1);
        assert!(buckets.take(7, 0, 1).is_allowed && !buckets.take(7, 0, 1).is_allowed);
    }
}
