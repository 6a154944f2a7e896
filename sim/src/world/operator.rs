//! The operator: purges, reloads, upgrades, changes servers, sets the clock, and kills the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flatout_cache::{Purge, PurgeScope};
use flatout_lane::{clock, jobs};
use flatout_proxy::ServerMode;
use flatout_server::simulation;
use flatout_server::upgrade::ListenerOwner;

use super::{HOST, Shared, World};
use crate::crash;
use crate::model::cache::{RESOURCES, TAGS, tag_name};
use crate::model::resource_target;
use crate::scene::{APPLICATION, APPLICATION_NUMBERS, Occasion, cache_path, upstream_path};
use crate::server::{Opening, Server};
use crate::trace::{Actor, Crash, Event};

/// The longest time between two purges.
const PURGE_PAUSE_NS_MAX: u64 = 2_000_000_000;

/// The longest step of the machine's clock, forward or back.
const CLOCK_STEP_S_MAX: i64 = 4_000;

/// So many responses come before crashes right behind a purge: something has to be stored.
const STORED_MIN: u64 = 10;

/// One in so many upgrades fails at once, and one in so many fails later.
const UPGRADES_PER_FAILURE: u8 = 6;

impl World {
    /// Does at most one thing, if one is drawn. Returns whether it did.
    pub(super) fn operate(&mut self, shared: &mut Shared<'_>) -> Result<bool, String> {
        if self.purges_left > 0 && shared.now_ns >= self.purges_at_ns && self.random.u8(..4) == 0 {
            self.purges_left -= 1;
            self.purges_at_ns = shared.now_ns + self.random.u64(..PURGE_PAUSE_NS_MAX);
            self.has_purged = true;
            return Ok(self.purge(None, shared));
        }
        // Crashes are likelier while something is written, and after a purge that was written or that the disk may have refused.
        let looks = match jobs::count() {
            _ if std::mem::take(&mut self.has_written_purges) && shared.model.whole >= STORED_MIN => 8,
            0 if std::mem::take(&mut self.has_purged) && jobs::disk_fault().is_some() => 2,
            0 => 128,
            _ => 16,
        };
        if self.crashes_left > 0 && self.random.u8(..looks) == 0 {
            self.crash(shared);
            return Ok(true);
        }
        // Changes are likelier while a request waits for its authorization or the rest of its body, or messages are on their way.
        let is_invited = shared.take_invitation();
        let looks = match shared.scene.changes {
            _ if is_invited => 2,
            Occasion::Any => 32,
            Occasion::Invited
            | Occasion::ClientLeaves
            | Occasion::SubscriberIsBehind
            | Occasion::BodyWaits => 2_000,
        };
        let kinds = [self.reloads_left, self.upgrades_left, self.changes_left, self.clock_steps_left];
        let is_early = shared.model.whole < shared.scene.responses_before_changes;
        if kinds == [0; 4] || is_early || self.random.u16(..looks) > 0 {
            return Ok(false);
        }
        let all: Vec<usize> = (0..kinds.len()).filter(|kind| kinds[*kind] > 0).collect();
        match self.random.choice(all) {
            Some(0) => self.reload(shared),
            Some(1) => self.upgrade(shared)?,
            Some(2) => self.change_servers(shared)?,
            _ => {
                self.clock_steps_left -= 1;
                let seconds = self.random.i64(-CLOCK_STEP_S_MAX..=CLOCK_STEP_S_MAX);
                shared.event(Actor::Operator, Event::ClockStep(seconds));
                clock::simulated::shift_unix(seconds);
            }
        }
        Ok(true)
    }

    fn reload(&mut self, shared: &mut Shared<'_>) {
        let next = (shared.served + 1) % shared.scene.configurations.len();
        self.reloads_left -= 1;
        let configuration = &shared.scene.configurations[next];
        let checked = configuration.checked(shared.scene, self.folder.path());
        let former = self.server().live.opened();
        let opened = simulation::open(&checked, &self.server().hub, Some(&former))
            .unwrap_or_else(|failure| panic!("{failure}"));
        opened.sites.copy_for(shared.scene.workers, &former.sites);
        self.server().live.replace(opened);
        shared.serve(next);
        shared.event(Actor::Operator, Event::Reload(next));
    }

    /// Upgrades: another server takes over the listeners, channels and subscribers, and the former one drains.
    fn upgrade(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        self.upgrades_left -= 1;
        let next = (shared.served + 1) % shared.scene.configurations.len();
        // Before it, after it, or both. What is on disk by then is drawn too.
        let purges = self.random.u8(..4);
        if self.random.bool() {
            self.settle_disk(shared);
        }
        if purges != 1 {
            // The former server has not written it yet.
            self.purge_at_upgrade(shared);
        }
        let former = self.servers.last_mut().expect("a server, except in `crash`");
        // Workers that are idle change only as the upgrade requires.
        former.work_until(|| true)?;
        let (giving, arriving) = simulation::hand_over(former.predecessor()).expect("sockets");
        former.work_until(|| arriving.is_done())?;
        let mut successor = arriving.finish()?;
        let fails = self.random.u8(..UPGRADES_PER_FAILURE);
        let configuration = &shared.scene.configurations[next];
        let inherited = if fails == 0 { Vec::new() } else { successor.listeners(ListenerOwner::Server) };
        let moved = if fails == 0 {
            successor.refuse("it is simulated that this fails");
            None
        } else {
            let opening = Opening::new(configuration, shared.scene, self.folder.path(), inherited);
            successor.take_channels(&opening.hub, None, shared.scene.channels.is_some())?;
            simulation::take_upstreams(&mut successor, &opening.live);
            if fails == 1 {
                // The new server ends before its workers start.
                drop(successor);
                None
            } else if fails == 2 {
                // It is killed when they have started.
                let killed = opening.start();
                jobs::drop_killed(|| killed.kill());
                drop(successor);
                None
            } else {
                Some((successor, opening.start()))
            }
        };
        let (has_all, mut new) = (Arc::new(AtomicBool::new(false)), None);
        if let Some((successor, server)) = moved {
            let (parts, done) = ((server.hub.clone(), server.live.clone()), has_all.clone());
            successor
                .take_subscribers(parts, self.workers, move || done.store(true, Ordering::Release))
                .expect("a thread");
            new = Some(server);
        }
        former.work_until(|| giving.is_done() && (new.is_none() || has_all.load(Ordering::Acquire)))?;
        let Some(server) = new else {
            return match giving.finish() {
                Ok(_) => Err("an upgrade succeeded although the new server failed".to_owned()),
                Err(_) => {
                    shared.event(Actor::Operator, Event::Upgrade(next, None));
                    Ok(())
                }
            };
        };
        let (moved, invalidated) = giving.finish().map_err(|why| format!("the upgrade failed: {why}"))?;
        former.invalidated = Some(invalidated);
        self.publisher.publish_to(server.hub.clone());
        self.servers.push(server);
        shared.moved += moved as u64;
        shared.serve(next);
        shared.model.upgrade(shared.moment());
        shared.event(Actor::Operator, Event::Upgrade(next, Some(moved)));
        if purges < 2 {
            // The new server does not have the folder yet.
            self.purge_at_upgrade(shared);
        }
        if self.random.bool() {
            self.settle_disk(shared);
        }
        self.awake.wake_all();
        Ok(())
    }

    /// Changes which servers get the application's requests.
    fn change_servers(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        self.changes_left -= 1;
        let proxy = self.server().live.opened().proxy.clone();
        let used: Vec<usize> = match self.random.u8(..3) {
            0 => vec![0],
            1 => vec![1],
            _ => vec![0, 1],
        };
        let address =
            |at: usize| flatout_proxy::Address::Unix(upstream_path(self.folder.path(), APPLICATION[at]));
        // Those that are not used any more are removed, or drained.
        let listed = if self.random.bool() { used.clone() } else { vec![0, 1] };
        let servers: Vec<_> = listed.iter().map(|at| flatout_proxy::Server::new(address(*at))).collect();
        proxy.set_servers(APPLICATION[0], &servers)?;
        for at in listed {
            let mode = if used.contains(&at) { ServerMode::Serving } else { ServerMode::Draining };
            proxy.set_mode(APPLICATION[0], &address(at), mode)?;
        }
        let numbers = used.iter().map(|at| APPLICATION_NUMBERS[*at]).collect();
        shared.model.serve_by(Some(numbers), shared.moment());
        shared.event(Actor::Operator, Event::Servers(used));
        Ok(())
    }

    /// Purges that are on disk hold after a crash too.
    pub(super) fn note_written_purges(&mut self, shared: &mut Shared<'_>) {
        if self.crashes_left > 0 {
            let opened = self.server().live.opened();
            let has_written = opened.cache.as_ref().is_none_or(|cache| !cache.has_purges_to_write());
            self.has_written_purges |= shared.model.note_written_purges(has_written);
        }
    }

    /// Servers are killed. If the last one is, it starts again on what is left of its folder.
    fn crash(&mut self, shared: &mut Shared<'_>) {
        self.crashes_left -= 1;
        let crash = self.draw_crash();
        self.note_written_purges(shared);
        match crash {
            Crash::All | Crash::Machine => {
                jobs::set_crashed(true);
                self.servers.drain(..).for_each(Server::kill);
            }
            Crash::Formers => {
                let formers = self.servers.len() - 1;
                jobs::drop_killed(|| self.servers.drain(..formers).for_each(Server::kill));
            }
            Crash::Latest => {
                let latest = self.servers.pop();
                jobs::drop_killed(|| latest.into_iter().for_each(Server::kill));
                self.servers.iter_mut().for_each(|former| former.invalidated = None);
            }
        }
        flatout_proxy::forget_all();
        shared.event(Actor::Operator, Event::Crash(crash));
        if crash == Crash::Formers {
            shared.kill_formers();
        } else {
            let has_lost_power = crash == Crash::Machine;
            crash::lose_unsynced(&cache_path(self.folder.path()), has_lost_power, &mut self.random);
            jobs::set_crashed(false);
            self.disk.start_again();
            let configuration = &shared.scene.configurations[shared.served];
            self.servers.push(Server::start(configuration, shared.scene, self.folder.path()));
            shared.kill();
        }
        self.awake.wake_all();
    }

    fn draw_crash(&mut self) -> Crash {
        let has_former = self.servers.len() > 1;
        match (has_former && self.random.bool(), self.random.bool()) {
            (true, true) => Crash::Formers,
            // Jobs of the disk may belong to either.
            (true, false) if jobs::count() == 0 => Crash::Latest,
            (_, true) => Crash::Machine,
            (_, false) => Crash::All,
        }
    }

    /// Purges sometimes, if the folder moves to another server.
    fn purge_at_upgrade(&mut self, shared: &mut Shared<'_>) {
        if shared.scene.folder_bytes.is_some() && self.random.u8(..4) > 0 {
            self.purge(shared.scene.popular, shared);
        }
    }

    /// The disk does all that waits for it, unless it pauses.
    fn settle_disk(&mut self, shared: &Shared<'_>) {
        while self.disk.step(shared) {}
    }

    /// Purges a resource, or one that is drawn, alone or with others.
    fn purge(&mut self, resource: Option<u8>, shared: &mut Shared<'_>) -> bool {
        let opened = self.server().live.opened();
        let Some(cache) = &opened.cache else { return false };
        // Most interesting is a purge while its resource is requested.
        let awaited = shared.model.awaited().filter(|_| self.random.bool());
        let popular = shared.scene.popular.filter(|_| self.random.bool());
        let resource = resource.or(awaited).or(popular).unwrap_or_else(|| self.random.u8(..RESOURCES));
        let is_soft = self.random.u8(..3) == 0;
        let scheme = if shared.scene.has_tls { "https" } else { "http" };
        let (scope, purged) = match self.random.u8(..8) {
            0 => (PurgeScope::All, (0..RESOURCES).collect()),
            1 => (PurgeScope::Prefix(format!("{scheme}://{HOST}/")), (0..RESOURCES).collect()),
            2 => (PurgeScope::Prefix(format!("{scheme}://other.test/")), Vec::new()),
            3 | 4 => {
                let tag = resource % TAGS;
                (PurgeScope::Tag(tag_name(tag)), (tag..RESOURCES).step_by(TAGS.into()).collect())
            }
            _ => (PurgeScope::Url(format!("{scheme}://{HOST}{}", resource_target(resource))), vec![resource]),
        };
        // With a folder, it is written by and by.
        cache.purge_soon(&Purge { scope, is_soft });
        if purged.is_empty() {
            shared.model.purge_others(shared.moment());
        }
        for resource in purged {
            shared.event(Actor::Operator, Event::Purge(resource, is_soft));
            shared.model.purge(resource, is_soft, shared.moment());
        }
        true
    }
}
