//! One request to an upstream for all clients that miss together: its outcome, and the body as it arrives.
//!
//! The leader reports the response from the worker that sent the request. The others wait as tasks of their own workers.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use flatout_engine::BoxError;
use flatout_wire::Status;
use http_body::{Body, Frame, SizeHint};

use super::entry::{Entry, body_of};
use super::store::{Held, Moment};

/// Requests that may wait for one response; further ones are forwarded.
const FOLLOWERS_MAX: usize = 64 << 10;

/// Bytes that may be buffered for the slowest reader of a body that will not be stored.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// A request in progress.
pub(super) struct Flight {
    /// The slot of the response.
    pub(super) slot: u64,
    /// When it began.
    pub(super) asked: Moment,
    state: Mutex<State>,
}

/// The result of a flight.
#[derive(Clone)]
pub(super) enum Outcome {
    /// A complete response.
    Whole(Arc<Entry>),
    /// A response whose body is still arriving, with its length if that is known.
    Stream(Arc<Entry>, Option<u64>),
    /// The upstream has failed.
    Failed(Status),
    /// A response for one client only: the others send requests of their own.
    Released,
}

/// Called when readers have made room.
type Resume = Box<dyn Fn() + Send>;

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    followers: usize,
    /// The chunks of the body that are still needed.
    chunks: VecDeque<Bytes>,
    /// The number of the first chunk.
    first: u64,
    held_bytes: u64,
    /// What of it counts towards the limit for all bodies, also while slow readers keep it after its end.
    held: Option<Held>,
    /// Whether the body is complete, once it has ended.
    end: Option<bool>,
    /// It will be stored: all chunks are kept, however slow the readers are.
    is_kept: bool,
    /// The number of the chunk that each reader takes next; `None` where a reader is gone.
    readers: Vec<Option<u64>>,
    wakers: Vec<Waker>,
    /// The leader waits for room.
    is_waiting: bool,
    resume: Option<Resume>,
}

impl Flight {
    pub(super) fn new(slot: u64, asked: Moment) -> Flight {
        Flight { slot, asked, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes all waiters.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let done = act(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        done
    }

    /// Counts a follower. Returns whether there is room.
    pub(super) fn has_room_for_one(&self) -> bool {
        let mut state = self.state();
        state.followers += 1;
        state.followers <= FOLLOWERS_MAX
    }

    /// Sets the outcome, once.
    pub(super) fn settle(&self, outcome: Outcome) {
        self.change(|state| {
            state.is_kept = true;
            state.outcome.get_or_insert(outcome);
        });
    }

    /// Whether anybody reads the body.
    pub(super) fn has_readers(&self) -> bool {
        self.state().readers_count() > 0
    }

    /// Waits for the outcome.
    pub(super) fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state();
        match &state.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                state.wait(context);
                Poll::Pending
            }
        }
    }

    /// Adds to the body.
    pub(super) fn push(&self, bytes: Bytes) {
        self.change(|state| {
            state.held_bytes += bytes.len() as u64;
            state.chunks.push_back(bytes);
            state.drop_read();
        });
    }

    /// Counts bytes of the body until the last user of this flight is gone.
    pub(super) fn count(&self, held: Held) {
        let mut state = self.state();
        match &mut state.held {
            Some(known) => known.add(held),
            None => state.held = Some(held),
        }
    }

    /// The body will not be stored: from now on, chunks that all readers have read are dropped.
    pub(super) fn keep_no_more(&self) {
        self.change(|state| {
            state.is_kept = false;
            state.drop_read();
        });
    }

    /// The body has ended. `is_whole` is whether it is complete.
    pub(super) fn end(&self, is_whole: bool) {
        self.change(|state| state.end = state.end.or(Some(is_whole)));
    }

    /// The body is complete, and is that of this entry: what was not read yet shares its memory.
    pub(super) fn end_stored(&self, entry: &Arc<Entry>) {
        let body = body_of(entry);
        self.change(|state| {
            state.end = state.end.or(Some(true));
            if state.held_bytes != body.len() as u64 {
                return;
            }
            let mut at = 0;
            for chunk in &mut state.chunks {
                let end = at + chunk.len();
                *chunk = body.slice(at..end);
                at = end;
            }
        });
    }

    /// The whole body in one piece.
    pub(super) fn body(&self) -> Vec<u8> {
        let state = self.state();
        let mut body = Vec::with_capacity(state.held_bytes as usize);
        state.chunks.iter().for_each(|chunk| body.extend_from_slice(chunk));
        body
    }

    /// Whether more of the body can be taken now. If not, `resume` is called when it can.
    pub(super) fn has_room(&self, resume: impl FnOnce() -> Resume) -> bool {
        let mut state = self.state();
        let has_room = state.is_kept || state.held_bytes < AHEAD_BYTES_MAX || state.readers_count() == 0;
        if !has_room && !state.is_waiting {
            state.is_waiting = true;
            state.resume = Some(resume());
        }
        has_room
    }

    /// Adds a reader, from the start of the body. `None` if its start was already dropped.
    pub(super) fn reader(self: &Arc<Self>, length: Option<u64>) -> Option<FlightBody> {
        let mut state = self.state();
        if state.first > 0 {
            return None;
        }
        state.readers.push(Some(0));
        let reader = state.readers.len() - 1;
        Some(FlightBody { flight: self.clone(), reader, left: length })
    }

    fn next(&self, reader: usize, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let mut state = self.state();
        let Some(next) = state.readers.get(reader).copied().flatten() else { return Poll::Ready(None) };
        let chunk = state.chunks.get((next - state.first) as usize).cloned();
        match (chunk, state.end) {
            (Some(chunk), _) => {
                if let Some(place) = state.readers.get_mut(reader) {
                    *place = Some(next + 1);
                }
                let resume = state.drop_read();
                drop(state);
                if let Some(resume) = resume {
                    resume();
                }
                Poll::Ready(Some(Ok(chunk)))
            }
            (None, Some(true)) => Poll::Ready(None),
            (None, Some(false)) => Poll::Ready(Some(Err("the upstream's response broke off".into()))),
            (None, None) => {
                state.wait(context);
                Poll::Pending
            }
        }
    }

    fn leave(&self, reader: usize) {
        let mut state = self.state();
        if let Some(place) = state.readers.get_mut(reader) {
            *place = None;
        }
        let resume = state.drop_read();
        drop(state);
        if let Some(resume) = resume {
            resume();
        }
    }
}

impl State {
    fn wait(&mut self, context: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.wakers.push(context.waker().clone());
        }
    }

    fn readers_count(&self) -> usize {
        self.readers.iter().flatten().count()
    }

    /// Drops the chunks that all readers have read, unless the body is to be stored. Returns the callback of a leader that waits for
    /// room, if there is room now.
    fn drop_read(&mut self) -> Option<Resume> {
        if self.is_kept {
            return None;
        }
        let slowest = self.readers.iter().flatten().min().copied();
        let slowest = slowest.unwrap_or(self.first + self.chunks.len() as u64);
        while self.first < slowest {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.held_bytes -= chunk.len() as u64;
            self.first += 1;
        }
        if let Some(held) = &mut self.held {
            held.shrink_to(self.held_bytes);
        }
        if self.held_bytes < AHEAD_BYTES_MAX && std::mem::take(&mut self.is_waiting) {
            return self.resume.take();
        }
        None
    }
}

/// The body of a flight, for one client.
pub(super) struct FlightBody {
    flight: Arc<Flight>,
    reader: usize,
    /// Bytes still to be received, if known.
    left: Option<u64>,
}

impl Body for FlightBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.flight.next(self.reader, context);
        if let (Poll::Ready(Some(Ok(bytes))), Some(left)) = (&polled, &mut self.left) {
            *left = left.saturating_sub(bytes.len() as u64);
        }
        polled.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for FlightBody {
    fn drop(&mut self) {
        self.flight.leave(self.reader);
    }
}
