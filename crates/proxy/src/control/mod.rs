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
use crate::upstream::Upstreams;

/// How long the start waits for names to resolve.
const START_TIME_MAX: Duration = Duration::from_secs(5);

/// The thread; it ends when this is dropped.
pub(crate) struct Control {
    _ends: oneshot::Sender<()>,
}

/// Starts the thread, if there is work for it, and waits until each name was looked up once.
pub(crate) fn start(upstreams: &Arc<Upstreams>, resolver: &Resolver) -> io::Result<Option<Control>> {
    let has_names =
        upstreams.iter().flat_map(|upstream| upstream.servers.iter()).any(|it| it.dns_name().is_some());
    let has_checks = upstreams.iter().any(|upstream| upstream.plan.active.is_some());
    if !has_names && !has_checks {
        return Ok(None);
    }
    let names = if has_names { Some(Names::new(resolver)?) } else { None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ends, ended) = oneshot::channel();
    let (found, is_found) = std::sync::mpsc::channel();
    let (waiting, upstreams) = (upstreams, upstreams.clone());
    std::thread::Builder::new().name("flatout-upstreams".to_owned()).spawn(move || {
        LocalSet::new().block_on(&runtime, async move {
            tokio::select! {
                () = run(&upstreams, names, found) => {}
                _ = ended => {}
            }
        });
    })?;
    // Addresses known before a reload are used until there are new ones.
    let is_missing = |server: &Arc<LiveServer>| server.dns_name().is_some() && server.remote().is_none();
    if !waiting.iter().flat_map(|upstream| upstream.servers.iter()).any(is_missing) {
        return Ok(Some(Control { _ends: ends }));
    }
    // A name that does not resolve by then is retried; until it resolves its server has no address.
    let _ = is_found.recv_timeout(START_TIME_MAX);
    Ok(Some(Control { _ends: ends }))
}

async fn run(upstreams: &Upstreams, names: Option<Names>, found: std::sync::mpsc::Sender<()>) {
    let names = names.map(Rc::new);
    let mut first = Vec::new();
    for server in upstreams.iter().flat_map(|upstream| upstream.servers.iter()) {
        if let (Some(_), Some(names)) = (server.dns_name(), &names) {
            let (server, names) = (server.clone(), names.clone());
            let (resolved, is_resolved) = oneshot::channel();
            first.push(is_resolved);
            tokio::task::spawn_local(async move { names.follow(&server, resolved).await });
        }
    }
    for resolved in first {
        let _ = resolved.await;
    }
    let _ = found.send(());
    drop(found);
    for upstream in upstreams.iter() {
        let Some(active) = &upstream.plan.active else { continue };
        for server in upstream.servers.iter() {
            let (server, active) = (server.clone(), active.clone());
            let (name, protocol) = (upstream.plan.name.clone(), upstream.plan.protocol);
            tokio::task::spawn_local(async move { health::watch(&name, protocol, &server, &active).await });
        }
    }
    std::future::pending::<()>().await;
}
