//! The names of articles in paths.

use std::hash::{BuildHasher, RandomState};

/// Slugs that are tried for a title that others have too.
const TRIES_MAX: usize = 4;

/// Slugs for a title, to be tried until one is free: the plain one, then others with a random suffix.
pub(super) fn all(title: &str) -> impl Iterator<Item = String> {
    let own = of(title);
    // `feed` is the path of another route, and a title may have no letters.
    let is_usable = !own.is_empty() && own != "feed";
    let random = own.clone();
    let others = std::iter::repeat_with(move || {
        format!("{random}-{}", random_suffix()).trim_start_matches('-').to_owned()
    });
    is_usable.then_some(own).into_iter().chain(others).take(TRIES_MAX)
}

/// Whether both titles have one slug.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    of(one) == of(other)
}

/// A title for use in a path: its letters and digits, with one `-` for all other characters between them.
fn of(title: &str) -> String {
    let words = title.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

/// Not secret: it only has to be free.
fn random_suffix() -> String {
    format!("{:08x}", RandomState::new().hash_one(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_paths_of_one_segment() {
        assert_eq!(of("How to train your dragon"), "how-to-train-your-dragon");
        assert_eq!(of("  Straße & Größe!! 2 "), "straße-größe-2");
        assert_eq!(of("a/../b?c#d"), "a-b-c-d");
        for title in ["!!!", "", "feed", "Feed!"] {
            assert!(all(title).all(|slug| slug.len() >= 8 && !slug.starts_with('-')), "{title}");
        }
    }

    #[test]
    fn a_title_has_slugs_for_those_who_come_later() {
        let slugs: std::collections::BTreeSet<String> = all("One title").collect();
        assert_eq!(slugs.len(), TRIES_MAX);
        assert!(slugs.contains("one-title") && slugs.iter().all(|slug| slug.starts_with("one-title")));
    }
}
