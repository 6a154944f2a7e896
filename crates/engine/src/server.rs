//! Starting, watching and ending a server.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use flatout_lane::{cpu, process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::Error;
use crate::exchange::{Mail, Mailbox, Worker, WorkerSockets};
use crate::listeners::{AddressChanges, Inherited, Listener, Listeners, NewLimits, Prepared};
use crate::plan::{Address, DESCRIPTORS_RESERVED, Limits, Plan};
use crate::say::say;
use crate::service::Service;
use crate::shared::{Shared, Stats};
use crate::worker::{self, Setup};

/// How long a worker may take to send back its sockets.
const REPLY_TIME_MAX: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    addresses: Vec<Address>,
    urls: Vec<String>,
    handle: Handle,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    ended: watch::Receiver<usize>,
    termination: Option<Termination>,
}

/// Stops a server from any thread, and reads its figures; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    mailboxes: Arc<[Mailbox]>,
    stats: Arc<[Arc<Stats>]>,
    shared: Arc<Shared>,
    listening: Arc<Mutex<Listeners>>,
    drain_time_max_ms: Arc<AtomicU64>,
    draining: watch::Sender<bool>,
}

/// A prepared change of a running server: its new addresses are bound, but nothing else has changed yet. Dropping it
/// changes nothing.
#[must_use]
pub struct Change {
    handle: Handle,
    prepared: Prepared,
    plan: Plan,
}

/// Figures of a running server, summed over its workers; up to a second old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Requests whose head was parsed.
    pub requests: u64,
    /// Connections that are open.
    pub connections: usize,
    /// Accepted connections so far.
    pub accepted: u64,
    /// Connections that were closed because their PROXY protocol header was missing, malformed, late, or from an
    /// untrusted peer.
    pub proxy_refused: u64,
}

/// Figures of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerFigures {
    /// Requests whose head was parsed, and connections, up to a second old.
    pub figures: Figures,
    /// Connections by state, in the order of [`State::ALL`](crate::State::ALL): as last counted by the worker, about
    /// two seconds ago if they are read regularly.
    pub states: [usize; 5],
    /// Connections that have left HTTP, such as WebSockets.
    pub taken: usize,
    /// Memory of its connection table and its buffers.
    pub memory_bytes: usize,
}

/// A server that has bound its addresses and switched its user, but does not serve yet. Connections wait in its
/// backlogs.
///
/// Resources that a service opens between [`bind`] and [`Bound::start`] are opened with the rights of the serving
/// user.
pub struct Bound {
    plan: Plan,
    listening: Listeners,
    /// Per worker.
    listeners: Vec<Vec<Listener>>,
    cpus: Vec<Option<usize>>,
    termination: Option<Termination>,
}

/// Binds, drops privileges, and starts the workers; `make` runs once on each worker's thread. The same as [`bind`] and
/// [`Bound::start`].
///
/// # Errors
/// An invalid plan, an address that cannot be bound, a user that does not exist.
pub fn start<F>(plan: Plan, make: F) -> Result<Server, Error>
where
    F: Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
{
    bind(plan)?.start(make)
}

/// Binds the plan's addresses, then permanently switches to the plan's user: group, supplementary groups and user.
///
/// Call it before the process has other threads: they are switched too, but their open resources stay open.
///
/// # Errors
/// An invalid plan, an address that cannot be bound, a user that does not exist.
pub fn bind(plan: Plan) -> Result<Bound, Error> {
    bind_inherited(plan, Vec::new())
}

/// The same with the listeners of the process that this one replaces ([`Handle::inherited`]); other listeners of the
/// plan are bound.
///
/// # Errors
/// As [`bind`], and a different number of workers.
pub fn bind_inherited(plan: Plan, inherited: Vec<Inherited>) -> Result<Bound, Error> {
    plan.check().map_err(Error::Plan)?;
    process::raise_descriptor_limit();
    let cpus = cpu::worker_cpus(plan.workers.unwrap_or_else(cpu::worker_count_default));
    let (listening, listeners) = Listeners::bind(&plan, cpus.clone(), inherited)?;
    if let Some(user) = &plan.user {
        process::become_user(user).map_err(|error| Error::System(format!("user `{user}`"), error))?;
    }
    Ok(Bound { plan, listening, listeners, cpus, termination: None })
}

impl Bound {
    /// Its addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listening.addresses()
    }

    /// The port of its first TCP address with TLS.
    pub fn secure_port(&self) -> Option<u16> {
        self.listening.secure_port()
    }

    /// Catches SIGTERM and SIGINT from now on, for [`Server::run`]: a signal that arrives while the server starts drains it
    /// too, instead of ending the process at once. Afterwards they end this process only through `run`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch_signals(mut self) -> Result<Bound, Error> {
        self.termination = Some(Termination::catch()?);
        Ok(self)
    }

    /// Starts the workers; `make` runs once on each worker's thread.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start<F>(mut self, make: F) -> Result<Server, Error>
    where
        F: Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    {
        let (plan, cpus, termination) = (self.plan.clone(), self.cpus.clone(), self.termination.take());
        let (addresses, urls) = (self.listening.addresses(), self.listening.urls());
        let (handle, setups) = self.set_up()?;
        let make = Arc::new(make);
        let (ended_sender, ended) = watch::channel(0);
        let mut threads = Vec::with_capacity(setups.len());
        for (index, setup) in setups.into_iter().enumerate() {
            let (make, ended) = (make.clone(), WorkerEnd(ended_sender.clone()));
            let cpu = cpus.get(index).copied().flatten().filter(|_| plan.pin);
            let run = move || {
                let _ended = ended;
                // A sandbox may forbid it; the worker serves nevertheless.
                let _ = cpu.map(cpu::pin);
                worker::run(setup, |worker| make(worker))
                    .map_err(|error| Error::System(format!("worker {index}"), error))
            };
            let thread = std::thread::Builder::new().name(format!("{}-{index}", plan.thread_name)).spawn(run);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Workers that are already running would serve without a server.
                    handle.stop();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return Err(Error::System(format!("cannot start the thread of worker {index}"), error));
                }
            }
        }
        Ok(Server { addresses, urls, handle, threads, ended, termination })
    }

    /// Makes workers that the simulator runs step by step on this thread.
    ///
    /// # Errors
    /// As [`Bound::start`].
    #[cfg(feature = "simulation")]
    pub fn start_stepped(
        self,
        make: impl Fn(Worker) -> Box<dyn Service>,
    ) -> Result<(Handle, Vec<worker::SteppedWorker>), Error> {
        let (handle, setups) = self.set_up()?;
        let worker = |setup| worker::SteppedWorker::new(setup, &make);
        let workers: io::Result<Vec<_>> = setups.into_iter().map(worker).collect();
        Ok((handle, workers.map_err(|error| Error::System("a worker".to_owned(), error))?))
    }

    /// The parts of its workers, and the handle to them.
    fn set_up(self) -> Result<(Handle, Vec<Setup>), Error> {
        let Bound { plan, listening, listeners, .. } = self;
        let count = listeners.len();
        let shared =
            Arc::new(Shared::new(connections_max(&plan.limits), plan.limits.connections_per_address_max));
        let mailboxes: Result<Vec<Mailbox>, _> = (0..count).map(|_| Mailbox::new()).collect();
        let mailboxes =
            mailboxes.map_err(|error| Error::System("a mailbox for each worker".to_owned(), error))?;
        let stats: Vec<Arc<Stats>> = (0..count).map(|_| Arc::default()).collect();
        let handle = Handle {
            mailboxes: mailboxes.into(),
            stats: stats.into(),
            shared: shared.clone(),
            listening: Arc::new(Mutex::new(listening)),
            drain_time_max_ms: Arc::new(AtomicU64::new(milliseconds(plan.drain_time_max))),
            draining: watch::Sender::new(false),
        };
        let setups = listeners
            .into_iter()
            .enumerate()
            .map(|(index, listeners)| setup(&plan, &handle, &shared, index, count, listeners))
            .collect();
        Ok((handle, setups))
    }
}

impl Stats {
    fn figures(&self) -> Figures {
        Figures {
            requests: self.requests.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            proxy_refused: self.proxy_refused.load(Ordering::Relaxed),
        }
    }
}

impl Server {
    /// The number of workers.
    pub fn workers_count(&self) -> usize {
        self.threads.len()
    }

    /// Its addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The same as URLs, which show where TLS is used.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// A handle that stops it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Prints its addresses to stderr, notifies systemd, and serves until SIGTERM or SIGINT has drained it. A second
    /// signal stops it at once.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self) -> Result<(), Error> {
        let urls = self.urls.join(" ");
        self.run_announced(|_| say(format_args!("listening on {urls}")))
    }

    /// The same, with `announce` called to report the addresses.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run_announced(mut self, announce: impl FnOnce(&[Address])) -> Result<(), Error> {
        let Termination { runtime, mut signals } = match self.termination.take() {
            Some(termination) => termination,
            None => Termination::catch()?,
        };
        runtime.block_on(self.until_signal(&mut signals, announce));
        self.wait()
    }

    /// Waits until it has been stopped by a [`Handle`].
    ///
    /// # Errors
    /// A worker that failed.
    pub fn wait(self) -> Result<(), Error> {
        let mut result = Ok(());
        for (index, thread) in self.threads.into_iter().enumerate() {
            result = result.and(thread.join().unwrap_or(Err(Error::Worker(index))));
        }
        result
    }

    async fn until_signal(&self, signals: &mut Signals, announce: impl FnOnce(&[Address])) {
        let mut ended = self.ended.clone();
        announce(&self.addresses);
        process::notify_ready();
        tokio::select! {
            () = signals.next() => {}
            // If one worker ends, the server ends: that worker's connections would wait forever.
            _ = ended.wait_for(|count| *count > 0) => {}
        }
        process::notify_stopping();
        self.handle.drain();
        let all = self.threads.len();
        tokio::select! {
            () = signals.next() => self.handle.stop(),
            _ = ended.wait_for(|count| *count == all) => {}
        }
    }
}

impl Handle {
    /// Drains: no new connections, requests in flight finish up to the plan's deadline. A second call changes
    /// nothing.
    pub fn drain(&self) {
        self.draining.send_replace(true);
        let time_max = Duration::from_millis(self.drain_time_max_ms.load(Ordering::Relaxed));
        self.post_to_all(|| Mail::Drain(time_max));
    }

    /// Stops at once: connections are closed in any state.
    pub fn stop(&self) {
        self.draining.send_replace(true);
        self.post_to_all(|| Mail::Stop);
    }

    /// Becomes `true` when draining starts.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// The current figures.
    pub fn figures(&self) -> Figures {
        self.stats.iter().map(|stats| stats.figures()).fold(Figures::default(), |sum, one| Figures {
            requests: sum.requests + one.requests,
            connections: sum.connections + one.connections,
            accepted: sum.accepted + one.accepted,
            proxy_refused: sum.proxy_refused + one.proxy_refused,
        })
    }

    /// Figures of each worker. Makes the workers count connections by state, within the next second.
    pub fn figures_of_workers(&self) -> Vec<WorkerFigures> {
        let of = |stats: &Arc<Stats>| {
            stats.is_asked.store(true, Ordering::Relaxed);
            WorkerFigures {
                figures: stats.figures(),
                states: std::array::from_fn(|at| stats.states[at].load(Ordering::Relaxed)),
                taken: stats.taken.load(Ordering::Relaxed),
                memory_bytes: stats.memory_bytes.load(Ordering::Relaxed),
            }
        };
        self.stats.iter().map(of).collect()
    }

    /// The current addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listening().addresses()
    }

    /// The same as URLs, which show where TLS is used.
    pub fn urls(&self) -> Vec<String> {
        self.listening().urls()
    }

    /// The port of its first TCP address with TLS.
    pub fn secure_port(&self) -> Option<u16> {
        self.listening().secure_port()
    }

    /// Copies of all listeners, for the process that replaces this one. Waits for the workers.
    ///
    /// # Errors
    /// A worker that does not reply, or no descriptors.
    pub fn inherited(&self) -> Result<Vec<Inherited>, Error> {
        let failed = |error| Error::System("the listeners".to_owned(), error);
        let (sender, replies) = mpsc::channel::<WorkerSockets>();
        for (index, mailbox) in self.mailboxes.iter().enumerate() {
            mailbox.post(Mail::Sockets(index, sender.clone()));
        }
        drop(sender);
        let mut workers: Vec<Vec<_>> = self.mailboxes.iter().map(|_| Vec::new()).collect();
        for _ in 0..workers.len() {
            let (index, sockets) =
                replies.recv_timeout(REPLY_TIME_MAX).map_err(|_| failed(io::ErrorKind::TimedOut.into()))?;
            workers[index] = sockets.map_err(failed)?;
        }
        self.listening().inherited(workers)
    }

    /// Binds the additional addresses of another plan. A running server can change its addresses ([`Plan::listen`],
    /// [`Plan::proxy_protocol`]), its [`Limits`] except for the connections per address, its name and its drain time.
    /// The rest of the plan is ignored, except that it must have TLS if the server has. Addresses that both plans have
    /// stay bound, also those that begin or end to use TLS.
    ///
    /// # Errors
    /// An invalid plan, TLS that the server was not started with or that the plan lacks, or an address that cannot be
    /// bound: nothing has changed.
    pub fn prepare(&self, plan: Plan) -> Result<Change, Error> {
        plan.check().map_err(Error::Plan)?;
        let prepared = self.listening().prepare(&plan)?;
        Ok(Change { handle: self.clone(), prepared, plan })
    }

    fn listening(&self) -> MutexGuard<'_, Listeners> {
        // Even after a panic, it is in its old or its new state.
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post_to_all(&self, mail: impl Fn() -> Mail) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(mail());
        }
    }
}

impl Change {
    /// Applies the change. Removed listeners take no new connections and are closed when their pending connections
    /// were accepted; established connections stay.
    pub fn commit(self) -> AddressChanges {
        let Change { handle, prepared, plan } = self;
        handle.drain_time_max_ms.store(milliseconds(plan.drain_time_max), Ordering::Relaxed);
        handle.shared.set_connections_max(connections_max(&plan.limits));
        handle.post_to_all(|| {
            let (limits, server_name) = (plan.limits.clone(), plan.server_name.clone());
            Mail::Limits(Box::new(NewLimits { limits, server_name }))
        });
        let (changes, changed) = handle.listening().commit(prepared);
        for (mailbox, change) in handle.mailboxes.iter().zip(changes) {
            mailbox.post(Mail::Listen(Box::new(change)));
        }
        changed
    }
}

/// The signals that end a server, caught, and the runtime that they arrive in.
struct Termination {
    runtime: Runtime,
    signals: Signals,
}

impl Termination {
    fn catch() -> Result<Termination, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| Error::System("the control plane".to_owned(), error))?;
        let entered = runtime.enter();
        let watch_for = |kind| signal(kind).map_err(|error| Error::System("signals".to_owned(), error));
        let signals = Signals {
            terminate: watch_for(SignalKind::terminate())?,
            interrupt: watch_for(SignalKind::interrupt())?,
        };
        drop(entered);
        Ok(Termination { runtime, signals })
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Counts the end of a worker when it is dropped, on return or panic.
struct WorkerEnd(watch::Sender<usize>);

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count += 1);
    }
}

fn setup(
    plan: &Plan,
    handle: &Handle,
    shared: &Arc<Shared>,
    index: usize,
    count: usize,
    listeners: Vec<Listener>,
) -> Setup {
    Setup {
        index,
        count,
        draining: handle.draining(),
        listeners,
        acceptor: plan.tls.clone(),
        limits: plan.limits.clone(),
        server_name: plan.server_name.clone(),
        shared: shared.clone(),
        stats: handle.stats[index].clone(),
        mailbox: handle.mailboxes[index].clone(),
    }
}

fn connections_max(limits: &Limits) -> usize {
    let limit = usize::try_from(process::descriptor_limit()).unwrap_or(usize::MAX);
    // A very low descriptor limit is split in half.
    let room = limit.saturating_sub(DESCRIPTORS_RESERVED).max(limit / 2).max(1);
    limits.connections_max.unwrap_or(room)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
