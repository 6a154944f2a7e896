//! The end of a run: the servers drain, and must have no connection or subscriber left.

use flatout_lane::jobs;

use super::{BEGIN_NS, QUIET_NS_MAX, Shared, World};
use crate::client::Client;
use crate::model::push::{CHANNELS, channel_name};
use crate::observer::Observer;
use crate::server::{Server, SimulatedWorker};
use crate::socket;
use crate::subscriber::GROUP;
use crate::upstream::Upstream;

/// How long a draining server may keep idle connections. It should close them at once, and others after their last response.
const REST_NS_MAX: u64 = 5_000_000_000;

impl World {
    /// All clients are done: nothing may be left of them.
    pub(super) fn end(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        self.settle(shared)?;
        self.check_at_rest()?;
        self.clients.iter().try_for_each(Client::check_at_rest)?;
        self.upstreams.iter().try_for_each(Upstream::check_at_rest)?;
        self.server().handle.drain();
        let rest_until_ns = shared.now_ns + REST_NS_MAX;
        let until_ns = shared.now_ns + QUIET_NS_MAX;
        while !self.have_ended() {
            if shared.now_ns > until_ns {
                let figures: Vec<_> = self.servers.iter().map(|server| server.handle.figures()).collect();
                return Err(format!("all clients are gone, but the servers do not end: {figures:?}"));
            }
            if shared.now_ns > rest_until_ns
                && let Some(at) = self.clients.iter().position(|client| !client.is_gone())
            {
                return Err(format!("the server drains, but the idle connection of client {at} stays open"));
            }
            self.settle(shared)?;
            self.advance(shared, shared.now_ns);
        }
        self.nothing_is_left(shared)
    }

    fn have_ended(&self) -> bool {
        self.servers.iter().flat_map(|server| &server.workers).all(SimulatedWorker::has_ended)
    }

    /// Everybody does everything that there is to do now.
    fn settle(&mut self, shared: &mut Shared<'_>) -> Result<(), String> {
        let mut did = true;
        while did {
            did = false;
            // Nothing is published or changed any more.
            for actor in 0..self.operator() - 1 {
                did |= self.step(actor, shared)?;
                if actor < self.all_workers {
                    socket::news(|_| {});
                }
            }
        }
        Ok(())
    }

    /// What the server counts is what has happened, and nothing of it is left.
    fn nothing_is_left(&self, shared: &Shared<'_>) -> Result<(), String> {
        let (mut accepted, mut requests) = (0, 0);
        for server in &self.servers {
            let figures = server.handle.figures();
            if figures.connections > 0 {
                return Err(format!("the server has ended, and counts {} connections", figures.connections));
            }
            (accepted, requests) = (accepted + figures.accepted, requests + figures.requests);
        }
        self.memory_is_free()?;
        shared.model.servers.check_shares(shared.scene)?;
        if let (1, Some(carried), Some(own)) =
            (self.servers.len(), &self.servers[0].carried, shared.model.channels.own())
        {
            carried.check(own)?;
        }
        if shared.crashes() > 0 {
            // The figures are those of the last one only.
            return Ok(());
        }
        if accepted > shared.opened {
            return Err(format!("the server counts {accepted} connections, {} came", shared.opened));
        }
        // Of those that were begun, some were not sent to the end of their heads.
        let (least, most) = (shared.model.whole, u64::from(shared.requests) + shared.opened + shared.polls);
        if !(least..=most).contains(&requests) {
            return Err(format!("the server counts {requests} requests; there were {least} to {most}"));
        }
        let observers = || self.servers.iter().filter_map(|server| server.observer.as_ref());
        let counted = observers().map(Observer::end).sum::<Result<u64, String>>()?;
        if let Some(observer) = observers().next() {
            observer.check(counted, &shared.model)?;
        }
        let permits: u64 = self.servers.iter().map(|server| server.live.opened().sites.permits()).sum();
        if permits > 0 {
            return Err(format!(
                "all clients are gone, and {permits} requests count for limits of requests at once"
            ));
        }
        let subscribers = |server: &Server| -> u32 {
            (0..CHANNELS).map(|channel| server.hub.subscribers(GROUP, &channel_name(channel))).sum()
        };
        let left: u32 = self.servers.iter().map(subscribers).sum();
        match left {
            0 => Ok(()),
            left => Err(format!("all subscribers are gone, and {left} are counted")),
        }
    }

    /// Nothing that was kept for a request or a response still counts.
    fn memory_is_free(&self) -> Result<(), String> {
        for server in &self.servers {
            let collected = server.workers.first().map_or(0, SimulatedWorker::bodies_bytes);
            if collected > 0 {
                return Err(format!("all clients are gone, and {collected} bytes count for their bodies"));
            }
            let spooled = server.live.opened().proxy.spooled();
            // What waits at the disk has its memory until it is done.
            if jobs::count() == 0 && spooled.now + spooled.memory_bytes + spooled.file_bytes > 0 {
                return Err(format!("all clients are gone, and this is still kept for them: {spooled:?}"));
            }
        }
        Ok(())
    }

    /// Who waits, when nobody has anything to do.
    pub(super) fn stuck(&self, shared: &Shared<'_>) -> String {
        let quiet_s = QUIET_NS_MAX / 1_000_000_000;
        format!(
            "nothing has happened for {quiet_s} s of {} s: {}",
            (shared.now_ns - BEGIN_NS) / 1_000_000_000,
            self.waiting()
        )
    }

    /// Which clients wait for what.
    pub(super) fn waiting(&self) -> String {
        let waiting: Vec<String> = self.clients.iter().filter_map(Client::waits_for).collect();
        waiting.join("; ")
    }
}
