//! What the model of caches needs of a run: exchanges by the names of their responses, and what has removed them.

use super::cache::{self, Exchange, Moment, PLAIN_RESOURCES, Receiver, Removal, Settings};
use super::{End, Got, Model, Planned, has_time_limit, parsed, resource_target};
use crate::scene::Scene;

impl Model {
    /// Whether a response that was sent for another request, or earlier, may be served. `drains`: the server that serves it may be one that
    /// was replaced.
    pub(super) fn check_stored(
        &self,
        name: &str,
        planned: &Planned,
        got: &Got<'_>,
        (now, drains): (Moment, bool),
        scene: &Scene,
    ) -> Result<(), String> {
        let caches = || scene.configurations.iter().filter_map(|configuration| configuration.cache);
        if planned.resource.is_none() || caches().next().is_none() {
            return Err("of another request".to_owned());
        }
        let stored = self.exchange(name)?;
        let latest = match got.confirmed {
            Some(name) => self.exchange(name)?,
            None => stored.clone(),
        };
        let began = self.began.get(&planned.id).copied().unwrap_or_default();
        let to = Receiver { planned, began, ended: now, age: got.age };
        let has_limits = scene
            .configurations
            .iter()
            .any(|configuration| configuration.connections_max < 4096 || configuration.concurrency.is_some());
        let settings = Settings {
            fresh_s: caches().map(|cache| cache.fresh_s.unwrap_or(0)).max().unwrap_or(0),
            stale_s: caches().map(|cache| cache.stale_s).max().unwrap_or(0),
            upstreams_fail: scene.upstreams_fail
                || scene.clients_fail
                || has_limits
                || has_time_limit(scene, true),
        };
        // What the rules add for the upstream is part of the key: an unsafe request removes what is stored under its own.
        let added = |at: usize| (scene.configurations[at].adds_field, scene.configurations[at].shows_request);
        let has_one_key = (1..scene.configurations.len()).all(|at| added(at) == added(0));
        // Nor does it remove anything while there is no cache.
        let is_kept = scene.folder_bytes.is_none() && scene.upgrades == 0;
        let removes = has_one_key && (is_kept || scene.always_has_cache());
        let removals = self.removals.iter().filter(|removal| removal.is_purge || removes);
        // A purge applies to the new server only. The former one may still serve a few requests from its own cache.
        let removals: Vec<Removal> = removals.filter(|_| !drains).cloned().collect();
        cache::check(&stored, &latest, &to, &removals, settings)
    }

    fn exchange(&self, name: &str) -> Result<Exchange, String> {
        let (of, at) = name.split_once('-').ok_or("a malformed name of a response")?;
        let (of, at): (u32, usize) = (parsed(of)?, parsed(at)?);
        let sent = self.sent.get(&of).and_then(|all| all.get(at)).ok_or("which nobody sent")?;
        let seen = self.seen.get(&of).map(Vec::as_slice).unwrap_or_default();
        // Each look of an upstream at a request is before its response.
        let seen = seen.iter().rev().find(|seen| seen.order <= sent.responded.order);
        Ok(Exchange {
            planned: self.planned.get(&of).ok_or("to a request that nobody sent")?.clone(),
            began: self.began.get(&of).copied().unwrap_or_default(),
            seen: seen.copied().unwrap_or_default(),
            responded: sent.responded,
            status: sent.status,
            says: sent.says.clone(),
            whole: self.whole_at.get(name).copied(),
        })
    }

    /// A whole response has arrived.
    pub(super) fn arrived(&mut self, name: &str, planned: &Planned, status: u16, now: Moment) {
        let Some(resource) = planned.resource else { return };
        if planned.method == "GET" && status == 200 {
            self.whole_at.entry(name.to_owned()).or_insert(now);
            self.latest.insert(resource, name.to_owned());
        }
        let is_unsafe = !matches!(planned.method, "GET" | "HEAD");
        let before = self.began.get(&planned.id).copied().unwrap_or_default();
        // A response that was sent before a crash may be read after it. A former server tells nobody if the new one was killed.
        let opened_ns = self.opened_ns.get(&planned.id).copied().unwrap_or(0);
        let holds = self
            .crashed
            .is_none_or(|crashed| crashed.order < before.order && !self.may_be_of_former(opened_ns));
        if is_unsafe && holds && (200..400).contains(&status) {
            let target = resource_target(resource);
            self.removals.push(Removal {
                target,
                before,
                is_purge: false,
                is_soft: false,
                confirmed: now,
                is_written: false,
            });
        }
    }

    /// A 304 without the name of a response: the client has the one whose entity tag it sent.
    pub(super) fn not_modified(&self, planned: &Planned, got: &Got<'_>) -> Result<(), String> {
        // It is weak if the response may be compressed.
        let etag = got.etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        match &planned.asks.if_none_match {
            Some(expected) if etag == Some(expected.as_str()) => Ok(()),
            expected => Err(format!("request {}: 304 for {etag:?}, but it has {expected:?}", planned.id)),
        }
    }

    /// An upstream got a request: fresh stored responses, and those on their way, are not requested again.
    pub(super) fn is_needed(&self, planned: &Planned, scene: &Scene) -> Result<(), String> {
        let Some(resource) = planned.resource.filter(|resource| *resource < PLAIN_RESOURCES) else {
            return Ok(());
        };
        let is_simple = scene.configurations.len() == 1
            && scene.configurations[0].cache.is_some()
            && scene.has_one_server()
            && !scene.clients_fail
            && !scene.upstreams_fail
            && !has_time_limit(scene, true)
            && !self.changed.contains(&resource);
        if !is_simple || planned.method != "GET" || !planned.asks.is_plain() {
            return Ok(());
        }
        let began = self.began.get(&planned.id).copied().unwrap_or_default();
        let is_after_purges = |id: u32| {
            let began = self.began.get(&id).copied().unwrap_or_default();
            self.removals.iter().all(|removal| !removal.is_purge || removal.confirmed.order < began.order)
        };
        let others = self.planned.values().filter(|other| {
            other.resource == planned.resource && other.method == "GET" && other.asks.is_plain()
        });
        for other in others.filter(|other| other.id != planned.id) {
            let sent = self.sent.get(&other.id).map(Vec::as_slice).unwrap_or_default();
            // A request never waits for one that began before a purge, of whatever, nor gets its response.
            if !is_after_purges(other.id) || sent.is_empty() && !is_after_purges(planned.id) {
                continue;
            }
            if sent.is_empty() && self.seen.contains_key(&other.id) {
                return Err(format!(
                    "requests {} and {} for {} are at the upstream together",
                    other.id,
                    planned.id,
                    planned.target()
                ));
            }
            for (at, response) in sent.iter().enumerate() {
                let whole = self.whole_at.get(&format!("{}-{at}", other.id));
                let is_stored = response.status == 200 && matches!(response.end, End::Whole(_));
                if is_stored && whole.is_some_and(|whole| whole.order < began.order) {
                    return Err(format!(
                        "an upstream got request {}, although response {}-{at} was stored and fresh",
                        planned.id, other.id
                    ));
                }
            }
        }
        Ok(())
    }
}
