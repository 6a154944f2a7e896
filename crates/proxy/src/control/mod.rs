//! Background work for upstreams, on one thread besides the workers: name resolution and health checks.

mod health;
mod health_h2;
pub(crate) mod lookups;
pub(crate) mod names;
mod outliers;
mod secure;

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use flatout_engine::say;
use tokio::sync::{mpsc as queue, oneshot, watch};
use tokio::task::{AbortHandle, LocalSet};

use crate::control::lookups::NameLookup;
use crate::control::names::{Names, Resolver};
use crate::server::LiveServer;
use crate::upstream::{LiveUpstream, Upstreams};

/// How long the start waits for names to resolve.
const START_TIME_MAX: Duration = Duration::from_secs(5);

/// The thread, if there is work for it. Its work for servers ends when this is dropped, its lookups for workers when these have ended.
pub(crate) struct Control {
    upstreams: Arc<Upstreams>,
    resolver: Resolver,
    changes: watch::Receiver<()>,
    /// Lookups from workers; the thread takes the receiver when it starts.
    lookups: Mutex<Option<queue::Receiver<NameLookup>>>,
    thread: Mutex<Option<oneshot::Sender<()>>>,
}

impl Control {
    /// Starts the thread, if there is work for it, and waits until each name was looked up once.
    pub(crate) fn start(
        upstreams: &Arc<Upstreams>,
        resolver: &Resolver,
        changes: watch::Receiver<()>,
        lookups: queue::Receiver<NameLookup>,
    ) -> io::Result<Control> {
        let control = Control {
            upstreams: upstreams.clone(),
            resolver: resolver.clone(),
            changes,
            lookups: Mutex::new(Some(lookups)),
            thread: Mutex::new(None),
        };
        let servers = || upstreams.iter().flat_map(|upstream| upstream.servers().to_vec());
        let has_names = servers().any(|server| server.dns_name().is_some());
        let has_checks = upstreams.iter().any(|upstream| upstream.plan.active.is_some());
        let compares = upstreams.iter().any(|upstream| upstream.plan.outliers.is_some());
        let has_named = upstreams.iter().any(|upstream| upstream.plan.named.is_some());
        if !has_names && !has_checks && !compares && !has_named {
            return Ok(control);
        }
        // Addresses known before a reload are used until there are new ones.
        let is_missing = servers().any(|server| server.dns_name().is_some() && server.remote().is_none());
        let found = control.begin(has_names)?;
        if let Some(found) = found.filter(|_| is_missing) {
            // A name that does not resolve by then is retried; until it resolves its server has no address.
            let _ = found.recv_timeout(START_TIME_MAX);
        }
        Ok(control)
    }

    /// What looks names up.
    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// Makes sure that names can be looked up from now on.
    ///
    /// # Errors
    /// The thread cannot be started, or the resolver's configuration cannot be read.
    pub(crate) fn need_names(&self) -> io::Result<()> {
        Names::new(&self.resolver)?;
        self.begin(true).map(drop)
    }

    /// Starts the thread, unless it runs. Returns what is notified when the names of now were looked up.
    fn begin(&self, has_names: bool) -> io::Result<Option<mpsc::Receiver<()>>> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Ok(None);
        }
        let names = if has_names { Some(Names::new(&self.resolver)?) } else { None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ends, ended) = oneshot::channel();
        let (found, is_found) = mpsc::channel();
        let work = ServerTasks {
            upstreams: self.upstreams.clone(),
            resolver: self.resolver.clone(),
            names: names.map(Arc::new),
            tasks: Vec::new(),
        };
        let changes = self.changes.clone();
        let lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::thread::Builder::new().name("flatout-upstreams".to_owned()).spawn(move || {
            // Workers have requests of a proxy that was replaced, and look up the names in them.
            let (workers, servers) = (LocalSet::new(), LocalSet::new());
            let (upstreams, resolver) = (work.upstreams.clone(), work.resolver.clone());
            let for_workers = async move {
                if let Some(lookups) = lookups {
                    workers.run_until(lookups::serve(upstreams, resolver, lookups)).await;
                }
            };
            let for_servers = async move {
                let ends = async {
                    tokio::select! {
                        () = work.run(changes, found) => {}
                        _ = ended => {}
                    }
                };
                servers.run_until(ends).await;
            };
            runtime.block_on(async { tokio::join!(for_workers, for_servers) });
        })?;
        *thread = Some(ends);
        Ok(Some(is_found))
    }
}

/// What the thread does.
struct ServerTasks {
    upstreams: Arc<Upstreams>,
    resolver: Resolver,
    names: Option<Arc<Names>>,
    /// Those of each server.
    tasks: Vec<(Arc<LiveServer>, Vec<AbortHandle>)>,
}

impl ServerTasks {
    async fn run(mut self, mut changes: watch::Receiver<()>, found: mpsc::Sender<()>) {
        changes.mark_unchanged();
        self.compare_servers();
        let first = self.follow_servers();
        for resolved in first {
            let _ = resolved.await;
        }
        let _ = found.send(());
        drop(found);
        while changes.changed().await.is_ok() {
            self.follow_servers();
        }
        std::future::pending::<()>().await;
    }

    /// Starts the comparisons of servers, where the plan wants them.
    fn compare_servers(&self) {
        for upstream in self.upstreams.ids() {
            if let Some(plan) = self.upstreams.at(upstream).plan.outliers {
                tokio::task::spawn_local(outliers::watch(self.upstreams.clone(), upstream, plan));
            }
        }
    }

    /// Starts the tasks of servers that are new, and ends those of servers that have gone. Returns what is notified when the
    /// names of new servers were looked up once.
    fn follow_servers(&mut self) -> Vec<oneshot::Receiver<()>> {
        let current: Vec<_> = self.upstreams.iter().map(LiveUpstream::servers).collect();
        self.tasks.retain(|(server, tasks)| {
            let stays = current.iter().flat_map(|servers| servers.iter()).any(|it| Arc::ptr_eq(it, server));
            if !stays {
                tasks.iter().for_each(AbortHandle::abort);
            }
            stays
        });
        let mut first = Vec::new();
        for (at, servers) in current.iter().enumerate() {
            for server in servers.iter() {
                if !self.tasks.iter().any(|(known, _)| Arc::ptr_eq(known, server)) {
                    let tasks = self.follow(at, server, &mut first);
                    self.tasks.push((server.clone(), tasks));
                }
            }
        }
        first
    }

    /// Starts the tasks of a server of the upstream at this index.
    fn follow(
        &mut self,
        upstream: usize,
        server: &Arc<LiveServer>,
        first: &mut Vec<oneshot::Receiver<()>>,
    ) -> Vec<AbortHandle> {
        let mut tasks = Vec::new();
        let mut is_resolved = None;
        if server.dns_name().is_some() {
            let (resolved, first_resolved) = oneshot::channel();
            let (checked, check) = oneshot::channel();
            first.push(first_resolved);
            is_resolved = Some(check);
            if let Some(names) = self.names() {
                let server = server.clone();
                let lookups = async move {
                    let notify = || {
                        let _ = resolved.send(());
                        let _ = checked.send(());
                    };
                    names.follow(&server, notify).await;
                };
                tasks.push(tokio::task::spawn_local(lookups).abort_handle());
            }
        }
        let plan = &self.upstreams.at(upstream).plan;
        if let Some(active) = plan.active.clone() {
            let (server, name, protocol) = (server.clone(), plan.name.clone(), plan.protocol);
            let check = async move {
                if let Some(is_resolved) = is_resolved {
                    let _ = is_resolved.await;
                }
                health::watch(&name, protocol, &server, &active).await;
            };
            tasks.push(tokio::task::spawn_local(check).abort_handle());
        }
        tasks
    }

    fn names(&mut self) -> Option<Arc<Names>> {
        if self.names.is_none() {
            match Names::new(&self.resolver) {
                Ok(names) => self.names = Some(Arc::new(names)),
                Err(error) => say(format_args!("upstream servers: names cannot be looked up: {error}")),
            }
        }
        self.names.clone()
    }
}
