//! Compares two profiles on one scale.
//!
//! A faster server is sampled for the same time but serves more requests, so raw weights cannot be compared. What
//! counts is the cost per request. If requests were not counted, only shares of the total can be compared.

use crate::{Area, Clock, Error, Profile};

/// The unit of a comparison's costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Per request, in the clock's unit.
    Request(Clock),
    /// The total: 1.0 is all of it.
    Share,
}

/// How two profiles differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The unit of the costs.
    pub per: Per,
    /// The factor for weights of the profile before.
    pub before_scale: f64,
    /// The factor for weights of the profile after.
    pub after_scale: f64,
    /// Each area's cost before and after.
    pub areas: Vec<(&'static Area, f64, f64)>,
}

impl Comparison {
    /// The total cost, before and after.
    pub fn total(&self) -> (f64, f64) {
        self.areas.iter().fold((0.0, 0.0), |sum, area| (sum.0 + area.1, sum.1 + area.2))
    }
}

/// Scales two profiles for comparison.
///
/// # Errors
/// [`Error::Incomparable`]: one is empty, or they were taken with different clocks and requests were counted.
pub fn compare(before: &Profile, after: &Profile) -> Result<Comparison, Error> {
    for (name, profile) in [("before", before), ("after", after)] {
        if profile.stacks.weight() == 0 {
            return Err(Error::Incomparable(format!("the profile `{name}` has no samples")));
        }
    }
    let scales = (before.per_request(1), after.per_request(1));
    let (per, before_scale, after_scale) = match scales {
        (Some(before_scale), Some(after_scale)) if before.clock == after.clock => {
            (Per::Request(before.clock), before_scale, after_scale)
        }
        (Some(_), Some(_)) => {
            let why = "one profile counts cycles, the other time: take both on one machine with one kernel";
            return Err(Error::Incomparable(why.to_owned()));
        }
        _ => (Per::Share, 1.0 / before.stacks.weight() as f64, 1.0 / after.stacks.weight() as f64),
    };
    let pairs = before.areas().into_iter().zip(after.areas());
    let scaled = pairs.map(|(before, after)| {
        (before.area, before.weight as f64 * before_scale, after.weight as f64 * after_scale)
    });
    Ok(Comparison { per, before_scale, after_scale, areas: scaled.collect() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Frame, Kind, Stacks};

    fn profile(request_count: Option<f64>, stacks: &[(&str, u64)]) -> Profile {
        let mut folded = Stacks::default();
        for (name, weight) in stacks {
            folded.add([Frame::new(Kind::Kernel, *name)], *weight);
        }
        Profile {
            what: "test".to_owned(),
            clock: Clock::CpuTime,
            rate_hz: 100,
            time: Duration::from_secs(1),
            cpu_count: 1,
            sample_count: 1,
            lost_count: 0,
            idle_weight: 0,
            request_count,
            notes: Vec::new(),
            stacks: folded,
        }
    }

    fn cost(comparison: &Comparison, name: &str) -> (f64, f64) {
        let found = comparison.areas.iter().find(|(area, _, _)| area.name == name).unwrap();
        (found.1, found.2)
    }

    /// Twice the requests in the same time: everything halves except what was added.
    #[test]
    fn costs_are_those_of_one_request() {
        let before = profile(Some(100.0), &[("tcp_sendmsg", 1000), ("nf_hook_slow", 500)]);
        let after = profile(Some(200.0), &[("tcp_sendmsg", 2000)]);
        let comparison = compare(&before, &after).unwrap();
        assert_eq!(comparison.per, Per::Request(Clock::CpuTime));
        assert_eq!(cost(&comparison, "TCP send"), (10.0, 10.0));
        assert_eq!(cost(&comparison, "netfilter"), (5.0, 0.0));
        assert_eq!(comparison.total(), (15.0, 10.0));
    }

    #[test]
    fn without_requests_shares_are_compared() {
        let before = profile(Some(100.0), &[("tcp_sendmsg", 300), ("nf_hook_slow", 100)]);
        let after = profile(None, &[("tcp_sendmsg", 7)]);
        let comparison = compare(&before, &after).unwrap();
        assert_eq!(comparison.per, Per::Share);
        assert_eq!(cost(&comparison, "TCP send"), (0.75, 1.0));
        assert_eq!(comparison.total(), (1.0, 1.0));
    }

    #[test]
    fn incomparable_profiles_are_reported() {
        let some = profile(Some(1.0), &[("x", 1)]);
        let empty = profile(Some(1.0), &[]);
        assert!(compare(&some, &empty).unwrap_err().to_string().contains("`after` has no samples"));
        let cycles = Profile { clock: Clock::Cycles, ..some.clone() };
        assert!(compare(&some, &cycles).unwrap_err().to_string().contains("cycles"));
        let uncounted = Profile { request_count: Some(0.0), ..some.clone() };
        assert_eq!(compare(&some, &uncounted).unwrap().per, Per::Share);
    }
}
