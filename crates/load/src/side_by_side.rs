//! Load on two servers that are both alive, in short blocks: see [`flatout_trial::samples`].

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use flatout_lane::clock;
use flatout_trial::{Disturbance, Random, Turn, is_steady};

use crate::disturbance::Lost;
use crate::kernel_work::{KernelWork, WorkTimes};
use crate::machine::MachineCpu;
use crate::outcome::ThreadUse;
use crate::plan::{Error, Plan};
use crate::server_cpu::{ServerProcesses, Used};
use crate::shared::Shared;
use crate::tally::Latency;
use crate::worker::Worker;

/// Two servers, and how their blocks alternate.
#[derive(Debug, Clone)]
pub struct SideBySide {
    /// The load of each; their durations do not count.
    pub plans: [Plan; 2],
    /// Length of a block.
    pub block: Duration,
    /// Pairs of blocks.
    pub pairs: usize,
    /// Limit of the warm-up, which ends as soon as both servers are steady.
    pub warmup_max: Duration,
    /// The random seed of the order within pairs, and of the requests.
    pub seed: u64,
}

/// What a batch of blocks has shown.
#[derive(Debug)]
pub struct Batch {
    /// The pairs of blocks, those of the first plan first.
    pub pairs: Vec<[Turn; 2]>,
    /// The latencies of both, without the warm-up.
    pub latencies: [Latency; 2],
    /// The share of the time that the generator's busiest thread was on its CPU, in these blocks.
    pub generator_share: f64,
    /// The blocks of the warm-up.
    pub warmup: Vec<[Turn; 2]>,
    /// What kept the two servers from their CPUs while they had the load, without the warm-up.
    pub disturbances: [Option<Disturbance>; 2],
}

/// Enters the network of one of the two servers, on the calling thread.
pub type Enter<'e> = &'e (dyn Fn(usize) -> io::Result<()> + Sync);

/// An order to the threads.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// One block on this side, with this seed.
    Block(usize, u64),
    /// What was counted so far was the warm-up.
    Forget,
    /// Nothing but a result, which has the thread's CPU time.
    Report,
}

/// Blocks of the warm-up of servers that have been under load before.
const WARMUP_PAIRS_MIN: usize = 2;

/// Opens the connections of both, warms up until both are steady, and measures. `enter` is called on each thread
/// before it opens connections. Returns what was measured so far if `stop` is set.
///
/// # Errors
/// A plan is invalid, threads cannot be started, or a server's network cannot be entered.
pub fn run(plan: &SideBySide, enter: Enter<'_>, stop: &AtomicBool) -> Result<Batch, Error> {
    let [one, other] = &plan.plans;
    for side in [one, other] {
        side.check().map_err(|fault| Error::Plan(fault.message))?;
    }
    if one.threads != other.threads {
        return Err(Error::Plan(format!(
            "threads: got {} and {}, need the same",
            one.threads, other.threads
        )));
    }
    let shared = [Shared::new(one, stop), Shared::new(other, stop)];
    thread::scope(|scope| {
        let threads: Vec<Thread> = (0..one.threads)
            .map(|index| {
                let (orders, receiver) = channel();
                let (sender, results) = channel();
                let shared = &shared;
                let handle = scope.spawn(move || serve(shared, index, plan.block, enter, &receiver, &sender));
                Thread { orders, results, handle: Some(handle) }
            })
            .collect();
        let mut driver = Driver {
            threads,
            cpu: [one, other].map(Meter::new),
            beside: BlockMeter::new(one.kernel_work.as_deref()),
            random: Random::new(plan.seed),
            seed: plan.seed,
        };
        let warmup = driver.warm_up(plan, stop)?;
        driver.tell(Order::Forget)?;
        let (begun, cpu) = (Instant::now(), driver.cpu_of_threads()?);
        let before = driver.cpu.each_ref().map(Meter::lost);
        let mut pairs = Vec::with_capacity(plan.pairs);
        while pairs.len() < plan.pairs && !shared[0].is_stopped() {
            pairs.push(driver.pair()?);
        }
        let elapsed = begun.elapsed();
        let after = driver.cpu.each_ref().map(Meter::lost);
        let disturbances = [0, 1].map(|side| Some(after[side]?.since(&before[side]?)));
        let used =
            driver.cpu_of_threads()?.into_iter().zip(cpu).map(|(now, before)| now.saturating_sub(before));
        let generator_share = used.map(|cpu| ThreadUse { cpu, elapsed }.share()).fold(0.0, f64::max);
        Ok(Batch { pairs, latencies: driver.finish()?, generator_share, warmup, disturbances })
    })
}

/// A thread of the generator.
struct Thread<'s> {
    orders: Sender<Order>,
    results: Receiver<io::Result<(Turn, Duration)>>,
    handle: Option<thread::ScopedJoinHandle<'s, io::Result<[Latency; 2]>>>,
}

/// Reads a server's CPU time at the end of each of its blocks. What it does after its last response, such as writing a
/// log, is counted with its next block: then the other server has the load.
struct Meter {
    server: Option<ServerProcesses>,
    last: Option<Used>,
}

impl Meter {
    fn new(plan: &Plan) -> Meter {
        let server = ServerProcesses::of(plan);
        let last = server.as_ref().and_then(ServerProcesses::used_by_processes);
        Meter { server, last }
    }

    fn lost(&self) -> Option<Lost> {
        self.server.as_ref().map(ServerProcesses::lost)
    }

    /// The CPU time since the last reading, in seconds.
    fn read(&mut self) -> Option<f64> {
        let now = self.server.as_ref()?.used_by_processes();
        let before = std::mem::replace(&mut self.last, now);
        let used = self.last.as_ref()?.since(&before?)?;
        Some((used.user + used.kernel).as_secs_f64())
    }
}

/// Reads at the end of each block what is not of one server alone: the kernel's work, and the CPU time of the machine. Only one
/// of them has the load at a time.
struct BlockMeter<'w> {
    work: Option<&'w KernelWork>,
    last: Option<WorkTimes>,
    machine: Option<MachineCpu>,
}

impl BlockMeter<'_> {
    fn new(work: Option<&KernelWork>) -> BlockMeter<'_> {
        let work = work.filter(|work| work.failure().is_none());
        let mut beside = BlockMeter { work, last: None, machine: None };
        beside.read();
        beside
    }

    /// The CPU time of the kernel's softirqs since the last reading, in seconds, and that of the machine without the generator.
    /// Without a clock of the softirqs they are 0, and the machine's time is not known.
    fn read(&mut self) -> (Option<f64>, Option<f64>) {
        let Some(work) = self.work else { return (Some(0.0), None) };
        let (now, machine) = (work.now(false), MachineCpu::now());
        let before = (std::mem::replace(&mut self.last, now), std::mem::replace(&mut self.machine, machine));
        let done = before.0.zip(self.last.as_ref()).map(|(before, now)| work.between(&before, now));
        let used = before.1.zip(self.machine).and_then(|(before, now)| now.since(&before));
        (
            done.map(|done| done.softirqs.as_secs_f64()),
            done.zip(used).map(|(done, used)| (used + done.in_generator).as_secs_f64()),
        )
    }
}

/// Gives the threads their orders, and keeps the time.
struct Driver<'s> {
    threads: Vec<Thread<'s>>,
    cpu: [Meter; 2],
    beside: BlockMeter<'s>,
    random: Random,
    seed: u64,
}

impl Driver<'_> {
    fn warm_up(&mut self, plan: &SideBySide, stop: &AtomicBool) -> Result<Vec<[Turn; 2]>, Error> {
        let begun = Instant::now();
        let mut pairs: Vec<[Turn; 2]> = Vec::new();
        let is_warm = |pairs: &[[Turn; 2]]| {
            [0, 1].into_iter().all(|side| {
                let cost = |pair: &[Turn; 2]| {
                    pair[side].cpu_s.unwrap_or(pair[side].elapsed_s) / pair[side].requests.max(1) as f64
                };
                is_steady(&pairs.iter().map(cost).collect::<Vec<f64>>())
            })
        };
        while !stop.load(std::sync::atomic::Ordering::Relaxed)
            && (pairs.len() < WARMUP_PAIRS_MIN || begun.elapsed() < plan.warmup_max && !is_warm(&pairs))
        {
            pairs.push(self.pair()?);
        }
        Ok(pairs)
    }

    /// A block of each, in random order, with the same times of arrival.
    fn pair(&mut self) -> Result<[Turn; 2], Error> {
        self.seed = self.seed.wrapping_add(self.threads.len() as u64);
        let mut turns = [Turn::default(); 2];
        let first = self.random.below(2) as usize;
        for side in [first, 1 - first] {
            let parts = self.tell(Order::Block(side, self.seed))?;
            turns[side] = parts.into_iter().map(|(turn, _)| turn).fold(Turn::default(), sum);
            let (softirqs_s, machine_s) = self.beside.read();
            turns[side].cpu_s =
                self.cpu[side].read().zip(softirqs_s).map(|(own_s, softirqs_s)| own_s + softirqs_s);
            turns[side].machine_s = machine_s;
        }
        Ok(turns)
    }

    /// The threads' own CPU time so far.
    fn cpu_of_threads(&mut self) -> Result<Vec<Duration>, Error> {
        Ok(self.tell(Order::Report)?.into_iter().map(|(_, cpu)| cpu).collect())
    }

    /// Sends an order to all threads, and waits for their results.
    fn tell(&mut self, order: Order) -> Result<Vec<(Turn, Duration)>, Error> {
        for thread in &self.threads {
            // A thread that has ended is reported below.
            let _ = thread.orders.send(order);
        }
        let ended = |_| Err(io::Error::other("a thread of the load generator has ended"));
        let results = self.threads.iter().map(|thread| thread.results.recv().unwrap_or_else(ended));
        results.collect::<io::Result<Vec<_>>>().map_err(Error::System)
    }

    /// Ends the threads, and merges their latencies.
    fn finish(self) -> Result<[Latency; 2], Error> {
        let mut all = [Latency::new(), Latency::new()];
        for Thread { orders, handle, .. } in self.threads {
            drop(orders);
            let Some(handle) = handle else { continue };
            let latencies = handle.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            let latencies = latencies.map_err(Error::System)?;
            all.iter_mut().zip(&latencies).for_each(|(all, one)| all.merge(one));
        }
        Ok(all)
    }
}

/// The parts of several threads: they ran at the same time.
fn sum(all: Turn, part: Turn) -> Turn {
    Turn {
        requests: all.requests + part.requests,
        good: all.good + part.good,
        errors: all.errors + part.errors,
        elapsed_s: all.elapsed_s.max(part.elapsed_s),
        cpu_s: None,
        machine_s: None,
    }
}

/// One thread: opens the connections of both sides, and obeys until there are no more orders.
fn serve(
    shared: &[Shared<'_>; 2],
    index: usize,
    block: Duration,
    enter: Enter<'_>,
    orders: &Receiver<Order>,
    results: &Sender<io::Result<(Turn, Duration)>>,
) -> io::Result<[Latency; 2]> {
    let prepared = |side: usize| {
        enter(side)?;
        let mut worker = Worker::new(&shared[side], index)?;
        worker.prepare()?;
        Ok(worker)
    };
    let mut workers = match prepared(0).and_then(|one| Ok([one, prepared(1)?])) {
        Ok(workers) => workers,
        Err(error) => {
            // The driver reports it.
            let _ = results.send(Err(error));
            return Ok([Latency::new(), Latency::new()]);
        }
    };
    while let Ok(order) = orders.recv() {
        let done = match order {
            // A connection that is opened again has to be in the same network.
            Order::Block(side, seed) => enter(side).and_then(|()| workers[side].block(block, seed)),
            Order::Forget => {
                workers.iter_mut().for_each(Worker::forget);
                Ok(Turn::default())
            }
            Order::Report => Ok(Turn::default()),
        };
        if results.send(done.map(|turn| (turn, clock::thread_cpu()))).is_err() {
            break;
        }
    }
    Ok(workers.map(Worker::into_latency))
}
