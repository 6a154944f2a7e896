//! Two servers that are both alive: on two ports, or each in a network namespace of its own.
//!
//! ```text
//! port 8080  <── server without the change        or        namespace  lo  127.0.0.1:8080  <── server without it
//! port N     <── server with it                             namespace  lo  127.0.0.1:8080  <── server with it
//! ```
//!
//! In the lab, both are in the server's network, on two ports, and the load comes from the client's.
//!
//! If both would listen on the same Unix socket, each gets folders of its own, too (`folders.rs`).
//!
//! Both are started several times in each comparison, so that neither is older and differences of their starts are part of the
//! interval (`flatout_trial::judge_starts`). They change places with each start. Load alternates between them in short blocks, see
//! [`flatout_load::side_by_side`].

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use flatout_lane::namespace::{Network, enter_new};
use flatout_load::side_by_side::{self, Batch, SideBySide};
use flatout_load::{self as load, Remote, Target};

use crate::command;
use crate::folders::{OwnFolders, TemporaryFolder};
use crate::plan::{Error, ServerPlan};
use crate::server::{Start, UnderTest};

/// Length of a block: shorter than most other work on a machine, longer than the responses it waits for.
const BLOCK: Duration = Duration::from_millis(50);

/// Limit of the warm-up of new servers, which ends when they are steady.
pub(crate) const WARMUP_TIME_MAX: Duration = Duration::from_secs(4);

/// Unix sockets in different folders that one server may listen on.
const SHARED_SOCKETS_MAX: usize = 4;

/// Time limit for the loopback device of a new network.
const DEVICE_TIME_MAX: Duration = Duration::from_secs(10);

/// Two running servers.
pub(crate) struct Pair<'p> {
    sides: [Side<'p>; 2],
    starts: [Start; 2],
    is_warm: bool,
    /// Dropped after the servers.
    _changes: TemporaryFolder,
}

/// One of them, and where it is.
struct Side<'p> {
    served: UnderTest<'p>,
    remote: Remote,
    network: Option<Network>,
}

/// What a pair of servers needs to start.
pub(crate) struct Places<'p> {
    pub(crate) server: &'p ServerPlan,
    pub(crate) target: Target,
    pub(crate) url: String,
    pub(crate) stop: &'p AtomicBool,
    /// Whether the server's command alone says where it listens: no configuration file has been edited.
    pub(crate) is_port_in_command: bool,
    /// Whether requests come from another network, which reaches this one only.
    pub(crate) is_lab: bool,
    /// Where servers with folders of their own write.
    pub(crate) changes: PathBuf,
}

/// Why two servers cannot both be alive.
enum Obstacle {
    /// Both would listen on this path.
    SharedSocket(String),
    Other(String),
}

impl<'p> Pair<'p> {
    /// Starts both, and waits until they respond. Folders that each needs for itself are added to `own`.
    ///
    /// # Errors
    /// Why they cannot both be alive here.
    pub(crate) fn start(
        places: &Places<'p>,
        starts: [Start; 2],
        own: &mut OwnFolders,
    ) -> Result<Pair<'p>, String> {
        for _ in 0..SHARED_SOCKETS_MAX {
            match Pair::start_with(places, &starts, own) {
                Ok(pair) => return Ok(pair),
                Err(Obstacle::SharedSocket(path)) if own.add(&path) => {}
                Err(Obstacle::SharedSocket(path)) => return Err(format!("both would listen on {path}")),
                Err(Obstacle::Other(why)) => return Err(why),
            }
        }
        Err(format!("both would listen on more than {SHARED_SOCKETS_MAX} Unix sockets"))
    }

    fn start_with(places: &Places<'p>, starts: &[Start; 2], own: &OwnFolders) -> Result<Pair<'p>, Obstacle> {
        // Before the servers, so that it is removed after they have ended.
        let changes = TemporaryFolder::new(places.changes.clone())
            .map_err(|error| Obstacle::Other(format!("cannot make a folder: {error}")))?;
        let mut copies = starts.clone();
        let mut sides = match places.other_port(starts) {
            Some((port, command)) => {
                copies[1].command = command;
                [places.side(None, None), places.side(Some(port), None)]
            }
            None if places.is_lab => {
                let why = "the lab's client reaches one network only, and the server's command does not have its port once";
                return Err(Obstacle::Other(why.to_owned()));
            }
            None => {
                let network = || new_network().map(Some).map_err(Obstacle::Other);
                [places.side(None, network()?), places.side(None, network()?)]
            }
        };
        for (at, (side, start)) in sides.iter_mut().zip(copies).enumerate() {
            let command = own.command(&start.command, &changes.0.join(at.to_string()));
            let start = Start { command, ..start };
            let before = side.within(|_| Ok(listening_paths())).map_err(Obstacle::Other)?;
            side.within(|served| served.bring_up(Some(start)).map_err(|error| error.to_string()))
                .map_err(Obstacle::Other)?;
            let after = side.within(|_| Ok(listening_paths())).map_err(Obstacle::Other)?;
            if let Some(path) = after.difference(&before).find(|path| !own.contain(path)) {
                return Err(Obstacle::SharedSocket(path.clone()));
            }
        }
        Ok(Pair { sides, starts: starts.clone(), is_warm: false, _changes: changes })
    }

    /// Whether these are the servers of this comparison.
    pub(crate) fn is_of(&self, starts: &[Start; 2]) -> bool {
        self.starts == *starts
    }

    /// A batch of blocks on both, for the plan's time on each. New servers are warmed up first. `client` is the network that
    /// requests are sent from, if it is not the servers'.
    pub(crate) fn measure(
        &mut self,
        plan: &load::Plan,
        client: Option<&Network>,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Batch, Error> {
        if !self.is_warm {
            // Workers that start under load were not there yet when its processes were found.
            self.batch(plan, client, (1, WARMUP_TIME_MAX), seed, stop)?;
            self.is_warm = true;
        }
        let pairs = (plan.duration.as_nanos() / BLOCK.as_nanos()).max(1) as usize;
        self.batch(plan, client, (pairs, Duration::ZERO), seed, stop)
    }

    fn batch(
        &mut self,
        plan: &load::Plan,
        client: Option<&Network>,
        (pairs, warmup_max): (usize, Duration),
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Batch, Error> {
        let mut plans = Vec::with_capacity(self.sides.len());
        for side in &mut self.sides {
            let pids = side.within(|served| Ok(served.processes().to_vec())).map_err(Error::Server)?;
            plans.push(load::Plan { remote: side.remote.clone(), server_pids: pids, seed, ..plan.clone() });
        }
        let Ok(plans) = <[load::Plan; 2]>::try_from(plans) else { unreachable!("a pair has two sides") };
        let batch = SideBySide { plans, block: BLOCK, pairs, warmup_max, seed };
        let enter = |side: usize| self.sides[side].network.as_ref().or(client).map_or(Ok(()), Network::enter);
        side_by_side::run(&batch, &enter, stop).map_err(|error| Error::Generator(error.to_string()))
    }

    /// The first of them that has died, and why.
    pub(crate) fn death(&mut self) -> Option<(usize, String)> {
        self.sides.iter_mut().enumerate().find_map(|(at, side)| {
            let alive = side.within(|served| served.look_after().map_err(|error| error.to_string()));
            alive.err().map(|why| (at, why))
        })
    }
}

impl Side<'_> {
    /// Acts in its network, on this thread: a server ends with the thread that started it.
    fn within<T>(&mut self, act: impl FnOnce(&mut UnderTest<'_>) -> Result<T, String>) -> Result<T, String> {
        let Some(network) = &self.network else { return act(&mut self.served) };
        let failed = |error: io::Error| format!("cannot enter a network: {error}");
        let home = Network::of_this_thread().map_err(failed)?;
        network.enter().map_err(failed)?;
        let acted = act(&mut self.served);
        home.enter().map_err(failed)?;
        acted
    }
}

impl<'p> Places<'p> {
    fn side(&self, port: Option<u16>, network: Option<Network>) -> Side<'p> {
        let mut target = self.target.clone();
        if let (Remote::Tcp(address), Some(port)) = (&mut target.remote, port) {
            address.set_port(port);
        }
        let remote = target.remote.clone();
        Side { served: UnderTest::new(self.server, target, self.url.clone(), self.stop), remote, network }
    }

    /// A free port for the second server, and its command with it. `None` if its command does not have the port
    /// exactly once.
    fn other_port(&self, starts: &[Start; 2]) -> Option<(u16, String)> {
        let Remote::Tcp(address) = &self.target.remote else { return None };
        let port = address.port().to_string();
        let is_alone = |start: &Start| places_of(&start.command, &port).len() == 1;
        if !self.is_port_in_command || !starts.iter().all(is_alone) {
            return None;
        }
        let free = TcpListener::bind((address.ip(), 0)).and_then(|free| free.local_addr()).ok()?.port();
        let command = &starts[1].command;
        let at = *places_of(command, &port).first()?;
        Some((free, format!("{}{free}{}", &command[..at], &command[at + port.len()..])))
    }
}

/// Where a number is in a command, not as a part of a longer one.
fn places_of(command: &str, number: &str) -> Vec<usize> {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'.');
    let bytes = command.as_bytes();
    let places = command.match_indices(number).map(|(at, _)| at);
    places
        .filter(|&at| {
            !is_part(at.checked_sub(1).and_then(|at| bytes.get(at))) && !is_part(bytes.get(at + number.len()))
        })
        .collect()
}

/// A network namespace with a loopback device.
fn new_network() -> Result<Network, String> {
    let made = thread::spawn(|| {
        enter_new().map_err(|error| error.to_string())?;
        command::succeed("ip link set lo up", &[], DEVICE_TIME_MAX)?;
        Network::of_this_thread().map_err(|error| error.to_string())
    });
    let made = made.join().unwrap_or_else(|_| Err("its thread panicked".to_owned()));
    made.map_err(|why| format!("no second network for the second server: {why}"))
}

/// Paths of the Unix sockets that are listened on in this thread's network.
///
/// # Source
/// unix(7), `/proc/net/unix`: the flag `__SO_ACCEPTCON` is 0x10000.
fn listening_paths() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let path = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_listening = fields.get(3).is_some_and(|flags| *flags == "00010000");
        fields.get(7).filter(|path| is_listening && path.starts_with('/')).map(|path| (*path).to_owned())
    };
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_port_is_found_as_a_whole_number() {
        assert_eq!(places_of("server --listen 127.0.0.1:8080 --workers 1", "8080"), [26]);
        assert_eq!(places_of("server 80800 18080 8080.5 x8080", "8080"), [0_usize; 0]);
        assert_eq!(places_of("server 8080 8080", "8080"), [7, 12]);
    }

    #[test]
    fn a_listening_unix_socket_is_seen() {
        let path = std::env::temp_dir().join(format!("flatout-listening-{}", std::process::id()));
        let name = path.display().to_string();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(listening_paths().contains(&name));
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(!listening_paths().contains(&name));
    }
}
