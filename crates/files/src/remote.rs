//! Files of a volume that may hang, as one over a network does: what waits for it waits on threads of its own, and no worker does.
//!
//! Each folder has its own threads, so that a volume that hangs delays no other. A thread that waits for one cannot be ended; there are
//! at most [`THREADS_MAX`], and what does not find a place in their queue gets 503.

use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flatout_engine::{BoxError, FileRange};
use flatout_lane::cpu;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// Threads of one folder. Each waits for one answer of the volume.
const THREADS_MAX: usize = 16;

/// What waits for one of them.
const JOBS_MAX: usize = 256;

/// How long a response waits for its next piece; then it is aborted.
const READ_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes that are read at once: one request over NFS.
const PIECE_BYTES: u64 = 256 << 10;

/// The threads of one folder, started when they are needed. They end when this is dropped.
#[derive(Default)]
pub(crate) struct Threads(Arc<ThreadPool>);

#[derive(Default)]
struct ThreadPool {
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    /// Files that nobody uses any more. They take no places of jobs; there are no more than open files.
    closing: Vec<File>,
    threads: usize,
    /// Those without a job.
    idle: usize,
    is_closing: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl Threads {
    /// Calls a function on one of the threads. `None` if too much waits already.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        function: impl FnOnce() -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (sender, receiver) = oneshot::channel();
        let job = Box::new(move || {
            // Nobody may be waiting any more.
            if !sender.is_closed() {
                let _ = sender.send(function());
            }
        });
        let mut state = self.0.lock();
        if state.jobs.len() >= JOBS_MAX || !self.has_thread(&mut state) {
            return None;
        }
        state.jobs.push_back(job);
        drop(state);
        self.0.changed.notify_one();
        Some(receiver)
    }

    /// Has a file closed.
    fn close(&self, file: File) {
        let mut state = self.0.lock();
        // Without a thread it is closed here.
        if self.has_thread(&mut state) {
            state.closing.push(file);
            drop(state);
            self.0.changed.notify_one();
        }
    }

    /// Starts a thread if all are busy. Returns whether there is any thread.
    fn has_thread(&self, state: &mut PoolState) -> bool {
        if state.idle <= state.jobs.len() + state.closing.len() && state.threads < THREADS_MAX {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name("files-remote".to_owned());
            state.threads += usize::from(thread.spawn(move || shared.work()).is_ok());
        }
        state.threads > 0
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.lock().is_closing = true;
        self.0.changed.notify_all();
    }
}

impl ThreadPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // It was started by a worker, which is pinned to a CPU.
        cpu::unpin();
        let mut state = self.lock();
        loop {
            // From the longer queue, so that neither starves.
            let job = match state.closing.len() > state.jobs.len() {
                true => state.closing.pop().map(|file| Box::new(move || drop(file)) as Job),
                false => state.jobs.pop_front(),
            };
            match job {
                Some(job) => {
                    drop(state);
                    job();
                    state = self.lock();
                }
                None if state.is_closing => return,
                None => {
                    state.idle += 1;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        }
    }
}

/// Has a file closed by the folder's threads, when this is dropped: over FUSE, closing waits for the volume too. Whatever else a worker has
/// of the file is dropped before.
pub(crate) struct Closing {
    threads: Arc<Threads>,
    file: Option<Arc<File>>,
}

impl Closing {
    pub(crate) fn new(threads: Arc<Threads>, file: Option<Arc<File>>) -> Closing {
        Closing { threads, file }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        // The last user has it closed.
        if let Some(file) = self.file.take().and_then(Arc::into_inner) {
            self.threads.close(file);
        }
    }
}

/// A range of a file, read by the folder's threads while it is sent: one piece ahead of the client.
pub(crate) struct RemoteBody {
    threads: Arc<Threads>,
    range: FileRange,
    piece: Option<oneshot::Receiver<io::Result<Bytes>>>,
    late: Pin<Box<Sleep>>,
    /// The last field, which is dropped after `range`.
    _closing: Closing,
}

impl RemoteBody {
    /// The range; its first piece is requested at once. Must be called on a runtime.
    pub(crate) fn new(threads: Arc<Threads>, range: FileRange) -> RemoteBody {
        let closing = Closing::new(threads.clone(), Some(range.file.clone()));
        let late = Box::pin(sleep(READ_TIME_MAX));
        let mut body = RemoteBody { threads, range, piece: None, late, _closing: closing };
        body.request();
        body
    }

    /// Requests the next piece.
    fn request(&mut self) {
        let bytes = self.range.bytes.min(PIECE_BYTES);
        let piece = FileRange { bytes, ..self.range.clone() };
        self.piece = match bytes {
            0 => None,
            _ => self.threads.run(move || read(&piece)),
        };
        self.late.as_mut().reset(tokio::time::Instant::now() + READ_TIME_MAX);
    }
}

impl http_body::Body for RemoteBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.range.bytes == 0 {
            return Poll::Ready(None);
        }
        let Some(piece) = self.piece.as_mut() else {
            return Poll::Ready(Some(Err("too much waits for the folder".into())));
        };
        let read = match Pin::new(piece).poll(context) {
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(_)) => Err(io::Error::other("the thread that read the file has ended")),
            Poll::Pending => match self.late.as_mut().poll(context) {
                Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
                Poll::Pending => return Poll::Pending,
            },
        };
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => return Poll::Ready(Some(Err(error.into()))),
        };
        self.range.offset += bytes.len() as u64;
        self.range.bytes -= bytes.len() as u64;
        self.request();
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.range.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.bytes)
    }
}

/// Reads a range. An error if the file was written to and is no longer the promised version.
fn read(range: &FileRange) -> io::Result<Bytes> {
    let mut bytes = vec![0; range.bytes as usize];
    range.file.read_exact_at(&mut bytes, range.offset)?;
    match range.is_current() {
        true => Ok(bytes.into()),
        false => Err(io::Error::other("the file was changed while it was sent")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn hanging_jobs_are_bounded_and_the_rest_goes_on_after_them() {
        let threads = Threads::default();
        let (sender, receiver) = channel::<()>();
        let receiver = Arc::new(Mutex::new(receiver));
        let hang = || {
            let receiver = receiver.clone();
            threads.run(move || receiver.lock().unwrap().recv())
        };
        let hanging: Vec<_> = (0..THREADS_MAX).map(|_| hang().unwrap()).collect();
        let is_waiting = || {
            let state = threads.0.lock();
            state.jobs.len() + state.idle > 0
        };
        while is_waiting() {
            std::thread::yield_now();
        }
        let waiting: Vec<_> = (0..JOBS_MAX).map(|number| threads.run(move || number).unwrap()).collect();
        assert!(threads.run(|| ()).is_none(), "the queue is full");
        assert_eq!(threads.0.lock().threads, THREADS_MAX);
        drop(sender);
        for (number, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(waiting.blocking_recv(), Ok(number));
        }
        drop(hanging);
    }

    #[test]
    fn files_are_closed_by_the_threads_of_their_folder() {
        let threads = Arc::new(Threads::default());
        let (sender, receiver) = channel::<()>();
        let receiver = Arc::new(Mutex::new(receiver));
        let hang = |_| {
            let receiver = receiver.clone();
            threads.run(move || receiver.lock().unwrap().recv())
        };
        let hanging: Vec<_> = (0..THREADS_MAX + JOBS_MAX).map(hang).collect();
        assert!(threads.run(|| ()).is_none(), "no place is left");
        let (mut reader, writer) = std::io::pipe().unwrap();
        let file = Arc::new(File::from(std::os::fd::OwnedFd::from(writer)));
        let other = file.clone();
        drop(Closing::new(threads.clone(), Some(file)));
        assert!(threads.0.lock().closing.is_empty(), "it is still used");
        drop(Closing::new(threads.clone(), Some(other)));
        assert_eq!(threads.0.lock().closing.len(), 1, "it waits for a thread, and not here");
        drop(sender);
        drop(hanging);
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "it is closed");
        drop(Closing::new(threads, None));
    }

    #[test]
    fn a_request_that_is_gone_is_not_served() {
        let threads = Threads::default();
        let (sender, receiver) = channel::<()>();
        let first = threads.run(move || receiver.recv()).unwrap();
        drop(first);
        drop(sender);
        assert_eq!(threads.run(|| 1).unwrap().blocking_recv(), Ok(1));
    }
}
