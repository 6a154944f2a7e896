//! One request to an upstream for all clients that miss together: its outcome, and the body as it arrives.
//!
//! The leader reports the response on the worker that sent the request. The others wait as tasks on their
//! workers.

mod body;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use flatout_engine::{BoxError, bug};
use flatout_wire::Status;

use crate::entry::{Entry, body_of};
use crate::store::{BodyReservation, Moment};
pub(crate) use body::FlightBody;

/// Requests that may wait for one response; further ones are forwarded.
const FOLLOWERS_MAX: usize = 64 << 10;

/// Bytes that may be buffered for the slowest reader of a body that will not be stored.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// A request in progress.
pub(crate) struct Flight {
    /// The slot of the response.
    pub(crate) slot: u64,
    /// When it began.
    pub(crate) asked: Moment,
    state: Mutex<FlightState>,
}

/// The result of a flight.
#[derive(Clone)]
pub(crate) enum Outcome {
    /// A complete response.
    Whole(Arc<Entry>),
    /// A response whose body is still arriving, with its length if that is known.
    Stream(Arc<Entry>, Option<u64>),
    /// The upstream has failed, or a rule counts its response as a failure.
    Failed(Status),
    /// The upstream responded with an error: only what is stored says whether it may be used instead.
    Rejected(Status),
    /// A response for one client only: the others send their own requests.
    Released,
    /// What is on disk was read into memory; `false` if there was nothing.
    Loaded(bool),
}

/// Called when readers have made room.
type Resume = Box<dyn Fn() + Send>;

#[derive(Default)]
struct FlightState {
    outcome: Option<Outcome>,
    followers: usize,
    /// The wakers of tasks that wait for the outcome, each at its own index.
    waiting: Vec<Option<Waker>>,
    /// The chunks of the body that are still needed.
    chunks: VecDeque<Chunk>,
    /// The number of the first chunk.
    first: u64,
    held_bytes: u64,
    /// The bytes that count towards the limit for all bodies, also after the end while slow readers need them.
    held: Option<BodyReservation>,
    /// Whether the body is complete, once it has ended.
    end: Option<bool>,
    /// It will be stored: all chunks are kept, however slow the readers are.
    is_kept: bool,
    /// Each reader at its own index. `vacant` lists the indexes of readers that are gone.
    readers: Vec<Option<FlightReader>>,
    vacant: Vec<usize>,
    /// How many readers have taken all chunks.
    readers_at_end: usize,
    /// The leader waits for room.
    is_waiting: bool,
    resume: Option<Resume>,
}

/// A piece of the body.
struct Chunk {
    bytes: Bytes,
    /// How many readers take it next.
    readers: usize,
}

struct FlightReader {
    /// The number of the chunk that it takes next.
    next: u64,
    /// Wakes it, if it waits.
    waker: Option<Waker>,
}

impl Flight {
    pub(crate) fn new(slot: u64, asked: Moment) -> Flight {
        Flight { slot, asked, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, FlightState> {
        // Each change under the lock leaves consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the body, and wakes the readers that wait for more.
    fn change(&self, act: impl FnOnce(&mut FlightState) -> Option<Resume>) {
        let mut state = self.state();
        let wakers = match state.readers_at_end {
            0 => Vec::new(),
            _ => state.readers.iter_mut().flatten().filter_map(|reader| reader.waker.take()).collect(),
        };
        let resume = act(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        resume.into_iter().for_each(|resume| resume());
    }

    /// Counts a follower. Returns whether there is room.
    pub(crate) fn has_room_for_one(&self) -> bool {
        let mut state = self.state();
        state.followers += 1;
        state.followers <= FOLLOWERS_MAX
    }

    /// Sets the outcome, once.
    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut state = self.state();
        if state.outcome.is_none() {
            state.is_kept = true;
            state.outcome = Some(outcome);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// Whether anybody reads the body.
    pub(crate) fn has_readers(&self) -> bool {
        self.state().readers_count() > 0
    }

    /// Waits for the outcome.
    pub(crate) async fn outcome(&self) -> Outcome {
        let mut place = None;
        poll_fn(|context| self.poll_outcome(&mut place, context)).await
    }

    /// `place` is the caller's index among those that wait.
    fn poll_outcome(&self, place: &mut Option<usize>, context: &Context<'_>) -> Poll<Outcome> {
        let mut state = self.state();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        let place = *place.get_or_insert_with(|| {
            state.waiting.push(None);
            state.waiting.len() - 1
        });
        match state.waiting.get_mut(place) {
            Some(waker) => {
                wait(waker, context);
                Poll::Pending
            }
            None => {
                bug!("a flight without an outcome has forgotten who waits for it");
                Poll::Ready(Outcome::Failed(Status::INTERNAL_SERVER_ERROR))
            }
        }
    }

    /// Adds to the body.
    pub(crate) fn push(&self, bytes: Bytes) {
        self.change(|state| {
            state.held_bytes += bytes.len() as u64;
            let readers = std::mem::take(&mut state.readers_at_end);
            state.chunks.push_back(Chunk { bytes, readers });
            state.drop_read()
        });
    }

    /// Counts bytes of the body towards the limit for as long as this flight is used.
    pub(crate) fn count(&self, held: BodyReservation) {
        let mut state = self.state();
        match &mut state.held {
            Some(known) => known.add(held),
            None => state.held = Some(held),
        }
    }

    /// The body will not be stored: from now on, chunks that all readers have read are dropped.
    pub(crate) fn keep_no_more(&self) {
        self.change(|state| {
            state.is_kept = false;
            state.drop_read()
        });
    }

    /// The body has ended. `is_whole` is whether it is complete.
    pub(crate) fn end(&self, is_whole: bool) {
        self.change(|state| {
            state.end = state.end.or(Some(is_whole));
            None
        });
    }

    /// The body is complete and stored in this entry. Chunks that are still to be read share its memory.
    pub(crate) fn end_stored(&self, entry: &Arc<Entry>) {
        let body = body_of(entry);
        self.change(|state| {
            state.end = state.end.or(Some(true));
            if state.held_bytes == body.len() as u64 {
                let mut at = 0;
                for chunk in &mut state.chunks {
                    let end = at + chunk.bytes.len();
                    chunk.bytes = body.slice(at..end);
                    at = end;
                }
            }
            None
        });
    }

    /// The whole body in one piece.
    pub(crate) fn body(&self) -> Vec<u8> {
        let state = self.state();
        let mut body = Vec::with_capacity(state.held_bytes as usize);
        state.chunks.iter().for_each(|chunk| body.extend_from_slice(&chunk.bytes));
        body
    }

    /// Whether more of the body can be taken now. If not, `resume` is called when it can.
    pub(crate) fn has_room(&self, resume: impl FnOnce() -> Resume) -> bool {
        let mut state = self.state();
        let has_room = state.is_kept || state.held_bytes < AHEAD_BYTES_MAX || state.readers_count() == 0;
        if !has_room && !state.is_waiting {
            state.is_waiting = true;
            state.resume = Some(resume());
        }
        has_room
    }

    /// Adds a reader, from the start of the body. `None` if its start was already dropped.
    pub(crate) fn reader(self: &Arc<Self>, length: Option<u64>) -> Option<FlightBody> {
        let mut state = self.state();
        if state.first > 0 {
            return None;
        }
        let reader = state.vacant.pop().unwrap_or_else(|| {
            state.readers.push(None);
            state.readers.len() - 1
        });
        state.readers[reader] = Some(FlightReader { next: 0, waker: None });
        *state.readers_at(0) += 1;
        Some(FlightBody { flight: self.clone(), reader, left: length })
    }

    fn next(&self, reader: usize, context: &Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(Some(known)) = state.readers.get_mut(reader) else {
            bug!("a flight does not know the reader {reader} of its body");
            return Poll::Ready(Some(Err("the response cannot be read".into())));
        };
        let Some(chunk) = state.chunks.get_mut((known.next - state.first) as usize) else {
            return match state.end {
                Some(true) => Poll::Ready(None),
                Some(false) => Poll::Ready(Some(Err("the upstream's response is incomplete".into()))),
                None => {
                    wait(&mut known.waker, context);
                    Poll::Pending
                }
            };
        };
        let bytes = chunk.bytes.clone();
        chunk.readers -= 1;
        known.next += 1;
        let next = known.next;
        *state.readers_at(next) += 1;
        let resume = state.drop_read();
        drop(guard);
        resume.into_iter().for_each(|resume| resume());
        Poll::Ready(Some(Ok(bytes)))
    }

    fn leave(&self, reader: usize) {
        let mut state = self.state();
        let Some(known) = state.readers.get_mut(reader).and_then(Option::take) else {
            return bug!("a flight does not know the reader {reader} of its body");
        };
        state.vacant.push(reader);
        *state.readers_at(known.next) -= 1;
        let resume = state.drop_read();
        drop(state);
        resume.into_iter().for_each(|resume| resume());
    }
}

impl FlightState {
    fn readers_count(&self) -> usize {
        self.readers.len() - self.vacant.len()
    }

    /// The number of readers that take this chunk next.
    fn readers_at(&mut self, number: u64) -> &mut usize {
        match self.chunks.get_mut((number - self.first) as usize) {
            Some(chunk) => &mut chunk.readers,
            None => &mut self.readers_at_end,
        }
    }

    /// Drops the chunks that all readers have read, unless the body is to be stored. Returns the callback of a leader that waits for
    /// room, if there is room now.
    fn drop_read(&mut self) -> Option<Resume> {
        if self.is_kept {
            return None;
        }
        while self.chunks.front().is_some_and(|chunk| chunk.readers == 0) {
            let dropped = self.chunks.pop_front();
            self.held_bytes -= dropped.map_or(0, |chunk| chunk.bytes.len() as u64);
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

/// Keeps the waker of a task.
fn wait(waker: &mut Option<Waker>, context: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
}
