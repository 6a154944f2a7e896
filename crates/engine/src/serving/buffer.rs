//! The worker's single read buffer.

use super::Serving;
use crate::connection::Connection;

/// Bytes of the worker's single read buffer, and so of one receive.
pub(crate) const READ_BYTES: usize = 64 << 10;
const _: () = assert!(crate::plan::HEAD_BYTES_MAX_CEILING < READ_BYTES);

/// Sockets that are received from before any of them is served.
pub(crate) const STAGE_SOCKETS: usize = 16;

/// Bytes per socket in the read buffer.
pub(crate) const SLICE_BYTES: usize = READ_BYTES / STAGE_SOCKETS;

impl Serving {
    /// Moves the held bytes to the front of the read buffer, and returns how many.
    #[inline]
    pub(crate) fn take_held(&mut self, connection: &mut Connection) -> usize {
        let Some(work) = connection.work.as_mut() else { return 0 };
        let held = std::mem::take(&mut work.held);
        let count = held.len().min(READ_BYTES);
        if let (Some(room), Some(held)) = (self.read.get_mut(..count), held.get(..count)) {
            room.copy_from_slice(held);
        }
        count
    }

    #[inline]
    pub(crate) fn hold(&mut self, connection: &mut Connection, at: usize, end: usize) {
        if let Some(rest) = self.read.get(at..end).filter(|rest| !rest.is_empty()) {
            connection.work().held.extend_from_slice(rest);
        }
    }
}
