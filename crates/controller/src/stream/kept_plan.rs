//! The last plan that a data plane has applied, on its disk: a data plane starts with it if there is no controller.
//!
//! It has the private keys of certificates, so only this user may read it. It is written anew and renamed: a crash at any time leaves the
//! former one or the new one.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use flatout_certify::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PLAN_BYTES_MAX;
use crate::apply::make_private;
use crate::data::PlanData;

/// Its name in the folder; no certificate's file has such a name.
const FILE_NAME: &str = "plan.json";

/// A plan on disk.
pub(crate) struct KeptPlan {
    state: State,
}

/// What is on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct StoredPlan {
    pub(crate) number: u64,
    pub(crate) plan: PlanData,
}

#[derive(Deserialize)]
struct ReadPlan {
    number: u64,
    plan: Value,
}

impl KeptPlan {
    /// In this folder, which is made if it is not there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn below(folder: &Path) -> Result<KeptPlan, String> {
        make_private(folder)
            .map_err(|error| format!("the folder {} cannot be made: {error}", folder.display()))?;
        Ok(KeptPlan { state: State::at(folder) })
    }

    /// The plan, if there is one.
    ///
    /// # Errors
    /// It cannot be read, has another format, or is damaged.
    pub(crate) fn read(&self) -> Result<Option<StoredPlan>, String> {
        let path = self.state.path(FILE_NAME);
        let wrong = |why: String| format!("{}: {why}", path.display());
        let metadata = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| wrong(error.to_string()))?,
        };
        // In a file, JSON is as long as in a message.
        if metadata.len() > 2 * PLAN_BYTES_MAX as u64 {
            return Err(wrong(format!("{} bytes; allowed are {}", metadata.len(), 2 * PLAN_BYTES_MAX)));
        }
        let bytes = fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let read: ReadPlan =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("damaged: {error}")))?;
        let plan = PlanData::read(read.plan).map_err(wrong)?;
        Ok(Some(StoredPlan { number: read.number, plan }))
    }

    /// Replaces the plan. It is on the disk when this returns.
    ///
    /// # Errors
    /// It cannot be written, and where; then the former one stays.
    pub(crate) fn write(&self, stored: &StoredPlan) -> Result<(), String> {
        let text = serde_json::to_string(stored).map_err(|error| error.to_string())?;
        self.state.write(FILE_NAME, &text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn stored() -> StoredPlan {
        StoredPlan { number: 7, plan: PlanData::empty() }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptPlan::below(&folder.path().join("state")).unwrap();
        assert_eq!(kept.read(), Ok(None));
        fs::write(folder.path().join("state/plan.json.new"), "of a crash").unwrap();
        kept.write(&stored()).unwrap();
        assert_eq!(kept.read(), Ok(Some(stored())));
        let mode = fs::metadata(folder.path().join("state/plan.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_plan_and_one_of_another_format_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptPlan::below(folder.path()).unwrap();
        kept.write(&stored()).unwrap();
        let path = folder.path().join("plan.json");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(kept.read().unwrap_err().contains("damaged"));
        fs::write(&path, r#"{"number": 1, "plan": {"format": 1, "sites": [], "later": 1}}"#).unwrap();
        assert!(kept.read().unwrap_err().contains("has the format 1; this version knows 3"));
    }
}
