//! Runs that have much of one thing, and little else.

use std::num::{NonZeroU64, NonZeroUsize};

use flatout_lane::poll::EVENTS_MAX;
use flatout_proxy::{Balance, Key, RetryOn};

use super::configuration::draw_balance;
use super::{
    BODY_BYTES_SHORT, CacheSettings, Channels, Configuration, FRESH_S_LONG, Occasion, SEND_BUFFER_SMALL,
    SERVERS_MAX, Scene, TIME_MAX, WAITING_MAX,
};
use crate::model::cache::{PLAIN_RESOURCES, RESOURCES};

/// The smallest and the largest limit of a buffer, where they are drawn: a few pieces fill the smallest, a few messages the largest.
const LIMIT_BYTES_MIN: usize = 500;
const LIMIT_BYTES_MAX: usize = 9_000;

impl Scene {
    /// In some runs nothing but one limit makes requests wait or fail, so that it can be checked exactly.
    ///
    /// Returns whether this is one of them.
    pub(super) fn draw_focus(&mut self, random: &mut fastrand::Rng) -> bool {
        if random.u8(..12) > 0 {
            return false;
        }
        self.configurations.truncate(1);
        (self.reloads, self.crashes, self.upgrades, self.server_changes) = (0, 0, 0, 0);
        (self.accepts_per_failure, self.connections_max, self.bodies_memory_max) = (None, None, None);
        (self.send_buffer_bytes, self.upstreams_are_hasty, self.shares_resources) = (None, false, false);
        self.clients = random.usize(3..=8);
        let Some(configuration) = self.configurations.first_mut() else { return true };
        configuration.keep_to_heads();
        (configuration.cache, configuration.limit_rate, configuration.streams_max) = (None, None, None);
        (configuration.connections_max, configuration.request_time_max) = (4096, None);
        if random.bool() {
            let burst = random.u32(..=3);
            configuration.rate =
                Some((random.u32(1..=5), burst, random.bool().then(|| random.u32(..=burst))));
        } else {
            (self.upstreams_fail, self.upstreams_fail_mostly) = (true, true);
            configuration.retry_on = RetryOn {
                error: true,
                timeout: random.bool(),
                invalid_response: true,
                non_idempotent: random.bool(),
                statuses: vec![500],
            };
        }
        true
    }

    /// Draws the limits of the server's buffers, and what the run has much of.
    pub(super) fn draw_limits(&mut self, is_focused: bool, random: &mut fastrand::Rng) {
        if random.u8(..4) == 0 {
            // With the smallest, the longest bodies would take as many turns as all others together.
            let least = if self.has_long_bodies { LIMIT_BYTES_MAX / 2 } else { LIMIT_BYTES_MIN };
            self.limit_bytes = NonZeroUsize::new(random.usize(least..=LIMIT_BYTES_MAX));
        }
        match random.u8(..20) {
            _ if is_focused => {}
            0 => self.focus_on_channel(random),
            1 => self.focus_on_bodies(random),
            2 => self.focus_on_folder(random),
            3 => self.focus_on_rules(random),
            4 | 5 => self.focus_on_servers(random),
            _ => {}
        }
    }

    /// One busy channel, whose subscribers are late again and again.
    fn focus_on_channel(&mut self, random: &mut fastrand::Rng) {
        self.keep_server();
        self.channels = Some(Channels {
            subscribers: random.usize(3..=8),
            messages: random.u32(30..=80),
            history: 1000,
            age: 100 * TIME_MAX,
            lag_max: 1000,
            has_bus: false,
            is_latest: random.u8(..4) == 0,
            is_over_http: random.u8(..3) == 0,
            has_tokens: random.u8(..3) == 0,
            is_single: true,
            is_busy: true,
        });
        (self.workers, self.clients, self.rate_min) = (1, random.usize(1..=2), 0);
        self.slice_looks = NonZeroU64::new(random.u64(2..=3));
        self.events_max = random.choice([1, 2, EVENTS_MAX]).expect("some");
        self.send_buffer_bytes = random.choice([Some(0), Some(SEND_BUFFER_SMALL)]).expect("some");
        self.body_bytes_max = self.body_bytes_max.min(BODY_BYTES_SHORT);
    }

    /// Uploads, and reloads in the middle of them. The configurations differ in what upstreams and clients see.
    fn focus_on_bodies(&mut self, random: &mut fastrand::Rng) {
        self.keep_server();
        let Some(first) = self.configurations.first() else { return };
        let other = Configuration {
            adds_field: !first.adds_field,
            shows_request: !first.shows_request,
            changes_fields: !first.changes_fields,
            ..first.clone()
        };
        self.configurations.push(other);
        (self.changes, self.reloads) = (Occasion::BodyWaits, random.u32(10..=30));
        (self.has_many_uploads, self.shares_resources, self.channels) = (true, false, None);
    }

    /// Requests that many rules look at, and reloads that change what the rules say.
    fn focus_on_rules(&mut self, random: &mut fastrand::Rng) {
        (self.has_many_rules, self.shares_resources, self.channels) = (true, false, None);
        (self.crashes, self.clock_steps) = (0, 0);
        self.clients = random.usize(3..=8);
        if let [configuration] = self.configurations.as_mut_slice() {
            configuration.rate = None;
        }
    }

    /// Three servers of the application that never fail, or of which one always does.
    fn focus_on_servers(&mut self, random: &mut fastrand::Rng) {
        self.keep_server();
        (self.clients, self.channels) = (random.usize(4..=8), None);
        (self.clients_fail, self.upstreams_fail, self.shares_resources) = (false, false, false);
        (self.rate_min, self.send_buffer_bytes, self.has_many_uploads) = (0, None, false);
        (self.disk.fills_up, self.disk.tears, self.disk.waiting_max) = (false, false, WAITING_MAX);
        let Some(configuration) = self.configurations.first_mut() else { return };
        configuration.servers = SERVERS_MAX;
        (configuration.connections_max, configuration.request_time_max) = (4096, None);
        (configuration.cache, configuration.limit_rate, configuration.rate) = (None, None, None);
        configuration.retry_on = RetryOn { error: true, ..RetryOn::none() };
        configuration.retries_max = random.u32(1..=2);
        (configuration.balance, configuration.requests_max) = (draw_balance(random), 0);
        configuration.has_backup = false;
        match random.u8(..5) {
            0 => {
                (configuration.streams_max, configuration.is_fastcgi) = (None, false);
                self.failing_server = Some(random.usize(..SERVERS_MAX));
            }
            1 => {
                // Many wait at the same time.
                (configuration.requests_max, self.responses_are_late) = (random.u32(1..=2), true);
            }
            2 => configuration.has_backup = true,
            3 => {
                // Turns are those of each worker.
                self.workers = 1;
                configuration.balance = Balance::RoundRobin;
                configuration.weights = [1; SERVERS_MAX].map(|_| random.u32(1..=4));
            }
            _ => configuration.balance = Balance::Hash(Key::Header("x-key".to_owned())),
        }
    }

    /// A folder that goes from one server to the next, and purges while it does.
    fn focus_on_folder(&mut self, random: &mut fastrand::Rng) {
        self.keep_server();
        (self.upgrades, self.folder_bytes) = (3, Some(16 << 20));
        (self.changes, self.responses_before_changes) = (Occasion::Any, random.u64(3..=12));
        (self.shares_resources, self.insists) = (true, false);
        (self.popular, self.clients) = (Some(random.u8(..PLAIN_RESOURCES)), random.usize(3..=6));
        if random.bool() {
            // What the former server removes must not be served by the new one.
            (self.popular, self.responses_are_late) = (Some(random.u8(PLAIN_RESOURCES..RESOURCES)), true);
        }
        // Others would remove what the purges at an upgrade are for.
        (self.purges, self.channels) = (random.u32(..3), None);
        (self.disk.waiting_max, self.disk.slow_of_256) = (WAITING_MAX, 0);
        for configuration in &mut self.configurations {
            configuration.cache = Some(CacheSettings { fresh_s: Some(FRESH_S_LONG), stale_s: 0 });
        }
    }

    /// Nothing but what is chosen after this changes the server, and it accepts all connections at once.
    fn keep_server(&mut self) {
        self.configurations.truncate(1);
        (self.reloads, self.crashes, self.upgrades, self.server_changes) = (0, 0, 0, 0);
        (self.accepts_per_failure, self.connections_max, self.bodies_memory_max) = (None, None, None);
        (self.clock_steps, self.folder_bytes, self.upstreams_are_hasty) = (0, None, false);
    }
}
