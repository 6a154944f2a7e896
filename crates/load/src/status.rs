//! How many responses had which status.

use std::ops::AddAssign;

/// The status codes that the parser accepts: 100 to 999.
const FIRST: u16 = 100;
const COUNT: usize = 900;

/// Responses by status code.
#[derive(Clone, PartialEq, Eq)]
pub struct Statuses(Box<[u64; COUNT]>);

impl Statuses {
    /// Counts one response: one addition to a number in the cache.
    #[inline]
    pub(crate) fn add(&mut self, status: u16) {
        if let Some(count) = self.0.get_mut(usize::from(status.wrapping_sub(FIRST))) {
            *count += 1;
        }
    }

    /// Received codes with their counts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> {
        (FIRST..).zip(self.0.iter().copied()).filter(|(_, count)| *count > 0)
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Statuses(Box::new([0; COUNT]))
    }
}

impl std::fmt::Debug for Statuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl AddAssign<&Statuses> for Statuses {
    fn add_assign(&mut self, other: &Statuses) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(sum, count)| *sum += count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_and_others_left_out() {
        let mut one = Statuses::default();
        [200, 404, 200, 99, 1000].into_iter().for_each(|status| one.add(status));
        let mut sum = Statuses::default();
        sum += &one;
        sum += &one;
        assert_eq!(sum.iter().collect::<Vec<_>>(), [(200, 4), (404, 2)]);
    }
}
