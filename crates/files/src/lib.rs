//! Static files: everything that can be computed in advance is.
//!
//! ```text
//! disk ── scan ──> indexer (pool.rs) ─── publish ───> Tree ── atomic swap ──> answer (each worker)
//!           ^        │  ^  ^                                                     │  │
//!           │        │  │  └── precompress <───────────────── requested ─────────┤  └─ disk: what is not in memory,
//!           │        │  └───────────── inbox <── requested, and not in memory ───┘     and all before the first scan
//!           │        └── memory: what stays in it                                      has ended
//!           └── watch: inotify, or a sweep of times
//! ```
//!
//! A worker looks a path up in the tree and finds an entry with encoded heads and the body. After the first scan, a
//! path that is not in the tree does not exist. Small files are kept in memory, large ones are sent by the kernel.
//! All files are opened by one function (`source.rs`), and no path from a client leads out of the folder.
//!
//! There may be thousands of folders: they share the threads that index, compress and read events of inotify, a few of each kind. A
//! folder on a volume that may hang has its own (`remote.rs`).
//!
//! A file may have compressed forms beside it (`x.css.gz`), or have only these (`Entry::compressed_only`).
//!
//! Only complete versions of a file are served (`write_detection.rs`): read between two equal stamps, and never while a writer
//! has it open.
#![forbid(unsafe_code)]
// The data path: data from a client, a file or a plan must not crash a worker.
#![warn(clippy::unwrap_used, clippy::expect_used)]

mod answer;
mod disk;
mod entry;
mod faults;
mod fetch;
mod head;
mod hidden;
mod inbox;
mod indexer;
mod inotify;
mod listing;
mod listing_data;
mod load;
mod memory;
mod names;
mod opened;
mod pool;
mod precompress;
mod remote;
mod scan;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod watch;
mod write_detection;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::Service;

pub use answer::redirect_to_folder;
pub use hidden::NamePattern;

/// The limit for names of index files: each is looked up in each folder.
pub const INDEX_NAMES_MAX: usize = 16;

/// Which files are served, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The folder.
    pub root: PathBuf,
    /// The file served for a folder: the first of these names that it has. At most [`INDEX_NAMES_MAX`].
    pub index: Vec<String>,
    /// Whether paths without a file and without an extension get the root's index file.
    pub spa: bool,
    /// Whether, and how, a folder without an index file is listed.
    pub listing: Listing,
    /// Whether text is compressed in advance.
    pub compress: bool,
    /// Files up to this size are kept in memory.
    pub small_bytes_max: u64,
    /// The limit for files and their compressed variants in memory; beyond that the least used are sent from disk.
    pub memory_bytes_max: u64,
    /// How changes are detected.
    pub watch: Watch,
    /// With [`Watch::Sweep`]: how long a request waits for its file to be opened; then it gets 503.
    pub open_time_max: Duration,
    /// The value of `Cache-Control`, if any.
    pub cache_control: Option<String>,
    /// Names of files and folders that are not served, as if they did not exist. Names that start with a dot never are,
    /// except `.well-known`.
    pub hide: Vec<NamePattern>,
    /// The most ranges of one request; beyond that the whole file is sent.
    pub ranges_max: usize,
}

/// Whether, and how, folders are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// They are not.
    Off,
    /// A page.
    Html,
    /// An array with an object for each: `name`, `type` (`file` or `directory`), `mtime` (an HTTP date), and the `size` of files in bytes.
    Json,
    /// A `list` of `directory` and `file` elements with `mtime` (RFC 3339), and the `size` of files.
    Xml,
}

/// How changes are detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// By inotify. If it is exhausted or unavailable, by a sweep.
    Inotify,
    /// By a periodic comparison of all times and sizes: for NFS, FUSE and the like, which send no events.
    Sweep(Duration),
    /// Not at all.
    Off,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            root: PathBuf::from("."),
            index: vec!["index.html".to_owned()],
            spa: false,
            listing: Listing::Off,
            compress: true,
            small_bytes_max: 256 << 10,
            memory_bytes_max: 256 << 20,
            watch: Watch::Inotify,
            open_time_max: Duration::from_secs(10),
            cache_control: None,
            hide: Vec::new(),
            ranges_max: flatout_wire::range::RANGES_MAX,
        }
    }
}

/// A folder that is being served; clones share it. It is not watched any more when the last clone is dropped.
#[derive(Clone)]
pub struct Site {
    site: Arc<indexer::FolderState>,
}

impl Site {
    /// Opens the folder and starts to scan it, with the current privileges. Waits 50 ms at most: files not scanned by
    /// then are served from disk. Memory is filled and text compressed in the background.
    ///
    /// # Errors
    /// The root is not a readable folder, or a thread cannot be started.
    pub fn open(plan: Plan) -> io::Result<Site> {
        Ok(Site { site: indexer::open(plan)? })
    }

    /// One worker's service.
    pub fn service(&self) -> Box<dyn Service> {
        Box::new(fetch::WorkerFiles::new(self.site.clone(), true))
    }

    /// The same for a site, which writes the pages of errors itself, after its rules.
    pub fn part_of_site(&self) -> Box<dyn Service> {
        Box::new(fetch::WorkerFiles::new(self.site.clone(), false))
    }

    /// The number of known files.
    pub fn files_count(&self) -> usize {
        self.site.tree.load().files_count()
    }

    /// Bytes of files and compressed variants in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.site.tree.load().files().map(|entry| entry.contents().memory_bytes()).sum()
    }
}
