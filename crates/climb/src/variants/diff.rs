//! The difference between two sets of files, as a diff for `patch -p1 -d /`.

use super::files::Files;

/// Context lines around a change.
const CONTEXT: usize = 3;

/// Files with more lines than this are shown as completely replaced: the table grows with the square of the lines.
const LINES_MAX: usize = 4000;

/// All files that differ.
pub(super) fn of(before: &Files, after: &Files) -> String {
    let pairs = before.0.iter().zip(&after.0).filter(|(old, new)| old.text != new.text);
    pairs.map(|(old, new)| unified(&old.path.display().to_string(), &old.text, &new.text)).collect()
}

/// One line of a comparison.
#[derive(Clone, Copy, PartialEq)]
enum Line<'t> {
    Same(&'t str),
    Gone(&'t str),
    New(&'t str),
}

fn unified(path: &str, old: &str, new: &str) -> String {
    let lines = compared(&old.lines().collect::<Vec<_>>(), &new.lines().collect::<Vec<_>>());
    let mut out = format!("--- {path}\n+++ {path}\n");
    let is_changed: Vec<bool> = lines.iter().map(|line| !matches!(line, Line::Same(_))).collect();
    let is_near = |at: usize| {
        is_changed[at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len())].contains(&true)
    };
    let (mut old_at, mut new_at, mut at) = (1, 1, 0);
    while at < lines.len() {
        let end = (at..lines.len()).find(|&next| !is_near(next)).unwrap_or(lines.len());
        let hunk = &lines[at..end];
        let count = |is: fn(&Line<'_>) -> bool| hunk.iter().filter(|line| is(line)).count();
        let (old_count, new_count) =
            (count(|line| !matches!(line, Line::New(_))), count(|line| !matches!(line, Line::Gone(_))));
        if !hunk.is_empty() {
            out.push_str(&format!("@@ -{old_at},{old_count} +{new_at},{new_count} @@\n"));
            for line in hunk {
                let (mark, text) = match line {
                    Line::Same(text) => (' ', text),
                    Line::Gone(text) => ('-', text),
                    Line::New(text) => ('+', text),
                };
                out.push_str(&format!("{mark}{text}\n"));
            }
        }
        // Plus one line that is not shown.
        (old_at, new_at, at) = (old_at + old_count + 1, new_at + new_count + 1, end + 1);
    }
    out
}

/// The longest common subsequence, and the lines in between.
fn compared<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<Line<'t>> {
    if old.len().max(new.len()) > LINES_MAX {
        return old
            .iter()
            .map(|line| Line::Gone(line))
            .chain(new.iter().map(|line| Line::New(line)))
            .collect();
    }
    let width = new.len() + 1;
    let mut common = vec![0u16; (old.len() + 1) * width];
    for at in (0..old.len()).rev() {
        for to in (0..new.len()).rev() {
            common[at * width + to] = match old[at] == new[to] {
                true => common[(at + 1) * width + to + 1] + 1,
                false => common[(at + 1) * width + to].max(common[at * width + to + 1]),
            };
        }
    }
    let (mut at, mut to, mut found) = (0, 0, Vec::new());
    while at < old.len() || to < new.len() {
        if at < old.len() && to < new.len() && old[at] == new[to] {
            found.push(Line::Same(old[at]));
            (at, to) = (at + 1, to + 1);
        } else if to == new.len()
            || at < old.len() && common[(at + 1) * width + to] >= common[at * width + to + 1]
        {
            found.push(Line::Gone(old[at]));
            at += 1;
        } else {
            found.push(Line::New(new[to]));
            to += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_the_format_of_patch() {
        let old: String = (1..=20).map(|line| format!("{line}\n")).collect();
        let new = old.replace("2\n3\n", "2\nb\n3\n").replace("17\n", "").replace("\n9\n", "\nnine\n");
        let told = unified("/x", &old, &new);
        let expected = "--- /x\n+++ /x\n@@ -1,12 +1,13 @@\n 1\n 2\n+b\n 3\n 4\n 5\n 6\n 7\n 8\n-9\n+nine\n 10\n 11\n 12\n@@ -14,7 +15,6 \
                        @@\n 14\n 15\n 16\n-17\n 18\n 19\n 20\n";
        assert_eq!(told, expected);
    }
}
