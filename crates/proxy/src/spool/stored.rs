//! A whole request body in a file, from which it is sent, as often as that takes.

use std::sync::Arc;

use bytes::Bytes;
use flatout_engine::{GuestKey, Mailbox};

use crate::spool::disk::{Completion, DiskJob, SpoolFile, Work};
use crate::spool::store::SpoolStore;

/// Bytes that are read at a time.
const READ_BYTES_MAX: u64 = 128 << 10;

/// The body. Its file's space is free again when it is dropped.
pub(crate) struct StoredBody {
    file: Arc<SpoolFile>,
    store: Arc<SpoolStore>,
    mailbox: Mailbox,
    bytes: u64,
    read_at: u64,
    /// The part that a thread reads.
    reading: Option<Completion>,
}

/// What comes next of a body.
pub(crate) enum NextPart {
    Data(Bytes),
    /// It is being read; the guest is called again.
    Later,
    End,
    Failed,
}

impl StoredBody {
    /// Of a file with this many bytes, all of which are written.
    pub(crate) fn new(
        file: Arc<SpoolFile>,
        bytes: u64,
        store: &Arc<SpoolStore>,
        mailbox: &Mailbox,
    ) -> StoredBody {
        let (store, mailbox) = (store.clone(), mailbox.clone());
        StoredBody { file, store, mailbox, bytes, read_at: 0, reading: None }
    }

    /// The next part. A thread reads it, and `guest` is called when it is there.
    pub(crate) fn next(&mut self, guest: GuestKey) -> NextPart {
        if let Some(done) = &self.reading {
            return match done.take() {
                None => NextPart::Later,
                Some(result) => {
                    self.reading = None;
                    match result {
                        Ok(data) => {
                            self.read_at += data.len() as u64;
                            NextPart::Data(data)
                        }
                        Err(error) => {
                            self.store.failed(&error);
                            NextPart::Failed
                        }
                    }
                }
            };
        }
        let bytes = (self.bytes - self.read_at).min(READ_BYTES_MAX);
        if bytes == 0 {
            return NextPart::End;
        }
        let done = Completion::new(&self.mailbox, guest);
        let work = Work::Read(self.file.clone(), self.read_at, bytes as usize);
        let job = DiskJob { work, done: Some(done.clone()) };
        match self.store.disk() {
            None => return NextPart::Failed,
            // If the threads have too much to do, the guest asks again when they have less.
            Some(disk) => self.reading = disk.begin(job).then_some(done),
        }
        NextPart::Later
    }

    /// Begins anew.
    pub(crate) fn rewind(&mut self) {
        (self.read_at, self.reading) = (0, None);
    }
}
