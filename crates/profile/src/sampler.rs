//! Sampling: one event per CPU; all stacks of the server or of softirqs are counted as raw chains until the end.
//!
//! Work for a server happens in three places: in its own processes; in softirqs that interrupt the idle task or run
//! in a kernel thread, when a NIC's packets arrive; and in softirqs in other processes' time, as on loopback, where
//! the client's send carries its packets up to the server's socket. The kernel does not report for whom a packet is.
//! So all network softirqs count, as [`Softirq`] allows, and are kept apart in the result by their root frame.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use flatout_lane::cpu;
use flatout_lane::perf::{self, Clock, Event, Record, Ring, Sample, Scope};

use crate::symbols::{Kernel, Symbols};
use crate::{Error, Frame, Kind, Profile, Stacks, process};

/// Samples per second of each CPU: not a divisor of the kernel's own 100 to 1 000 ticks, so that it never runs in
/// step with periodic work.
pub const RATE_HZ_DEFAULT: u32 = 499;

/// A tenth of the kernel's default limit, `kernel.perf_event_max_sample_rate`; at higher rates, the sampling measures
/// itself.
pub const RATE_HZ_MAX: u32 = 10_000;

/// How often the rings are read: 50 ms of ordinary stacks at the highest rate fill half a ring.
const TAKE_EVERY: Duration = Duration::from_millis(50);

/// Different raw chains that are kept, about 80 MiB; samples beyond count as lost.
const CHAINS_MAX: usize = 100_000;

/// Threads that are sampled one by one if CPUs cannot be: each costs a descriptor and a ring of half a MiB.
const THREADS_MAX: usize = 256;

/// What is sampled, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server's processes; their descendants belong to it too.
    pub pids: Vec<u32>,
    /// Samples a second of each CPU, up to [`RATE_HZ_MAX`].
    pub rate_hz: u32,
    /// Which softirq work outside the server's processes is counted.
    pub softirq: Softirq,
}

/// Which network softirqs outside the server's processes count as its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Softirq {
    /// All: correct if the machine serves nothing else.
    #[default]
    All,
    /// Those in the idle task and in kernel threads: leaves out what runs in a local client's time.
    Kernel,
    /// None.
    Off,
}

/// Sampling in progress. Dropping it stops it without a result.
pub struct Sampler {
    plan: Plan,
    rings: Vec<Ring>,
    clock: Clock,
    cpu_count: usize,
    notes: Vec<String>,
    began: Instant,
    seen: Seen,
}

/// The samples so far.
struct Seen {
    roots: HashSet<u32>,
    owners: HashMap<u32, Owner>,
    chains: HashMap<Chain, Count>,
    lost_count: u64,
}

/// The owner of a process's time.
#[derive(Clone)]
enum Owner {
    Server,
    Idle,
    KernelThread,
    Other(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Chain {
    pid: u32,
    kernel: Box<[u64]>,
    user: Box<[u64]>,
}

#[derive(Default)]
struct Count {
    samples: u64,
    weight: u64,
}

impl Sampler {
    /// Starts sampling: whole CPUs if permitted, otherwise the current threads of the processes.
    ///
    /// # Errors
    /// [`Error::NoProcess`], [`Error::Refused`], [`Error::Unsupported`], or the system's.
    pub fn start(plan: Plan) -> Result<Sampler, Error> {
        if let Some(&pid) = plan.pids.iter().find(|&&pid| !process::exists(pid)) {
            return Err(Error::NoProcess(pid));
        }
        let seen = Seen::new(plan.pids.iter().copied().collect());
        let mut notes = Vec::new();
        let (clock, rings) = match open_cpus(plan.rate_hz) {
            Err(Error::Refused { .. }) => open_threads(&seen.roots, plan.rate_hz, &mut notes)?,
            opened => opened?,
        };
        for ring in &rings {
            ring.start().map_err(Error::System)?;
        }
        let cpu_count = cpu::online().len();
        Ok(Sampler { plan, rings, clock, cpu_count, notes, began: Instant::now(), seen })
    }

    /// Samples while `go_on` returns true and one of the server's processes is alive. `go_on` is called about twenty
    /// times per second with the time so far.
    pub fn run_while(&mut self, mut go_on: impl FnMut(Duration) -> bool) {
        while go_on(self.began.elapsed()) && self.plan.pids.iter().any(|&pid| process::exists(pid)) {
            std::thread::sleep(TAKE_EVERY);
            self.take();
        }
    }

    /// Stops sampling, and resolves addresses to names while the processes still exist.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> Result<Profile, Error> {
        for ring in &self.rings {
            ring.stop().map_err(Error::System)?;
        }
        let time = self.began.elapsed();
        self.take();
        let mut symbols = Symbols::read(&mut self.notes);
        let mut profile = Profile {
            what: describe(&self.plan.pids),
            clock: self.clock,
            rate_hz: self.plan.rate_hz,
            time,
            cpu_count: self.cpu_count,
            sample_count: 0,
            lost_count: self.seen.lost_count,
            idle_weight: 0,
            request_count: None,
            notes: Vec::new(),
            stacks: Stacks::default(),
        };
        for (chain, count) in &self.seen.chains {
            let owner = self.seen.owners.get(&chain.pid).unwrap_or(&Owner::Idle);
            match name_stack(chain, owner, self.plan.softirq, &mut symbols) {
                Named::Stack(frames) => {
                    profile.sample_count += count.samples;
                    profile.stacks.add(frames, count.weight);
                }
                Named::Idle => profile.idle_weight += count.weight,
                Named::Foreign => {}
            }
        }
        self.notes.extend(symbols.notes());
        profile.notes = self.notes;
        Ok(profile)
    }

    fn take(&mut self) {
        for ring in &mut self.rings {
            ring.take(|record| match record {
                Record::Sample(sample) => self.seen.add(sample),
                Record::Lost(count) => self.seen.lost_count += count,
            });
        }
    }
}

impl Seen {
    fn new(roots: HashSet<u32>) -> Seen {
        Seen { roots, owners: HashMap::new(), chains: HashMap::new(), lost_count: 0 }
    }

    fn add(&mut self, sample: Sample<'_>) {
        let owner = self.owners.entry(sample.pid).or_insert_with(|| owner(sample.pid, &self.roots));
        let user = if matches!(owner, Owner::Server) { sample.user } else { &[] };
        if sample.kernel.is_empty() && user.is_empty() {
            return;
        }
        let chain = Chain { pid: sample.pid, kernel: sample.kernel.into(), user: user.into() };
        if self.chains.len() >= CHAINS_MAX && !self.chains.contains_key(&chain) {
            self.lost_count += 1;
            return;
        }
        let count = self.chains.entry(chain).or_default();
        count.samples += 1;
        count.weight = count.weight.saturating_add(sample.weight);
    }
}

/// A resolved chain.
enum Named {
    /// Work of the server, the outermost frame first.
    Stack(Vec<Frame>),
    /// An idle CPU.
    Idle,
    /// Work of another process.
    Foreign,
}

fn name_stack(chain: &Chain, owner: &Owner, softirq: Softirq, symbols: &mut Symbols) -> Named {
    let mut kernel = symbols.kernel.frames(&chain.kernel);
    let root = match owner {
        Owner::Server => {
            let mut frames = vec![Frame::new(Kind::Root, symbols.process_name(chain.pid))];
            let in_call = Kernel::is_system_call(&kernel);
            frames.extend(symbols.user_frames(chain.pid, &chain.user, in_call));
            frames.extend(kernel);
            return Named::Stack(frames);
        }
        Owner::Idle if Kernel::network_softirq(&kernel).is_none() => return Named::Idle,
        Owner::Idle => "softirq (idle)".to_owned(),
        Owner::KernelThread => "softirq (kernel threads)".to_owned(),
        Owner::Other(_) if softirq != Softirq::All => return Named::Foreign,
        Owner::Other(name) => format!("softirq (in {name})"),
    };
    match Kernel::network_softirq(&kernel) {
        Some(begin) if softirq != Softirq::Off => {
            let work = kernel.split_off(begin);
            Named::Stack(std::iter::once(Frame::new(Kind::Root, root)).chain(work).collect())
        }
        _ => Named::Foreign,
    }
}

fn owner(pid: u32, roots: &HashSet<u32>) -> Owner {
    const KTHREADD: u32 = 2;
    if pid == 0 {
        return Owner::Idle;
    }
    if process::descends_from(pid, roots) {
        return Owner::Server;
    }
    if process::descends_from(pid, &HashSet::from([KTHREADD])) {
        return Owner::KernelThread;
    }
    Owner::Other(process::name(pid).unwrap_or_else(|| "a process that ended".to_owned()))
}

fn open_cpus(rate_hz: u32) -> Result<(Clock, Vec<Ring>), Error> {
    let open = |clock| -> io::Result<Vec<Ring>> {
        let event = |cpu| Event { clock, scope: Scope::Cpu(cpu), rate_hz, kernel: true };
        cpu::online().into_iter().map(|cpu| perf::open(event(cpu))).collect()
    };
    match open(Clock::Cycles) {
        Ok(rings) => Ok((Clock::Cycles, rings)),
        // The counter does not exist or is in use.
        Err(_) => Ok((Clock::CpuTime, open(Clock::CpuTime).map_err(Error::of_open)?)),
    }
}

/// Threads one by one: the fallback if the kernel does not allow whole CPUs.
fn open_threads(
    roots: &HashSet<u32>,
    rate_hz: u32,
    notes: &mut Vec<String>,
) -> Result<(Clock, Vec<Ring>), Error> {
    let mut threads = Vec::new();
    for pid in process::family(roots).map_err(Error::System)? {
        threads.extend(process::threads(pid).unwrap_or_default());
    }
    if threads.len() > THREADS_MAX {
        notes.push(format!("{} threads, of which the first {THREADS_MAX} were sampled", threads.len()));
        threads.truncate(THREADS_MAX);
    }
    notes.push(
        "no permission to sample whole CPUs: softirq work outside the server's processes, idle time and threads that \
         began later are missing"
            .to_owned(),
    );
    let open = |kernel| -> io::Result<Vec<Ring>> {
        let event = |tid| Event { clock: Clock::CpuTime, scope: Scope::Thread(tid), rate_hz, kernel };
        threads.iter().map(|&tid| perf::open(event(tid))).collect()
    };
    let rings = open(true).or_else(|error| {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        notes.push("no permission to sample the kernel: only the processes' own code was seen".to_owned());
        open(false)
    });
    Ok((Clock::CpuTime, rings.map_err(Error::of_open)?))
}

/// Programs that start others, and are not what anybody wants to know about.
const STARTERS: [&str; 10] =
    ["sh", "bash", "dash", "zsh", "env", "sudo", "setsid", "timeout", "nice", "tini"];

/// The name of the sampled program, with its processes: the shell that started it does not count.
fn describe(pids: &[u32]) -> String {
    let roots: HashSet<u32> = pids.iter().copied().collect();
    let family = process::family(&roots).unwrap_or_else(|_| pids.to_vec());
    named(family.into_iter().filter_map(|pid| Some((pid, process::name(pid)?))).collect())
}

fn named(all: Vec<(u32, String)>) -> String {
    let is_starter = |name: &str| STARTERS.contains(&name);
    let only_starters = all.iter().all(|(_, name)| is_starter(name));
    let meant: Vec<&(u32, String)> =
        all.iter().filter(|(_, name)| only_starters || !is_starter(name)).collect();
    let count = |name: &str| meant.iter().filter(|(_, other)| other == name).count();
    // The first of those with the most processes.
    let most = meant.iter().rev().max_by_key(|(_, name)| count(name));
    match (most, &meant[..]) {
        (None, _) => "a process".to_owned(),
        (Some((pid, name)), [_]) => format!("{name} (process {pid})"),
        (Some((_, name)), several) => format!("{name} ({} processes)", several.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_the_name_of_the_program_and_not_of_its_shell() {
        let named =
            |all: &[(u32, &str)]| named(all.iter().map(|(pid, name)| (*pid, (*name).to_owned())).collect());
        assert_eq!(named(&[(1, "sh"), (2, "nginx"), (3, "nginx")]), "nginx (2 processes)");
        assert_eq!(named(&[(1, "sh"), (2, "env"), (3, "flatout")]), "flatout (process 3)");
        assert_eq!(named(&[(1, "sh")]), "sh (process 1)");
        assert_eq!(named(&[(1, "php"), (2, "worker"), (3, "worker")]), "worker (3 processes)");
        assert_eq!(named(&[]), "a process");
    }

    fn seen() -> Seen {
        let us = std::process::id();
        Seen::new(HashSet::from([us]))
    }

    fn sample<'s>(pid: u32, kernel: &'s [u64], user: &'s [u64]) -> Sample<'s> {
        Sample { pid, tid: pid, weight: 10, kernel, user }
    }

    #[test]
    fn chains_are_counted_and_strangers_own_code_is_not() {
        let us = std::process::id();
        let mut seen = seen();
        seen.add(sample(us, &[1], &[2]));
        seen.add(sample(us, &[1], &[2]));
        seen.add(sample(1, &[], &[3]));
        seen.add(sample(1, &[4], &[5]));
        assert_eq!(seen.chains.len(), 2);
        let ours = seen.chains.iter().find(|(chain, _)| chain.pid == us).unwrap();
        assert_eq!((ours.1.samples, ours.1.weight), (2, 20));
        let theirs = seen.chains.keys().find(|chain| chain.pid == 1).unwrap();
        assert!(theirs.user.is_empty());
    }

    #[test]
    fn more_chains_than_there_is_room_for_are_lost_and_counted() {
        let us = std::process::id();
        let mut seen = seen();
        for address in 0..CHAINS_MAX as u64 + 5 {
            seen.add(sample(us, &[address], &[]));
        }
        seen.add(sample(us, &[0], &[]));
        assert_eq!((seen.chains.len(), seen.lost_count), (CHAINS_MAX, 5));
    }

    #[test]
    fn other_processes_count_only_with_softirq_work() {
        let mut symbols =
            Symbols::scripted(&[(100, "do_idle"), (200, "handle_softirqs"), (300, "net_rx_action")]);
        let working = Chain { pid: 9, kernel: [301, 201, 101].into(), user: [].into() };
        let quiet = Chain { pid: 9, kernel: [101].into(), user: [].into() };
        let other = Owner::Other("wrk".to_owned());
        let mut named =
            |chain: &Chain, owner: &Owner, softirq| match name_stack(chain, owner, softirq, &mut symbols) {
                Named::Stack(frames) => {
                    frames.into_iter().map(|frame| frame.name).collect::<Vec<_>>().join(";")
                }
                Named::Idle => "idle".to_owned(),
                Named::Foreign => "foreign".to_owned(),
            };
        assert_eq!(named(&working, &other, Softirq::All), "softirq (in wrk);handle_softirqs;net_rx_action");
        assert_eq!(named(&working, &other, Softirq::Kernel), "foreign");
        assert_eq!(named(&quiet, &other, Softirq::All), "foreign");
        assert_eq!(
            named(&working, &Owner::Idle, Softirq::Kernel),
            "softirq (idle);handle_softirqs;net_rx_action"
        );
        assert_eq!(named(&working, &Owner::Idle, Softirq::Off), "foreign");
        assert_eq!(named(&quiet, &Owner::Idle, Softirq::All), "idle");
        assert_eq!(named(&quiet, &Owner::KernelThread, Softirq::All), "foreign");
    }

    #[test]
    fn a_missing_process_is_an_error() {
        let plan = Plan { pids: vec![u32::MAX], rate_hz: 100, softirq: Softirq::All };
        assert!(matches!(Sampler::start(plan), Err(Error::NoProcess(u32::MAX))));
    }

    #[inline(never)]
    fn a_loop_that_is_busy(until: Duration) -> u64 {
        let mut turns = 0_u64;
        while flatout_lane::clock::thread_cpu() < until {
            for _ in 0..1000 {
                turns = std::hint::black_box(turns.wrapping_mul(31).wrapping_add(7));
            }
        }
        turns
    }

    #[test]
    fn a_busy_loop_is_found_by_its_name() {
        let plan = Plan { pids: vec![std::process::id()], rate_hz: 997, softirq: Softirq::Off };
        let mut sampler = match Sampler::start(plan) {
            Ok(sampler) => sampler,
            Err(error) => {
                assert!(matches!(error, Error::Refused { .. } | Error::Unsupported), "{error}");
                return;
            }
        };
        let busy = std::thread::spawn(|| a_loop_that_is_busy(Duration::from_millis(500)));
        sampler.run_while(|_| !busy.is_finished());
        let profile = sampler.finish().unwrap();
        let loops = profile
            .stacks
            .iter()
            .filter(|stack| stack.frames.iter().any(|frame| frame.name.ends_with("a_loop_that_is_busy")));
        let weight: u64 = loops.map(|stack| stack.weight).sum();
        let share = weight as f64 / profile.stacks.weight() as f64;
        // Other tests of this process are sampled too.
        assert!(profile.sample_count >= 20 && share > 0.05, "{share} of {} samples", profile.sample_count);
    }
}
