//! The large files that a worker has open.

use std::fs::File;
use std::sync::Arc;

use flatout_engine::Witness;

use super::entry::Entry;
use super::write_detection::{Samples, Stamp};

/// Large files that one worker keeps open.
const OPEN_FILES_MAX: usize = 16;

/// Smaller files are usually sent with one call and need no witness.
const WITNESSED_BYTES_MIN: u64 = 64 << 10;

/// An open file.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) file: Arc<File>,
    /// Recognises the version if the file has grown since.
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

impl Opened {
    /// A file whose version is this one.
    pub(crate) fn new(file: Arc<File>, stamp: Stamp) -> Opened {
        let samples = (stamp.bytes >= WITNESSED_BYTES_MIN).then(|| Samples::take(&file, stamp)).flatten();
        let witness = samples.map(|samples| Arc::new(samples) as Arc<dyn Witness>);
        Opened { file, witness }
    }

    /// The same with a witness, if none could be taken before: the data sent meanwhile is in memory now.
    pub(crate) fn with_witness(self, open: &mut OpenFiles, entry: &Arc<Entry>) -> Opened {
        if self.witness.is_some() || entry.stamp.bytes < WITNESSED_BYTES_MIN {
            return self;
        }
        let opened = Opened::new(self.file, entry.stamp);
        open.put(entry, opened.clone());
        opened
    }
}

/// The most recently used files, few enough for a linear search, the last used one first.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Vec<(Arc<Entry>, Opened)>,
}

impl OpenFiles {
    /// The open file of an entry, which becomes the last used one.
    pub(crate) fn get(&mut self, entry: &Arc<Entry>) -> Option<Opened> {
        let at = self.files.iter().position(|(this, _)| Arc::ptr_eq(this, entry))?;
        self.files[..=at].rotate_right(1);
        self.files.first().map(|(_, opened)| opened.clone())
    }

    /// Keeps the open file of an entry, and closes the least recently used one.
    pub(crate) fn put(&mut self, entry: &Arc<Entry>, opened: Opened) {
        // An older version of it is not needed any more.
        self.files.retain(|(this, _)| this.path != entry.path);
        self.files.truncate(OPEN_FILES_MAX - 1);
        self.files.insert(0, (entry.clone(), opened));
    }

    /// Closes files that are in no tree any more.
    pub(crate) fn close_gone(&mut self) {
        self.files.retain(|(entry, _)| !entry.is_gone());
    }

    /// Closes the file of an entry, if it is open.
    pub(crate) fn close(&mut self, entry: &Arc<Entry>) {
        self.files.retain(|(this, _)| !Arc::ptr_eq(this, entry));
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_least_recently_used_file_is_closed() {
        let stamp = Stamp { device: 1, inode: 1, bytes: 1, modified: UNIX_EPOCH };
        let opened = Opened { file: Arc::new(File::open("/dev/null").unwrap()), witness: None };
        let entry = |number: usize| Arc::new(Entry::new(number.to_string().into(), stamp, Vec::new(), None));
        let entries: Vec<Arc<Entry>> = (0..=OPEN_FILES_MAX).map(entry).collect();
        let mut open = OpenFiles::default();
        entries[..OPEN_FILES_MAX].iter().for_each(|entry| open.put(entry, opened.clone()));
        assert!(open.get(&entries[0]).is_some(), "the first that came, and used just now");
        open.put(&entries[OPEN_FILES_MAX], opened.clone());
        assert!(open.get(&entries[0]).is_some());
        assert!(open.get(&entries[1]).is_none(), "not used for longest");
        assert_eq!(open.files.len(), OPEN_FILES_MAX);
        let newer = entry(0);
        open.put(&newer, opened);
        assert!(open.get(&entries[0]).is_none(), "a former version");
        open.close(&newer);
        assert!(open.get(&newer).is_none());
        entries[2].leave();
        open.close_gone();
        assert!(open.get(&entries[2]).is_none() && open.get(&entries[3]).is_some());
    }
}
