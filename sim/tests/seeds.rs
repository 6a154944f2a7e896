//! Runs of the simulator: a fixed set of seeds, and the promise that a seed is enough to repeat a run.

/// Seeds that once failed, by a mistake of the server or of the simulator itself. What a seed draws changes with the simulator: a defect of
/// the server has a test of its own too, where it can be made to happen without one.
const SEEDS: [u64; 16] = [
    6,
    26,
    34,
    39,
    44,
    67,
    91,
    104,
    96,
    151,
    7120,
    100_041,
    300_158,
    400_317,
    500_080,
    5_800_446_586_169_294_758,
];

/// Returns how many stored responses were served after a crash.
#[track_caller]
fn passes(seed: u64) -> u64 {
    let report = sim::run(seed);
    if let Some(failure) = report.failure {
        panic!("{}\n{}\nseed {seed}: {}", failure.scene, report.trace, failure.message);
    }
    report.survivors
}

#[test]
fn former_failures_pass() {
    for seed in SEEDS {
        passes(seed);
    }
}

#[test]
fn first_seeds_pass() {
    for seed in 1000..1060 {
        passes(seed);
    }
}

#[test]
fn stored_responses_survive_crashes() {
    let survivors: u64 = [4087, 4116, 4135].into_iter().map(passes).sum();
    assert!(survivors > 0, "no response was served from the folder of a server that was killed");
}

#[test]
fn seed_repeats_every_event() {
    // The last two crash.
    for seed in (2000..2010).chain([4087, 4135]) {
        let (first, second) = (sim::run(seed), sim::run(seed));
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
        assert!(first.requests > 0 && first.events > first.requests);
    }
}

#[test]
fn every_planted_defect_applies() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for entry in std::fs::read_dir(root.join("sim/defects")).expect("a folder") {
        let patch = entry.expect("an entry").path();
        if patch.extension().is_some_and(|extension| extension == "patch") {
            let git = std::process::Command::new("git")
                .args(["apply", "--check"])
                .arg(&patch)
                .current_dir(root)
                .output()
                .expect("git");
            assert!(git.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&git.stderr));
        }
    }
}
