//! The listeners of a server: bound at its start, and changed while it runs.
//!
//! ```text
//! plan ── prepare: what is new is bound, or an error ──> Change ── commit ──> each worker's mailbox ──> accept | close
//! ```
//!
//! A listener that is in both plans stays unchanged. A removed one takes no new connections at once, and is closed
//! when its pending connections were accepted.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use flatout_lane::clock::Ticks;
use flatout_lane::listener::{self, ListenOptions, LocalAddress};
use flatout_lane::process;

use crate::Error;
use crate::plan::{Address, Limits, Locality, Plan, SocketPlan};
use crate::worker::LISTENER_CLOSE_TIME;

/// How long an address may still be in use by this server's own listeners that are being removed.
const LEFT_TIME_MAX: Duration = Duration::from_secs(3);
const _: () = assert!(LEFT_TIME_MAX.as_millis() > LISTENER_CLOSE_TIME.as_millis());

/// How often to try it again meanwhile.
const LEFT_LOOK: Duration = Duration::from_millis(20);

/// One worker's socket of a listener.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The listener's number in this server; the same for all workers.
    pub(crate) id: u32,
    pub(crate) socket: OwnedFd,
    pub(crate) start: Start,
    /// When it is closed, if it is being removed.
    pub(crate) closes_at: Option<Ticks>,
}

/// A change of one worker's listeners.
#[derive(Debug, Default)]
pub(crate) struct ListenersChange {
    pub(crate) added: Vec<Listener>,
    pub(crate) removed: Vec<u32>,
    /// How connections of these listeners start from now on.
    pub(crate) altered: Vec<(u32, Start)>,
}

/// How the connections of a listener start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// Whether they use TLS.
    pub(crate) is_secure: bool,
    /// Whether they start with a PROXY protocol header.
    pub(crate) has_proxy_header: bool,
}

/// New limits of a worker, and the server name.
#[derive(Debug)]
pub(crate) struct NewLimits {
    pub(crate) limits: Limits,
    pub(crate) server_name: Option<String>,
}

/// All listeners of a server.
#[derive(Debug)]
pub(crate) struct Listening {
    entries: Vec<Entry>,
    next_id: u32,
    /// The server has an acceptor: its workers have it since their start, so this never changes.
    has_tls: bool,
    /// Sockets were inherited, and replace the plan's addresses.
    is_handed_over: bool,
    cpus: Vec<Option<usize>>,
    /// Addresses that were removed, and when.
    left: Vec<(Address, Instant)>,
}

/// A listener.
#[derive(Debug)]
struct Entry {
    id: u32,
    /// The address in the plan; `None` if the socket was inherited.
    asked: Option<Address>,
    address: Address,
    start: Start,
    /// Device and inode of a Unix socket's file: another file with this name belongs to another program.
    file: Option<(u64, u64)>,
}

/// A prepared change, whose new sockets are bound. Dropping it changes nothing.
#[derive(Debug)]
pub(crate) struct Prepared {
    added: Vec<(Entry, Vec<OwnedFd>)>,
    removed: Vec<u32>,
    altered: Vec<(u32, Start)>,
    is_committed: bool,
}

/// A listener that another process has bound and passes on.
#[derive(Debug)]
pub struct Inherited {
    /// The address in the plan that it was bound with; `None` if that process had inherited it itself.
    pub asked: Option<Address>,
    /// Whether its connections use TLS.
    pub is_secure: bool,
    /// One socket per worker, in the order of workers.
    pub sockets: Vec<OwnedFd>,
}

/// A change of the listeners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changed {
    /// New addresses.
    pub added: Vec<Address>,
    /// Removed addresses.
    pub removed: Vec<Address>,
}

impl Listening {
    /// Binds the listeners of a plan, or takes inherited ones, for each worker. Of the listeners inherited from
    /// another flatout process, it keeps those that the plan has too.
    pub(crate) fn bind(
        plan: &Plan,
        cpus: Vec<Option<usize>>,
        inherited: Vec<Inherited>,
    ) -> Result<(Listening, Vec<Vec<Listener>>), Error> {
        let refused = |error| Error::System("sockets inherited by LISTEN_FDS".to_owned(), error);
        let handed_over = match plan.takes_handed_over {
            true if inherited.is_empty() => process::listen_fds().map_err(refused)?,
            _ => Vec::new(),
        };
        let mut listening = Listening {
            entries: Vec::new(),
            next_id: 0,
            has_tls: plan.tls.is_some(),
            is_handed_over: !handed_over.is_empty(),
            cpus,
            left: Vec::new(),
        };
        let mut workers: Vec<Vec<Listener>> = listening.cpus.iter().map(|_| Vec::new()).collect();
        let mut deal = |entry: &Entry, sockets: Vec<OwnedFd>| {
            for (worker, socket) in workers.iter_mut().zip(sockets) {
                worker.push(entry.listener(socket));
            }
        };
        for socket in handed_over {
            let (entry, sockets) = listening.adopt(socket, plan)?;
            deal(&entry, sockets);
            listening.entries.push(entry);
        }
        for one in inherited {
            let (entry, sockets) = listening.inherit(one, plan)?;
            deal(&entry, sockets);
            listening.entries.push(entry);
        }
        if listening.is_handed_over {
            return Ok((listening, workers));
        }
        if !listening.entries.is_empty() {
            let prepared = listening.prepare(plan)?;
            let (changes, _) = listening.commit(prepared);
            for (worker, change) in workers.iter_mut().zip(changes) {
                worker.retain(|listener| !change.removed.contains(&listener.id));
                worker.iter_mut().for_each(|listener| change.alter(listener));
                worker.extend(change.added);
            }
            return Ok((listening, workers));
        }
        let mut prepared = listening.prepare(plan)?;
        for (entry, sockets) in std::mem::take(&mut prepared.added) {
            deal(&entry, sockets);
            listening.next_id = entry.id + 1;
            listening.entries.push(entry);
        }
        Ok((listening, workers))
    }

    /// All addresses, with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.entries.iter().map(|entry| entry.address.clone()).collect()
    }

    /// The addresses as URLs, which show where TLS is used.
    pub(crate) fn urls(&self) -> Vec<String> {
        let url = |entry: &Entry| match &entry.address {
            Address::Tcp(address) if entry.start.is_secure => format!("https://{address}"),
            address => address.to_string(),
        };
        self.entries.iter().map(url).collect()
    }

    /// The port of the first TCP address with TLS.
    pub(crate) fn secure_port(&self) -> Option<u16> {
        self.entries.iter().filter(|entry| entry.start.is_secure).find_map(|entry| match &entry.address {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) => None,
        })
    }

    /// Binds the new addresses of a plan. Nothing changes until [`Listening::commit`].
    ///
    /// # Errors
    /// A plan that has TLS where this server has not, or the other way round; an address that cannot be bound. Then
    /// none is.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Prepared, Error> {
        let mut prepared =
            Prepared { added: Vec::new(), removed: Vec::new(), altered: Vec::new(), is_committed: false };
        if plan.tls.is_some() != self.has_tls {
            let (had, has) = if self.has_tls { ("with", "without") } else { ("without", "with") };
            return Err(Error::Plan(format!(
                "tls: the server was started {had} TLS, and the new plan is {has}; that change needs a restart"
            )));
        }
        let altered = |entry: &Entry, start: Start| (start != entry.start).then_some((entry.id, start));
        if self.is_handed_over {
            let has_proxy_header = plan.proxy_protocol.is_at(None);
            let start = |entry: &Entry| Start { has_proxy_header, ..entry.start };
            prepared.altered.extend(self.entries.iter().filter_map(|entry| altered(entry, start(entry))));
            return Ok(prepared);
        }
        if plan.listen.is_empty() {
            return Err(Error::Plan(
                "listen: no address; give at least one, such as 127.0.0.1:8080".to_owned(),
            ));
        }
        let secure = plan.listen.iter().map(|asked| (asked, plan.tls.is_some()));
        let plain = plan.listen_plain.iter().map(|asked| (asked, false));
        let start = |asked: &Address, is_secure| Start {
            is_secure,
            has_proxy_header: plan.proxy_protocol.is_at(Some(asked)),
        };
        let wanted: Vec<_> =
            secure.chain(plain).map(|(asked, is_secure)| (asked, start(asked, is_secure))).collect();
        // A listener that stays as it is goes before one that begins or ends to use TLS.
        let mut kept: Vec<Option<u32>> = vec![None; wanted.len()];
        for is_same in [true, false] {
            for (at, (asked, start)) in wanted.iter().enumerate() {
                let known = |entry: &&Entry| {
                    entry.asked.as_ref() == Some(*asked)
                        && (!is_same || entry.start.is_secure == start.is_secure)
                        && !kept.contains(&Some(entry.id))
                };
                if kept[at].is_none()
                    && let Some(entry) = self.entries.iter().find(known)
                {
                    kept[at] = Some(entry.id);
                    prepared.altered.extend(altered(entry, *start));
                }
            }
        }
        for ((asked, start), _) in wanted.iter().zip(&kept).filter(|(_, kept)| kept.is_none()) {
            let id = self.next_id.wrapping_add(prepared.added.len() as u32);
            let added = self.bind_one(id, asked, *start, &plan.socket)?;
            prepared.added.push(added);
        }
        let gone = self.entries.iter().map(|entry| entry.id).filter(|id| !kept.contains(&Some(*id)));
        prepared.removed.extend(gone);
        Ok(prepared)
    }

    /// Applies a change. Returns the changes for each worker, and a summary.
    pub(crate) fn commit(&mut self, mut prepared: Prepared) -> (Vec<ListenersChange>, Changed) {
        prepared.is_committed = true;
        let added = std::mem::take(&mut prepared.added);
        let Prepared { removed, altered, .. } = &prepared;
        let mut workers: Vec<ListenersChange> =
            self.cpus.iter().map(|_| ListenersChange::default()).collect();
        let mut changed = Changed::default();
        for worker in &mut workers {
            worker.removed.clone_from(removed);
            worker.altered.clone_from(altered);
        }
        for entry in &mut self.entries {
            if let Some((_, start)) = altered.iter().find(|(id, _)| *id == entry.id) {
                entry.start = *start;
            }
        }
        for entry in self.entries.extract_if(.., |entry| removed.contains(&entry.id)) {
            entry.remove_file();
            changed.removed.push(entry.address.clone());
            self.left.push((entry.asked.unwrap_or(entry.address), Instant::now()));
        }
        self.left.retain(|(_, since)| since.elapsed() < LEFT_TIME_MAX);
        for (entry, sockets) in added {
            for (worker, socket) in workers.iter_mut().zip(sockets) {
                worker.added.push(entry.listener(socket));
            }
            self.next_id = entry.id.wrapping_add(1);
            changed.added.push(entry.address.clone());
            self.entries.push(entry);
        }
        (workers, changed)
    }

    /// Takes over a listener of another flatout process.
    fn inherit(&mut self, inherited: Inherited, plan: &Plan) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let refused = |error| Error::System("a socket inherited from the old process".to_owned(), error);
        let Inherited { asked, is_secure, sockets } = inherited;
        let (had, has) = (sockets.len(), self.cpus.len());
        if had != has {
            return Err(Error::Plan(format!(
                "workers: got {has}, but the process to be replaced has {had}; that change needs a restart"
            )));
        }
        let mut bound = Vec::with_capacity(had);
        let mut address = None;
        for socket in sockets {
            let (socket, at) = listener::adopt(socket, &options(&plan.socket)).map_err(refused)?;
            address = Some(address_of(at));
            bound.push(socket);
        }
        let address = address.ok_or_else(|| refused(ErrorKind::InvalidData.into()))?;
        self.is_handed_over |= asked.is_none();
        let is_secure = if asked.is_some() { is_secure } else { plan.tls.is_some() };
        let file = match &address {
            Address::Unix(path) if asked.is_some() => file_id(path),
            _ => None,
        };
        let has_proxy_header = plan.proxy_protocol.is_at(asked.as_ref());
        let id = self.next_id;
        self.next_id += 1;
        let start = Start { is_secure, has_proxy_header };
        Ok((Entry { id, asked, address, start, file }, bound))
    }

    /// The listeners for a process that is to listen at the same addresses.
    ///
    /// # Errors
    /// A worker lacks a socket of a listener: another change is in progress.
    pub(crate) fn inherited(&self, mut workers: Vec<Vec<(u32, OwnedFd)>>) -> Result<Vec<Inherited>, Error> {
        let mut found = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let mut sockets = Vec::with_capacity(workers.len());
            for worker in &mut workers {
                let at = worker.iter().position(|(id, _)| *id == entry.id);
                let at = at.ok_or_else(|| {
                    Error::System(format!("the listener {}", entry.address), ErrorKind::ResourceBusy.into())
                })?;
                sockets.push(worker.swap_remove(at).1);
            }
            found.push(Inherited { asked: entry.asked.clone(), is_secure: entry.start.is_secure, sockets });
        }
        Ok(found)
    }

    fn adopt(&mut self, socket: OwnedFd, plan: &Plan) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let refused = |error| Error::System("a socket inherited by LISTEN_FDS".to_owned(), error);
        let (socket, address) = listener::adopt(socket, &options(&plan.socket)).map_err(refused)?;
        let address = address_of(address);
        let has_proxy_header = plan.proxy_protocol.is_at(None);
        let entry = Entry {
            id: self.next_id,
            asked: None,
            address,
            start: Start { is_secure: plan.tls.is_some(), has_proxy_header },
            file: None,
        };
        self.next_id += 1;
        Ok((entry, self.shared(&socket)?))
    }

    fn bind_one(
        &self,
        id: u32,
        asked: &Address,
        start: Start,
        plan: &SocketPlan,
    ) -> Result<(Entry, Vec<OwnedFd>), Error> {
        let refused = |error| Error::System(format!("cannot listen on {asked}"), error);
        let began = Instant::now();
        let bound = loop {
            match self.bind_now(asked, plan) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse
                        && self.has_left(asked)
                        && began.elapsed() < LEFT_TIME_MAX =>
                {
                    sleep(LEFT_LOOK);
                }
                bound => break bound.map_err(refused)?,
            }
        };
        let (address, sockets) = bound;
        let sockets = match &address {
            Address::Tcp(_) => sockets,
            Address::Unix(_) => match sockets.first() {
                Some(socket) => self.shared(socket)?,
                None => sockets,
            },
        };
        let file = match &address {
            Address::Unix(path) => file_id(path),
            Address::Tcp(_) => None,
        };
        Ok((Entry { id, asked: Some(asked.clone()), address, start, file }, sockets))
    }

    /// One socket per worker, or one Unix socket for all.
    fn bind_now(&self, asked: &Address, plan: &SocketPlan) -> std::io::Result<(Address, Vec<OwnedFd>)> {
        let options = options(plan);
        match asked {
            Address::Tcp(tcp) => {
                let (actual, sockets) = listener::bind_tcp(*tcp, self.cpus.len(), &options)?;
                if picks_by_cpu(plan, tcp, self.cpus.len()) {
                    select_by_cpu(sockets.first().map(OwnedFd::as_fd), &self.cpus)?;
                }
                Ok((Address::Tcp(actual), sockets))
            }
            Address::Unix(path) => Ok((asked.clone(), vec![listener::bind_unix(path, &options)?])),
        }
    }

    /// Whether this server listened there a moment ago.
    fn has_left(&self, address: &Address) -> bool {
        self.left.iter().any(|(left, since)| left == address && since.elapsed() < LEFT_TIME_MAX)
    }

    /// A descriptor of one socket for every worker; the kernel wakes one of them for each connection.
    fn shared(&self, socket: &OwnedFd) -> Result<Vec<OwnedFd>, Error> {
        let copies = self.cpus.iter().map(|_| socket.try_clone()).collect::<Result<_, _>>();
        copies
            .map_err(|error| Error::System("cannot duplicate the listener for each worker".to_owned(), error))
    }
}

impl ListenersChange {
    /// Applies the change to a listener that stays.
    pub(crate) fn alter(&self, listener: &mut Listener) {
        if let Some((_, start)) = self.altered.iter().find(|(id, _)| *id == listener.id) {
            listener.start = *start;
        }
    }
}

impl Entry {
    fn listener(&self, socket: OwnedFd) -> Listener {
        Listener { id: self.id, socket, start: self.start, closes_at: None }
    }

    /// Removes the file of a Unix socket, if it still belongs to it: nobody can connect from then on.
    fn remove_file(&self) {
        if let Address::Unix(path) = &self.address
            && self.file.is_some()
            && file_id(path) == self.file
        {
            // If this user may not write to the folder, the file stays; the next server that binds there replaces it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_committed {
            self.added.iter().for_each(|(entry, _)| entry.remove_file());
        }
    }
}

fn address_of(address: LocalAddress) -> Address {
    match address {
        LocalAddress::Tcp(address) => Address::Tcp(address),
        LocalAddress::Unix(path) => Address::Unix(path),
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn options(plan: &SocketPlan) -> ListenOptions {
    ListenOptions {
        backlog: plan.backlog,
        nodelay: plan.nodelay,
        defer_accept: plan.defer_accept,
        keepalive: plan.keepalive,
        congestion: plan.congestion.clone(),
        share_port: plan.share_port,
        unix_mode: plan.unix_mode,
    }
}

/// Whether to give connections to the worker on whose CPU they arrive. On loopback that is the client's CPU, so all
/// connections of a pinned client would go to one worker.
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
