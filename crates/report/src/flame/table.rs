//! Cost by area, for a terminal.

use flatout_profile::{Comparison, Profile};

use super::unit::{Unit, facts, idle_share};

/// The sampled process, and each area with a cost, the largest first.
pub fn table(profile: &Profile) -> String {
    let (unit, scale) = Unit::of(profile);
    let total = profile.stacks.weight();
    let mut areas = profile.areas();
    areas.retain(|cost| cost.weight > 0);
    areas.sort_by_key(|cost| std::cmp::Reverse(cost.weight));
    let rows = areas.iter().map(|cost| (cost.area.name, cost.weight));
    let mut text = format!("{}: {}\n\n", profile.what, facts(profile));
    text.push_str(&format!("{:<18}{:>15}{:>9}\n", "area", unit.heading(), "share"));
    for (name, weight) in rows.chain([("all", total)]) {
        let share = 100.0 * weight as f64 / total.max(1) as f64;
        text.push_str(&format!("{name:<18}{:>15}{share:>8.1}%\n", unit.number(weight as f64 * scale)));
    }
    if let Some(idle) = idle_share(profile) {
        text.push_str(&format!("idle{:>37.1}%  of all CPUs' time\n", 100.0 * idle));
    }
    for note in &profile.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// Each area before and after, the largest change first.
pub fn comparison_table(comparison: &Comparison) -> String {
    let unit = Unit::of_comparison(comparison);
    let mut areas = comparison.areas.clone();
    areas.retain(|(_, before, after)| before + after > 0.0);
    areas.sort_by(|one, other| (other.2 - other.1).abs().total_cmp(&(one.2 - one.1).abs()));
    let (before, after) = comparison.total();
    let mut text =
        format!("{:<18}{:>12}{:>12}{:>12}  {}\n", "area", "before", "after", "change", unit.heading());
    let rows = areas.iter().map(|(area, before, after)| (area.name, *before, *after));
    for (name, before, after) in rows.chain([("all", before, after)]) {
        let change = unit.number(after - before);
        let sign = if after > before { "+" } else { "" };
        text.push_str(&format!(
            "{name:<18}{:>12}{:>12}{:>12}\n",
            unit.number(before),
            unit.number(after),
            format!("{sign}{change}")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use flatout_profile::compare;

    use super::*;
    use crate::flame::scripted;

    #[test]
    fn costs_are_one_requests_where_requests_are_known() {
        let text = table(&scripted::profile(Some(1000.0), 1_000_000));
        assert!(text.contains("TCP send                    4.000    50.0%\n"), "{text}");
        assert!(text.contains("all                         8.000   100.0%\n"), "{text}");
        assert!(text.contains("µs/request") && text.contains("3 lost, 1000 requests"), "{text}");
        assert!(text.contains("44.8%  of all CPUs' time\nnote: a note\n"), "{text}");
        let text = table(&scripted::profile(None, 0));
        assert!(
            text.contains("CPU ms") && text.contains("parse                         2.0    28.6%\n"),
            "{text}"
        );
    }

    #[test]
    fn the_largest_change_comes_first() {
        let (before, after) = (scripted::profile(Some(500.0), 1_000_000), scripted::profile(Some(1000.0), 0));
        let text = comparison_table(&compare(&before, &after).unwrap());
        let second = text.lines().nth(1).unwrap();
        assert_eq!(second, "TCP send                 8.000       4.000      -4.000");
        assert!(text.contains("netfilter                2.000       0.000      -2.000\n"), "{text}");
    }
}
