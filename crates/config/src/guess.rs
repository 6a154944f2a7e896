//! Guesses what was meant.

/// The least similarity of two names for one to be a guess of the other; 1 is equal.
const LIKENESS_MIN: f64 = 0.8;

/// Words of other programs for settings that have another name here.
const ELSEWHERE: &[(&str, &str)] =
    &[("run-time", "duration"), ("command", "server-cmd"), ("tuning", "rung"), ("objective", "for")];

/// The known name that was most likely meant, if one is likely.
pub(crate) fn guess<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let elsewhere = ELSEWHERE.iter().find(|(word, _)| *word == typed).map(|(_, ours)| *ours);
    let ours = elsewhere.and_then(|ours| names.iter().find(|name| **name == ours));
    ours.copied().or_else(|| closest(typed, names))
}

/// The name with the most similar spelling, if any is similar.
pub fn closest<'n>(typed: &str, names: &[&'n str]) -> Option<&'n str> {
    let rated = names.iter().map(|name| (strsim::jaro_winkler(typed, name), name));
    let closest = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    closest.filter(|(likeness, _)| *likeness > LIKENESS_MIN).map(|(_, name)| *name)
}
