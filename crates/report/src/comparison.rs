//! The comparison with another candidate: the ratio in a sentence, then both sides in two columns.

use std::fmt::Write;

use flatout_load::Outcome;
use flatout_trial::compare::{Verdict, Word};

use crate::page::escape;
use crate::unit::{count, time};
use crate::{Measured, Opponent};

/// The names of the two sides in tables and headings.
pub(crate) const SIDES: [&str; 2] = ["A", "B"];

/// The ratio in a sentence, and how sure it is.
pub(crate) fn sentence(comparison: &Opponent) -> String {
    let Verdict { ratio, low, high, word } = comparison.verdict;
    let [one, other] = SIDES;
    let sentence = match word {
        Word::Faster => format!("{one} is faster than {other}"),
        Word::Slower => format!("{one} is slower than {other}"),
        Word::NoDifference => format!("{one} does not differ significantly from {other}"),
    };
    let pairs = comparison.pairs.len();
    format!(
        "{sentence}: {ratio:.3} times its requests/s, 95 % confidence interval {low:.3} to {high:.3}, from {pairs} pairs"
    )
}

/// Both sides, by the name of the figure.
fn rows(measured: &Measured, comparison: &Opponent) -> Vec<(&'static str, [String; 2])> {
    let sides = [&measured.outcome, &comparison.outcome];
    let all = |figure: fn(&Outcome) -> String| sides.map(figure);
    vec![
        ("requests/s", all(|outcome| count(outcome.requests_per_s().round() as u64))),
        ("p50", all(|outcome| latency(outcome, 50.0))),
        ("p99", all(|outcome| latency(outcome, 99.0))),
        ("server CPU per request", all(cpu)),
        ("errors", all(|outcome| count(outcome.errors.sum()))),
    ]
}

fn latency(outcome: &Outcome, percent: f64) -> String {
    match outcome.latency.count() {
        0 => "–".to_owned(),
        _ => time(outcome.latency.percentile(percent) as f64),
    }
}

fn cpu(outcome: &Outcome) -> String {
    let cost = outcome.server_cpu_us_per_request();
    cost.map_or("–".to_owned(), |(user, kernel)| time((user + kernel) * 1e3))
}

/// What the sides are.
fn names(comparison: &Opponent) -> [(&'static str, &str); 2] {
    [(SIDES[0], comparison.one.as_str()), (SIDES[1], comparison.other.as_str())]
}

/// The whole comparison as text, with what follows announced.
pub(crate) fn text(out: &mut String, measured: &Measured, comparison: &Opponent) {
    let _ = writeln!(out, "{}", sentence(comparison));
    for (side, name) in names(comparison) {
        let _ = writeln!(out, "  {side}: {name}");
    }
    let _ = writeln!(out, "\n  {:<24}{:>12}{:>12}", "median run of each", SIDES[0], SIDES[1]);
    for (name, [one, other]) in rows(measured, comparison) {
        let _ = writeln!(out, "  {name:<24}{one:>12}{other:>12}");
    }
    let _ = writeln!(out, "\nThe median run of {}:", SIDES[0]);
}

/// The same for the page.
pub(crate) fn html(measured: &Measured, comparison: &Opponent) -> String {
    let mut out = format!("<p><b>{}</b></p>\n", escape(&sentence(comparison)));
    for (side, name) in names(comparison) {
        out.push_str(&format!("<p class=side>{side}: <code>{}</code></p>\n", escape(name)));
    }
    out.push_str(&format!(
        "<div class=scroll><table class=stages><tr><th>median run of each</th><th>{}</th><th>{}</th></tr>\n",
        SIDES[0], SIDES[1]
    ));
    for (name, [one, other]) in rows(measured, comparison) {
        out.push_str(&format!("<tr><td>{name}</td><td>{one}</td><td>{other}</td></tr>\n"));
    }
    out.push_str("</table></div>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require::tests::measured;

    pub(crate) fn compared() -> Measured {
        let mut found = measured();
        found.comparison = Some(Opponent {
            one: found.url.clone(),
            other: "http://b.test/<x>".to_owned(),
            outcome: measured().outcome,
            pairs: vec![(200.0, 100.0); 6],
            verdict: Verdict { ratio: 2.0, low: 1.9, high: 2.1, word: Word::Faster },
        });
        found
    }

    #[test]
    fn both_sides_are_shown_after_the_ratio() {
        let found = compared();
        let text = crate::text::text(&found, false);
        assert!(text.starts_with("A is faster than B: 2.000 times its requests/s, 95 %"), "{text}");
        let table = text.find("median run of each").unwrap();
        assert!(text[table..].contains("\nThe median run of A:\n"), "{text}");
        assert!(text.contains("B: http://b.test/<x>"), "{text}");
        let page = crate::html::html(&found);
        let section = page.find("<h2>Comparison</h2>").unwrap();
        assert!(section < page.find("<h2>The median run of A</h2>").unwrap(), "{page}");
        assert!(page.contains("B: <code>http://b.test/&lt;x&gt;</code>"), "{page}");
    }
}
