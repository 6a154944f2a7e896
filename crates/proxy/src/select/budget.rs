//! The retry budget: retries are limited to a share of an upstream's requests, so that they do not overload a server
//! in trouble.

/// Retries that can be saved.
const SAVED_MAX: f64 = 20.0;

/// One worker's retry budget for one upstream.
pub(crate) struct Budget {
    share: f64,
    saved: f64,
}

impl Budget {
    /// Allows this share of all requests as retries.
    pub(crate) fn new(share: f64) -> Budget {
        Budget { share, saved: SAVED_MAX }
    }

    /// Counts a request.
    pub(crate) fn earn(&mut self) {
        self.saved = (self.saved + self.share).min(SAVED_MAX);
    }

    /// Takes a retry from the budget, if one is left.
    pub(crate) fn spend(&mut self) -> bool {
        let may = self.saved >= 1.0;
        if may {
            self.saved -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests() {
        let mut budget = Budget::new(0.2);
        while budget.spend() {}
        let mut retries = 0;
        for _ in 0..1000 {
            budget.earn();
            retries += u32::from(budget.spend());
        }
        assert!((199..=201).contains(&retries), "{retries}");
        let mut none = Budget::new(0.0);
        assert_eq!((0..100).filter(|_| none.spend()).count(), SAVED_MAX as usize);
    }
}
