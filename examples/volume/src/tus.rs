//! Resumable uploads: the protocol tus 1.0.0 (<https://tus.io/protocols/resumable-upload>), with its extensions creation, termination
//! and checksum.
//!
//! An upload is two files in `uploads/`: `ID.json`, what it will be, and `ID.part`, what has come so far. How much has come is the length
//! of `ID.part`, so that a writer that was killed knows it too.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::name::Name;
use crate::store::{Folder, Volume, move_file, random};

/// The version of the protocol.
pub const VERSION: &str = "1.0.0";

/// An upload to which nothing has come for this time is given up.
pub const UPLOAD_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// What an upload will be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upload {
    /// Bytes of the whole file.
    pub length: u64,
    /// Its name.
    pub name: String,
}

/// All uploads of a volume. One writer serves them: two would append to the same file.
#[derive(Debug, Clone)]
pub struct Uploads {
    volume: Volume,
    /// Those that a request appends to just now.
    busy: Arc<Mutex<HashSet<String>>>,
}

/// One upload while a request appends to it.
#[derive(Debug)]
pub struct OpenUpload {
    /// What it will be.
    pub upload: Upload,
    /// Bytes so far.
    pub offset: u64,
    file: File,
    id: String,
    uploads: Uploads,
}

/// Why a request about an upload is refused.
#[derive(Debug)]
pub enum UploadFault {
    /// There is no such upload.
    Unknown,
    /// Another request appends to it.
    Busy,
    /// The volume failed.
    Volume(io::Error),
}

impl From<io::Error> for UploadFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => UploadFault::Unknown,
            _ => UploadFault::Volume(error),
        }
    }
}

impl Uploads {
    /// The uploads of a volume.
    pub fn new(volume: Volume) -> Uploads {
        Uploads { volume, busy: Arc::default() }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn path(&self, id: &str, end: &str) -> Result<PathBuf, UploadFault> {
        let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let folder = self.volume.folder(Folder::Uploads);
        is_id.then(|| folder.join(format!("{id}.{end}"))).ok_or(UploadFault::Unknown)
    }

    /// Begins an upload, and returns its id.
    ///
    /// # Errors
    /// The volume failed.
    pub fn create(&self, upload: &Upload) -> Result<String, UploadFault> {
        let id = random();
        File::create_new(self.path(&id, "part")?)?.sync_all()?;
        let mut about = self.volume.part()?;
        serde_json::to_writer(&mut about, upload).map_err(io::Error::from)?;
        about.publish(&self.path(&id, "json")?)?;
        Ok(id)
    }

    /// What an upload will be, and how much has come.
    ///
    /// # Errors
    /// There is none, or the volume failed.
    pub fn find(&self, id: &str) -> Result<(Upload, u64), UploadFault> {
        let about = fs::read(self.path(id, "json")?)?;
        let upload: Upload = serde_json::from_slice(&about).map_err(io::Error::from)?;
        match fs::metadata(self.path(id, "part")?) {
            Ok(part) => Ok((upload, part.len())),
            // It was moved to the inbox, and the writer was killed before it removed the description.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok((upload.clone(), upload.length)),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens an upload to append to it. Until the result is dropped, nobody else can.
    ///
    /// # Errors
    /// There is none, it is open already, or the volume failed.
    pub fn open(&self, id: &str) -> Result<OpenUpload, UploadFault> {
        let path = self.path(id, "part")?;
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned()) {
            return Err(UploadFault::Busy);
        }
        let opened = self
            .find(id)
            .and_then(|(upload, offset)| Ok((upload, offset, OpenOptions::new().append(true).open(&path)?)));
        match opened {
            Ok((upload, offset, file)) => {
                Ok(OpenUpload { upload, offset, file, id: id.to_owned(), uploads: self.clone() })
            }
            Err(fault) => {
                self.end(id);
                Err(fault)
            }
        }
    }

    fn end(&self, id: &str) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Removes uploads that were given up, and returns how many. Their age is measured by the volume's own clock.
    ///
    /// # Errors
    /// The volume failed.
    pub fn remove_old(&self) -> io::Result<usize> {
        let now = self.volume.now()?;
        let mut written: BTreeMap<String, SystemTime> = BTreeMap::new();
        for entry in fs::read_dir(self.volume.folder(Folder::Uploads))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((id, _)) = name.split_once('.').filter(|(id, _)| self.path(id, "part").is_ok()) else {
                continue;
            };
            let Ok(at) = entry.metadata().and_then(|about| about.modified()) else { continue };
            let latest = written.entry(id.to_owned()).or_insert(at);
            *latest = at.max(*latest);
        }
        let is_old = |at: SystemTime| now.duration_since(at).unwrap_or_default() > UPLOAD_TIME_MAX;
        written.retain(|_, at| is_old(*at));
        Ok(written.keys().filter(|id| self.give_up(id, is_old)).count())
    }

    /// Removes what there is of an upload, unless a request appends to it, or has done so meanwhile.
    fn give_up(&self, id: &str, is_old: impl Fn(SystemTime) -> bool) -> bool {
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned()) {
            return false;
        }
        let path = |end| self.path(id, end).ok();
        let written = path("part").and_then(|part| fs::metadata(part).ok()?.modified().ok());
        let is_given_up = written.is_none_or(is_old);
        let remove = |end| path(end).is_some_and(|file| fs::remove_file(file).is_ok());
        let removed = ["part", "json"].map(|end| is_given_up && remove(end));
        self.end(id);
        removed.contains(&true)
    }

    /// Removes an upload.
    ///
    /// # Errors
    /// There is none, a request appends to it, or the volume failed.
    pub fn remove(&self, id: &str) -> Result<(), UploadFault> {
        let open = self.open(id)?;
        fs::remove_file(self.path(id, "json")?)?;
        fs::remove_file(self.path(id, "part")?)?;
        drop(open);
        Ok(())
    }
}

impl OpenUpload {
    /// Appends bytes.
    ///
    /// # Errors
    /// The volume failed; a part of the bytes may have been written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        // Also what a failed write has left.
        self.offset = self.file.metadata()?.len();
        written
    }

    /// Truncates the upload to this offset.
    ///
    /// # Errors
    /// The volume failed.
    pub fn truncate(&mut self, offset: u64) -> io::Result<()> {
        self.file.set_len(offset)?;
        self.offset = offset;
        Ok(())
    }

    /// Puts what has come so far on disk. A complete upload goes to the inbox; returns whether it was complete.
    ///
    /// # Errors
    /// The volume failed; the upload stays as it is.
    pub fn finish(self) -> io::Result<bool> {
        self.file.sync_all()?;
        if self.offset < self.upload.length {
            return Ok(false);
        }
        let name = Name::parse(&self.upload.name).map_err(io::Error::other)?;
        let of = |end| self.uploads.path(&self.id, end).map_err(|_| io::Error::from(ErrorKind::NotFound));
        move_file(&of("part")?, &self.uploads.volume.path(Folder::Inbox, &name))?;
        fs::remove_file(of("json")?)?;
        Ok(true)
    }
}

impl Drop for OpenUpload {
    fn drop(&mut self) {
        self.uploads.end(&self.id);
    }
}

/// The file's name in `Upload-Metadata`: pairs of a key and Base64, between commas.
///
/// # Errors
/// A text for people, if there is no name, or it is not allowed.
pub fn name_in(metadata: &str) -> Result<Name, String> {
    let value = metadata.split(',').find_map(|pair| pair.trim().strip_prefix("filename "));
    let value = value.ok_or("Upload-Metadata has no filename")?;
    let bytes = STANDARD.decode(value.trim()).map_err(|_| "the filename in Upload-Metadata is not Base64")?;
    Name::parse(std::str::from_utf8(&bytes).map_err(|_| "the filename in Upload-Metadata is not UTF-8")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_metadata_are_decoded() {
        assert_eq!(name_in("is_draft,filename YS5jc3Y=").unwrap().as_str(), "a.csv");
        for bad in ["", "filename", "filename !", "filename Li4v", "name YS5jc3Y="] {
            assert!(name_in(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn uploads_go_on_where_they_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let uploads = Uploads::new(volume.clone());
        let id = uploads.create(&Upload { length: 6, name: "a.csv".to_owned() }).unwrap();
        let mut open = uploads.open(&id).unwrap();
        assert!(matches!(uploads.open(&id), Err(UploadFault::Busy)));
        open.append(b"a\n1").unwrap();
        drop(open);
        // Another process.
        let uploads = Uploads::new(volume.clone());
        assert_eq!(uploads.find(&id).unwrap().1, 3);
        let mut open = uploads.open(&id).unwrap();
        open.append(b"xx").unwrap();
        open.truncate(3).unwrap();
        open.append(b"2\n3").unwrap();
        assert!(open.finish().unwrap());
        assert!(matches!(uploads.find(&id), Err(UploadFault::Unknown)));
        let name = Name::parse("a.csv").unwrap();
        assert_eq!(fs::read(volume.path(Folder::Inbox, &name)).unwrap(), b"a\n12\n3");
        assert_eq!(fs::read_dir(volume.folder(Folder::Uploads)).unwrap().count(), 0);
        assert!(matches!(uploads.find("../../etc/passwd"), Err(UploadFault::Unknown)));
    }

    #[test]
    fn uploads_that_were_given_up_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let uploads = Uploads::new(volume.clone());
        let [old, going_on, open, new] = ["a", "b", "c", "d"]
            .map(|name| uploads.create(&Upload { length: 6, name: format!("{name}.csv") }).unwrap());
        let age = |id: &str, end: &str| {
            let file = OpenOptions::new().append(true).open(uploads.path(id, end).unwrap()).unwrap();
            file.set_modified(SystemTime::now() - UPLOAD_TIME_MAX * 2).unwrap();
        };
        for id in [&old, &going_on, &open] {
            age(id, "json");
        }
        age(&old, "part");
        age(&open, "part");
        let appending = uploads.open(&open).unwrap();
        // A writer was killed before it wrote what the upload will be.
        fs::remove_file(uploads.path(&old, "json").unwrap()).unwrap();
        assert_eq!(uploads.remove_old().unwrap(), 1);
        assert!([&going_on, &open, &new].iter().all(|id| uploads.find(id).is_ok()));
        drop(appending);
        assert_eq!(uploads.remove_old().unwrap(), 1);
        assert!(matches!(uploads.find(&open), Err(UploadFault::Unknown)));
        assert_eq!(fs::read_dir(volume.folder(Folder::Uploads)).unwrap().count(), 4);
    }
}
