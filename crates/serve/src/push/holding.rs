//! Publish requests that wait while the channels move to another process; afterwards they are published here or
//! there.

use std::collections::VecDeque;
use std::time::Duration;

use flatout_engine::ExchangeKey;
use flatout_lane::clock::{self, Ticks};

use super::hub::{Hub, Refused};
use super::message::Publication;
use super::moving::Task;
use super::plan::{History, Plan};

/// The limits for waiting requests and the memory of their messages; beyond that they are refused at once.
const HELD_MAX: usize = 1024;
const HELD_BYTES_MAX: usize = 16 << 20;

/// How long a request waits.
pub(super) const HELD_TIME_MAX: Duration = Duration::from_secs(2);

/// The messages of one request, and the progress of publishing them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Channels and messages that are not published yet.
    pub(crate) entries: VecDeque<(String, Publication)>,
    pub(crate) history: History,
    pub(crate) message_bytes_max: usize,
    /// Ids of the published ones.
    pub(crate) ids: Vec<String>,
    pub(crate) refused: Option<Refused>,
}

/// A waiting request.
pub(crate) struct Held {
    pub(super) worker: usize,
    pub(super) key: ExchangeKey,
    pub(crate) batch: Batch,
    pub(super) since: Ticks,
}

impl Batch {
    fn bytes(&self) -> usize {
        self.entries.iter().map(|(channel, message)| channel.len() + message.bytes()).sum()
    }
}

impl Hub {
    /// Publishes the messages in order, up to the first that is refused.
    pub(crate) fn publish_batch(&self, batch: &mut Batch) {
        let plan =
            Plan { history: batch.history, message_bytes_max: batch.message_bytes_max, ..Plan::default() };
        batch.refused = None;
        while let Some((channel, publication)) = batch.entries.front() {
            match self.publish(channel, publication.clone(), &plan) {
                Ok(id) => batch.ids.push(id),
                Err(refused) => return batch.refused = Some(refused),
            }
            batch.entries.pop_front();
        }
    }

    /// Makes a request wait. Returns it if publishing is not frozen any more, or if too many wait.
    pub(super) fn hold(&self, held: Held) -> Option<Held> {
        let mut state = self.lock();
        let bytes: usize = state.held.iter().map(|held| held.batch.bytes()).sum();
        let has_room = state.held.len() < HELD_MAX && bytes + held.batch.bytes() <= HELD_BYTES_MAX;
        if !(state.is_frozen && has_room) {
            return Some(held);
        }
        state.held.push_back(held);
        self.0.news.notify_all();
        None
    }

    /// Stops publishing: publish requests wait from now on.
    pub(crate) fn freeze(&self) {
        self.lock().is_frozen = true;
    }

    /// Stops publishing until the channels of another process have moved here.
    pub(crate) fn await_channels(&self) {
        let mut state = self.lock();
        (state.is_frozen, state.awaits_channels) = (true, true);
    }

    /// Whether the channels of another process have not moved here yet.
    pub(crate) fn awaits_channels(&self) -> bool {
        self.lock().awaits_channels
    }

    /// Resumes publishing, waiting requests first.
    pub(crate) fn thaw(&self) {
        let mut state = self.lock();
        (state.is_frozen, state.awaits_channels) = (false, false);
        if std::mem::take(&mut state.owes_gap) {
            state.report_gap();
        }
        let held = std::mem::take(&mut state.held);
        drop(state);
        for mut held in held {
            self.publish_batch(&mut held.batch);
            self.answer(held);
        }
    }

    /// The waiting requests, for publishing elsewhere; blocks until there are some, at most this long.
    pub(crate) fn wait_held(&self, time_max: Duration) -> Vec<Held> {
        let state = self.lock();
        let waited = self.0.news.wait_timeout_while(state, time_max, |state| state.held.is_empty());
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut state.held).into()
    }

    /// Blocks until this many workers have channels, at most this long. Returns whether they have.
    pub(crate) fn wait_workers(&self, count: usize, time_max: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.news.wait_timeout_while(state, time_max, |state| state.workers.len() < count);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.workers.len() >= count
    }

    /// Responds to a request that has waited.
    pub(crate) fn answer(&self, held: Held) {
        self.post(held.worker, Task::Answer(held.key, held.batch));
    }

    /// Requests of this worker that have waited too long, and whether others of it still wait.
    pub(super) fn overdue(&self, worker: usize) -> (Vec<Held>, bool) {
        let now = clock::now().ticks;
        let mut state = self.lock();
        let is_over = |held: &Held| now.saturating_sub(held.since) >= clock::ticks(HELD_TIME_MAX);
        let held = std::mem::take(&mut state.held).into_iter();
        let (overdue, rest): (Vec<_>, Vec<_>) = held.partition(|held| held.worker == worker && is_over(held));
        let has_others = rest.iter().any(|held| held.worker == worker);
        state.held = rest.into();
        (overdue, has_others)
    }
}
