//! The tree in which workers look up paths: built by the indexer, never changed afterwards.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::Plan;
use super::entry::Entry;
use super::listing;

/// What is at a path.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    File(Arc<Entry>),
    /// A folder requested without a trailing slash.
    Folder,
    /// A folder's listing.
    Listing(Bytes),
}

/// All paths, decoded, starting with a slash.
#[derive(Default)]
pub(crate) struct Tree {
    nodes: HashMap<Box<[u8]>, Node, foldhash::fast::RandomState>,
    files_count: usize,
    is_complete: bool,
}

/// The indexer's entries, by path relative to the root; the root itself is the empty path.
pub(crate) type Known = BTreeMap<PathBuf, Thing>;

/// A file or folder on disk.
#[derive(Debug, Clone)]
pub(crate) enum Thing {
    File(Arc<Entry>),
    /// With the seconds from 1970 to its last change.
    Folder(u64),
}

impl Tree {
    /// Builds the tree from the known entries.
    pub(crate) fn of(known: &Known, plan: &Plan) -> Tree {
        let mut tree = Tree { is_complete: true, ..Tree::default() };
        tree.nodes.reserve(known.len());
        for (path, thing) in known {
            match thing {
                Thing::File(entry) => {
                    tree.nodes.insert(key(path, false), Node::File(entry.clone()));
                    tree.files_count += 1;
                }
                Thing::Folder(_) => tree.add_folder(path, known, plan),
            }
        }
        tree
    }

    fn add_folder(&mut self, path: &Path, known: &Known, plan: &Plan) {
        if path != Path::new("") {
            self.nodes.insert(key(path, false), Node::Folder);
        }
        // A folder with the name of an index file is ignored.
        let index = plan.index.iter().find_map(|name| match known.get(&path.join(name)) {
            Some(Thing::File(index)) => Some(index),
            _ => None,
        });
        let node = match index {
            Some(index) => Node::File(index.clone()),
            None => match listing::listing(plan.listing, path, known) {
                Some(listing) => Node::Listing(listing),
                None => return,
            },
        };
        self.nodes.insert(key(path, true), node);
    }

    /// What is at a decoded path.
    #[inline]
    pub(crate) fn get(&self, path: &[u8]) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Whether a missing path does not exist: not before the first scan of the folder has ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The number of files.
    pub(crate) fn files_count(&self) -> usize {
        self.files_count
    }

    /// All files, each once.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<Entry>> {
        // A folder's index is also under the folder's name.
        self.nodes.iter().filter_map(|(path, node)| match node {
            Node::File(entry) if !path.ends_with(b"/") => Some(entry),
            _ => None,
        })
    }
}

fn key(path: &Path, folder: bool) -> Box<[u8]> {
    let path = path.as_os_str().as_bytes();
    let mut key = Vec::with_capacity(path.len() + 2);
    key.push(b'/');
    key.extend_from_slice(path);
    if folder && !path.is_empty() {
        key.push(b'/');
    }
    key.into()
}
