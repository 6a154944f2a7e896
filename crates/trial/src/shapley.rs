//! Shapley values: what each change adds, averaged over orders in which the changes are put in place.
//!
//! ```text
//! n = 4      0 3 1 2      every second order is the reverse of the one before: of two changes, each comes first equally often
//!            2 1 3 0      after n orders (2 n if n is odd), each has been at each place equally often
//!            1 0 2 3      the numbers are drawn anew for each such block
//!            3 2 0 1
//! ```
//!
//! What the changes add in one order adds up to the effect of all of them, so their plain means do too (efficiency). Interactions of
//! two changes are divided exactly after each two orders, without the scatter of random orders.
//!
//! The interval is that of a permutation test: it contains the values for which the differences to them could as well have the
//! opposite signs. It assumes no distribution, only that a difference is as likely in one direction as in the other.
//!
//! # Source
//! Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949; Mitchell and others,
//! "Sampling permutations for Shapley value estimation", JMLR 23, 2022; Fisher, "The Design of Experiments", 1935, section 21.

use crate::effect::Estimate;
use crate::random::Random;

/// Fewest orders: with fewer, the test cannot exclude anything at 5 %.
pub const ORDERS_MIN: usize = 6;

/// The error probability of the interval.
const ALPHA: f64 = 0.05;

/// Up to this many values, all signs are tried.
const EXACT_MAX: usize = 12;

/// Otherwise this many random ones.
const SIGNS: usize = 4096;

/// This many orders of the players.
pub(crate) fn balanced(players: &[usize], count: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut orders = Vec::with_capacity(count);
    while orders.len() < count && !players.is_empty() {
        orders.extend(block(players, random));
    }
    orders.truncate(count);
    orders
}

/// Orders in which each player is at each place equally often.
fn block(players: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
    let count = players.len();
    let mut players = players.to_vec();
    shuffle(&mut players, random);
    // 0, n − 1, 1, n − 2, …: with an even number, the second half of its shifts are the reversed first half.
    let zigzag: Vec<usize> =
        (0..count).map(|at| if at % 2 == 0 { at / 2 } else { count - 1 - at / 2 }).collect();
    let mut shifts: Vec<usize> = (0..if count.is_multiple_of(2) { count / 2 } else { count }).collect();
    shuffle(&mut shifts, random);
    shifts
        .into_iter()
        .flat_map(|shift| {
            let order: Vec<usize> = zigzag.iter().map(|at| players[(at + shift) % count]).collect();
            let reverse = order.iter().rev().copied().collect();
            [order, reverse]
        })
        .collect()
}

/// Fisher and Yates: all orders are equally likely.
fn shuffle(items: &mut [usize], random: &mut Random) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}

/// The share of a player, from the logarithms of the ratios that it added. `None` with fewer than [`ORDERS_MIN`].
pub(crate) fn share(added: &[f64], random: &mut Random) -> Option<Estimate> {
    if added.len() < ORDERS_MIN {
        return None;
    }
    let mean = added.iter().sum::<f64>() / added.len() as f64;
    let signs = signs(added.len(), random);
    let (least, most) =
        added.iter().fold((mean, mean), |(least, most), &one| (least.min(one), most.max(one)));
    let low = end(added, &signs, (mean, least));
    let high = end(added, &signs, (mean, most));
    Some(Estimate { gain: mean.exp_m1(), low: low.exp_m1(), high: high.exp_m1() })
}

/// All signs that values can have, or some of them. The first is that of no change, so no probability is 0.
fn signs(count: usize, random: &mut Random) -> Vec<Vec<f64>> {
    let one = |is_negative: bool| if is_negative { -1.0 } else { 1.0 };
    if count <= EXACT_MAX {
        return (0..1_usize << count)
            .map(|bits| (0..count).map(|at| one(bits >> at & 1 == 1)).collect())
            .collect();
    }
    let drawn = (1..SIGNS).map(|_| (0..count).map(|_| one(random.below(2) == 1)).collect());
    std::iter::once(vec![1.0; count]).chain(drawn.collect::<Vec<_>>()).collect()
}

/// The end of the interval between a value inside and one that is not.
fn end(added: &[f64], signs: &[Vec<f64>], (mut inside, mut outside): (f64, f64)) -> f64 {
    // Far below what any measurement can tell.
    for _ in 0..40 {
        let middle = (inside + outside) / 2.0;
        if probability(added, signs, middle) > ALPHA { inside = middle } else { outside = middle }
    }
    outside
}

/// How often the sum of differences to this value is at least as large with other signs.
fn probability(added: &[f64], signs: &[Vec<f64>], value: f64) -> f64 {
    let sum =
        |signs: &[f64]| added.iter().zip(signs).map(|(one, sign)| (one - value) * sign).sum::<f64>().abs();
    let own = added.iter().map(|one| one - value).sum::<f64>().abs();
    // Sums of the same values in another order differ by rounding.
    let bound = own * (1.0 - 1e-9);
    signs.iter().filter(|signs| sum(signs) >= bound).count() as f64 / signs.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_player_is_at_each_place_equally_often() {
        let mut random = Random::new(31);
        for count in 1..=9_usize {
            let players: Vec<usize> = (0..count).map(|player| player + 10).collect();
            let whole = if count % 2 == 0 { count } else { 2 * count };
            let orders = balanced(&players, 3 * whole, &mut random);
            assert_eq!(orders.len(), 3 * whole);
            for &player in &players {
                for place in 0..count {
                    let times = orders.iter().filter(|order| order[place] == player).count();
                    assert_eq!(times, 3 * whole / count, "{player} of {count} at {place}");
                }
            }
            for pair in orders.chunks_exact(2) {
                assert!(pair[0].iter().eq(pair[1].iter().rev()), "{pair:?}");
            }
        }
        assert!(balanced(&[], 3, &mut random).is_empty());
        let first = |seed| balanced(&[0, 1, 2, 3, 4], 1, &mut Random::new(seed));
        assert!((1..20).any(|seed| first(seed) != first(0)));
    }

    /// Of six values only the two sums of equal signs are below 5 % (2 of 64), so the interval is their range. Of seven, 6 of 128
    /// are: the values from which two of the others' sums are as large.
    #[test]
    fn the_interval_is_that_of_the_permutation_test() {
        let mut random = Random::new(32);
        let share = share(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut random).unwrap();
        let (gain, low, high) = (share.gain.ln_1p(), share.low.ln_1p(), share.high.ln_1p());
        assert!(
            (gain - 3.5).abs() < 1e-9 && (low - 1.0).abs() < 1e-6 && (high - 6.0).abs() < 1e-6,
            "{low} {high}"
        );
        let seven = super::share(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &mut random).unwrap();
        let (low, high) = (seven.low.ln_1p(), seven.high.ln_1p());
        assert!((low - 2.0).abs() < 1e-6 && (high - 6.0).abs() < 1e-6, "{low} {high}");
        let same = super::share(&[0.1; 8], &mut random).unwrap();
        assert!((same.low - same.high).abs() < 1e-9 && (same.gain.ln_1p() - 0.1).abs() < 1e-9);
        assert_eq!(super::share(&[0.1; 5], &mut random), None);
    }

    /// 95 % of the intervals contain the truth, of skewed values too; three standard deviations of such a count of 400 are 13.
    #[test]
    fn intervals_contain_the_truth() {
        let mut random = Random::new(33);
        for count in [6, 8, 20] {
            let missed = (0..400).filter(|_| {
                let added: Vec<f64> =
                    (0..count).map(|_| (0..4).map(|_| random.fraction() - 0.5).sum::<f64>() * 0.1).collect();
                let share = share(&added, &mut random).unwrap();
                !(share.low..=share.high).contains(&0.0)
            });
            let missed = missed.count();
            assert!(missed <= 20 + 13, "{missed} of 400 with {count} orders");
        }
    }
}
