//! Background work for upstreams, on one thread besides the workers: name resolution and health checks.

mod health;
mod health_h2;
pub(crate) mod names;
mod secure;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::control::names::{Names, Resolver};
use crate::server::LiveServer;
use crate::upstream::LiveUpstream;

/// How long the start waits for names to resolve.
const START_TIME_MAX: Duration = Duration::from_secs(5);

/// The thread; it ends when this is dropped.
pub(crate) struct Control {
    _ends: oneshot::Sender<()>,
}

/// Starts the thread, if there is work for it, and waits until each name was looked up once.
pub(crate) fn start(upstreams: &Arc<[LiveUpstream]>, resolver: &Resolver) -> io::Result<Option<Control>> {
    let has_names = upstreams.iter().flat_map(|upstream| &upstream.servers).any(|it| it.dns_name().is_some());
    let has_checks = upstreams.iter().any(|upstream| upstream.plan.active.is_some());
    if !has_names && !has_checks {
        return Ok(None);
    }
    let names = if has_names { Some(Names::new(resolver)?) } else { None };
    let (ends, ended) = oneshot::channel();
    let (found, is_found) = std::sync::mpsc::channel();
    let (waiting, upstreams) = (upstreams, upstreams.clone());
    std::thread::Builder::new().name("flatout-upstreams".to_owned()).spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        LocalSet::new().block_on(&runtime, async move {
            tokio::select! {
                () = run(&upstreams, names, found) => {}
                _ = ended => {}
            }
        });
    })?;
    // Addresses known before a reload are used until there are new ones.
    let is_missing = |server: &Arc<LiveServer>| server.dns_name().is_some() && server.remote().is_none();
    if !waiting.iter().flat_map(|upstream| &upstream.servers).any(is_missing) {
        return Ok(Some(Control { _ends: ends }));
    }
    // A name that does not resolve by then is retried; until it resolves its server has no address.
    let _ = is_found.recv_timeout(START_TIME_MAX);
    Ok(Some(Control { _ends: ends }))
}

async fn run(upstreams: &Arc<[LiveUpstream]>, names: Option<Names>, found: std::sync::mpsc::Sender<()>) {
    let names = names.map(Rc::new);
    let mut first = Vec::new();
    for (index, upstream) in upstreams.iter().enumerate() {
        for (at, server) in upstream.servers.iter().enumerate() {
            if let (Some(_), Some(names)) = (server.dns_name(), &names) {
                let (upstreams, names) = (upstreams.clone(), names.clone());
                let (resolved, is_resolved) = oneshot::channel();
                first.push(is_resolved);
                tokio::task::spawn_local(async move { names.follow(&upstreams, index, at, resolved).await });
            }
        }
    }
    for resolved in first {
        let _ = resolved.await;
    }
    let _ = found.send(());
    drop(found);
    for (index, upstream) in upstreams.iter().enumerate() {
        let Some(active) = &upstream.plan.active else { continue };
        for at in 0..upstream.servers.len() {
            let (upstreams, active) = (upstreams.clone(), active.clone());
            tokio::task::spawn_local(async move { health::watch(&upstreams, index, at, &active).await });
        }
    }
    std::future::pending::<()>().await;
}
