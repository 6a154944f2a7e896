//! Publish requests that wait while the channels move to another process; afterwards they are published here or
//! there.

use std::collections::VecDeque;
use std::time::Duration;

use flatout_engine::ExchangeKey;
use flatout_lane::clock::{self, Ticks};

use super::handover::Task;
use super::hub::{Hub, Refused};
use super::message::Publication;
use super::plan::{History, Plan};

/// The limits for waiting requests and the memory of their messages; beyond that they are refused at once.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 16 << 20;

/// How long a request waits.
pub(super) const WAITING_TIME_MAX: Duration = Duration::from_secs(2);

/// The messages of one request, and the progress of publishing them.
#[derive(Debug, Default)]
pub struct Batch {
    /// Channels and messages that are not published yet.
    pub entries: VecDeque<(String, Publication)>,
    /// The group of the channels.
    pub group: String,
    /// What the channels retain.
    pub history: History,
    /// The limit for a message.
    pub message_bytes_max: usize,
    /// Ids of the published ones.
    pub ids: Vec<String>,
    /// Why the rest is not published.
    pub refused: Option<Refused>,
}

/// A waiting request.
pub struct WaitingPublish {
    pub(super) worker: usize,
    pub(super) key: ExchangeKey,
    /// What it publishes.
    pub batch: Batch,
    pub(super) since: Ticks,
}

impl Batch {
    fn bytes(&self) -> usize {
        self.entries.iter().map(|(channel, message)| channel.len() + message.bytes()).sum()
    }
}

impl Hub {
    /// Publishes the messages in order, up to the first that is refused.
    pub fn publish_batch(&self, batch: &mut Batch) {
        let plan = Plan {
            group: batch.group.clone(),
            history: batch.history,
            message_bytes_max: batch.message_bytes_max,
            ..Plan::default()
        };
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
    pub(super) fn hold(&self, waiting: WaitingPublish) -> Option<WaitingPublish> {
        let mut state = self.lock();
        let bytes: usize = state.waiting_publishes.iter().map(|waiting| waiting.batch.bytes()).sum();
        let has_room =
            state.waiting_publishes.len() < WAITING_MAX && bytes + waiting.batch.bytes() <= WAITING_BYTES_MAX;
        if !(state.is_frozen && has_room) {
            return Some(waiting);
        }
        state.waiting_publishes.push_back(waiting);
        self.0.news.notify_all();
        None
    }

    /// Stops publishing: publish requests wait from now on.
    pub fn freeze(&self) {
        self.lock().is_frozen = true;
    }

    /// Stops publishing until the channels of another process have moved here.
    pub fn await_channels(&self) {
        let mut state = self.lock();
        (state.is_frozen, state.awaits_channels) = (true, true);
    }

    /// Whether the channels of another process have not moved here yet.
    pub fn awaits_channels(&self) -> bool {
        self.lock().awaits_channels
    }

    /// Resumes publishing, waiting requests first.
    pub fn thaw(&self) {
        let mut state = self.lock();
        (state.is_frozen, state.awaits_channels) = (false, false);
        if std::mem::take(&mut state.owes_gap) {
            state.report_gap();
        }
        let publishes = std::mem::take(&mut state.waiting_publishes);
        drop(state);
        for mut waiting in publishes {
            self.publish_batch(&mut waiting.batch);
            self.answer(waiting);
        }
    }

    /// The waiting requests, for publishing elsewhere; blocks until there are some, at most this long.
    pub fn wait_publishes(&self, time_max: Duration) -> Vec<WaitingPublish> {
        let state = self.lock();
        let waited =
            self.0.news.wait_timeout_while(state, time_max, |state| state.waiting_publishes.is_empty());
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut state.waiting_publishes).into()
    }

    /// Blocks until this many workers have channels, at most this long. Returns whether they have.
    pub fn wait_workers(&self, count: usize, time_max: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.news.wait_timeout_while(state, time_max, |state| state.workers.len() < count);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.workers.len() >= count
    }

    /// Responds to a request that has waited.
    pub fn answer(&self, waiting: WaitingPublish) {
        self.post(waiting.worker, Task::Answer(waiting.key, waiting.batch));
    }

    /// Requests of this worker that have waited too long, and whether others of it still wait.
    pub(super) fn overdue(&self, worker: usize) -> (Vec<WaitingPublish>, bool) {
        let now = clock::now().ticks;
        let mut state = self.lock();
        let is_over =
            |waiting: &WaitingPublish| now.saturating_sub(waiting.since) >= clock::ticks(WAITING_TIME_MAX);
        let publishes = std::mem::take(&mut state.waiting_publishes).into_iter();
        let (overdue, rest): (Vec<_>, Vec<_>) =
            publishes.partition(|waiting| waiting.worker == worker && is_over(waiting));
        let has_others = rest.iter().any(|waiting| waiting.worker == worker);
        state.waiting_publishes = rest.into();
        (overdue, has_others)
    }
}
