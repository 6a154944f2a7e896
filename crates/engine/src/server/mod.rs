//! Starting, watching and ending a server.

mod handle;
mod termination;

use std::os::unix::fs::{MetadataExt, chown};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flatout_lane::poll::Poll;
use flatout_lane::{cpu, process};
use tokio::sync::watch;

use crate::Error;
use crate::exchange::{Mailbox, Worker};
use crate::listeners::{Inherited, Listener, Listeners};
use crate::plan::{Address, Plan};
use crate::say::say;
use crate::service::Service;
use crate::shared::{Shared, Stats};
use crate::worker::{self, Setup};
pub use handle::{Change, Figures, Handle, WorkerFigures};
use handle::{connections_max, milliseconds};
use termination::{Signals, Termination};

/// A running server.
pub struct Server {
    addresses: Vec<Address>,
    urls: Vec<String>,
    handle: Handle,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    ended: watch::Receiver<usize>,
    termination: Option<Termination>,
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
    if let Some(cpus) = &plan.cpus {
        cpu::restrict(cpus).map_err(|error| Error::Plan(format!("cpus: {error}")))?;
    }
    if let Some(time) = plan.busy_poll {
        // Each worker does the same later: what the kernel cannot do is an error before anything is bound.
        Poll::new().and_then(|poll| poll.set_busy_poll(time)).map_err(|error| {
            Error::Plan(format!("busy-poll: this kernel cannot ({error}); it needs Linux 6.9 or later"))
        })?;
    }
    let cpus = cpu::worker_cpus(plan.workers.unwrap_or_else(cpu::worker_count_default));
    let (listening, listeners) = Listeners::bind(&plan, cpus.clone(), inherited)?;
    if let Some(user) = &plan.user {
        give_sockets(&plan, user);
        process::become_user(user).map_err(|error| Error::System(format!("user `{user}`"), error))?;
    }
    Ok(Bound { plan, listening, listeners, cpus, termination: None })
}

/// A Unix socket in a folder of the serving user belongs to that user, as it would after a reload. Errors show when it is used.
fn give_sockets(plan: &Plan, user: &str) {
    let Ok((uid, gid)) = process::user_ids(user) else { return };
    for listen in &plan.listen {
        let Address::Unix(path) = &listen.address else { continue };
        let is_folder_of_user = path
            .parent()
            .is_some_and(|folder| std::fs::metadata(folder).is_ok_and(|found| found.uid() == uid));
        if is_folder_of_user {
            let _ = chown(path, Some(uid), Some(gid));
        }
    }
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
        let workers: std::io::Result<Vec<_>> = setups.into_iter().map(worker).collect();
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
            tunnel_drain_time_max_ms: Arc::new(AtomicU64::new(milliseconds(plan.tunnel_drain_time_max))),
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
        let (began, handle) = (Instant::now(), self.handle.clone());
        let why = runtime.block_on(self.until_signal(&mut signals, announce));
        let result = self.wait();
        let requests = handle.figures().requests;
        let (time, noun) = (duration(began.elapsed()), if requests == 1 { "request" } else { "requests" });
        say(format_args!("ended by {why} after {time}: {requests} {noun} served"));
        result
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

    /// Returns why it has ended.
    async fn until_signal(&self, signals: &mut Signals, announce: impl FnOnce(&[Address])) -> &'static str {
        let mut ended = self.ended.clone();
        announce(&self.addresses);
        process::notify_ready();
        let why = tokio::select! {
            name = signals.next() => name,
            _ = ended.wait_for(|count| *count > 0) => STOPPED,
        };
        process::notify_stopping();
        // If one worker fails, the server ends: that worker's connections would wait forever. Workers of a server that drains end
        // when they are done.
        if why != STOPPED || !*self.handle.draining().borrow() {
            self.handle.drain();
        }
        let all = self.threads.len();
        tokio::select! {
            _ = signals.next() => self.handle.stop(),
            _ = ended.wait_for(|count| *count == all) => {}
        }
        why
    }
}

/// Why a server ends without a signal.
const STOPPED: &str = "a command";

/// A duration for people: `4.2 s`, `3 min 7 s`, `2 d 5 h`.
fn duration(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
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
        busy_poll: plan.busy_poll,
        limits: plan.limits.clone(),
        server_name: plan.server_name.clone(),
        shared: shared.clone(),
        stats: handle.stats[index].clone(),
        mailbox: handle.mailboxes[index].clone(),
        workers: handle.mailboxes.clone(),
    }
}
