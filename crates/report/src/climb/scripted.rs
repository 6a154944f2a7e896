//! Scripted climbs for the tests of this module.

use flatout_climb::{
    Effect, End, Error, Estimate, Figures, Found, How, Mean, Means, Noise, Objective, Outcome, Profiles,
    Status, TriedRung,
};
use flatout_load::Latency;
use flatout_trial::compare::Word;
use flatout_trial::{Disturbance, Levels};

use super::{Climb, Today};
use crate::Machine;
use crate::flame::scripted::profile;

pub(super) fn estimate(gain: f64, half: f64) -> Estimate {
    Estimate { gain, low: gain - half, high: gain + half }
}

fn effect(gain: f64, half: f64) -> Effect {
    Effect {
        throughput: Some(estimate(gain, half)),
        p99: Some(estimate(gain * 0.7, half * 3.0)),
        cpu: Some(estimate(gain * 0.9, half * 0.5)),
        word: if gain > half { Word::Faster } else { Word::NoDifference },
        pairs: 12,
        starts: 4,
        errors_rose: None,
        confidence: 0.99,
        levels: Levels::default(),
        disturbance: Some(Disturbance { waited: 0.25, stolen: 0.01, throttled: 0.0 }),
        elsewhere: Some(estimate(0.004, 0.01)),
    }
}

fn rung(name: &str, status: Status, forward: Option<(f64, f64)>, reason: &str) -> TriedRung {
    let kept = status == Status::Kept;
    let forward = forward.map(|(gain, half)| effect(gain, half));
    let other = |factor: f64| forward.as_ref().map(|effect| effect.throughput.unwrap().gain * factor);
    let found = Found {
        status,
        how: How::InTurn,
        leave_one_out: other(0.8).filter(|_| kept).map(|gain| estimate(gain, 0.02)),
        shapley: other(0.9).map(|gain| estimate(gain, 0.03)),
        reason: reason.to_owned(),
        forward,
    };
    let commands =
        (status != Status::Skipped).then(|| (format!("tune apply '{name}'"), format!("tune undo '{name}'")));
    let (apply, take_back) = commands.unzip();
    TriedRung { name: name.to_owned(), found, apply, take_back }
}

fn figures(requests_per_s: f64, factor: u64) -> Figures {
    let mut latency = Latency::new();
    (1..=20_000u64).for_each(|at| latency.record(factor * (200_000 + at * at / 2_000)));
    Figures {
        requests_per_s,
        p50_ns: Some(latency.percentile(50.0) as f64),
        p99_ns: Some(latency.percentile(99.0) as f64),
        cpu_us_per_request: Some(1e6 / requests_per_s),
        generator_share: Some(0.5),
        requests: 20_000,
        errors: 0,
        runs: 36,
        means: Means {
            throughput: Some(Mean {
                mean: requests_per_s,
                low: 0.99 * requests_per_s,
                high: 1.01 * requests_per_s,
            }),
            ..Means::default()
        },
        latency: Some(latency),
    }
}

/// A rung of each status, names that look like markup, and all figures.
pub(super) fn climb() -> Climb {
    let stays = "an equal one costs 10.7 % (6.5 to 14.5) of the requests per second; it stays";
    let tap = rung("tap", Status::Skipped, Some((0.12, 0.05)), stays);
    let rungs = vec![
        rung("workers", Status::Kept, Some((0.82, 0.06)), ""),
        rung("conntrack", Status::Kept, Some((0.114, 0.02)), ""),
        rung("reno", Status::None, Some((0.004, 0.012)), "no significant difference"),
        rung("gro<b>&'x", Status::Worse, Some((-0.21, 0.03)), "it <i>harms</i>"),
        TriedRung { found: Found { how: How::FromTheOtherSide, ..tap.found }, ..tap },
        rung("rss", Status::NotMeasurable, None, "it needs a network device; this path is loopback"),
        rung("mitigations", Status::Skipped, None, "protection is lost while it is tried; --accept-risk"),
    ];
    let outcome = Outcome {
        noise: Some(Noise {
            effect: Effect { p99: None, cpu: None, ..effect(0.001, 0.014) },
            floor: Some(0.015),
        }),
        noise_of_servers: Some(Noise {
            effect: Effect { p99: None, cpu: None, ..effect(0.0, 0.004) },
            floor: Some(0.004),
        }),
        rungs,
        total: Some(effect(1.02, 0.05)),
        before: Some(figures(101_234.0, 2)),
        after: Some(figures(204_567.0, 1)),
        load_rate_per_s: None,
        load: Some("64 connections in a closed loop".to_owned()),
        cpu: Some("the server's processes and the network softirqs for it".to_owned()),
        diff: Some("--- /etc/nginx/nginx.conf\n+worker_processes auto;\n".to_owned()),
        apply: Some("flatout tune apply conntrack && server --workers 2 '<x>'".to_owned()),
        take_back: Some("flatout tune undo conntrack && server --workers 1".to_owned()),
        profiles: Ok(Profiles {
            before: profile(Some(1000.0), 3_000_000),
            after: Some(profile(Some(1400.0), 0)),
        }),
        end: End::Done,
        left_behind: None,
        next: vec!["reboot".to_owned()],
        waiting: None,
    };
    Climb {
        command: Some("flatout climb --url 'http://127.0.0.1:80/?a=<b>&c'".to_owned()),
        date: Some("2026-11-23 17:34:07 UTC".to_owned()),
        url: "http://127.0.0.1:80/?a=<b>&c".to_owned(),
        objective: Objective::Throughput,
        outcome,
        machine: Machine { processor: "CPU <9>".to_owned(), cpus: 2, kernel: "6.18.44".to_owned() },
        today: Today { rate_per_s: Some(150_000.0), price_per_hour: Some(0.36) },
        old: None,
    }
}

/// A climb that failed before it had any result.
pub(super) fn bare() -> Climb {
    let rungs = vec![rung("workers", Status::Skipped, None, "")];
    let outcome = Outcome {
        noise: None,
        noise_of_servers: None,
        rungs,
        total: None,
        before: None,
        after: None,
        load_rate_per_s: Some(12_345.6),
        load: None,
        cpu: None,
        diff: None,
        apply: None,
        take_back: None,
        profiles: Err("the climb did not finish".to_owned()),
        end: End::Failed(Error::Server("the server <died>".to_owned())),
        left_behind: Some("sysctl x".to_owned()),
        next: Vec::new(),
        waiting: None,
    };
    let today = Today::default();
    Climb { command: None, objective: Objective::P99, outcome, today, ..climb() }
}
