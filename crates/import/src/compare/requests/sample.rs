//! Texts that a regular expression matches.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::site::pattern::{translated, without_lookaround};

/// Texts for one expression.
const SAMPLES_MAX: usize = 12;

/// Bytes of one text; longer ones are left out.
const SAMPLE_BYTES_MAX: usize = 200;

/// Characters that a class is represented by, the first one that it has.
const PREFERRED: &[u8] = b"a1xeEA-._/ ";

/// Texts that an expression matches, those of its alternatives first. None if it cannot be read.
pub(super) fn samples(pattern: &str) -> Vec<String> {
    let pattern = translated(pattern);
    let parse = |text: &str| ParserBuilder::new().unicode(false).utf8(false).build().parse(text).ok();
    let parsed = parse(&pattern).or_else(|| parse(&without_lookaround(&pattern)?));
    let mut found: Vec<String> = Vec::new();
    for sample in parsed.as_ref().map(texts).unwrap_or_default() {
        if sample.len() <= SAMPLE_BYTES_MAX && !found.contains(&sample) {
            found.push(sample);
        }
    }
    found
}

fn texts(hir: &Hir) -> Vec<String> {
    let mut all = match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => vec![String::new()],
        HirKind::Literal(literal) => vec![String::from_utf8_lossy(&literal.0).into_owned()],
        HirKind::Class(class) => vec![character(class).to_string()],
        HirKind::Capture(group) => texts(&group.sub),
        HirKind::Repetition(repetition) => {
            let count = repetition.min.max(1).min(repetition.max.unwrap_or(u32::MAX));
            let count = usize::try_from(count).unwrap_or(SAMPLE_BYTES_MAX).min(SAMPLE_BYTES_MAX);
            let mut all: Vec<String> = texts(&repetition.sub)
                .iter()
                .filter(|text| text.len() * count <= SAMPLE_BYTES_MAX)
                .map(|text| text.repeat(count))
                .collect();
            if repetition.min == 0 {
                all.push(String::new());
            }
            all
        }
        HirKind::Concat(parts) => {
            let parts: Vec<Vec<String>> = parts.iter().map(texts).collect();
            let count = parts.iter().map(Vec::len).max().unwrap_or(0);
            let nth = |at: usize| {
                parts
                    .iter()
                    .filter_map(|part| part.get(at % part.len().max(1)))
                    .map(String::as_str)
                    .collect::<String>()
            };
            (0..count).map(nth).collect()
        }
        HirKind::Alternation(branches) => {
            let branches: Vec<Vec<String>> = branches.iter().map(texts).collect();
            // Each branch is there before another has its second text.
            let count = branches.iter().map(Vec::len).max().unwrap_or(0);
            (0..count)
                .flat_map(|at| branches.iter().filter_map(move |branch| branch.get(at).cloned()))
                .collect()
        }
    };
    all.truncate(SAMPLES_MAX);
    all
}

/// A character of a class.
fn character(class: &Class) -> char {
    let contains = |byte: u8| match class {
        Class::Bytes(class) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&byte))
        }
        Class::Unicode(class) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&char::from(byte)))
        }
    };
    let printable = || (b'!'..=b'~').find(|byte| contains(*byte));
    PREFERRED.iter().copied().find(|byte| contains(*byte)).or_else(printable).map_or('x', char::from)
}

#[cfg(test)]
mod tests {
    use flatout_expression::Regex;

    use super::samples;

    #[test]
    fn samples_are_found_by_their_expression() {
        for (pattern, expected) in [
            (r"\.php(?:$|/)", vec![".php", ".php/"]),
            (r"^/(build|tests|\.git)/", vec!["/build/", "/tests/", "/.git/"]),
            (r"\.(css|jpe?g)$", vec![".css", ".jpeg", ".jpg"]),
            (r"[0-9]{3}x*", vec!["111x", "111"]),
            (r"^$", vec![""]),
        ] {
            assert_eq!(samples(pattern), expected, "{pattern}");
            let regex = Regex::new(pattern, false).unwrap();
            assert!(samples(pattern).iter().all(|text| regex.is_match(text.as_bytes())), "{pattern}");
        }
        assert_eq!(samples(r"^/(?!index|remote)x"), ["/x"]);
        assert!(samples("(").is_empty());
        assert!(samples("(a{100}){100}").iter().all(|text| text.len() <= super::SAMPLE_BYTES_MAX));
        assert!(samples(&"(a|b)".repeat(500)).len() <= super::SAMPLES_MAX);
    }
}
