//! Field values against simple and slow parsers of their grammar.

use flatout_wire::accept::{Coding, choose};
use flatout_wire::date;
use flatout_wire::range::{RANGES_MAX, Ranges, parse};
use proptest::collection::vec;
use proptest::prelude::*;

/// One range as written, and its first and last byte if part of it exists.
type Spec = (String, Option<(u64, u64)>);

fn spec(length: u64) -> impl Strategy<Value = Spec> {
    let last = length.saturating_sub(1);
    let within = move |first: u64, end: u64| (first < length && first <= end).then(|| (first, end.min(last)));
    prop_oneof![
        (0..70u64, 0..70u64).prop_map(move |(a, b)| {
            let (first, end) = (a.min(b), a.max(b));
            (format!("{first}-{end}"), within(first, end))
        }),
        (0..70u64).prop_map(move |first| (format!("{first}-"), within(first, last))),
        (0..70u64).prop_map(move |suffix| {
            (
                format!("-{suffix}"),
                (suffix > 0).then(|| within(length.saturating_sub(suffix), last)).flatten(),
            )
        }),
        Just((String::new(), None)),
    ]
}

fn ranges() -> impl Strategy<Value = (u64, Vec<Spec>)> {
    (0..64u64).prop_flat_map(|length| (Just(length), vec(spec(length), 1..20)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    /// Byte by byte: everything that was requested and exists is sent, once.
    #[test]
    fn ranges_are_the_union_of_the_requested_ones((length, specs) in ranges(), gap in "[ \t]{0,2}") {
        let words: Vec<_> = specs.iter().map(|(word, _)| word.as_str()).collect();
        let value = format!("bytes={}", words.join(&format!("{gap},{gap}")));
        let asked_count = words.iter().filter(|word| !word.is_empty()).count();
        let wanted = |place: u64| {
            specs.iter().filter_map(|(_, range)| *range).any(|(first, last)| (first..=last).contains(&place))
        };
        match parse(value.as_bytes(), length, RANGES_MAX) {
            Ranges::Whole => prop_assert!(asked_count == 0 || asked_count > RANGES_MAX),
            Ranges::Unsatisfiable => prop_assert!(!(0..length).any(wanted)),
            Ranges::Some(ranges) => {
                prop_assert!(asked_count <= RANGES_MAX);
                for place in 0..80 {
                    let sent_count = ranges.iter().filter(|range| range.contains(&place)).count();
                    prop_assert_eq!(sent_count, usize::from(wanted(place)), "{}", place);
                }
                // Not sorted: the order of the request is kept.
                let first = specs.iter().find_map(|(_, range)| *range).map(|(first, _)| first);
                prop_assert!(ranges.first().is_some_and(|range| range.contains(&first.unwrap_or(u64::MAX))));
            }
        }
    }

    #[test]
    fn any_range_lies_within(value in "[bB]ytes=[0-9, -]{0,40}", length: u64) {
        if let Ranges::Some(ranges) = parse(value.as_bytes(), length, RANGES_MAX) {
            prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
        }
    }

    #[test]
    fn dates_are_read_back(seconds in 0..253_402_300_800u64) {
        prop_assert_eq!(date::parse(&date::format(seconds)), Some(seconds));
    }

    #[test]
    fn arbitrary_values_do_no_harm(value in vec(any::<u8>(), 0..60)) {
        date::parse(&value);
        parse(&value, 100, RANGES_MAX);
        choose(Some(&value), &[Coding::Brotli, Coding::Identity]);
    }

    /// Weights by name: the highest available weight wins, and among equal ones the server's first.
    #[test]
    fn the_heaviest_coding_wins(weights in [0..=1000u16, 0..=1000u16, 0..=1000u16], turn in 0..3usize) {
        let codings = [Coding::Brotli, Coding::Zstd, Coding::Gzip];
        let mut words: Vec<_> = codings
            .iter()
            .zip(weights)
            .map(|(coding, weight)| format!("{};q={}.{:03}", coding.token(), weight / 1000, weight % 1000))
            .collect();
        words.rotate_left(turn);
        let chosen = choose(Some(words.join(", ").as_bytes()), &codings);
        let heaviest = weights.iter().copied().max().filter(|&weight| weight > 0);
        let expected = heaviest.and_then(|heaviest| weights.iter().position(|&weight| weight == heaviest));
        prop_assert_eq!(chosen, expected.map(|at| codings[at]));
    }
}
