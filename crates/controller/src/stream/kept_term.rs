//! The latest term of a leader that a data plane has followed, on its disk: a leader from before is refused, also after a restart, and
//! also if there is no plan, or none that can be read.

use std::path::Path;
use std::time::Instant;

use flatout_certify::State;
use flatout_engine::{Severity, report};

use crate::leader::LeaderTerm;
use crate::run::RETRY_TIME;

/// Its name in the folder; no certificate's file has such a name.
const FILE_NAME: &str = "term.json";

/// The latest term.
pub(super) struct KeptTerm {
    state: State,
    latest: Option<LeaderTerm>,
    /// When it could not be written last; none: it is on the disk.
    failed_at: Option<Instant>,
}

impl KeptTerm {
    /// The term in this folder. If it cannot be read, that is reported, and any leader is followed.
    pub(super) fn below(folder: &Path) -> KeptTerm {
        let state = State::at(folder);
        let latest = read(&state).unwrap_or_else(|why| {
            report(Severity::Error, format_args!("the term of the last leader is not known: {why}"));
            None
        });
        KeptTerm { state, latest, failed_at: None }
    }

    /// Remembers the term of a leader before anything of that leader is used. If the disk refuses, the leader is followed all the same.
    ///
    /// # Errors
    /// A later leader was followed already.
    pub(super) fn follow(&mut self, term: &LeaderTerm) -> Result<(), String> {
        if let Some(known) = self.latest.as_ref().filter(|known| term.is_before(known)) {
            let (number, known) = (term.number, known.number);
            return Err(format!("its term {number} is older than term {known} of another leader"));
        }
        if self.latest.as_ref() != Some(term) {
            self.latest = Some(term.clone());
            self.write();
        }
        Ok(())
    }

    /// Why the term is not on the disk. It is tried again from time to time.
    pub(super) fn fault(&mut self) -> Option<String> {
        if self.failed_at.is_some_and(|at| at.elapsed() > RETRY_TIME) {
            self.write();
        }
        self.failed_at.map(|_| "the term of the controller could not be written to the disk".to_owned())
    }

    fn write(&mut self) {
        let text = serde_json::to_string(&self.latest).map_err(|error| error.to_string());
        let written = text.and_then(|text| self.state.write(FILE_NAME, &text));
        self.failed_at = written.as_ref().err().map(|_| Instant::now());
        if let Err(why) = written {
            report(Severity::Error, format_args!("the term of the controller is not kept: {why}"));
        }
    }
}

fn read(state: &State) -> Result<Option<LeaderTerm>, String> {
    let Some(text) = state.read(FILE_NAME)? else { return Ok(None) };
    let damaged = |error| format!("{}: damaged: {error}", state.path(FILE_NAME).display());
    serde_json::from_str(&text).map(Some).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn term(number: u64) -> LeaderTerm {
        LeaderTerm { lease: "a/b".to_owned(), number }
    }

    #[test]
    fn a_leader_from_before_is_refused_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(KeptTerm::below(folder.path()).follow(&term(3)), Ok(()));
        let mode = fs::metadata(folder.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut kept = KeptTerm::below(folder.path());
        let why = "its term 2 is older than term 3 of another leader".to_owned();
        assert_eq!((kept.follow(&term(2)), kept.fault()), (Err(why), None));
        assert_eq!((kept.follow(&term(3)), kept.follow(&term(4))), (Ok(()), Ok(())));
        assert!(KeptTerm::below(folder.path()).follow(&term(3)).is_err());
    }

    #[test]
    fn a_term_that_cannot_be_read_or_written_stops_no_data_plane() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        fs::create_dir_all(path.join("in-the-way")).unwrap();
        let mut kept = KeptTerm::below(folder.path());
        assert_eq!(kept.follow(&term(3)), Ok(()));
        assert!(kept.fault().is_some() && kept.follow(&term(2)).is_err());
        fs::remove_dir_all(&path).unwrap();
        kept.failed_at = Instant::now().checked_sub(2 * RETRY_TIME);
        assert_eq!(kept.fault(), None);
        assert!(KeptTerm::below(folder.path()).follow(&term(2)).is_err());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(KeptTerm::below(folder.path()).follow(&term(2)), Ok(()));
    }
}
