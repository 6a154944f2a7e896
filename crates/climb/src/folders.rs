//! Folders of its own for a server that would listen on the same Unix socket as another one.
//!
//! ```text
//! the server's mount namespace    /srv/app/run  ─ overlay ─  what it writes  ──> a folder of the climb
//!                                                 (overlayfs)  what it reads   <── /srv/app/run
//! ```
//!
//! Sockets, logs and files that the server makes below these folders are its own. It ends with the server; nothing is written to the
//! folders themselves.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use flatout_tune::quote;

/// Folders that a server sees as its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnFolders(BTreeSet<PathBuf>);

/// Starts a command in a mount namespace: `$0` is the command, then for each folder the folder itself and where its changes go. Where
/// the file system of that place cannot hold them (it is an overlay itself), memory does.
const SCRIPT: &str = r#"set -e
cover() {
    mkdir "$2/new" "$2/work"
    chmod --reference="$1" "$2/new"
    chown --reference="$1" "$2/new"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/new,workdir=$2/work" "$1"
}
while [ $# -gt 0 ]; do
    mkdir -p "$2"
    cover "$1" "$2" 2>/dev/null || {
        mount -t tmpfs tmpfs "$2"
        cover "$1" "$2"
    }
    shift 2
done
cd "$PWD"
exec sh -c "$0""#;

impl OwnFolders {
    /// Adds the folder of this socket. Returns false if it cannot become a server's own: it is everyone's, or its name has
    /// characters that separate mount options.
    pub(crate) fn add(&mut self, socket: &str) -> bool {
        let Some(folder) = folder_of(Path::new(socket)) else { return false };
        let is_plain = folder.to_str().is_some_and(|name| !name.contains([',', ':', '\\', '"']));
        is_plain && self.0.insert(folder)
    }

    /// Whether a path is below one of them.
    pub(crate) fn contain(&self, path: &str) -> bool {
        self.0.iter().any(|folder| Path::new(path).starts_with(folder))
    }

    /// The command that starts a server that sees them as its own; its changes go below `changes`.
    pub(crate) fn command(&self, command: &str, changes: &Path) -> String {
        if self.0.is_empty() {
            return command.to_owned();
        }
        let folders = self.0.iter().enumerate().flat_map(|(at, folder)| {
            [folder.display().to_string(), changes.join(at.to_string()).display().to_string()]
        });
        let words = [SCRIPT.to_owned(), command.to_owned()].into_iter().chain(folders);
        let words: Vec<String> = words.map(|word| quote(&word)).collect();
        format!("exec unshare -m --propagation private sh -c {}", words.join(" "))
    }
}

/// The folder to cover: the one above the socket's, because servers remove and make the latter at their start, unless that one
/// is a folder of the whole system such as `/run`.
fn folder_of(socket: &Path) -> Option<PathBuf> {
    let folder = existing(socket.parent()?)?;
    let above = folder.parent().filter(|above| above.components().count() > 2).map(Path::to_owned);
    let chosen = above.unwrap_or(folder);
    (chosen.components().count() > 1).then_some(chosen)
}

/// The folder without symbolic links.
fn existing(folder: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(folder).ok()
}

/// A folder that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryFolder(pub(crate) PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(path: PathBuf) -> io::Result<TemporaryFolder> {
        std::fs::create_dir_all(&path)?;
        Ok(TemporaryFolder(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_whole_system_are_not_covered() {
        let base = std::env::temp_dir().join(format!("flatout-folders-{}", std::process::id()));
        let run = base.join("app/run");
        std::fs::create_dir_all(&run).unwrap();
        let base = existing(&base).unwrap();
        assert_eq!(folder_of(&run.join("app.sock")), Some(base.join("app")));
        assert_eq!(folder_of(&base.join("app.sock")), Some(base.clone()), "the one above is everyone's");
        assert_eq!(folder_of(Path::new("/app.sock")), None);
        let mut own = OwnFolders::default();
        let socket = run.join("app.sock").display().to_string();
        assert!(own.add(&socket));
        assert!(!own.add(&socket), "it is there");
        assert!(own.contain(&socket) && !own.contain("/elsewhere/app.sock"));
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_server_does_not_write_to_the_folder_that_it_sees() {
        let base = std::env::temp_dir().join(format!("flatout-own-folders-{}", std::process::id()));
        let (run, changes) = (base.join("app/run"), base.join("changes"));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("old"), "").unwrap();
        let mut own = OwnFolders::default();
        assert!(own.add(&run.join("app.sock").display().to_string()));
        let command = format!("rm -r {0} && mkdir {0} && echo 'new' > {0}/new && ls {0}", run.display());
        let output =
            std::process::Command::new("sh").args(["-c", &own.command(&command, &changes)]).output().unwrap();
        // It needs root.
        if output.status.success() {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "new\n");
        }
        assert!(run.join("old").exists() && !run.join("new").exists());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
