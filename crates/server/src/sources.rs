//! Servers of upstreams that come from files or SRV records: what a source has now is applied to the upstreams that serve.

use std::sync::{PoisonError, Weak};

use flatout_engine::{Severity, report, say};
use flatout_proxy::{Resolver, Server, ServerSource, SourceFollower, SourceOwner, SourceStatus, Upstream};

use crate::control::Control;
use crate::upstream_commands::rest;

impl SourceOwner for Control {
    fn sources(&self) -> Vec<(Upstream, ServerSource)> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(|running| running.live.opened().proxy.sources()).unwrap_or_default()
    }

    fn resolver(&self) -> Resolver {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(|it| it.live.opened().proxy.resolver().clone()).unwrap_or_default()
    }

    fn found(&self, upstream: &str, source: &ServerSource, found: Result<Vec<Server>, String>) {
        // Not while a reload opens the same upstreams: it would lose the change.
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = running.as_ref() else { return };
        let proxy = running.live.opened().proxy.clone();
        let status = || -> Option<SourceStatus> {
            let state = proxy.state(upstream)?;
            state.sources.into_iter().find(|it| it.source == *source)
        };
        let Some(former) = status() else { return };
        let place = &source.place;
        match proxy.set_source(upstream, source, found) {
            Ok(changes) if !changes.is_empty() => {
                for label in changes.added.iter().chain(&changes.drained).chain(&changes.resumed) {
                    self.upstream_journal.note(upstream, label, &place.to_string());
                }
                let (has, rest) = (proxy.state(upstream), rest(&proxy, upstream));
                let count = has.map_or(0, |it| it.servers.len());
                say(format_args!(
                    "upstream {upstream}: {place}: {changes}; it has {count} servers now{rest}"
                ));
            }
            Ok(_) if former.problem.is_some() => {
                say(format_args!("upstream {upstream}: {place} is valid again, without a change"));
            }
            Ok(_) => {}
            Err(why) if former.problem.as_ref() != Some(&why) => {
                let count = former.servers_count;
                report(
                    Severity::Error,
                    format_args!(
                        "upstream {upstream}: {place}: {why}; the {count} servers found before stay in use"
                    ),
                );
            }
            Err(_) => {}
        }
    }
}

impl Control {
    /// Follows the sources of the upstreams that serve now, if there are any.
    pub(crate) fn follow_sources(&self, me: &Weak<Control>) {
        let has_sources = !SourceOwner::sources(self).is_empty();
        let mut follower = self.source_follower.lock().unwrap_or_else(PoisonError::into_inner);
        match &*follower {
            Some(follower) => follower.renew(),
            None if has_sources => match SourceFollower::start(me.clone()) {
                Ok(started) => *follower = Some(started),
                Err(error) => report(
                    Severity::Error,
                    format_args!("files and SRV records of servers are not followed: {error}"),
                ),
            },
            None => {}
        }
    }
}
