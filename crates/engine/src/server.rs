//! Starting, watching and ending a server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use flatout_lane::{cpu, listener, process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::Error;
use crate::exchange::{Mail, Mailbox, Worker};
use crate::plan::{Address, DESCRIPTORS_RESERVED, Limits, Locality, Plan, SocketPlan};
use crate::say::say;
use crate::service::Service;
use crate::shared::{Shared, Stats};
use crate::worker::{self, Listener, Setup};

/// A running server.
pub struct Server {
    addresses: Vec<Address>,
    urls: Vec<String>,
    handle: Handle,
    threads: Vec<JoinHandle<Result<(), Error>>>,
    ended: watch::Receiver<usize>,
}

/// Ends a server from anywhere, and reads its figures; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    mailboxes: Arc<[Mailbox]>,
    stats: Arc<[Arc<Stats>]>,
    drain_time_max: Duration,
    draining: watch::Sender<bool>,
}

/// Figures of a running server, summed over its workers; up to a second old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Requests whose head was read.
    pub requests: u64,
    /// Connections that are open.
    pub connections: usize,
    /// Accepted connections so far.
    pub accepted: u64,
}

/// Figures of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerFigures {
    /// Requests whose head was read, and connections, up to a second old.
    pub figures: Figures,
    /// Connections by what they are doing, in the order of [`State::ALL`](crate::State::ALL): as the worker last counted
    /// them, about two seconds ago if they are read regularly.
    pub states: [usize; 5],
    /// Connections that have left HTTP, such as WebSockets.
    pub taken: usize,
    /// Memory of its table of connections and of its buffers.
    pub memory_bytes: usize,
}

/// Listening sockets, by worker.
type Listeners = Vec<Vec<Listener>>;

/// A server that has bound its addresses and switched its user, but does not serve yet. Connections wait in its backlogs.
///
/// What a service opens between [`bind`] and [`Bound::start`] is opened with the rights of the user who serves it.
pub struct Bound {
    plan: Plan,
    addresses: Vec<Address>,
    listeners: Listeners,
    cpus: Vec<Option<usize>>,
}

/// Binds, drops privileges, and starts the workers; `make` runs once on each worker's thread. The same as [`bind`] and
/// [`Bound::start`].
///
/// # Errors
/// A plan that cannot be, an address that cannot be bound, a user that does not exist.
pub fn start<F>(plan: Plan, make: F) -> Result<Server, Error>
where
    F: Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
{
    bind(plan)?.start(make)
}

/// Binds the plan's addresses, then becomes the plan's user: group, supplementary groups and user, for good.
///
/// Call it before the process has threads of its own: they are included, but what they hold open stays open.
///
/// # Errors
/// A plan that cannot be, an address that cannot be bound, a user that does not exist.
pub fn bind(plan: Plan) -> Result<Bound, Error> {
    plan.check().map_err(Error::Plan)?;
    process::raise_descriptor_limit();
    let cpus = cpu::worker_cpus(plan.workers.unwrap_or_else(cpu::worker_count_default));
    let (addresses, listeners) = listen(&plan, &cpus)?;
    if let Some(user) = &plan.user {
        process::become_user(user).map_err(|error| Error::System(format!("user `{user}`"), error))?;
    }
    Ok(Bound { plan, addresses, listeners, cpus })
}

impl Bound {
    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Starts the workers; `make` runs once on each worker's thread.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start<F>(self, make: F) -> Result<Server, Error>
    where
        F: Fn(Worker) -> Box<dyn Service> + Send + Sync + 'static,
    {
        let Bound { plan, addresses, listeners, cpus } = self;
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
            drain_time_max: plan.drain_time_max,
            draining: watch::Sender::new(false),
        };
        let make = Arc::new(make);
        let (ended_sender, ended) = watch::channel(0);
        let mut threads = Vec::with_capacity(count);
        for (index, listeners) in listeners.into_iter().enumerate() {
            let setup = setup(&plan, &handle, &shared, index, count, listeners);
            let (make, ended) = (make.clone(), Ended(ended_sender.clone()));
            let cpu = cpus.get(index).copied().flatten().filter(|_| plan.pin);
            let run = move || {
                let _ended = ended;
                // A sandbox may forbid it; the worker serves all the same.
                let _ = cpu.map(cpu::pin);
                worker::run(setup, |worker| make(worker))
                    .map_err(|error| Error::System(format!("worker {index}"), error))
            };
            let thread = std::thread::Builder::new().name(format!("{}-{index}", plan.thread_name)).spawn(run);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that are already running would serve without a server.
                    handle.stop();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return Err(Error::System(format!("a thread for worker {index}"), error));
                }
            }
        }
        let urls = urls(&plan, &addresses);
        Ok(Server { addresses, urls, handle, threads, ended })
    }
}

impl Stats {
    fn figures(&self) -> Figures {
        Figures {
            requests: self.requests.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
        }
    }
}

impl Server {
    /// How many workers it has.
    pub fn workers_count(&self) -> usize {
        self.threads.len()
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The same as URLs, by which one knows where it speaks TLS.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// A handle that ends it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Says on stderr where it listens, tells systemd, and serves until SIGTERM or SIGINT has drained it. A second
    /// signal ends it at once.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self) -> Result<(), Error> {
        let urls = self.urls.join(" ");
        self.run_announced(|_| say(format_args!("listening on {urls}")))
    }

    /// The same, with `announce` to say where it listens.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run_announced(self, announce: impl FnOnce(&[Address])) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| Error::System("the control plane".to_owned(), error))?;
        runtime.block_on(self.until_signal(announce))?;
        self.wait()
    }

    /// Waits until it has ended, by a [`Handle`].
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

    async fn until_signal(&self, announce: impl FnOnce(&[Address])) -> Result<(), Error> {
        let watch_for = |kind| signal(kind).map_err(|error| Error::System("signals".to_owned(), error));
        let mut signals = Signals {
            terminate: watch_for(SignalKind::terminate())?,
            interrupt: watch_for(SignalKind::interrupt())?,
        };
        let mut ended = self.ended.clone();
        announce(&self.addresses);
        process::notify_ready();
        tokio::select! {
            () = signals.next() => {}
            // One worker's end is the end: its share of the connections would wait for ever.
            _ = ended.wait_for(|count| *count > 0) => {}
        }
        process::notify_stopping();
        self.handle.drain();
        let all = self.threads.len();
        tokio::select! {
            () = signals.next() => self.handle.stop(),
            _ = ended.wait_for(|count| *count == all) => {}
        }
        Ok(())
    }
}

impl Handle {
    /// Drains: no new connections, requests in flight finish up to the plan's deadline. A second call changes
    /// nothing.
    pub fn drain(&self) {
        self.draining.send_replace(true);
        self.tell(|| Mail::Drain(self.drain_time_max));
    }

    /// Ends at once: connections are closed where they are.
    pub fn stop(&self) {
        self.draining.send_replace(true);
        self.tell(|| Mail::Stop);
    }

    /// Becomes `true` when draining begins.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Figures of the moment.
    pub fn figures(&self) -> Figures {
        self.stats.iter().map(|stats| stats.figures()).fold(Figures::default(), |sum, one| Figures {
            requests: sum.requests + one.requests,
            connections: sum.connections + one.connections,
            accepted: sum.accepted + one.accepted,
        })
    }

    /// Figures of each worker. Has the workers count what their connections do, within the next second.
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

    fn tell(&self, mail: impl Fn() -> Mail) {
        for mailbox in self.mailboxes.iter() {
            mailbox.post(mail());
        }
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

/// Counts a worker's end when it is dropped, by return or by panic.
struct Ended(watch::Sender<usize>);

impl Drop for Ended {
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
    // A very low descriptor limit is shared half and half.
    let room = limit.saturating_sub(DESCRIPTORS_RESERVED).max(limit / 2).max(1);
    limits.connections_max.unwrap_or(room)
}

fn listen(plan: &Plan, cpus: &[Option<usize>]) -> Result<(Vec<Address>, Listeners), Error> {
    let mut addresses = Vec::new();
    let mut listeners: Listeners = cpus.iter().map(|_| Vec::new()).collect();
    let refused = |error| Error::System("sockets passed in by LISTEN_FDS".to_owned(), error);
    let handed_over = match plan.takes_handed_over {
        true => process::listen_fds().map_err(refused)?,
        false => Vec::new(),
    };
    if !handed_over.is_empty() {
        for socket in handed_over {
            let refused = |error| Error::System("a socket passed in by LISTEN_FDS".to_owned(), error);
            let (socket, address) = listener::adopt(socket, &options(&plan.socket)).map_err(refused)?;
            addresses.push(match address {
                listener::LocalAddress::Tcp(address) => Address::Tcp(address),
                listener::LocalAddress::Unix(path) => Address::Unix(path),
            });
            share(&socket, plan.tls.is_some(), &mut listeners)?;
        }
        return Ok((addresses, listeners));
    }
    if plan.listen.is_empty() {
        return Err(Error::Plan("listen: no address; give at least one, such as 127.0.0.1:8080".to_owned()));
    }
    let options = options(&plan.socket);
    let secure = plan.listen.iter().map(|address| (address, plan.tls.is_some()));
    for (address, is_secure) in secure.chain(plan.listen_plain.iter().map(|address| (address, false))) {
        let refused = |error| Error::System(format!("cannot listen on {address}"), error);
        match address {
            Address::Tcp(tcp) => {
                let (actual, sockets) = listener::bind_tcp(*tcp, cpus.len(), &options).map_err(refused)?;
                if picks_by_cpu(&plan.socket, tcp, cpus.len()) {
                    let first = sockets.first().map(OwnedFd::as_fd);
                    select_by_cpu(first, cpus).map_err(refused)?;
                }
                for (worker, socket) in listeners.iter_mut().zip(sockets) {
                    worker.push(Listener { socket, is_secure });
                }
                addresses.push(Address::Tcp(actual));
            }
            Address::Unix(path) => {
                let socket = listener::bind_unix(path, &options).map_err(refused)?;
                share(&socket, is_secure, &mut listeners)?;
                addresses.push(address.clone());
            }
        }
    }
    Ok((addresses, listeners))
}

/// Where it listens, as URLs. Sockets that were handed over all speak TLS, if there is any.
fn urls(plan: &Plan, addresses: &[Address]) -> Vec<String> {
    let plain_count = if addresses.len() > plan.listen.len() { plan.listen_plain.len() } else { 0 };
    let secure_count = addresses.len().saturating_sub(plain_count);
    let url = |(at, address): (usize, &Address)| match address {
        Address::Tcp(address) if plan.tls.is_some() && at < secure_count => format!("https://{address}"),
        address => address.to_string(),
    };
    addresses.iter().enumerate().map(url).collect()
}

/// Gives every worker its own descriptor of one socket; the kernel wakes one of them for each connection.
fn share(socket: &OwnedFd, is_secure: bool, listeners: &mut Listeners) -> Result<(), Error> {
    for worker in listeners {
        let copy = socket.try_clone();
        let socket = copy.map_err(|error| Error::System("a listener for each worker".to_owned(), error))?;
        worker.push(Listener { socket, is_secure });
    }
    Ok(())
}

fn options(plan: &SocketPlan) -> listener::ListenOptions {
    listener::ListenOptions {
        backlog: plan.backlog,
        nodelay: plan.nodelay,
        defer_accept: plan.defer_accept,
        keepalive: plan.keepalive,
        congestion: plan.congestion.clone(),
        share_port: plan.share_port,
        unix_mode: plan.unix_mode,
    }
}

/// Whether to hand connections to the worker on whose CPU they arrive. On loopback that is the client's CPU, so
/// all connections of a client that is pinned would go to one worker.
fn picks_by_cpu(plan: &SocketPlan, address: &std::net::SocketAddr, workers: usize) -> bool {
    match plan.locality {
        Locality::Off => false,
        Locality::On => true,
        Locality::Auto => workers > 1 && !address.ip().is_loopback() && listener::nic_queues() >= workers,
    }
}

fn select_by_cpu(first: Option<BorrowedFd<'_>>, cpus: &[Option<usize>]) -> std::io::Result<()> {
    let cpus: Option<Vec<usize>> = cpus.iter().copied().collect();
    match (first, cpus) {
        (Some(first), Some(cpus)) => listener::attach_cpu_selection(first, &cpus),
        _ => Ok(()),
    }
}
