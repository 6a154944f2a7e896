//! Second looks: which rungs get one, and how the time that is left is divided among them.
//!
//! The width of an interval falls with the root of the number of pairs. So the time goes to the widest intervals first, and as many of
//! them as possible become equally wide. Pairs on top of the same rungs are continued. If other rungs have been kept since, all pairs
//! are new, and the look only begins if it can become at least as precise as the first one.
//!
//! All of this depends on the widths and on the clock, not on which side of zero an interval is. The look itself has its own part of
//! the error probability ([`crate::Look::Again`]), so both intervals hold at once, and either may be reported.

/// A rung without a known effect, whose interval is wider than requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Undecided {
    pub(super) rung: usize,
    /// The width of its interval, as a share.
    pub(super) width: f64,
    /// Its pairs so far.
    pub(super) pairs: usize,
    /// Whether these pairs can be continued.
    pub(super) is_same_base: bool,
    pub(super) seconds_of_pair: f64,
}

/// A second look that is worth its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planned {
    pub(super) rung: usize,
    /// The number of pairs at which it ends.
    pub(super) pairs: usize,
    pub(super) seconds: f64,
}

/// A look that makes an interval narrower by less than a tenth is not worth its time.
const NARROWER_MIN: f64 = 0.9;

/// Halvings of the range of widths.
const STEPS: usize = 40;

impl Undecided {
    /// The look that makes the interval this wide; `None` if it is about as narrow already.
    fn until(&self, width: f64, pairs_max: usize) -> Option<Planned> {
        if width > self.width * if self.is_same_base { NARROWER_MIN } else { 1.0 } {
            return None;
        }
        let pairs = (self.pairs as f64 * (self.width / width).powi(2)).ceil().min(pairs_max as f64) as usize;
        let made = if self.is_same_base { pairs.saturating_sub(self.pairs) } else { pairs };
        Some(Planned { rung: self.rung, pairs, seconds: made as f64 * self.seconds_of_pair })
    }
}

/// The second looks that fit into this time, the widest interval first.
pub(super) fn divided(
    undecided: &[Undecided],
    seconds: f64,
    width_min: f64,
    pairs_max: usize,
) -> Vec<Planned> {
    let mut widest_first = undecided.to_vec();
    widest_first.sort_by(|one, other| other.width.total_cmp(&one.width));
    let planned = |width: f64| -> Vec<Planned> {
        widest_first.iter().filter_map(|one| one.until(width, pairs_max)).collect()
    };
    let fits = |width: f64| planned(width).iter().map(|look| look.seconds).sum::<f64>() <= seconds;
    if fits(width_min) {
        return planned(width_min);
    }
    let (mut low, mut high) =
        (width_min, widest_first.first().map_or(width_min, |one| one.width) + width_min);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if fits(middle) { high = middle } else { low = middle }
    }
    planned(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undecided(rung: usize, width: f64, is_same_base: bool) -> Undecided {
        Undecided { rung, width, pairs: 20, is_same_base, seconds_of_pair: 2.0 }
    }

    #[test]
    fn the_widest_intervals_become_equally_wide() {
        let all = [undecided(0, 0.03, true), undecided(1, 0.12, true), undecided(2, 0.08, true)];
        let looks = divided(&all, 160.0, 0.02, 1000);
        assert_eq!(looks.iter().map(|look| look.rung).collect::<Vec<_>>(), [1, 2]);
        let width = |look: &Planned| all[look.rung].width * (20.0 / look.pairs as f64).sqrt();
        assert!((width(&looks[0]) - width(&looks[1])).abs() < 0.003, "{looks:?}");
        let seconds: f64 = looks.iter().map(|look| look.seconds).sum();
        assert!((150.0..=160.0).contains(&seconds), "{looks:?}");
        let looks = divided(&all, 1e6, 0.02, 100);
        assert_eq!(looks.iter().map(|look| look.pairs).collect::<Vec<_>>(), [100, 100, 45]);
    }

    /// On top of other rungs it would begin from nothing: in the time of ten pairs it would be less precise than before.
    #[test]
    fn a_look_that_would_be_less_precise_does_not_begin() {
        let all = [undecided(0, 0.06, false), undecided(1, 0.05, false)];
        assert_eq!(divided(&all, 20.0, 0.03, 1000), []);
        let looks = divided(&all, 41.0, 0.03, 1000);
        assert_eq!(looks.len(), 1, "{looks:?}");
        assert!(looks[0].rung == 0 && looks[0].pairs >= 20, "{looks:?}");
        assert_eq!(divided(&[undecided(0, 0.06, true)], 20.0, 0.03, 1000)[0].pairs, 30);
    }

    #[test]
    fn without_time_there_is_no_look() {
        assert_eq!(divided(&[undecided(0, 0.06, true)], 0.0, 0.03, 1000), []);
        assert_eq!(divided(&[], 100.0, 0.03, 1000), []);
    }
}
