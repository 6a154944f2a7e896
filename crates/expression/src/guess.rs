//! Guesses which name was meant.

/// The known name with the fewest changes from the typed one, if they are few.
pub(crate) fn closest(typed: &str, known: &[String]) -> Option<String> {
    let best = known.iter().map(|name| (distance(typed, name), name)).min()?;
    (best.0 <= 1 + typed.len() / 4).then(|| best.1.clone())
}

/// The edit distance of two names.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let (mut corner, mut before) = (at, at + 1);
        for (place, same) in row.iter_mut().skip(1).zip(other.bytes().map(|other| other == letter)) {
            let above = *place;
            before = (corner + usize::from(!same)).min(above + 1).min(before + 1);
            corner = above;
            *place = before;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
