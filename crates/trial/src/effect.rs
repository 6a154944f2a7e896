//! The effect of a change, from pairs of runs with and without it.

use crate::compare::{
    Level, PAIRS_MIN, Verdict, Word, judge, judge_apart, judge_look, levels, levels_apart, verdict_of_values,
};
use crate::errors::errors_rose;
use crate::looks::Look;
use crate::sample::{Disturbance, Objective, Sample};

/// A gain with its interval, as shares: 0.05 is 5 % better. For latency and CPU it is before ÷ after − 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The most likely gain.
    pub gain: f64,
    /// The lower end of the interval that contains the true gain.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The effect of a change on every figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// On requests per second.
    pub throughput: Option<Estimate>,
    /// On the 99th percentile of latency.
    pub p99: Option<Estimate>,
    /// On the server's CPU time per request.
    pub cpu: Option<Estimate>,
    /// The verdict on the objective's figure.
    pub word: Word,
    /// The number of pairs of runs.
    pub pairs: usize,
    /// The number of times that both were started for them; 0 if the server kept running.
    pub starts: usize,
    /// Errors per request with the change and without, if they rose.
    pub errors_rose: Option<(f64, f64)>,
    /// The probability that each interval contains the truth, as a share, at all looks together.
    pub confidence: f64,
    /// The figures.
    pub levels: Levels,
    /// What kept the servers from their CPUs meanwhile, in the mean of all runs.
    pub disturbance: Option<Disturbance>,
    /// The CPU time that the rest of the machine uses more with the change, per second, as a share of what the server uses without it.
    pub elsewhere: Option<Estimate>,
}

/// The figures with and without a change, in their units: requests per second, nanoseconds, microseconds. They differ
/// as the [`Estimate`] says, because they come from the same pairs of runs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Levels {
    /// Requests per second.
    pub throughput: Option<(f64, f64)>,
    /// The 99th percentile of latency.
    pub p99: Option<(f64, f64)>,
    /// CPU time per request.
    pub cpu: Option<(f64, f64)>,
}

impl Estimate {
    /// From a ratio and its interval; `None` without a number.
    pub(crate) fn of(verdict: &Verdict) -> Option<Estimate> {
        let estimate =
            Estimate { gain: verdict.ratio - 1.0, low: verdict.low - 1.0, high: verdict.high - 1.0 };
        (estimate.low.is_finite() && estimate.high.is_finite()).then_some(estimate)
    }

    /// The width of the interval, as a share.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }

    /// The end of the interval that is farther from zero, as a share: 0.04 of −4 % to +3 %.
    pub(crate) fn far_end(&self) -> f64 {
        (1.0 + self.low).ln().abs().max((1.0 + self.high).ln().abs()).exp() - 1.0
    }

    /// This and another effect on top of it, found independently.
    pub(crate) fn and(&self, next: &Estimate) -> Estimate {
        let log = |share: f64| (1.0 + share).ln();
        let gain = log(self.gain) + log(next.gain);
        let apart = |end: fn(&Estimate) -> f64| {
            (log(self.gain) - log(end(self))).hypot(log(next.gain) - log(end(next)))
        };
        Estimate {
            gain: gain.exp_m1(),
            low: (gain - apart(|estimate| estimate.low)).exp_m1(),
            high: (gain + apart(|estimate| estimate.high)).exp_m1(),
        }
    }

    /// The cost of a burden, from what removing it would gain, as shares: the missing part of requests per second;
    /// the added part of latency and CPU.
    pub fn as_cost(&self, objective: Objective) -> Estimate {
        let cost = |gain: f64| match objective {
            Objective::Throughput => 1.0 - 1.0 / (1.0 + gain),
            Objective::P99 | Objective::Cpu => gain,
        };
        Estimate { gain: cost(self.gain), low: cost(self.low), high: cost(self.high) }
    }

    /// The same with an interval widened by this share, for an error that the variance does not show.
    fn widened(&self, share: f64) -> Estimate {
        let by = 1.0 + share;
        Estimate { gain: self.gain, low: (1.0 + self.low) / by - 1.0, high: (1.0 + self.high) * by - 1.0 }
    }

    /// The interval's verdict: all of it on one side of zero, or not.
    pub(crate) fn word(&self) -> Word {
        match () {
            () if self.low > 0.0 => Word::Faster,
            () if self.high < 0.0 => Word::Slower,
            () => Word::NoDifference,
        }
    }
}

impl Effect {
    /// Judges pairs of runs with and without a change, by the objective's figure.
    /// The intervals hold at all numbers of pairs at once.
    pub fn of(pairs: &[(Sample, Sample)], objective: Objective, level: Level) -> Effect {
        Effect::of_values(pairs, objective, level, |objective| judge(&figures(pairs, objective), level))
    }

    /// The same at a planned look; the intervals are narrower, and hold at all planned looks.
    pub fn at_look(pairs: &[(Sample, Sample)], objective: Objective, level: Level, look: Look) -> Effect {
        Effect::of_values(pairs, objective, level, |objective| {
            judge_look(&figures(pairs, objective), level, look)
        })
    }

    /// The effect of these pairs, where this judges a figure of them.
    pub(crate) fn of_values(
        pairs: &[(Sample, Sample)],
        objective: Objective,
        level: Level,
        judge: impl Fn(Objective) -> Verdict,
    ) -> Effect {
        let (with, without): (Vec<Sample>, Vec<Sample>) = pairs.iter().copied().unzip();
        Effect {
            pairs: pairs.len(),
            errors_rose: errors_rose(&with, &without, level),
            disturbance: Disturbance::mean(with.iter().chain(&without).map(|sample| sample.disturbance)),
            elsewhere: elsewhere(pairs),
            ..Effect::by(objective, level, |objective| {
                let verdict = judge(objective);
                (verdict, levels(&figures(pairs, objective), verdict.ratio))
            })
        }
    }

    /// The same for runs that could not alternate.
    pub fn apart(with: &[Sample], without: &[Sample], objective: Objective, level: Level) -> Effect {
        let figures = |samples: &[Sample], objective: Objective| -> Vec<f64> {
            samples.iter().filter_map(|sample| objective.figure(sample)).collect()
        };
        Effect {
            pairs: with.len().min(without.len()),
            errors_rose: errors_rose(with, without, level),
            disturbance: Disturbance::mean(with.iter().chain(without).map(|sample| sample.disturbance)),
            ..Effect::by(objective, level, |objective| {
                let (with, without) = (figures(with, objective), figures(without, objective));
                (judge_apart(&with, &without, level), levels_apart(&with, &without))
            })
        }
    }

    fn by(
        objective: Objective,
        level: Level,
        verdict: impl Fn(Objective) -> (Verdict, Option<(f64, f64)>),
    ) -> Effect {
        let [throughput, p99, cpu] = Objective::ALL.map(|objective| {
            let (verdict, levels) = verdict(objective);
            let levels =
                levels.map(|(with, without)| (objective.of_figure(with), objective.of_figure(without)));
            (Estimate::of(&verdict), levels)
        });
        let effect = Effect {
            throughput: throughput.0,
            p99: p99.0,
            cpu: cpu.0,
            word: Word::NoDifference,
            pairs: 0,
            starts: 0,
            errors_rose: None,
            confidence: level.confidence(),
            levels: Levels { throughput: throughput.1, p99: p99.1, cpu: cpu.1 },
            disturbance: None,
            elsewhere: None,
        };
        Effect { word: effect.on(objective).map_or(Word::NoDifference, |estimate| estimate.word()), ..effect }
    }

    /// The same with intervals widened by this share, for an error that the variance does not show.
    pub(crate) fn widened(&self, share: f64, objective: Objective) -> Effect {
        let wide = |objective: Objective| self.on(objective).map(|estimate| estimate.widened(share));
        Effect {
            throughput: wide(Objective::Throughput),
            p99: wide(Objective::P99),
            cpu: wide(Objective::Cpu),
            word: wide(objective).map_or(Word::NoDifference, |estimate| estimate.word()),
            ..self.clone()
        }
    }

    /// This and another effect on top of it, found independently. Figures that only one of them has are left out.
    pub fn and(&self, next: &Effect) -> Effect {
        let both = |objective: Objective| Some(self.on(objective)?.and(&next.on(objective)?));
        Effect {
            throughput: both(Objective::Throughput),
            p99: both(Objective::P99),
            cpu: both(Objective::Cpu),
            word: if self.word == next.word { self.word } else { Word::NoDifference },
            pairs: self.pairs.min(next.pairs),
            starts: self.starts.min(next.starts),
            errors_rose: next.errors_rose.or(self.errors_rose),
            confidence: self.confidence.min(next.confidence),
            disturbance: Disturbance::mean([self.disturbance, next.disturbance]),
            elsewhere: None,
            levels: {
                let both = |objective: Objective| {
                    let (_, without) = self.levels(objective)?;
                    let figure = objective.of_figure(without) * (1.0 + both(objective)?.gain);
                    Some((objective.of_figure(figure), without))
                };
                Levels {
                    throughput: both(Objective::Throughput),
                    p99: both(Objective::P99),
                    cpu: both(Objective::Cpu),
                }
            },
        }
    }

    /// One figure with the change and without it.
    pub fn levels(&self, objective: Objective) -> Option<(f64, f64)> {
        match objective {
            Objective::Throughput => self.levels.throughput,
            Objective::P99 => self.levels.p99,
            Objective::Cpu => self.levels.cpu,
        }
    }

    /// The estimate of one figure.
    pub fn on(&self, objective: Objective) -> Option<Estimate> {
        match objective {
            Objective::Throughput => self.throughput,
            Objective::P99 => self.p99,
            Objective::Cpu => self.cpu,
        }
    }
}

/// The probability that the interval of the CPU time elsewhere does not contain the truth.
const ELSEWHERE_ALPHA: f64 = 0.01;

/// The CPU time elsewhere, by the plain mean of the pairs and Student's interval. It is compared per second, because other programs use
/// theirs whether there are many requests or few. What a start or a busy moment costs both the server and the machine cancels out.
fn elsewhere(pairs: &[(Sample, Sample)]) -> Option<Estimate> {
    let per_s = |sample: &Sample| {
        let cpu = sample.cpu_us_per_request.filter(|cpu| *cpu > 0.0)? * sample.requests_per_s;
        Some((sample.machine_us_per_request? * sample.requests_per_s - cpu, cpu))
    };
    let values: Vec<f64> = pairs
        .iter()
        .filter_map(|(with, without)| {
            let ((with, _), (without, cpu)) = (per_s(with)?, per_s(without)?);
            (cpu > 0.0).then(|| (with - without) / cpu)
        })
        .collect();
    let verdict = verdict_of_values(&values, PAIRS_MIN, ELSEWHERE_ALPHA);
    let estimate = Estimate { gain: verdict.ratio.ln(), low: verdict.low.ln(), high: verdict.high.ln() };
    (estimate.low.is_finite() && estimate.high.is_finite()).then_some(estimate)
}

/// The figure of all pairs that have it.
pub(crate) fn figures(pairs: &[(Sample, Sample)], objective: Objective) -> Vec<(f64, f64)> {
    pairs
        .iter()
        .filter_map(|(with, without)| Some((objective.figure(with)?, objective.figure(without)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(requests_per_s: f64, errors: u64) -> Sample {
        Sample { requests_per_s, requests: 1000, errors, ..Sample::default() }
    }

    #[test]
    fn each_measured_figure_has_a_gain() {
        let pairs: Vec<(Sample, Sample)> = [(110.0, 100.0), (121.0, 110.0), (132.0, 120.5), (109.0, 99.0)]
            .map(|(with, without)| {
                let with = Sample { cpu_us_per_request: Some(4.0), ..sample(with, 0) };
                (with, Sample { cpu_us_per_request: Some(5.0), ..sample(without, 0) })
            })
            .to_vec();
        let effect = Effect::of(&pairs, Objective::Throughput, Level::ONE);
        let throughput = effect.throughput.unwrap();
        assert!((throughput.gain - 0.1).abs() < 0.01 && throughput.low > 0.05, "{throughput:?}");
        assert!((effect.cpu.unwrap().gain - 0.25).abs() < 1e-9);
        assert_eq!((effect.p99, effect.word, effect.pairs), (None, Word::Faster, 4));
        let (with, without) = effect.levels(Objective::Cpu).unwrap();
        assert!((with - 4.0).abs() < 1e-9 && (without - 5.0).abs() < 1e-9, "{with} {without}");
        let (with, without) = effect.levels(Objective::Throughput).unwrap();
        assert!(
            (with / without - 1.0 - throughput.gain).abs() < 1e-12,
            "before, after and gain are one thing"
        );
        let wide = effect.widened(0.2, Objective::Throughput);
        assert_eq!(wide.word, Word::NoDifference);
        let twice = effect.and(&effect);
        let (with, _) = twice.levels(Objective::Cpu).unwrap();
        assert!((with - 3.2).abs() < 1e-9, "5 µs, 4 µs, 3.2 µs: {with}");
    }

    /// 1000 requests per second become 800, 5 µs become 6.25: a fifth of the requests is missing, a quarter of the
    /// CPU time is added.
    #[test]
    fn costs_have_the_unit_of_their_figure() {
        let gain = Estimate { gain: 0.25, low: 0.0, high: 1.0 };
        let cost = gain.as_cost(Objective::Throughput);
        assert!((cost.gain - 0.2).abs() < 1e-12 && cost.low == 0.0 && cost.high == 0.5, "{cost:?}");
        assert_eq!((gain.as_cost(Objective::P99), gain.as_cost(Objective::Cpu)), (gain, gain));
    }

    #[test]
    fn effects_on_top_of_each_other_multiply() {
        let one = Estimate { gain: 0.2, low: 0.1, high: 0.3 };
        let both = one.and(&Estimate { gain: 0.5, low: 0.5, high: 0.5 });
        assert!((both.gain - 0.8).abs() < 1e-12, "{both:?}");
        assert!((both.low - 0.65).abs() < 1e-12 && (both.high - 0.95).abs() < 1e-12, "{both:?}");
        let twice = one.and(&one);
        assert!(twice.low > 0.1 * 2.1 && twice.high < 0.3 * 2.3, "errors do not simply add: {twice:?}");
    }

    /// The server gets cheaper by 2 of 10 µs. If the machine does too, nothing is elsewhere; if it does not, a fifth is.
    #[test]
    fn work_that_was_moved_away_is_elsewhere() {
        let pairs = |machine: f64| -> Vec<(Sample, Sample)> {
            (0..20)
                .map(|at| {
                    let noise = 0.1 * f64::from(at % 5) - 0.2;
                    let sample = |cpu: f64, machine: f64| Sample {
                        cpu_us_per_request: Some(cpu),
                        machine_us_per_request: Some(machine),
                        ..sample(100.0, 0)
                    };
                    (sample(8.0, machine + noise), sample(10.0, 13.0))
                })
                .collect()
        };
        let elsewhere = |machine| Effect::of(&pairs(machine), Objective::Cpu, Level::ONE).elsewhere.unwrap();
        let none = elsewhere(11.0);
        assert!(none.low < 0.0 && none.high > 0.0 && none.width() < 0.05, "{none:?}");
        let moved = elsewhere(13.0);
        assert!((moved.gain - 0.2).abs() < 1e-9 && moved.low > 0.15, "{moved:?}");
        // Other programs use 0.3 ms of each second, under 100 requests as under 400.
        let fast: Vec<(Sample, Sample)> = pairs(0.0)
            .into_iter()
            .map(|(with, without)| {
                let machine_us_per_request = Some(8.0 + 3.0 / 4.0);
                (Sample { machine_us_per_request, requests_per_s: 400.0, ..with }, without)
            })
            .collect();
        let none = Effect::of(&fast, Objective::Cpu, Level::ONE).elsewhere.unwrap();
        assert!(none.gain.abs() < 1e-9, "{none:?}");
        assert_eq!(
            Effect::of(&[(sample(1.0, 0), sample(1.0, 0)); 20], Objective::Cpu, Level::ONE).elsewhere,
            None
        );
    }

    #[test]
    fn nothing_is_estimated_from_too_little() {
        let effect = Effect::of(&[(sample(2.0, 0), sample(1.0, 0))], Objective::Throughput, Level::ONE);
        assert_eq!((effect.throughput, effect.word), (None, Word::NoDifference));
    }
}
