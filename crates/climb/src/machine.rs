//! The server, the applied changes and the load. This is where a climb changes the machine.

mod both;
mod switched;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_load::Target;
use flatout_profile::{self as profile, Profile, Sampler};
use flatout_trial::{Both, Foresight, Found, Go, Progress, Sample, Set, Stage, Status, Subject, is_steady};
use flatout_tune::quote;

use crate::changes::Changes;
use crate::evidence::{self, Evidence};
use crate::folders::OwnFolders;
use crate::gathered::Gathered;
use crate::generator::{Load, Run};
use crate::plan::{Attempt, Error, Generator, LoadRate, Plan, Rung, ServerPlan, Variant};
use crate::run::{Ahead, ClimbProgress, Finished};
use crate::server::{Start, UnderTest, is_here};
use crate::side_by_side::{Pair, WARMUP_TIME_MAX};
use crate::tuned::Tuned;
use crate::variants::{CACHE, COMPRESSION, Config, Copies, Edit, UPSTREAM_KEEPALIVE};
use flatout_tune::Needs;

/// Runs whose median counts as the highest rate, when a share of it is taken.
const RATE_RUNS: usize = 5;

/// All A/A runs take this part of the budget.
const NOISE_PART: u32 = 10;

/// No more than this part of the budget is kept for the runs of everything kept.
const RESERVE_PART_MIN: u32 = 5;

/// Gains, as shares, for which a climb says how much time they would need.
const GAINS: [f64; 2] = [0.02, 0.05];

/// A run of the warm-up after a start.
const WARMUP_BLOCK: Duration = Duration::from_millis(100);

/// Number of parts of a profile: those before and after alternate, as all runs do.
pub(crate) const PROFILE_PARTS: u32 = 2;

/// The machine as one climb uses it.
pub(crate) struct Machine<'p, 'h> {
    pub(crate) plan: &'p Plan,
    pub(crate) changes: Changes<'p, 'h>,
    /// The A/A runs, and the runs of everything kept against the unchanged server.
    pub(crate) noise: Gathered,
    pub(crate) total: Gathered,
    stage: Option<Stage>,
    served: UnderTest<'p>,
    load: Load<'p>,
    watch: &'p mut dyn FnMut(&ClimbProgress<'_>),
    begun: Instant,
    progress: Option<Progress>,
    /// The current comparison: when it has begun, and when its time is over.
    comparison: Option<(Stage, Instant, Instant)>,
    /// When the current comparison began.
    compared_at: Option<Instant>,
    /// The time of the A/A runs: as much is kept for the runs of everything kept.
    noise_time: Duration,
    /// The rungs that are kept so far.
    kept: Vec<bool>,
    /// The folder with copies of the server's configuration.
    copies: Copies,
    /// The rungs that need a restart of the server.
    restarting: Vec<bool>,
    /// Whether the two compared sets differ in one of these: then the server is started for each. Otherwise it keeps running.
    /// A/A runs have the design of the rungs.
    is_starting: bool,
    /// How often both servers of this climb were started.
    starts_count: usize,
    /// Why our server died in the last run, if it did.
    death: Option<String>,
    /// The two servers of this comparison, if both are alive.
    pair: Option<Pair<'p>>,
    /// Whether the two servers of this comparison could not both be started; the same for all comparisons.
    is_one_at_a_time: bool,
    are_all_one_at_a_time: bool,
    /// Whether the changes of this comparison can be switched between short blocks, once it is known.
    is_switched: Option<bool>,
    target: Target,
    /// What was seen of the unchanged server.
    evidence: Evidence,
    /// Folders that each of two servers needs for itself, as far as they are known.
    own_folders: OwnFolders,
}

impl<'p, 'h> Machine<'p, 'h> {
    pub(crate) fn new(
        plan: &'p Plan,
        target: Target,
        load: Load<'p>,
        tunings: &'p mut Tuned<'h>,
        watch: &'p mut dyn FnMut(&ClimbProgress<'_>),
    ) -> Machine<'p, 'h> {
        let restarting = plan.rungs.iter().map(|rung| match &rung.change {
            Attempt::Variant(variant) => variant.restarts(),
            Attempt::Tuning => {
                tunings.needs(&rung.name) != Ok(Needs::Reboot) && tunings.is_restarting(&rung.name)
            }
            Attempt::Edit(_) => true,
            Attempt::Skip(_) => false,
        });
        Machine {
            copies: Copies::default(),
            restarting: restarting.collect(),
            is_starting: false,
            starts_count: 0,
            death: None,
            pair: None,
            is_one_at_a_time: false,
            are_all_one_at_a_time: false,
            is_switched: None,
            target: target.clone(),
            evidence: Evidence::default(),
            own_folders: OwnFolders::default(),
            plan,
            changes: Changes::new(&plan.rungs, tunings),
            noise: Gathered::default(),
            total: Gathered::default(),
            stage: None,
            served: UnderTest::new(&plan.server, target, load.url.clone(), load.stop),
            load,
            watch,
            begun: Instant::now(),
            progress: None,
            comparison: None,
            compared_at: None,
            noise_time: Duration::ZERO,
            kept: vec![false; plan.rungs.len()],
        }
    }

    /// Starts the unchanged server, and checks that it responds.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.served.bring_up(self.start(self.changes.on()))?;
        self.evidence = self.gather_evidence();
        Ok(())
    }

    /// What a short load of the unchanged server shows about rungs that need evidence.
    fn gather_evidence(&mut self) -> Evidence {
        let has = |names: &[&str]| self.plan.rungs.iter().any(|rung| names.contains(&rung.name.as_str()));
        let is_upstream_as_it_is =
            self.plan.rungs.iter().all(|rung| !matches!(rung.change, Attempt::Variant(_)));
        let mut evidence = Evidence::default();
        let (Generator::Own(plan), None) = (&self.load.generator, &self.load.lab) else { return evidence };
        let pids = self.served.processes().to_vec();
        if has(&[UPSTREAM_KEEPALIVE]) && is_upstream_as_it_is {
            let upstream = self.plan.config.as_ref().and_then(Config::upstream);
            evidence.upstream_closes =
                upstream.and_then(|server| evidence::upstream_closes(&server, &pids, &self.target));
        }
        if has(&[CACHE, COMPRESSION]) {
            evidence.response = evidence::fetch(&self.target, plan);
            let body = evidence.response.as_ref().and_then(|response| response.body.clone());
            evidence.bodies = body.and_then(|body| self.load.compare_bodies(body));
        }
        evidence
    }

    /// What speaks for a rung, if it was seen before the climb.
    pub(crate) fn evidence_for(&self, rung: usize) -> Option<String> {
        self.evidence.in_favour(&self.plan.rungs[rung].name)
    }

    /// How requests arrive, in words.
    pub(crate) fn load_pattern(&self) -> String {
        self.load.pattern()
    }

    /// What the CPU time is of, in words.
    pub(crate) fn cpu_meaning(&self) -> String {
        self.load.cpu_meaning()
    }

    /// Sets the rate of all further measurements, if the plan asks for one: a known rate, or a share of the highest
    /// that the unchanged server can serve. Returns the rate.
    pub(crate) fn settle_rate(&mut self, known_per_s: Option<f64>) -> Result<Option<f64>, Error> {
        let Some(asked) = self.plan.rate() else { return Ok(None) };
        let per_s = match (known_per_s, asked) {
            (Some(per_s), _) | (None, LoadRate::PerS(per_s)) => per_s,
            (None, LoadRate::Share(share)) => {
                let mut rates = Vec::new();
                while rates.len() < RATE_RUNS {
                    let Some(run) = self.load.run(self.served.processes())? else { return Ok(None) };
                    rates.push(run.sample.requests_per_s);
                }
                rates.sort_by(f64::total_cmp);
                rates[RATE_RUNS / 2] * share
            }
        };
        if per_s < 1.0 {
            let url = &self.load.url;
            return Err(Error::Server(format!(
                "{url} gave no responses, so there is no load rate to derive from them"
            )));
        }
        self.load.at_rate(per_s);
        Ok(Some(per_s))
    }

    /// Samples stacks with these rungs applied, for one part of the profile's time.
    pub(crate) fn profile(&mut self, on: &[bool]) -> Result<Profile, String> {
        match self.set(on) {
            Ok(Set::Done) => {}
            Ok(Set::Refused(why)) => return Err(why),
            Err(error) => return Err(error.to_string()),
        }
        let plan = profile::Plan {
            pids: self.served.processes().to_vec(),
            rate_hz: profile::RATE_HZ_DEFAULT,
            softirq: profile::Softirq::All,
        };
        let is_over = AtomicBool::new(false);
        let (sampled, run) = std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut sampler = Sampler::start(plan)?;
                sampler.run_while(|_| !is_over.load(Ordering::Relaxed));
                sampler.finish()
            });
            let run = self.load.run_for(self.plan.profile_time / PROFILE_PARTS, self.served.pids());
            is_over.store(true, Ordering::Relaxed);
            (sampler.join(), run)
        });
        let run = run.map_err(|error| error.to_string())?.ok_or("interrupted")?;
        let sampled = sampled.map_err(|_| "the sampler panicked".to_owned())?;
        let profile = sampled.map_err(|error| error.to_string())?;
        let count = Some(run.sample.requests as f64).filter(|count| *count > 0.0);
        Ok(Profile { request_count: count, ..profile })
    }

    /// The applied variants, in order.
    fn variants(&self, on: &[bool]) -> impl Iterator<Item = &'p Variant> {
        let rungs = self.plan.rungs.iter().zip(on.to_vec());
        rungs.filter_map(|(rung, is_on)| match &rung.change {
            Attempt::Variant(variant) if is_on => Some(variant),
            _ => None,
        })
    }

    /// The applied edits of the server's configuration, in order.
    pub(crate) fn edits(&self, on: &[bool]) -> Vec<Edit> {
        let rungs = self.plan.rungs.iter().zip(on);
        let edits = rungs.filter_map(|(rung, is_on)| match &rung.change {
            Attempt::Edit(edit) if *is_on => Some(*edit),
            _ => None,
        });
        edits.collect()
    }

    /// The command that starts the server with these rungs applied, except edits of its configuration: the last
    /// command that a rung names, and all arguments.
    pub(crate) fn server_command(&self, on: &[bool]) -> Option<String> {
        let ServerPlan::Command(command) = &self.plan.server else { return None };
        Some(self.with_arguments(command.clone(), on))
    }

    fn with_arguments(&self, command: String, on: &[bool]) -> String {
        let replaced = self.variants(on).filter_map(|variant| variant.server_command.clone()).last();
        let arguments = self.variants(on).filter_map(|variant| variant.server_arguments.clone());
        std::iter::once(replaced.unwrap_or(command)).chain(arguments).collect::<Vec<_>>().join(" ")
    }

    /// The same with a copy of the configuration that has those edits.
    fn command_to_start(&self, on: &[bool]) -> Result<Option<String>, String> {
        let (ServerPlan::Command(_), Some(config)) = (&self.plan.server, &self.plan.config) else {
            return Ok(self.server_command(on));
        };
        let edits = self.edits(on);
        if edits.is_empty() {
            return Ok(self.server_command(on));
        }
        let copy =
            self.copies.of(&edits).map_err(|error| format!("cannot copy the configuration: {error}"))?;
        let command = config.command_with(&edits, &copy);
        let command = command.map_err(|error| format!("cannot copy the configuration: {error}"))?;
        Ok(Some(self.with_arguments(command, on)))
    }

    /// How to start the server for these rungs, if it is ours.
    fn start(&self, on: &[bool]) -> Option<Start> {
        // A copy that cannot be written is reported when the server is started.
        let command = self
            .command_to_start(on)
            .unwrap_or_else(|why| Some(format!("echo {} >&2; false", quote(&why))))?;
        Some(Start { command, on: self.needed_at_start(on) })
    }

    /// Starts the server with the rungs that need a restart. The others are applied once it is running: settings of
    /// its processes end with them.
    fn start_with(&mut self, on: &[bool]) -> Result<Set, Error> {
        let set = self.changes.change_to(&self.needed_at_start(on), &self.served.environment())?;
        if set != Set::Done || self.is_stopped() {
            return Ok(set);
        }
        match self.served.bring_up(self.start(on)) {
            // We did not wait for it.
            Err(_) if self.is_stopped() => Ok(Set::Done),
            // It started unchanged before, so one of the changes is to blame.
            Err(Error::Server(why)) if on.contains(&true) => Ok(Set::Refused(why)),
            Err(error) => Err(error),
            Ok(()) => Ok(Set::Done),
        }
    }

    /// The applied rungs that need a restart.
    fn needed_at_start(&self, on: &[bool]) -> Vec<bool> {
        on.iter().zip(&self.restarting).map(|(is_on, is_restarting)| *is_on && *is_restarting).collect()
    }

    /// The time left for comparisons.
    fn left(&self) -> Duration {
        let budget = self.plan.budget.saturating_sub(self.plan.profiles_time());
        budget.saturating_sub(self.begun.elapsed())
    }

    /// The time that is kept for the runs of everything kept, against the unchanged server: without them, the result has no figures.
    fn reserve(&self, stage: Stage) -> Duration {
        match stage {
            Stage::Forward(_) | Stage::SecondLook(_) | Stage::LeaveOneOut(_) => {
                reserve(&self.kept, self.noise_time, self.plan.budget)
            }
            _ => Duration::ZERO,
        }
    }

    /// Loads a server that has just started until its requests no longer become cheaper. Another generator warms up itself.
    fn warm_up(&mut self) {
        let Generator::Own(plan) = &self.load.generator else { return };
        let (block, begun) = (plan.duration.min(WARMUP_BLOCK), Instant::now());
        let mut costs = Vec::new();
        while !self.is_stopped() && begun.elapsed() < WARMUP_TIME_MAX && !is_steady(&costs) {
            // A server that fails here fails again when it is measured, and is reported there.
            let Ok(Some(run)) = self.load.run_for(block, self.served.processes()) else { return };
            let cost = run.sample.cpu_us_per_request.unwrap_or(1.0 / run.sample.requests_per_s);
            costs.push(cost);
        }
    }

    /// One run after which the server is still running. `None` if it was interrupted.
    fn run_alive(&mut self) -> Result<Option<Run>, Error> {
        let run = self.load.run(self.served.processes())?;
        if run.is_some() {
            self.served.look_after()?;
        }
        Ok(run)
    }

    /// Why the server died, if the changes are to blame: it lived without them, and we can start it again.
    fn death_by_changes(&mut self, error: Error) -> Result<String, Error> {
        match error {
            Error::Server(why) if self.is_ours() && !self.changes.are_none() => {
                self.served.end();
                Ok(why)
            }
            error => Err(error),
        }
    }

    /// Adds a run to the figures of its set, if this stage has some.
    fn gather(&mut self, on: &[bool], run: &Run) {
        match self.stage {
            Some(Stage::Noise | Stage::NoiseOfServers) => self.noise.add(on, run),
            Some(Stage::Total | Stage::Block) => self.total.add(on, run),
            _ => {}
        }
    }

    /// Checks a run of the unchanged server.
    ///
    /// # Errors
    /// It responds with errors, or its runs have no figure for the objective.
    fn check(&self, sample: &Sample) -> Result<(), Error> {
        let Sample { requests, errors, .. } = *sample;
        if errors * 2 > requests {
            return Err(Error::Server(format!(
                "{} gave {errors} errors in {requests} responses; a server that responds with errors is not measured",
                self.load.url
            )));
        }
        // A run without a response, on an overloaded machine, carries no information; its pair is left out.
        if sample.requests_per_s > 0.0 && self.plan.objective.figure(sample).is_none() {
            return Err(Error::Generator(format!(
                "the runs do not report {}; use another objective (--for), name the server's process (--pid), or use \
                 a generator that reports it",
                self.plan.objective.name()
            )));
        }
        Ok(())
    }

    /// Whether the climb started the server.
    fn is_ours(&self) -> bool {
        matches!(self.plan.server, ServerPlan::Command(_))
    }

    /// Whether A/A runs have a start for each, as those of the rungs that they are the noise of.
    fn is_starting_noise(&self, stage: Stage) -> bool {
        let is_of_servers = match stage {
            Stage::Noise => false,
            Stage::NoiseOfServers => true,
            _ => return false,
        };
        let mut rungs = self.plan.rungs.iter().zip(&self.restarting);
        rungs.any(|(rung, restarts)| *restarts && rung.is_in_the_server() == is_of_servers)
    }

    /// The part of the time for the A/A runs of one kind: half of it if there are two.
    fn noise_part(&self) -> u32 {
        let mut tried = self.plan.rungs.iter().filter(|rung| !matches!(rung.change, Attempt::Skip(_)));
        let is_first_in_the_server = tried.next().is_some_and(Rung::is_in_the_server);
        let are_alike = tried.all(|rung| rung.is_in_the_server() == is_first_in_the_server);
        if are_alike { NOISE_PART } else { 2 * NOISE_PART }
    }

    fn is_stopped(&self) -> bool {
        self.load.stop.load(Ordering::Relaxed)
    }
}

/// The time that is kept for the runs of everything kept: as long as the A/A runs took, if anything is kept.
fn reserve(kept: &[bool], noise_time: Duration, budget: Duration) -> Duration {
    if kept.contains(&true) { noise_time.min(budget / RESERVE_PART_MIN) } else { Duration::ZERO }
}

impl Subject for Machine<'_, '_> {
    type Error = Error;

    fn omission(&self, rung: usize) -> Option<String> {
        let Rung { name, change, .. } = &self.plan.rungs[rung];
        match change {
            Attempt::Skip(why) => Some(why.clone()),
            Attempt::Edit(_) => self.evidence.against(name, self.load.fields()),
            // A cache of flatout itself is a flag.
            Attempt::Variant(_) if name == CACHE => self.evidence.against(name, self.load.fields()),
            Attempt::Tuning if self.takes_reboot(rung) => {
                self.changes.tunings.before_reboot(&self.plan.rungs[rung].name).err()
            }
            _ => None,
        }
    }

    fn takes_reboot(&self, rung: usize) -> bool {
        self.changes.needs(&self.plan.rungs[rung]) == Needs::Reboot
    }

    fn compare(&mut self, stage: Stage, one: &[bool], other: &[bool]) {
        self.stage = Some(stage);
        self.compared_at = Some(Instant::now());
        self.pair = None;
        self.is_one_at_a_time = false;
        self.is_switched = None;
        self.is_starting =
            self.start(one) != self.start(other) || self.is_ours() && self.is_starting_noise(stage);
    }

    fn obstacle(&self, rung: usize) -> Option<String> {
        if !self.is_ours() && self.restarting[rung] {
            return Some(
                "it takes effect when the server restarts, and this climb did not start the server: give its command"
                    .to_owned(),
            );
        }
        match self.changes.needs(&self.plan.rungs[rung]) {
            Needs::AnyPath => None,
            Needs::Reboot => self.plan.why_no_reboot.clone(),
            Needs::Card if self.load.lab.is_some() || !is_here(&self.load.remote) => None,
            // The address is ours, and the load comes from another machine.
            Needs::Card if self.plan.interface.is_some() => None,
            Needs::Card => Some(format!(
                "requests to {} do not pass through a network device, so it has no effect; load the server from another machine \
                 (--bench 'ssh client …' with --interface), or try --lab",
                self.load.remote
            )),
        }
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Error> {
        self.pair = None;
        let is_new = self.is_starting || !self.served.is_up(&self.start(on));
        if is_new {
            let started = self.start_with(on)?;
            if started != Set::Done || self.is_stopped() {
                return Ok(started);
            }
        }
        let set = self.changes.change_to(on, &self.served.environment())?;
        if is_new && set == Set::Done && self.is_ours() {
            self.warm_up();
        }
        Ok(set)
    }

    fn leave(&mut self, on: &[bool]) -> Result<(), Error> {
        self.pair = None;
        // While the server is running: commands that undo a change may need its processes.
        let left = self.changes.change_to(on, &self.served.environment());
        self.served.end();
        match left? {
            Set::Done if on.contains(&true) => self.changes.keep(),
            Set::Done => Ok(()),
            Set::Refused(why) => Err(Error::Change(why)),
        }
    }

    fn restart(&mut self) {
        self.pair = None;
        self.starts_count += 1;
    }

    fn is_restarting(&self) -> bool {
        self.is_starting
    }

    fn seconds_left(&self) -> f64 {
        // Second looks are planned with it: `look` gives them no more.
        let reserve = reserve(&self.kept, self.noise_time, self.plan.budget);
        self.left().saturating_sub(reserve).as_secs_f64()
    }

    fn spent(&self) -> f64 {
        let Some((_, begun, ends)) = self.comparison else { return 0.0 };
        begun.elapsed().as_secs_f64() / (ends - begun).as_secs_f64().max(1e-9)
    }

    fn measure(&mut self) -> Result<Sample, Error> {
        let run = match self.run_alive() {
            Ok(Some(run)) => run,
            Ok(None) => return Ok(Sample::default()),
            Err(error) => {
                self.death = Some(self.death_by_changes(error)?);
                return Ok(Sample::default());
            }
        };
        if self.changes.are_none() {
            self.check(&run.sample)?;
        }
        let on = self.changes.on().to_vec();
        self.gather(&on, &run);
        Ok(run.sample)
    }

    fn measure_both(&mut self, one: &[bool], other: &[bool]) -> Result<Both, Error> {
        match self.side_by_side(one, other)? {
            Both::Alternate => self.switched(one, other),
            both => Ok(both),
        }
    }

    fn death(&mut self) -> Option<String> {
        self.death.take()
    }

    fn is_same(&self, one: &[bool], other: &[bool]) -> bool {
        let changes = |on: &[bool]| -> Vec<bool> {
            let rungs = self.plan.rungs.iter().zip(on);
            rungs
                .map(|(rung, is_on)| {
                    *is_on && !matches!(&rung.change, Attempt::Variant(v) if v.set.is_none())
                })
                .collect()
        };
        let edits = |on: &[bool]| self.edits(on);
        changes(one) == changes(other)
            && edits(one) == edits(other)
            && self.server_command(one) == self.server_command(other)
    }

    fn is_in_the_server(&self, rung: usize) -> bool {
        self.plan.rungs[rung].is_in_the_server()
    }

    fn is_burden(&self, rung: usize) -> bool {
        let rung = &self.plan.rungs[rung];
        match &rung.change {
            Attempt::Tuning => self.changes.tunings.is_burden(&rung.name),
            Attempt::Variant(variant) => variant.is_burden,
            Attempt::Edit(_) | Attempt::Skip(_) => false,
        }
    }

    fn found(&mut self, rung: usize, found: &Found) {
        self.kept[rung] = found.status == Status::Kept;
        let objective = self.plan.objective;
        let name = self.plan.rungs[rung].name.as_str();
        let progress = self.progress.unwrap_or(Progress {
            stage: Stage::Forward(rung),
            pairs: 0,
            estimate: None,
            left: 1,
            share: 1.0,
        });
        let (left, budget) = (self.left(), self.plan.budget);
        let finished = Some(Finished { name, found, objective });
        (self.watch)(&ClimbProgress { progress, rung: None, left, budget, finished, ahead: None });
    }

    fn foresee(&mut self, foresight: &Foresight) {
        let (Some(progress), Some(compared)) = (self.progress, self.compared_at) else { return };
        self.noise_time = self.noise_time.max(compared.elapsed());
        let pair = compared.elapsed() / foresight.pairs.max(1) as u32;
        let (left, budget) = (self.left(), self.plan.budget);
        let each = left / progress.left.saturating_sub(1).max(1) as u32;
        let pairs = (each.as_secs_f64() / pair.as_secs_f64().max(1e-9)) as usize;
        let pairs = pairs.clamp(self.plan.pairs_min, self.plan.pairs_max);
        let ahead = Some(Ahead {
            each: pair.saturating_mul(pairs as u32),
            smallest: foresight.smallest(pairs),
            needed: GAINS
                .map(|gain| (gain, foresight.pairs_for(gain).map(|pairs| pair.saturating_mul(pairs as u32)))),
        });
        (self.watch)(&ClimbProgress { progress, rung: None, left, budget, finished: None, ahead });
    }

    fn look(&mut self, progress: &Progress) -> Go {
        let left = self.left().saturating_sub(self.reserve(progress.stage));
        self.progress = Some(*progress);
        let rung = match progress.stage {
            Stage::Forward(at) | Stage::SecondLook(at) | Stage::LeaveOneOut(at) => {
                Some(self.plan.rungs[at].name.as_str())
            }
            _ => None,
        };
        let budget = self.plan.budget;
        (self.watch)(&ClimbProgress { progress: *progress, rung, left, budget, finished: None, ahead: None });
        if self.is_stopped() {
            return Go::Interrupted;
        }
        if left.is_zero() {
            return Go::Over;
        }
        let now = Instant::now();
        let (begun, ends) = match self.comparison {
            Some((stage, begun, ends)) if stage == progress.stage => (begun, ends),
            _ if matches!(progress.stage, Stage::Noise | Stage::NoiseOfServers) => {
                (now, now + left / self.noise_part())
            }
            // The next boot is compared with it: it gets twice the time.
            _ if progress.stage == Stage::Block => (now, now + 2 * left / (progress.left as u32 + 1)),
            _ => (now, now + left.mul_f64(progress.share.clamp(0.0, 1.0))),
        };
        self.comparison = Some((progress.stage, begun, ends));
        if now >= ends { Go::Next } else { Go::On }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;

    use flatout_tune::{Host, ServerSelector};

    use super::*;

    /// Second looks are planned with the time that they get.
    #[test]
    fn the_seconds_left_are_those_of_a_second_look() {
        let host = Host::live();
        let mut tunings = Tuned::new(&host, ServerSelector::default(), PathBuf::from("unused"), false);
        let (url, generator) = ("http://127.0.0.1:1/".to_owned(), Generator::Command("echo 1".to_owned()));
        let variant = Variant { set: Some("true".to_owned()), ..Variant::default() };
        let rung = Rung { name: "a".to_owned(), change: Attempt::Variant(variant), needs: Needs::AnyPath };
        let plan = Plan::new(ServerPlan::Running(None), url.clone(), generator.clone(), vec![rung]);
        let (target, stop) = (Target::parse(&url).unwrap(), AtomicBool::new(false));
        let load = Load {
            generator,
            remote: target.remote.clone(),
            url,
            lab: None,
            stop: &stop,
            is_server_alone: false,
            runs_count: AtomicU64::new(0),
            kernel_work: Err("none".to_owned()),
        };
        let mut watch = |_: &ClimbProgress<'_>| {};
        let mut machine = Machine::new(&plan, target, load, &mut tunings, &mut watch);
        machine.noise_time = plan.budget / 10;
        let all = machine.seconds_left();
        machine.kept = vec![true];
        let given = machine.left().saturating_sub(machine.reserve(Stage::SecondLook(0))).as_secs_f64();
        let planned = machine.seconds_left();
        assert!(given < 0.95 * all && planned <= given && planned > given - 1.0, "{planned} of {given}");
    }
}
