//! Latencies as rows of a histogram. Row bounds are round and grow evenly on a logarithmic scale, so that a tail of a
//! hundred times the median adds only a few rows.

use flatout_load::Latency;

/// A row: how many latencies were above `from_ns` and at most `to_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The lower bound.
    pub from_ns: u64,
    /// The upper bound.
    pub to_ns: u64,
    /// Latencies between them.
    pub count: u64,
}

/// Bounds within a power of ten, finest first: the first that needs no more than the wanted number of rows is used.
const BORDERS: [&[u64]; 3] = [&[10, 15, 20, 30, 40, 50, 60, 80], &[10, 20, 50], &[10]];

/// The share of latencies that must have their own rows; the tail may be merged.
const BODY_PERCENT: f64 = 99.9;

/// The histogram in at most `rows_max` rows, from the first non-empty one to the last. If there is no room for the
/// tail, it becomes one row.
pub fn rows(latency: &Latency, rows_max: usize) -> Vec<Row> {
    let body_ns = latency.percentile(BODY_PERCENT);
    let mut found = Vec::new();
    for borders in BORDERS {
        found = rows_between(latency, borders);
        let body = found.iter().take_while(|row| row.from_ns < body_ns).count();
        if found.len() <= rows_max || body < rows_max {
            break;
        }
    }
    while found.len() > rows_max.max(1) {
        if let (Some(last), Some(before)) = (found.pop(), found.last_mut()) {
            (before.to_ns, before.count) = (last.to_ns, before.count + last.count);
        }
    }
    found
}

fn rows_between(latency: &Latency, borders: &[u64]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut all = (0..).flat_map(|power| borders.iter().map(move |border| border * 10u64.pow(power)));
    let (mut from_ns, mut to_ns) = (0, all.next().unwrap_or(u64::MAX));
    let mut count = 0;
    for value in latency.histogram().iter_recorded() {
        let at_ns = value.value_iterated_to();
        while at_ns > to_ns {
            rows.push(Row { from_ns, to_ns, count });
            (from_ns, to_ns, count) = (to_ns, all.next().unwrap_or(u64::MAX), 0);
        }
        count += value.count_since_last_iteration();
    }
    rows.push(Row { from_ns, to_ns, count });
    let first = rows.iter().position(|row| row.count > 0).unwrap_or(rows.len());
    rows.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Latency {
        let mut latency = Latency::new();
        values.iter().for_each(|(value, count)| latency.record_several(*value, *count));
        latency
    }

    #[test]
    fn every_latency_is_in_one_row() {
        let latency = of(&[(95_000, 3), (120_000, 5), (180_000, 2), (2_000_000, 1)]);
        for rows_max in [1, 2, 3, 12, 40] {
            let rows = rows(&latency, rows_max);
            assert!(!rows.is_empty() && rows.len() <= rows_max, "{rows_max}: {rows:?}");
            assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 11);
            assert!(rows.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
            assert!(rows[0].count > 0 && rows[rows.len() - 1].count > 0, "{rows:?}");
        }
        let fine = rows(&latency, 40);
        assert_eq!(fine[0], Row { from_ns: 80_000, to_ns: 100_000, count: 3 });
        assert_eq!(fine[1], Row { from_ns: 100_000, to_ns: 150_000, count: 5 });
    }

    #[test]
    fn nothing_has_no_rows() {
        assert_eq!(rows(&Latency::new(), 10), []);
        assert_eq!(rows(&of(&[(0, 1)]), 10).len(), 1);
        assert_eq!(rows(&of(&[(u64::MAX, 1)]), 10).len(), 1);
    }
}
