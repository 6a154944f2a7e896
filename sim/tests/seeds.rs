//! Runs of the simulator: a fixed set of seeds, and the promise that a seed is enough to repeat a run. No test here may start a process:
//! until that has its own program, it shares all sockets, and one that is closed here is still open for its other end.

/// Seeds that once failed, by a mistake of the server or of the simulator itself. What a seed draws changes with the simulator: a defect of
/// the server has a test of its own too, where it can be made to happen without one.
const SEEDS: [u64; 31] = [
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
    420_009,
    430_118,
    500_080,
    5_800_446_586_169_294_758,
    // A 304 for a response that another request has replaced since its upstream was asked.
    4_462_129_637_296_136_885,
    // A client of HTTP/2 ends in the middle of a frame.
    11_130_219_262_223_021_459,
    // Pipelined requests that a former server serves long after an upgrade.
    9_477_741_550_324_418_541,
    // A subscriber comes just as the server begins to drain.
    5_196_103_265_470_081_684,
    // A server closes with a 408 before anything of the next request was sent.
    17_853_800_877_986_620_215,
    // A message needs more than the window of a subscriber of HTTP/2, just when its rate is judged.
    7_319_836_360_957_328_926,
    // A client of HTTP/2 does not read while it cannot send a change of its windows.
    3_181_503_978_618_052_031,
    // A long poll gets its position from a former server.
    17_264_841_284_962_797_143,
    // The client of a response makes room in the turn in which the time of its upstream ends, which has sent everything.
    4_191_705_263_136_558_502,
    // A connection becomes free, and the request that waits longest may not use it.
    16_281_296_609_750_918_330,
    // A server of HTTP/2 closes after a long response, and frames can no longer be sent to it.
    5_912_674,
    14_490_669_527_938_456_928,
    // A server is replaced in the middle of pipelined requests, and the last response comes behind a slice.
    18_196_879_590_580_396_850,
];

#[track_caller]
fn passes(seed: u64) -> sim::Report {
    let report = sim::run(seed);
    if let Some(failure) = &report.failure {
        panic!("{}\n{}\nseed {seed}: {}", failure.scene, report.trace, failure.message);
    }
    report
}

#[test]
fn former_failures_pass() {
    for seed in SEEDS {
        passes(seed);
    }
}

#[test]
fn first_seeds_pass() {
    let moved: u64 = (1000..1060).chain([1163, 1250]).map(|seed| passes(seed).moved).sum();
    assert!(moved > 0, "no upgrade moved a subscriber");
}

#[test]
fn stored_responses_survive_crashes() {
    let survivors: u64 = [1199, 1316].into_iter().map(|seed| passes(seed).survivors).sum();
    assert!(survivors > 0, "no response was served from the folder of a server that was killed");
}

#[test]
fn seed_repeats_every_event() {
    // Among them are crashes and upgrades.
    for seed in (2000..2010).chain(4120..4130).chain([1199, 1163]) {
        let (first, second) = (sim::run(seed), sim::run(seed));
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
        assert!(first.requests > 0 && first.events > first.requests);
    }
}
