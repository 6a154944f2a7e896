//! The keeper's parts together, on real folders.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes away with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("flatout-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        // What comes from the kernel has no links in it.
        Folder(path.canonicalize().unwrap())
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
