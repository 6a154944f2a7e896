//! The listeners of a server: bound at its start, and changed while it runs.
//!
//! ```text
//! plan ── prepare: what is new is bound, or an error ──> Change ── commit ──> each worker's mailbox ──> accept | close
//! ```
//!
//! A listener that is in both plans stays unchanged. A removed one takes no new connections at once, and is closed
//! when its pending connections were accepted.

mod bind;
mod handover;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use flatout_lane::clock::Ticks;
use flatout_lane::listener::LocalAddress;
use flatout_lane::process;

use crate::Error;
use crate::plan::{Address, Limits, Listen, Plan, ProxyHeader};
use crate::worker::LISTENER_CLOSE_TIME;

/// How long an address may still be in use by this server's own listeners that are being removed.
const RELEASED_TIME_MAX: Duration = Duration::from_secs(3);
const _: () = assert!(RELEASED_TIME_MAX.as_millis() > LISTENER_CLOSE_TIME.as_millis());

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
    pub(crate) proxy_header: ProxyHeader,
    /// Whether they are the service's before TLS begins ([`Listen::passes_tls`]).
    pub(crate) passes_tls: bool,
    /// Whether they are the server's own ([`Listen::is_internal`]).
    pub(crate) is_internal: bool,
    /// The listener's number in the plan ([`Listen::number`]).
    pub(crate) number: u16,
}

impl Start {
    /// Whether clients use TLS, wherever it ends.
    fn has_tls(self) -> bool {
        self.is_secure || self.passes_tls
    }

    /// How the connections of a listener of this plan start.
    fn of(listen: &Listen, plan: &Plan) -> Start {
        Start {
            is_secure: plan.tls.is_some() && !listen.is_plain,
            proxy_header: listen.proxy_header,
            passes_tls: listen.passes_tls && !listen.is_plain,
            is_internal: listen.is_internal,
            number: listen.number,
        }
    }

    /// The same for a socket that systemd has bound to this address: as that of the listener with this address, or of one for all
    /// addresses at this port. `ListenStream=80` is `[::]:80`, for IPv4 too.
    fn of_handed_over(address: &Address, plan: &Plan) -> Start {
        let covers = |listen: &&Listen| match (&listen.address, address) {
            (Address::Tcp(all), Address::Tcp(one)) => all.ip().is_unspecified() && all.port() == one.port(),
            _ => false,
        };
        let known = plan.listen.iter().find(|listen| listen.address == *address);
        let known = known.or_else(|| plan.listen.iter().find(covers));
        known.map_or_else(
            || Start {
                is_secure: plan.tls.is_some(),
                proxy_header: match plan.handed_over_proxy_header {
                    true => ProxyHeader::Trusted,
                    false => ProxyHeader::None,
                },
                passes_tls: false,
                is_internal: false,
                number: 0,
            },
            |listen| Start::of(listen, plan),
        )
    }
}

/// New limits of a worker, and the server name.
#[derive(Debug)]
pub(crate) struct NewLimits {
    pub(crate) limits: Limits,
    pub(crate) server_name: Option<String>,
}

/// All listeners of a server.
#[derive(Debug)]
pub(crate) struct Listeners {
    entries: Vec<Entry>,
    next_id: u32,
    /// The server has an acceptor: its workers have it since their start, so this never changes.
    has_tls: bool,
    /// Sockets were inherited, and replace the plan's addresses.
    is_handed_over: bool,
    cpus: Vec<Option<usize>>,
    /// Addresses that were removed, and when.
    released: Vec<(Address, Instant)>,
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
pub(crate) struct PreparedListeners {
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
pub struct AddressChanges {
    /// New addresses.
    pub added: Vec<Address>,
    /// Removed addresses.
    pub removed: Vec<Address>,
}

impl Listeners {
    /// Binds the listeners of a plan, or takes inherited ones, for each worker. Of the listeners inherited from
    /// another flatout process, it keeps those that the plan has too.
    pub(crate) fn bind(
        plan: &Plan,
        cpus: Vec<Option<usize>>,
        inherited: Vec<Inherited>,
    ) -> Result<(Listeners, Vec<Vec<Listener>>), Error> {
        let refused = |error| Error::System("sockets inherited by LISTEN_FDS".to_owned(), error);
        let handed_over = match plan.takes_handed_over {
            true if inherited.is_empty() => process::listen_fds().map_err(refused)?,
            _ => Vec::new(),
        };
        let mut listening = Listeners {
            entries: Vec::new(),
            next_id: 0,
            has_tls: plan.tls.is_some(),
            is_handed_over: !handed_over.is_empty(),
            cpus,
            released: Vec::new(),
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

    /// All addresses but internal ones, with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.public().map(|entry| entry.address.clone()).collect()
    }

    /// The addresses as URLs, which show where TLS is used.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.public().map(|entry| entry.address.url(entry.start.has_tls())).collect()
    }

    fn public(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.start.is_internal)
    }

    /// The port of the first TCP address with TLS.
    pub(crate) fn secure_port(&self) -> Option<u16> {
        self.entries.iter().filter(|entry| entry.start.has_tls()).find_map(|entry| match &entry.address {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) => None,
        })
    }

    /// Binds the new addresses of a plan. Nothing changes until [`Listeners::commit`].
    ///
    /// # Errors
    /// A plan that has TLS where this server has not, or the other way round; an address that cannot be bound. Then
    /// none is.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<PreparedListeners, Error> {
        let mut prepared = PreparedListeners {
            added: Vec::new(),
            removed: Vec::new(),
            altered: Vec::new(),
            is_committed: false,
        };
        if plan.tls.is_some() != self.has_tls {
            let (had, has) = if self.has_tls { ("with", "without") } else { ("without", "with") };
            return Err(Error::Plan(format!(
                "tls: the server was started {had} TLS, and the new plan is {has}; that change needs a restart"
            )));
        }
        let altered = |entry: &Entry, start: Start| (start != entry.start).then_some((entry.id, start));
        if self.is_handed_over {
            let start = |entry: &Entry| Start::of_handed_over(&entry.address, plan);
            prepared.altered.extend(self.entries.iter().filter_map(|entry| altered(entry, start(entry))));
            return Ok(prepared);
        }
        if plan.listen.is_empty() {
            return Err(Error::Plan(
                "listen: no address; give at least one, such as 127.0.0.1:8080".to_owned(),
            ));
        }
        let wanted: Vec<_> =
            plan.listen.iter().map(|listen| (&listen.address, Start::of(listen, plan))).collect();
        // A listener that stays as it is goes before one that begins or ends to use TLS.
        let mut unchanged: Vec<Option<u32>> = vec![None; wanted.len()];
        for is_same in [true, false] {
            for (at, (asked, start)) in wanted.iter().enumerate() {
                let known = |entry: &&Entry| {
                    entry.asked.as_ref() == Some(*asked)
                        && (!is_same || entry.start.is_secure == start.is_secure)
                        && !unchanged.contains(&Some(entry.id))
                };
                if unchanged[at].is_none()
                    && let Some(entry) = self.entries.iter().find(known)
                {
                    unchanged[at] = Some(entry.id);
                    prepared.altered.extend(altered(entry, *start));
                }
            }
        }
        for ((asked, start), _) in wanted.iter().zip(&unchanged).filter(|(_, unchanged)| unchanged.is_none())
        {
            let id = self.next_id.wrapping_add(prepared.added.len() as u32);
            let added = self.bind_one(id, asked, *start, plan, &prepared.added)?;
            prepared.added.push(added);
        }
        let gone = self.entries.iter().map(|entry| entry.id).filter(|id| !unchanged.contains(&Some(*id)));
        prepared.removed.extend(gone);
        Ok(prepared)
    }

    /// Applies a change. Returns the changes for each worker, and a summary.
    pub(crate) fn commit(
        &mut self,
        mut prepared: PreparedListeners,
    ) -> (Vec<ListenersChange>, AddressChanges) {
        prepared.is_committed = true;
        let added = std::mem::take(&mut prepared.added);
        let PreparedListeners { removed, altered, .. } = &prepared;
        let mut workers: Vec<ListenersChange> =
            self.cpus.iter().map(|_| ListenersChange::default()).collect();
        let mut changed = AddressChanges::default();
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
            if !entry.start.is_internal {
                changed.removed.push(entry.address.clone());
            }
            self.released.push((entry.asked.unwrap_or(entry.address), Instant::now()));
        }
        self.released.retain(|(_, since)| since.elapsed() < RELEASED_TIME_MAX);
        for (entry, sockets) in added {
            for (worker, socket) in workers.iter_mut().zip(sockets) {
                worker.added.push(entry.listener(socket));
            }
            self.next_id = entry.id.wrapping_add(1);
            if !entry.start.is_internal {
                changed.added.push(entry.address.clone());
            }
            self.entries.push(entry);
        }
        (workers, changed)
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

impl Drop for PreparedListeners {
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
