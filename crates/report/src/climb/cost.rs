//! Figures in machines and money.

use flatout_climb::Figures;

/// The user's current load.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Today {
    /// Requests per second at the busiest time.
    pub rate_per_s: Option<f64>,
    /// The price of such a machine per hour, in any currency.
    pub price_per_hour: Option<f64>,
}

/// The meaning of one configuration's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Meaning {
    /// Requests that one CPU serves per second.
    pub requests_per_cpu_s: Option<f64>,
    /// How many times the current rate one machine can serve.
    pub headroom: Option<f64>,
    /// Machines needed for the current rate.
    pub machines: Option<u64>,
    /// The price per billion requests on busy machines.
    pub price_per_1e9_requests: Option<f64>,
}

impl Meaning {
    /// Computes the meaning. Figures that were measured at a given rate do not show how much a machine can serve.
    pub fn of(figures: &Figures, today: &Today, is_at_rate: bool) -> Meaning {
        let bears = Some(figures.requests_per_s).filter(|rate| *rate > 0.0 && !is_at_rate);
        let share = bears.zip(today.rate_per_s.filter(|rate| *rate > 0.0));
        Meaning {
            requests_per_cpu_s: figures.requests_per_cpu_s(),
            headroom: share.map(|(bears, today)| bears / today),
            machines: share.map(|(bears, today)| (today / bears).ceil() as u64),
            price_per_1e9_requests: bears
                .zip(today.price_per_hour)
                .map(|(bears, price)| price / 3600.0 / bears * 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use flatout_climb::Means;

    use super::*;

    #[test]
    fn machines_and_prices_follow_from_the_rate() {
        let figures = Figures {
            requests_per_s: 100_000.0,
            p50_ns: None,
            p99_ns: None,
            cpu_us_per_request: Some(5.0),
            generator_share: None,
            requests: 1,
            errors: 0,
            runs: 1,
            means: Means::default(),
            latency: None,
        };
        let today = Today { rate_per_s: Some(250_000.0), price_per_hour: Some(0.36) };
        let meaning = Meaning::of(&figures, &today, false);
        assert_eq!((meaning.requests_per_cpu_s, meaning.machines), (Some(200_000.0), Some(3)));
        assert_eq!(meaning.headroom, Some(0.4));
        assert!((meaning.price_per_1e9_requests.unwrap() - 1.0).abs() < 1e-9);
        let at_rate = Meaning::of(&figures, &today, true);
        assert_eq!((at_rate.machines, at_rate.headroom, at_rate.price_per_1e9_requests), (None, None, None));
        assert_eq!(at_rate.requests_per_cpu_s, Some(200_000.0));
        let idle = Figures { requests_per_s: 0.0, cpu_us_per_request: None, ..figures };
        let meaning = Meaning::of(&idle, &today, false);
        assert_eq!((meaning.machines, meaning.price_per_1e9_requests), (None, None));
    }
}
