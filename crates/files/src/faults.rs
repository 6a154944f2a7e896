//! Files that cannot be read at the moment, and the messages about them.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use flatout_engine::say;

/// Paths that could not be read in the last scan.
#[derive(Default)]
pub(crate) struct Faults {
    paths: BTreeSet<PathBuf>,
}

impl Faults {
    /// Notes the unreadable paths at and below a scanned path. Each problem is reported once while it lasts: a disk
    /// that fails for a thousand files is one line.
    pub(crate) fn note_look(&mut self, looked_at: &Path, unread: &[(PathBuf, io::Error)]) {
        if let Some((path, error)) = self.note(looked_at, unread) {
            let (path, count) = (path.display(), self.paths.len());
            say(format_args!(
                "cannot read `{path}`: {error}; {count} paths cannot be read now; their previous versions are served, and they are tried again every second"
            ));
        }
    }

    /// Returns what to report: the first path that was readable before.
    fn note<'u>(
        &mut self,
        looked_at: &Path,
        unread: &'u [(PathBuf, io::Error)],
    ) -> Option<&'u (PathBuf, io::Error)> {
        let below: Vec<PathBuf> = self
            .paths
            .range(looked_at.to_path_buf()..)
            .take_while(|path| path.starts_with(looked_at))
            .cloned()
            .collect();
        let known: &BTreeSet<PathBuf> = &self.paths;
        let new = unread.iter().find(|(path, _)| !known.contains(path));
        below.iter().for_each(|path| _ = self.paths.remove(path));
        self.paths.extend(unread.iter().map(|(path, _)| path.clone()));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_logged_once_until_it_ends() {
        let mut faults = Faults::default();
        let unread = |paths: &[&str]| -> Vec<(PathBuf, io::Error)> {
            paths.iter().map(|path| (path.into(), io::Error::other("a test"))).collect()
        };
        let mut is_said =
            |looked_at: &str, paths: &[&str]| faults.note(Path::new(looked_at), &unread(paths)).is_some();
        assert!(is_said("", &["a", "b/c"]));
        assert!(!is_said("", &["a", "b/c"]), "still");
        assert!(!is_said("a", &["a"]));
        assert!(is_said("", &["a", "b/c", "d"]), "another");
        assert!(!is_said("a", &[]), "it is well");
        assert!(is_said("a", &["a"]), "and ill again");
    }
}
