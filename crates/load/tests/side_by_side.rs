//! Blocks of load on two servers that are both alive.

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use flatout_load::side_by_side::{Batch, SideBySide, run};
use flatout_load::{Arrival, Pacing};

use support::{GOOD, plan, request, serve};

/// A server that responds after this time, and counts its responses and connections.
fn counting(wait: Duration) -> (SocketAddr, Arc<[AtomicU64; 2]>) {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counted = counts.clone();
    let address = serve(move |mut stream, _| {
        counted[1].fetch_add(1, Ordering::Relaxed);
        while request(&mut stream) {
            thread::sleep(wait);
            counted[0].fetch_add(1, Ordering::Relaxed);
            if stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, counts)
}

fn side_by_side(one: SocketAddr, other: SocketAddr) -> SideBySide {
    SideBySide {
        plans: [plan(one), plan(other)],
        block: Duration::from_millis(40),
        pairs: 10,
        warmup_max: Duration::ZERO,
        seed: 3,
    }
}

fn go(plan: &SideBySide) -> Batch {
    run(plan, &|_| Ok(()), &AtomicBool::new(false)).unwrap()
}

#[test]
fn every_response_of_two_servers_is_counted_once() {
    let (one, one_counts) = counting(Duration::from_millis(2));
    let (other, other_counts) = counting(Duration::from_millis(8));
    let batch = go(&side_by_side(one, other));
    assert_eq!(batch.pairs.len(), 10);
    for (side, counts) in [one_counts, other_counts].iter().enumerate() {
        let all = batch.pairs.iter().chain(&batch.warmup);
        let requests: u64 = all.clone().map(|pair| pair[side].requests).sum();
        assert_eq!(requests, counts[0].load(Ordering::Relaxed), "side {side}");
        assert_eq!(counts[1].load(Ordering::Relaxed), 3, "connections stay open between blocks");
        assert!(all.clone().all(|pair| pair[side].errors == 0 && pair[side].requests == pair[side].good));
        let measured: u64 = batch.pairs.iter().map(|pair| pair[side].requests).sum();
        assert_eq!(batch.latencies[side].count(), measured, "latencies are without the warm-up");
    }
    let rate = |side: usize| {
        let sum =
            |of: fn(&flatout_trial::Turn) -> f64| batch.pairs.iter().map(|pair| of(&pair[side])).sum::<f64>();
        sum(|turn| turn.requests as f64) / sum(|turn| turn.elapsed_s)
    };
    assert!(rate(0) > 1.5 * rate(1), "2 ms are faster than 8 ms: {} {}", rate(0), rate(1));
}

#[test]
fn both_servers_get_the_same_random_arrivals() {
    let (one, _) = counting(Duration::ZERO);
    let (other, _) = counting(Duration::ZERO);
    let mut both = side_by_side(one, other);
    for plan in &mut both.plans {
        plan.pacing = Pacing::Open { per_s: 500.0, arrival: Arrival::Poisson };
    }
    let batch = go(&both);
    let counts: Vec<[u64; 2]> = batch.pairs.iter().map(|pair| [pair[0].requests, pair[1].requests]).collect();
    assert!(counts.iter().all(|[one, other]| one == other), "{counts:?}");
    assert!(counts.windows(2).any(|next| next[0] != next[1]), "{counts:?}");
}

#[test]
fn connections_that_a_server_closes_are_opened_again() {
    let (one, _) = counting(Duration::ZERO);
    let closing = serve(|mut stream, _| {
        for _ in 0..5 {
            if !request(&mut stream) || stream.write_all(GOOD.as_bytes()).is_err() {
                return;
            }
        }
    });
    let batch = go(&side_by_side(one, closing));
    assert!(batch.pairs.iter().all(|pair| pair[1].requests > 0), "{:?}", batch.pairs);
}

#[test]
fn requests_without_a_response_are_errors() {
    let (one, _) = counting(Duration::from_millis(1));
    let silent = serve(|mut stream, _| while request(&mut stream) {});
    let mut both = side_by_side(one, silent);
    both.pairs = 2;
    both.plans[1].answer_time_max = Duration::from_millis(50);
    let batch = go(&both);
    for pair in &batch.pairs {
        assert!(pair[1].requests == 0 && pair[1].errors >= 3, "{pair:?}");
        assert!(pair[0].requests > 0 && pair[0].errors == 0, "{pair:?}");
    }
}

#[test]
fn a_network_that_cannot_be_entered_is_reported() {
    let (one, _) = counting(Duration::ZERO);
    let both = side_by_side(one, one);
    let refused = |side| if side == 1 { Err(std::io::Error::other("no such network")) } else { Ok(()) };
    let error = run(&both, &refused, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("no such network"), "{error}");
}
