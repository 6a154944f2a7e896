//! The renderer's thread, and its sockets.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::figures::{Counters, Figures};
use crate::plan::Plan;
use crate::pool::Pool;
use crate::preview::{PreviewPlan, preview};
use crate::refresh::Background;
use crate::service::SiteRenderer;
use crate::warm::{WARM_PAGES_MAX, WarmPlan, warm};

/// Connections of our proxy to the renderer, for each site. Each has one request at a time.
const CONNECTIONS_MAX: usize = 1024;

/// Commands that wait for the thread; their senders wait too.
const COMMANDS_MAX: usize = 16;

/// The sockets of a site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SiteSockets {
    /// Where the renderer takes requests for the site's pages.
    pub renderer: PathBuf,
    /// Where the site serves the requests of its pages.
    pub site: PathBuf,
}

/// A renderer; clones share it. Its thread and its browsers end with the last one.
#[derive(Clone)]
pub struct Renderer(Arc<Shared>);

struct Shared {
    commands: Mutex<Option<mpsc::Sender<RendererCommand>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    counters: Arc<Counters>,
    current: Mutex<Option<(Plan, Vec<SiteSockets>)>>,
}

/// What the thread does next.
enum RendererCommand {
    Change(Settings),
    Warm(WarmPlan),
    Preview(PreviewPlan, oneshot::Sender<Result<String, String>>),
}

/// What the thread changes to.
struct Settings {
    plan: Option<Plan>,
    sites: Vec<(SiteSockets, std::os::unix::net::UnixListener)>,
    closed: Vec<SiteSockets>,
    done: oneshot::Sender<()>,
}

impl Renderer {
    /// Starts the renderer's thread. Profiles of browsers are in folders below `dir`, which must exist. A browser is started with the
    /// first page.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(dir: PathBuf) -> io::Result<Renderer> {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let counters = Arc::new(Counters::default());
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = Rendering {
            dir,
            counters: counters.clone(),
            pool: None,
            sites: HashMap::new(),
            connector: None,
            background: Arc::default(),
        };
        let thread = std::thread::Builder::new()
            .name("flatout-render".to_owned())
            .spawn(move || runtime.block_on(thread.run(received)))?;
        let (commands, thread) = (Mutex::new(Some(commands)), Mutex::new(Some(thread)));
        Ok(Renderer(Arc::new(Shared { commands, thread, counters, current: Mutex::default() })))
    }

    /// Changes to a plan and its sites. Pages that are being rendered are finished as before.
    ///
    /// # Errors
    /// A socket cannot be bound; nothing has changed.
    pub fn change(&self, plan: &Plan, sites: &[SiteSockets]) -> io::Result<()> {
        let mut current = lock(&self.0.current);
        let (former_plan, former_sites) = match current.as_ref() {
            Some((plan, sites)) => (Some(plan), sites.as_slice()),
            None => (None, &[][..]),
        };
        let new = sites.iter().filter(|site| !former_sites.contains(site));
        let bound =
            new.map(|site| Ok((site.clone(), bind(&site.renderer)?))).collect::<io::Result<Vec<_>>>()?;
        let closed = former_sites.iter().filter(|site| !sites.contains(site)).cloned().collect();
        let (done, is_done) = oneshot::channel();
        let plan_change = (former_plan != Some(plan)).then(|| plan.clone());
        let settings = Settings { plan: plan_change, sites: bound, closed, done };
        self.send(RendererCommand::Change(settings))?;
        let _ = is_done.blocking_recv();
        *current = Some((plan.clone(), sites.to_vec()));
        Ok(())
    }

    fn send(&self, command: RendererCommand) -> io::Result<()> {
        let commands = lock(&self.0.commands).clone();
        let is_sent = commands.is_some_and(|commands| commands.blocking_send(command).is_ok());
        if is_sent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    /// Renders pages before they are requested, in the background. Returns how many pages of warm-ups are to come, as far as they are known.
    ///
    /// # Errors
    /// Too many pages are to come, or the renderer has ended.
    pub fn warm(&self, plan: WarmPlan) -> Result<u64, String> {
        let coming = self.figures().warming + plan.targets.len() as u64;
        if coming > WARM_PAGES_MAX as u64 {
            return Err(format!(
                "{coming} pages would be to come, and at most {WARM_PAGES_MAX} may be; wait for some of them"
            ));
        }
        self.send(RendererCommand::Warm(plan)).map_err(|_| "the renderer has ended".to_owned())?;
        Ok(coming)
    }

    /// Renders a page and reports on it, as one page of HTML with a picture. The cache is neither used nor changed. Blocks.
    ///
    /// # Errors
    /// The site does not serve the page, or it was not rendered: why.
    pub fn preview(&self, plan: PreviewPlan) -> Result<String, String> {
        let (done, result) = oneshot::channel();
        let ended = || "the renderer has ended".to_owned();
        self.send(RendererCommand::Preview(plan, done)).map_err(|_| ended())?;
        result.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Ends it: pages that are being rendered are lost, and the browsers have ended when this returns.
    pub fn end(&self) {
        lock(&self.0.commands).take();
        if let Some(thread) = lock(&self.0.thread).take() {
            // It has no more to report than its end.
            let _ = thread.join();
        }
    }

    /// What it has done.
    pub fn figures(&self) -> Figures {
        self.0.counters.figures()
    }
}

fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    // That of a renderer before this one.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The renderer of a site, which a change replaces.
type SharedRenderer = Arc<Mutex<Arc<SiteRenderer>>>;

/// The state of the renderer's thread.
struct Rendering {
    dir: PathBuf,
    counters: Arc<Counters>,
    pool: Option<Arc<Pool>>,
    sites: HashMap<SiteSockets, (SharedRenderer, JoinHandle<()>)>,
    connector: Option<TlsConnector>,
    background: Arc<Background>,
}

impl Rendering {
    async fn run(mut self, mut commands: mpsc::Receiver<RendererCommand>) {
        tokio::spawn(self.background.clone().run(self.counters.clone()));
        while let Some(command) = commands.recv().await {
            match command {
                RendererCommand::Change(settings) => self.apply(settings),
                RendererCommand::Warm(plan) => {
                    tokio::spawn(warm(plan, self.background.clone(), self.counters.clone()));
                }
                RendererCommand::Preview(plan, done) => {
                    let (Some(pool), connector) = (self.pool.clone(), self.connector.clone()) else {
                        continue;
                    };
                    // Who has requested it may have left.
                    tokio::spawn(async move { done.send(preview(plan, pool, connector).await) });
                }
            }
        }
        // The files of its sockets stay: another renderer may have taken their places.
    }

    fn apply(&mut self, settings: Settings) {
        let Settings { plan, sites, closed, done } = settings;
        for sockets in closed {
            if let Some((_, listening)) = self.sites.remove(&sockets) {
                listening.abort();
                let _ = std::fs::remove_file(&sockets.renderer);
            }
        }
        if let Some(plan) = plan {
            self.background.change(&plan);
            if !plan.allow.is_empty() && self.connector.is_none() {
                self.connector = flatout_tls::client_config(None).ok().map(TlsConnector::from);
            }
            self.pool = Some(Arc::new(Pool::new(plan, self.dir.clone(), self.counters.clone())));
        }
        let Some(pool) = self.pool.clone() else { return };
        for (sockets, (renderer, _)) in &self.sites {
            *lock(renderer) = Arc::new(self.site(&pool, sockets));
        }
        for (sockets, listener) in sites {
            let renderer = Arc::new(Mutex::new(Arc::new(self.site(&pool, &sockets))));
            let Ok(listener) = UnixListener::from_std(listener) else { continue };
            let listening = tokio::spawn(listen(listener, renderer.clone()));
            self.sites.insert(sockets, (renderer, listening));
        }
        let _ = done.send(());
    }

    fn site(&self, pool: &Arc<Pool>, sockets: &SiteSockets) -> SiteRenderer {
        SiteRenderer {
            pool: pool.clone(),
            socket: sockets.site.clone(),
            connector: self.connector.clone(),
            counters: self.counters.clone(),
            background: self.background.clone(),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(listener: UnixListener, renderer: SharedRenderer) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // No descriptor is free: some will be.
            Err(_) => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let renderer = renderer.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let renderer = lock(&renderer).clone();
                // A task of its own: a page is closed properly, and counts until then, also if its client has left.
                tokio::spawn(async move { renderer.respond(request).await })
            });
            // A proxy that closes its connection has lost its client.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
}
