//! An API server: its objects are watched, and statuses are written back.
//!
//! ```text
//! thread with a runtime: ── watch: a list and its changes for each kind ──> Store ──> (the thread that serves)
//!                        ── lease: one process is the leader                             │ statuses
//!                        ── status: the leader writes those that have changed <──────────┘
//! ```
//!
//! If the API server goes away, everything that was read stays, and watches are tried again with growing pauses.

mod event;
mod lease;
mod status;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use flatout_engine::say;
use kube::Client;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Config};
use tokio::sync::watch as channel;

use crate::condition::StatusUpdate;
use crate::kinds::ObjectKey;
use crate::leader::Leader;
use crate::objects::{KINDS, Kind, Objects};
use crate::run::StatusWriter;
use crate::store::Store;

/// How this process is known to others that serve the same objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The name of this process.
    pub identity: String,
    /// The name of the controller in statuses of routes.
    pub controller_name: String,
}

/// What a process that watches an API server may do.
pub struct Leading {
    /// Writes statuses, as long as this process leads.
    pub write: StatusWriter,
    /// Whether it leads now.
    pub leader: Arc<Leader>,
}

/// Watches an API server, and returns once all objects are read. The credentials are those of the pod, or of `KUBECONFIG`.
///
/// # Errors
/// There are no credentials, or there is no thread.
pub fn follow(store: Arc<Store>, leadership: Leadership) -> Result<Leading, String> {
    let (synced, all_synced) = mpsc::channel();
    let (updates, latest) = channel::channel(Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the client of the API server: {error}"))?;
    let leader = Arc::new(Leader::default());
    let own = leader.clone();
    let run = move || {
        runtime.block_on(async move {
            let client = match connected().await {
                Ok(client) => client,
                Err(why) => return drop(synced.send(Err(why))),
            };
            let missing = Arc::new(AtomicUsize::new(KINDS.len()));
            for kind in KINDS {
                let (synced, missing) = (synced.clone(), missing.clone());
                let is_synced = move || {
                    if missing.fetch_sub(1, Ordering::Relaxed) == 1 {
                        // Whoever waits may have given up.
                        let _ = synced.send(Ok(()));
                    }
                };
                tokio::spawn(watch::follow(client.clone(), kind, store.clone(), is_synced));
            }
            tokio::spawn(lease::follow(client.clone(), leadership.clone(), own.clone()));
            status::follow(client, leadership, own, latest).await;
        });
    };
    let spawned = thread::Builder::new().name("flatout-cluster".to_owned()).spawn(run);
    spawned.map_err(|error| format!("cannot start the thread for the API server: {error}"))?;
    let ended = || "the client of the API server has ended".to_owned();
    all_synced.recv().map_err(|_| ended())??;
    say(format_args!("all objects of the API server are read"));
    let write = Box::new(move |statuses: &[Arc<StatusUpdate>]| {
        // If the thread has ended, that was reported.
        let _ = updates.send(statuses.to_vec());
    });
    Ok(Leading { write, leader })
}

/// Objects of a page of a list.
const PAGE_OBJECTS: u32 = 500;

/// How long the API server may take to accept a connection. A server that is back is found after at most this time and a pause.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// A connection with a pending response counts as lost after this time without a byte. The API server's machine may have failed without
/// closing it.
const SILENCE_MAX: Duration = Duration::from_secs(35);

// A watch without changes is silent until the API server ends it.
const _: () = assert!(watch::WATCH_TIME_S < SILENCE_MAX.as_secs() as u32);

/// Reads the objects of some kinds once. Returns also what is wrong with others: those are left out.
///
/// # Errors
/// There are no credentials, or the API server does not give a list.
pub fn read_once(kinds: &[&str]) -> Result<(Objects, Vec<String>), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the client of the API server: {error}"))?;
    runtime.block_on(async {
        let client = connected().await?;
        let (mut objects, mut faults) = (Objects::default(), Vec::new());
        for kind in KINDS.iter().filter(|kind| kinds.contains(&kind.name)) {
            let mut page = ListParams::default().limit(PAGE_OBJECTS);
            loop {
                let list = api_of(&client, kind).list(&page).await;
                let list = list.map_err(|error| format!("{}: {}", kind.plural, watch::chain(&error)))?;
                for object in list.items {
                    let value = watch::with_kind(kind, object);
                    faults.extend(value.and_then(|value| objects.insert(value)).err());
                }
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
        Ok((objects, faults))
    })
}

async fn connected() -> Result<Client, String> {
    let mut config =
        Config::infer().await.map_err(|error| format!("no API server is configured: {error}"))?;
    config.connect_timeout = Some(CONNECT_TIME_MAX);
    config.read_timeout = Some(SILENCE_MAX);
    let shown = config.cluster_url.to_string();
    Client::try_from(config).map_err(|error| format!("the API server {shown} cannot be used: {error}"))
}

/// The result of a request, or an error if it takes longer.
async fn in_time<T>(
    time_max: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(time_max, request).await {
        Ok(result) => result,
        Err(_) => Err(kube::Error::Service(format!("no response in {time_max:?}").into())),
    }
}

/// Access to all objects of a kind.
fn api_of(client: &Client, kind: &Kind) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind))
}

/// Access to the objects of a kind in the namespace of an object.
fn api_at(client: &Client, kind: &Kind, key: &ObjectKey) -> Api<DynamicObject> {
    match kind.is_namespaced {
        true => Api::namespaced_with(client.clone(), &key.namespace, &resource(kind)),
        false => api_of(client, kind),
    }
}

fn resource(kind: &Kind) -> ApiResource {
    let named = GroupVersionKind::gvk(kind.group, kind.version, kind.name);
    ApiResource::from_gvk_with_plural(&named, kind.plural)
}
