//! Looks up names for workers: names of servers that requests name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flatout_engine::bug;
use tokio::sync::{mpsc, oneshot};

use crate::control::names::{Names, Resolver, TTL_MIN};
use crate::table::UpstreamId;
use crate::upstream::Upstreams;

/// The limit for lookups that wait for the thread, of all workers together. Further ones fail.
const LOOKUPS_WAITING_MAX: usize = 1024;

/// The addresses of a name.
#[derive(Debug)]
pub(crate) struct FoundName {
    pub(crate) addresses: Vec<IpAddr>,
    /// How long they may be used.
    pub(crate) valid_time: Duration,
}

/// A lookup, or why it has failed.
type LookupResult = Result<FoundName, String>;

/// A name to be looked up for an upstream.
pub(crate) struct NameLookup {
    upstream: UpstreamId,
    name: String,
    found: oneshot::Sender<LookupResult>,
}

/// Starts lookups.
#[derive(Clone)]
pub(crate) struct Lookups(mpsc::Sender<NameLookup>);

impl Lookups {
    pub(crate) fn new() -> (Lookups, mpsc::Receiver<NameLookup>) {
        let (sender, receiver) = mpsc::channel(LOOKUPS_WAITING_MAX);
        (Lookups(sender), receiver)
    }

    /// Starts a lookup. It has failed if the sender of its result is dropped.
    pub(crate) fn begin(&self, upstream: UpstreamId, name: String) -> oneshot::Receiver<LookupResult> {
        let (found, result) = oneshot::channel();
        // If the queue is full, the sender is dropped with it.
        let _ = self.0.try_send(NameLookup { upstream, name, found });
        result
    }
}

/// Serves lookups until all workers have ended.
pub(crate) async fn serve(
    upstreams: Arc<Upstreams>,
    resolver: Resolver,
    mut lookups: mpsc::Receiver<NameLookup>,
) {
    let mut known: HashMap<usize, Rc<Names>> = HashMap::new();
    while let Some(lookup) = lookups.recv().await {
        let Some(plan) = &upstreams.at(lookup.upstream).plan.named else {
            bug!("a name is looked up for an upstream whose servers are not named by requests");
            continue;
        };
        let id = usize::from(lookup.upstream);
        let names = match known.get(&id) {
            Some(names) => names.clone(),
            None => {
                let resolver = match plan.resolvers.is_empty() {
                    true => resolver.clone(),
                    false => Resolver::Servers(plan.resolvers.clone()),
                };
                // The resolver's own cache follows the TTL, so it is off with `valid=`.
                match Names::with(&resolver, plan.valid_time.is_none(), plan.ipv6) {
                    Ok(names) => known.entry(id).or_insert(Rc::new(names)).clone(),
                    Err(error) => {
                        let _ = lookup.found.send(Err(error.to_string()));
                        continue;
                    }
                }
            }
        };
        let (time_max, valid_time) = (plan.lookup_time_max, plan.valid_time);
        tokio::task::spawn_local(async move {
            let found = tokio::time::timeout(time_max, names.addresses(&lookup.name)).await;
            let found =
                found.unwrap_or_else(|_| Err(format!("no response of DNS in {} s", time_max.as_secs_f64())));
            let valid = |found: FoundName| {
                // With less, requests that waited for a lookup would find its result expired, and begin the next one.
                let valid_time = valid_time.map_or(found.valid_time, |time| time.max(TTL_MIN));
                FoundName { valid_time, ..found }
            };
            // The worker may have ended.
            let _ = lookup.found.send(found.map(valid));
        });
    }
}
