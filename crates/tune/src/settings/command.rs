//! A change by two shell commands of the user: one that makes it and one that undoes it.
//!
//! Its effect is not known, so it cannot be read: the journal says whether its first command was started and whether
//! it finished. The second one is run in the same folder with the same variables.

use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::script::quote;
use crate::system::{Kernel, RunError, System};

/// The two commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commands {
    /// Makes the change.
    pub set: String,
    /// Undoes it.
    pub unset: String,
    /// The working directory.
    pub folder: String,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

impl Commands {
    /// The command line that undoes it, from any folder.
    pub(crate) fn undoing(&self) -> String {
        let plain = |(name, _): &&(String, String)| {
            name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') && !name.is_empty()
        };
        let variables = self.variables.iter().filter(plain);
        let variables: String = variables.map(|(name, value)| format!("{name}={} ", quote(value))).collect();
        format!("cd {} && {variables}sh -c {}", quote(&self.folder), quote(&self.unset))
    }

    /// Undoes it. The commands run on the current machine, even if settings are those of another one.
    pub(crate) fn undo(&self) -> Result<(), String> {
        let told = |why: String| format!("`{}` failed: {why}", self.unset);
        Kernel.run("/bin/sh", &["-c", &self.undoing()], "").map(drop).map_err(|error| match error {
            RunError::Failed(code, said) => {
                let said = said.lines().last().unwrap_or_default().to_owned();
                told(format!(
                    "exit status {}: {said}",
                    code.map_or("unknown".to_owned(), |code| code.to_string())
                ))
            }
            RunError::Broken(error) => told(error.to_string()),
            RunError::Missing | RunError::OnlyFiles => told("there is no /bin/sh".to_owned()),
        })
    }
}

impl Kind for Commands {
    fn name(&self) -> String {
        format!("what `{}` does", self.set)
    }

    fn is_namespaced(&self) -> bool {
        true
    }

    fn read(&self, _: &Host) -> Result<Content, Unknown> {
        Err(Unknown("what a command changes is unknown".to_owned()))
    }

    fn steps(&self, _: &Content) -> Result<Vec<Step>, String> {
        Ok(vec![Step::Run {
            program: "sh",
            arguments: vec!["-c".to_owned(), self.undoing()],
            input: String::new(),
        }])
    }

    fn lasting(&self, _: &Content) -> Lasting {
        Lasting::Not("what a command changes is unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Folder;

    #[test]
    fn the_second_command_has_the_folder_and_the_variables_of_the_first() {
        let folder = Folder::new();
        let commands = |unset: &str| Commands {
            set: "true".to_owned(),
            unset: unset.to_owned(),
            folder: folder.0.display().to_string(),
            variables: vec![("FLATOUT_URL".to_owned(), "http://h/?a=1&b='2'".to_owned())],
        };
        commands("printf %s \"$FLATOUT_URL\" > undone").undo().unwrap();
        assert_eq!(std::fs::read_to_string(folder.0.join("undone")).unwrap(), "http://h/?a=1&b='2'");
        let why = commands("echo no such thing >&2; exit 3").undo().unwrap_err();
        assert!(why.contains("exit status 3: no such thing"), "{why}");
    }
}
