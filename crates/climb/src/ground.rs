//! What a climb stands on: the server, the changes in place, and the load. Here a climb touches the machine.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_lane::connect;
use flatout_load::{Remote, Running, Target, listeners};
use flatout_profile::{self as profile, Profile, Sampler};
use flatout_trial::{Go, Progress, Sample, Set, Stage, Subject};

use crate::command;
use crate::gathered::Gathered;
use crate::generator::Load;
use crate::plan::{Change, Error, Needs, Plan, Rung, Server, Variant};
use crate::run::Live;
use crate::status::status;
use crate::tunings::Tunings;

/// The machine as one climb sees it. Dropping it takes back what is in place.
pub(crate) struct Ground<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) tunings: &'p mut dyn Tunings,
    pub(crate) load: Load<'p>,
    pub(crate) target: Target,
    pub(crate) gathered: Gathered,
    pub(crate) watch: &'p mut dyn FnMut(&Live<'_>),
    server: Option<Running>,
    pids: Vec<u32>,
    on: Vec<bool>,
    is_restarting: bool,
    begun: Instant,
    comparison: Option<(Stage, Instant)>,
}

/// How long a command that makes or takes back a change may take.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a server that accepts may go on answering that it cannot, as one does whose application still starts.
const READY_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a server may take to accept one connection when it is looked at.
const ACCEPT_TIME_MAX: Duration = Duration::from_secs(5);

/// How often a server that is not ready is asked.
const LOOK_TIME: Duration = Duration::from_millis(50);

impl<'p> Ground<'p> {
    pub(crate) fn new(
        plan: &'p Plan,
        target: Target,
        load: Load<'p>,
        tunings: &'p mut dyn Tunings,
        watch: &'p mut dyn FnMut(&Live<'_>),
    ) -> Ground<'p> {
        let is_restarting = plan.rungs.iter().any(|rung| match &rung.change {
            Change::Variant(variant) => variant.restarts(),
            Change::Tuning => tunings.is_restarting(&rung.name),
            Change::Skip(_) => false,
        });
        Ground {
            plan,
            tunings,
            load,
            target,
            gathered: Gathered::default(),
            watch,
            server: None,
            pids: Vec::new(),
            on: vec![false; plan.rungs.len()],
            is_restarting: is_restarting && matches!(plan.server, Server::Command(_)),
            begun: Instant::now(),
            comparison: None,
        }
    }

    /// Brings the server up with nothing in place and looks whether it answers.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        let nothing = vec![false; self.on.len()];
        self.bring_up(&nothing)
    }

    /// Samples stacks with these rungs in place.
    pub(crate) fn profile(&mut self, on: &[bool]) -> Result<Profile, String> {
        match self.set(on) {
            Ok(Set::Done) => {}
            Ok(Set::Refused(why)) => return Err(why),
            Err(error) => return Err(error.to_string()),
        }
        let plan = profile::Plan {
            pids: self.pids.clone(),
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
            let run = self.load.run_for(self.plan.profile_time, &self.pids);
            is_over.store(true, Ordering::Relaxed);
            (sampler.join(), run)
        });
        let run = run.map_err(|error| error.to_string())?.ok_or("interrupted")?;
        let sampled = sampled.map_err(|_| "the sampler panicked".to_owned())?;
        let profile = sampled.map_err(|error| error.to_string())?;
        let count = Some(run.sample.requests as f64).filter(|count| *count > 0.0);
        Ok(Profile { request_count: count, ..profile })
    }

    /// The variants that are on in `on`, in their order.
    fn variants(&self, on: &[bool]) -> impl Iterator<Item = &'p Variant> {
        let rungs = self.plan.rungs.iter().zip(on.to_vec());
        rungs.filter_map(|(rung, is_on)| match &rung.change {
            Change::Variant(variant) if is_on => Some(variant),
            _ => None,
        })
    }

    /// The command that starts the server with these rungs in place: the last one that a rung names, and all arguments.
    pub(crate) fn server_command(&self, on: &[bool]) -> Option<String> {
        let Server::Command(command) = &self.plan.server else { return None };
        let replaced = self.variants(on).filter_map(|variant| variant.server_command.as_ref()).last();
        let arguments = self.variants(on).filter_map(|variant| variant.server_arguments.as_deref());
        let words: Vec<&str> =
            std::iter::once(replaced.unwrap_or(command).as_str()).chain(arguments).collect();
        Some(words.join(" "))
    }

    /// Starts the server again if these rungs need it to, and looks whether it answers.
    fn bring_up(&mut self, on: &[bool]) -> Result<(), Error> {
        let wanted = self.server_command(on);
        let is_up = match (&self.server, &wanted) {
            (Some(running), Some(command)) => running.command() == command && !self.is_restarting,
            (None, Some(_)) => false,
            (_, None) => !self.pids.is_empty(),
        };
        if is_up {
            return Ok(());
        }
        if let Some(command) = wanted {
            self.server = None;
            let running = Running::start(&command, &self.load.remote, self.load.stop);
            self.server = Some(running.map_err(|error| Error::Server(error.to_string()))?);
        }
        self.wait_until_ready()?;
        self.pids = self.find_processes();
        Ok(())
    }

    /// Asks until the answer is no failure of the server's.
    fn wait_until_ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_TIME_MAX;
        let url = &self.load.url;
        loop {
            let why = match status(&self.target, &self.load.remote) {
                Ok(code) if code < 500 => return Ok(()),
                Ok(code) => format!("{url} answers {code}"),
                Err(error) => format!("{url} does not answer: {error}"),
            };
            if Instant::now() > deadline || self.is_stopped() {
                return Err(Error::Server(format!("{why}; nothing is measured on errors")));
            }
            std::thread::sleep(LOOK_TIME);
        }
    }

    /// The server's processes: all that listen on its port, where it is on this machine.
    fn find_processes(&self) -> Vec<u32> {
        let found = match &self.load.remote {
            Remote::Tcp(address) if is_here(&self.load.remote) => listeners(address.port()),
            _ => Vec::new(),
        };
        let known = match (&self.plan.server, &self.server) {
            (Server::Running(pid), _) => *pid,
            (_, running) => running.as_ref().map(Running::id),
        };
        match known {
            // Whoever was named does not listen himself: what is behind a proxy, or on a Unix socket.
            Some(pid)
                if found.is_empty()
                    || matches!(self.plan.server, Server::Running(_)) && !found.contains(&pid) =>
            {
                vec![pid]
            }
            _ => found,
        }
    }

    /// Whether the server is still there.
    fn look_after_server(&mut self) -> Result<(), Error> {
        if let Some(server) = &mut self.server
            && let Some(status) = server.ended()
        {
            return Err(Error::Server(format!("the server died ({status}){}", server.last_words())));
        }
        connect::probe(&self.load.remote, None, ACCEPT_TIME_MAX).map_err(|error| {
            Error::Server(format!("the server is gone: {} does not accept: {error}", self.load.remote))
        })
    }

    /// Makes the change of one rung.
    fn make(&mut self, rung: &Rung) -> Set {
        let variant = match &rung.change {
            Change::Tuning => {
                return self.tunings.apply(&rung.name).map_or_else(Set::Refused, |()| Set::Done);
            }
            Change::Skip(why) => return Set::Refused(why.clone()),
            Change::Variant(variant) => variant,
        };
        let Some(set) = &variant.set else { return Set::Done };
        let Err(why) = command::succeed(set, &self.environment(), CHANGE_TIME_MAX) else {
            return Set::Done;
        };
        // Half of it may be in place; taking back what is not there may fail.
        if let Some(unset) = &variant.unset {
            let _ = command::succeed(unset, &self.environment(), CHANGE_TIME_MAX);
        }
        Set::Refused(why)
    }

    /// Takes the change of one rung back.
    fn take_back(&mut self, rung: &Rung) -> Result<(), String> {
        match &rung.change {
            Change::Tuning => self.tunings.undo(&rung.name),
            Change::Variant(Variant { unset: Some(unset), .. }) => {
                command::succeed(unset, &self.environment(), CHANGE_TIME_MAX)
            }
            Change::Variant(_) | Change::Skip(_) => Ok(()),
        }
        .map_err(|why| format!("`{}` could not be taken back: {why}", rung.name))
    }

    /// Takes back in reverse order all that is on from `first` on; goes on after a failure, and tells all of them.
    fn take_back_from(&mut self, first: usize) -> Result<(), Error> {
        let mut failed = Vec::new();
        let plan = self.plan;
        for (at, rung) in plan.rungs.iter().enumerate().skip(first).rev() {
            if self.on[at] {
                match self.take_back(rung) {
                    Ok(()) => self.on[at] = false,
                    Err(why) => failed.push(why),
                }
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(Error::Change(failed.join("; "))) }
    }

    /// Makes exactly these changes. Later ones are taken back and made again around an earlier one, so that each finds
    /// what it found the first time.
    fn change_to(&mut self, on: &[bool]) -> Result<Set, Error> {
        let Some(first) = self.on.iter().zip(on).position(|(is, to)| is != to) else { return Ok(Set::Done) };
        self.take_back_from(first)?;
        let plan = self.plan;
        for (at, rung) in plan.rungs.iter().enumerate().skip(first) {
            if on[at] {
                match self.make(rung) {
                    Set::Done => self.on[at] = true,
                    refused => return Ok(refused),
                }
            }
        }
        Ok(Set::Done)
    }

    fn environment(&self) -> [(&'static str, String); 2] {
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        [("FLATOUT_URL", self.load.url.clone()), ("FLATOUT_PIDS", pids.join(" "))]
    }

    fn is_stopped(&self) -> bool {
        self.load.stop.load(Ordering::Relaxed)
    }
}

impl Subject for Ground<'_> {
    type Error = Error;

    fn omission(&self, rung: usize) -> Option<String> {
        match &self.plan.rungs[rung].change {
            Change::Skip(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn obstacle(&self, rung: usize) -> Option<String> {
        let rung = &self.plan.rungs[rung];
        let is_ours = matches!(self.plan.server, Server::Command(_));
        if !is_ours && rung.change == Change::Tuning && self.tunings.is_restarting(&rung.name) {
            return Some(
                "it takes when the server starts again, and the server is not ours: give its command"
                    .to_owned(),
            );
        }
        let needs = match &rung.change {
            Change::Tuning => self.tunings.needs(&rung.name).unwrap_or(rung.needs),
            Change::Variant(_) | Change::Skip(_) => rung.needs,
        };
        match needs {
            Needs::AnyPath => None,
            Needs::Reboot => Some("it takes a reboot between two runs".to_owned()),
            Needs::Device if self.load.lab.is_some() || !is_here(&self.load.remote) => None,
            Needs::Device => Some(format!(
                "{} is reached without a network device, where it has no effect; load it from another machine, or \
                 try --lab",
                self.load.remote
            )),
        }
    }

    fn set(&mut self, on: &[bool]) -> Result<Set, Error> {
        let set = self.change_to(on)?;
        if set != Set::Done || self.is_stopped() {
            return Ok(set);
        }
        match self.bring_up(on) {
            // With nothing in place it came up before: it is what is in place that it does not bear.
            Err(Error::Server(why)) if on.contains(&true) => Ok(Set::Refused(why)),
            Err(error) => Err(error),
            Ok(()) => Ok(Set::Done),
        }
    }

    fn leave(&mut self, on: &[bool]) -> Result<(), Error> {
        self.server = None;
        match self.change_to(on)? {
            Set::Done => Ok(()),
            Set::Refused(why) => Err(Error::Change(why)),
        }
    }

    fn measure(&mut self) -> Result<Sample, Error> {
        let Some(run) = self.load.run(&self.pids)? else { return Ok(Sample::default()) };
        self.look_after_server()?;
        let Sample { requests, errors, .. } = run.sample;
        if !self.on.contains(&true) && errors * 2 > requests {
            return Err(Error::Server(format!(
                "{} gave {errors} errors in {requests} answers; nothing is measured on errors",
                self.load.url
            )));
        }
        if self.plan.objective.figure(&run.sample).is_none() && !self.on.contains(&true) {
            return Err(Error::Generator(format!(
                "the runs do not tell {}; ask for another objective, name the server's process with --pid, or use a \
                 generator that tells it",
                self.plan.objective.name()
            )));
        }
        self.gathered.add(&self.on, &run);
        Ok(run.sample)
    }

    fn is_same(&self, one: &[bool], other: &[bool]) -> bool {
        let changes = |on: &[bool]| -> Vec<bool> {
            let rungs = self.plan.rungs.iter().zip(on);
            rungs
                .map(|(rung, is_on)| *is_on && !matches!(&rung.change, Change::Variant(v) if v.set.is_none()))
                .collect()
        };
        changes(one) == changes(other) && self.server_command(one) == self.server_command(other)
    }

    fn is_burden(&self, rung: usize) -> bool {
        matches!(&self.plan.rungs[rung].change, Change::Variant(variant) if variant.is_burden)
    }

    fn look(&mut self, progress: &Progress) -> Go {
        let budget = self.plan.budget.saturating_sub(self.plan.profiles_time());
        let left = budget.saturating_sub(self.begun.elapsed());
        let rung = match progress.stage {
            Stage::Forward(at) | Stage::LeaveOneOut(at) => Some(self.plan.rungs[at].name.as_str()),
            _ => None,
        };
        (self.watch)(&Live { progress: *progress, rung, left });
        if self.is_stopped() {
            return Go::Interrupted;
        }
        if left.is_zero() {
            return Go::Over;
        }
        let now = Instant::now();
        let ends = match self.comparison {
            Some((stage, ends)) if stage == progress.stage => ends,
            // The noise floor is what all else is held against: it has twice the time.
            _ if progress.stage == Stage::Noise => now + 2 * left / (progress.left as u32 + 1),
            _ => now + left / progress.left.max(1) as u32,
        };
        self.comparison = Some((progress.stage, ends));
        if now >= ends { Go::Next } else { Go::On }
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        // After a climb nothing is on any more but what is to stay.
        if std::thread::panicking() {
            let _ = self.take_back_from(0);
        }
    }
}

/// Whether an address is this machine's own: what goes there goes over loopback, whatever address it is.
fn is_here(remote: &Remote) -> bool {
    match remote {
        Remote::Unix(_) => true,
        Remote::Tcp(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
    }
}
