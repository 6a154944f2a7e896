//! Group-sequential looks: a comparison is judged at a few planned numbers of pairs, and at its end.
//!
//! A confidence sequence pays for a look after each pair: at 20 pairs it is 1.5 times as wide as an interval of one look.
//! A climb needs few looks. Each of them has a part of the error probability, and Student's interval at that part. By Bonferroni's
//! inequality, all looks together err with at most the whole probability, whatever they have in common. When they
//! take place may depend on the clock and on the width of the interval, but not on which side of zero it is.

/// A look at a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// At one of the [`INTERIM_PAIRS`].
    Interim,
    /// When the comparison's time is over.
    Last,
    /// When the time of its second look is over.
    Again,
}

/// Pairs of the interim looks. A comparison ends there if its interval is narrow enough.
pub const INTERIM_PAIRS: [usize; 4] = [8, 16, 32, 64];

/// The part of an interim look. A comparison that is repeated on top of other rungs has them twice.
const INTERIM_PART: f64 = 0.01;

/// The part of the look at the end of the time.
const LAST_PART: f64 = 0.54;

impl Look {
    /// The part of the comparison's error probability for this look.
    pub fn part(self) -> f64 {
        match self {
            Look::Interim => INTERIM_PART,
            Look::Last => LAST_PART,
            Look::Again => 1.0 - LAST_PART - 2.0 * INTERIM_PART * INTERIM_PAIRS.len() as f64,
        }
    }
}
