//! Pipes that move bytes from socket to socket without copying them to user space.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use flatout_lane::pipe::Pipe;

/// Capacity of a pipe. With more, too much would be received before it is sent.
pub const PIPE_BYTES: usize = 256 << 10;

/// Empty pipes that a worker keeps; each is two descriptors.
const PIPES_KEPT: usize = 32;

/// A worker's empty pipes.
#[derive(Clone, Default)]
pub(crate) struct Pipes(Rc<RefCell<Vec<Pipe>>>);

/// A pipe of a worker, which is returned to it when it is dropped empty.
pub struct PooledPipe {
    /// `Some` until it is dropped.
    pipe: Option<Pipe>,
    pipes: Pipes,
}

impl Pipes {
    /// An empty pipe.
    pub(crate) fn take(&self) -> io::Result<PooledPipe> {
        let kept = self.0.borrow_mut().pop();
        let pipe = match kept {
            Some(pipe) => pipe,
            None => Pipe::with_room(PIPE_BYTES)?,
        };
        Ok(PooledPipe { pipe: Some(pipe), pipes: self.clone() })
    }
}

impl PooledPipe {
    /// Bytes in the pipe.
    pub fn bytes(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::bytes)
    }

    /// Reads its content; `None` if that fails.
    pub fn take_bytes(&mut self) -> Option<Bytes> {
        let mut bytes = Vec::new();
        let all = self.pipe.as_mut()?.empty_into(&mut bytes);
        all.then(|| bytes.into())
    }

    pub(crate) fn pipe(&mut self) -> Option<&mut Pipe> {
        self.pipe.as_mut()
    }
}

impl Drop for PooledPipe {
    fn drop(&mut self) {
        let mut kept = self.pipes.0.borrow_mut();
        if kept.len() < PIPES_KEPT {
            kept.extend(self.pipe.take().filter(|pipe| pipe.bytes() == 0));
        }
    }
}

impl fmt::Debug for PooledPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledPipe").field("bytes", &self.bytes()).finish()
    }
}
