//! Static files: everything that can be computed in advance is computed in advance.
//!
//! ```text
//! disk ── look ──> keeper (one thread) ── publish ──> Tree ── atomic swap ──> answer (each worker)
//!           ^        │  ^  ^                                                     │  │
//!           │        │  │  └── press (one thread): gzip, brotli, zstd <── asked ──┤  └─ disk: what is not in memory,
//!           │        │  └───────────── inbox <── asked, and not in memory ────────┘     and all before the first look
//!           │        └── memory: what stays in it                                       has ended
//!           └── watch: inotify, or a sweep of times
//! ```
//!
//! A worker looks a path up in the tree and finds an entry with encoded heads and the body. What is not in the tree is not
//! there, once the folder was looked at. Small files are kept in memory, large ones are sent by the kernel. All opening goes
//! through one function (`source.rs`), and no client's path leads out of the folder.
//!
//! A file is served as one whole version (`whole.rs`): between two equal stamps, and never while its writer is at it.

mod answer;
mod disk;
mod entry;
mod faults;
mod head;
mod inbox;
mod inotify;
mod keeper;
mod listing;
mod load;
mod look;
mod memory;
mod names;
mod opened;
mod press;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod watch;
mod whole;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::Service;

/// Which files are served, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The folder.
    pub root: PathBuf,
    /// The file that answers for a folder.
    pub index: String,
    /// Whether paths without a file and without an extension are answered with the root's index file.
    pub spa: bool,
    /// Whether a folder without an index file is listed.
    pub listing: bool,
    /// Whether text is compressed in advance.
    pub compress: bool,
    /// Files up to this size are kept in memory.
    pub small_bytes_max: u64,
    /// Bytes of all files and their compressed variants that are kept; over it the least used are sent from disk.
    pub memory_bytes_max: u64,
    /// How changes are noticed.
    pub watch: Watch,
    /// The value of `Cache-Control`, if any.
    pub cache_control: Option<String>,
    /// Ranges that one request may ask for; over it the whole is sent.
    pub ranges_max: usize,
}

/// How changes are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// By inotify. Where that is exhausted or not there, by a sweep.
    Inotify,
    /// By looking at all times and sizes every so often: for NFS, FUSE and the like, which tell nothing.
    Sweep(Duration),
    /// Not at all.
    Off,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            root: PathBuf::from("."),
            index: "index.html".to_owned(),
            spa: false,
            listing: false,
            compress: true,
            small_bytes_max: 256 << 10,
            memory_bytes_max: 256 << 20,
            watch: Watch::Inotify,
            cache_control: None,
            ranges_max: flatout_wire::range::RANGES_MAX,
        }
    }
}

/// A folder that is being served; clones are the same site. Its threads end with the last of them.
#[derive(Clone)]
pub struct Site {
    site: Arc<keeper::Site>,
}

impl Site {
    /// Opens the folder and starts to look at it, with the rights of the moment. Waits 50 ms at most: of a large folder what
    /// was not looked at yet is served from disk. Memory is filled and text compressed in the background.
    ///
    /// # Errors
    /// A root that is no readable folder, or a thread that cannot be started.
    pub fn open(plan: Plan) -> io::Result<Site> {
        Ok(Site { site: keeper::open(plan)? })
    }

    /// One worker's service.
    pub fn service(&self) -> Box<dyn Service> {
        Box::new(answer::Files::new(self.site.clone()))
    }

    /// How many files are known now.
    pub fn files_count(&self) -> usize {
        self.site.tree.load().files_count()
    }

    /// Bytes of files and of their compressed variants that are in memory now.
    pub fn memory_bytes(&self) -> u64 {
        self.site.tree.load().files().map(|entry| entry.contents().memory_bytes()).sum()
    }
}
