//! Certificates from Secrets, as private files: the server reads and follows files. A file is named by its content, so that another
//! certificate is another file, and a plan that is still served keeps its own.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The files of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    folder: PathBuf,
    contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl Files {
    /// Files in this folder.
    pub(super) fn below(folder: &Path) -> Files {
        Files { folder: folder.to_owned(), contents: BTreeMap::new() }
    }

    /// These files, which have their contents.
    pub(crate) fn of(folder: &Path, contents: BTreeMap<PathBuf, Vec<u8>>) -> Files {
        Files { folder: folder.to_owned(), contents }
    }

    /// Adds a file with this extension. Returns its path.
    pub(super) fn add(&mut self, extension: &str, content: Vec<u8>) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let first = hasher.finish();
        content.len().hash(&mut hasher);
        let mut path = self.folder.join(format!("{first:016x}{:016x}.{extension}", hasher.finish()));
        // The hash is not cryptographic: whoever finds a collision must not replace another one's certificate.
        while self.contents.get(&path).is_some_and(|known| *known != content) {
            path.as_mut_os_string().push("x");
        }
        self.contents.insert(path.clone(), content);
        path
    }

    /// The content of a file.
    pub(crate) fn content(&self, path: &Path) -> Option<&[u8]> {
        self.contents.get(path).map(Vec::as_slice)
    }

    /// All files, with their contents.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.contents.iter().map(|(path, content)| (path.as_path(), content.as_slice()))
    }
}
