//! The plan of a climb, as plain values.

use std::fmt;
use std::time::Duration;

use flatout_load as load;
use flatout_trial::Objective;
use flatout_tune::Needs;

use crate::variants::{Config, Edit};

/// A whole climb. Made by hand, from flags or from a file; [`Plan::check`] reports what is wrong with it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server to measure.
    pub server: ServerPlan,
    /// Its URL, as given.
    pub url: String,
    /// The load generator.
    pub generator: Generator,
    /// The rate of our own generator in an open loop, for p99 and CPU. Without it p99 is measured at
    /// [`LoadRate::DEFAULT`], everything else at the highest possible rate.
    pub load_rate: Option<LoadRate>,
    /// The server's configuration, which some rungs edit.
    pub config: Option<Config>,
    /// The network device on which the load of another machine arrives; for a generator that is a command.
    pub interface: Option<String>,
    /// What to try, in this order.
    pub rungs: Vec<Rung>,
    /// The objective that rungs are kept for.
    pub objective: Objective,
    /// A comparison ends when its interval is no wider than this share.
    pub width_max: f64,
    /// Fewest pairs of runs in a comparison.
    pub pairs_min: usize,
    /// Most pairs of runs in a comparison.
    pub pairs_max: usize,
    /// Time limit of the whole climb; comparisons share it evenly.
    pub budget: Duration,
    /// Random orders for Shapley values: none, or at least 6.
    pub orders: usize,
    /// Whether changes that helped stay at the end.
    pub keep: bool,
    /// Whether everything happens between two network namespaces joined by a veth pair.
    pub is_lab: bool,
    /// A shell command that runs in the lab's network of the server before the server starts. It gets [`LAB_DEVICE`](crate::LAB_DEVICE) as
    /// `FLATOUT_DEVICE`, the network of the client, for `nsenter --net`, as `FLATOUT_CLIENT_NETWORK`, and this process as `FLATOUT_PID`:
    /// what it leaves running has to end with that process.
    pub lab_setup: Option<String>,
    /// How long stacks are sampled at the end, before and after, within the budget; 0: not at all.
    pub profile_time: Duration,
    /// The random seed.
    pub seed: u64,
    /// Why a rung that needs a reboot cannot wait for one, if so.
    pub why_no_reboot: Option<String>,
}

/// The server to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerPlan {
    /// A shell command that starts it and stays in the foreground. The climb starts and stops it.
    Command(String),
    /// A running server: its process, or the one that listens on the URL's port.
    Running(Option<u32>),
}

/// The load generator.
#[derive(Debug, Clone)]
pub enum Generator {
    /// Our own.
    Own(Box<load::Plan>),
    /// A shell command that loads the server for one run and prints the result: wrk's text, the JSON of oha, k6 or
    /// `flatout bench`, or the number of requests per second.
    Command(String),
}

/// A request rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadRate {
    /// This many requests per second.
    PerS(f64),
    /// A share of the highest rate that the unchanged server can serve.
    Share(f64),
}

impl LoadRate {
    /// A busy server with short queues: at the highest rate, p99 would be that of a queue that is always full.
    pub const DEFAULT: LoadRate = LoadRate::Share(0.7);

    fn check(self) -> Result<(), String> {
        match self {
            LoadRate::PerS(per_s) if per_s >= 1.0 && per_s.is_finite() => Ok(()),
            LoadRate::PerS(per_s) => {
                Err(format!("load rate: got {per_s}, need 1 or more requests per second"))
            }
            LoadRate::Share(share) if share > 0.0 && share <= 1.0 => Ok(()),
            LoadRate::Share(share) => {
                Err(format!("load rate: got {} %, need more than 0 and at most 100 %", share * 100.0))
            }
        }
    }
}

/// One change to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// Its name.
    pub name: String,
    /// Its change.
    pub change: Attempt,
    /// What its effect needs to be measurable.
    pub needs: Needs,
}

impl Rung {
    /// Whether it changes nothing but how the server is started, or nothing at all.
    pub(crate) fn is_in_the_server(&self) -> bool {
        match &self.change {
            Attempt::Edit(_) | Attempt::Skip(_) => true,
            Attempt::Variant(variant) => {
                let is_command = variant.set.is_none() && variant.unset.is_none();
                is_command && !variant.is_burden && self.needs != Needs::Reboot
            }
            Attempt::Tuning => false,
        }
    }

    /// Whether it is a change of a device by commands that know neither the server's processes nor its port: all servers behind the
    /// device have it.
    pub(crate) fn is_for_all_servers(&self, port: u16) -> bool {
        let Attempt::Variant(variant) = &self.change else { return false };
        let knows = |command: &String| command.contains("FLATOUT_") || command.contains(&port.to_string());
        let commands: Vec<&String> = variant.set.iter().chain(&variant.unset).collect();
        let is_of_the_server = variant.server_command.is_some() || variant.server_arguments.is_some();
        self.needs == Needs::Card
            && !commands.is_empty()
            && !is_of_the_server
            && !commands.into_iter().any(knows)
    }
}

/// What a rung changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// A tuning by its name; [`Tuned`](crate::Tuned) applies it.
    Tuning,
    /// A change defined by the user.
    Variant(Variant),
    /// An edit of the server's configuration, in a copy of it.
    Edit(Edit),
    /// Nothing: it is skipped, for this reason.
    Skip(String),
}

/// A change defined by the user. Empty and `None` change nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variant {
    /// A command that replaces the server's.
    pub server_command: Option<String>,
    /// Additional arguments for the server's command.
    pub server_arguments: Option<String>,
    /// A shell command that applies the change.
    pub set: Option<String>,
    /// The command that undoes it.
    pub unset: Option<String>,
    /// Whether the server has to be restarted for `set` to take effect.
    pub is_restarting: bool,
    /// Whether it adds a burden equal to another program's that has to stay, such as a packet tap: its cost is what
    /// removing that one would gain.
    pub is_burden: bool,
}

/// What is wrong with a plan: where, the value, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub part: FaultAt,
    /// The message.
    pub message: String,
}

/// A part of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAt {
    /// A field of [`Plan`], or of the load generator's plan.
    Field(&'static str),
    /// One of its rungs, by index.
    Rung(usize),
}

/// Why a climb did not start, or stopped early.
#[derive(Debug)]
pub enum Error {
    /// The plan is invalid; the user must change it.
    Plan(String),
    /// The server does not start, has died, or responds with errors.
    Server(String),
    /// The load generator failed, or its output cannot be parsed.
    Generator(String),
    /// A change could not be applied or undone.
    Change(String),
    /// The system refused something.
    System(String),
}

/// Rungs of one climb: more do not fit into any budget.
const RUNGS_MAX: usize = 100;

/// Random orders: more add no information.
const ORDERS_MAX: usize = 1000;

/// Pairs of one comparison.
pub(crate) const PAIRS_MAX: usize = 10_000;

impl Plan {
    /// A plan for this server, with defaults for everything else.
    pub fn new(server: ServerPlan, url: String, generator: Generator, rungs: Vec<Rung>) -> Plan {
        Plan {
            server,
            url,
            generator,
            load_rate: None,
            config: None,
            interface: None,
            rungs,
            objective: Objective::Throughput,
            width_max: 0.03,
            pairs_min: 5,
            pairs_max: 200,
            budget: Duration::from_secs(300),
            orders: 0,
            keep: false,
            is_lab: false,
            lab_setup: None,
            profile_time: Duration::from_secs(3),
            seed: 1,
            why_no_reboot: None,
        }
    }

    /// The objective by what limits: CPU time if our own generator shares the server's CPUs, otherwise throughput. A change of the machine
    /// moves work to softirqs, and in the lab they run on top of the generator: if they are not known, it is throughput too.
    pub fn objective_by_limit(&self, is_lab: bool, are_softirqs_known: bool) -> Objective {
        let is_ours = matches!((&self.server, &self.generator), (ServerPlan::Command(_), Generator::Own(_)));
        let target = load::Target::parse_plain(&self.url).ok();
        let is_loopback = target.is_some_and(|target| match target.remote {
            load::Remote::Tcp(address) => address.ip().is_loopback(),
            load::Remote::Unix(_) => false,
        });
        let is_of_processes = !is_lab && self.rungs.iter().all(Rung::is_in_the_server);
        match is_ours && (is_loopback || is_lab) && (is_of_processes || are_softirqs_known) {
            true => Objective::Cpu,
            false => Objective::Throughput,
        }
    }

    /// How long stacks are sampled in all, before and after: not at all if that took too large a share of the budget.
    pub(crate) fn profiles_time(&self) -> Duration {
        let both = 2 * self.profile_time;
        if 2 * both <= self.budget { both } else { Duration::ZERO }
    }

    /// The rate of all measurements; `None`: the highest possible.
    pub(crate) fn rate(&self) -> Option<LoadRate> {
        let default = Some(LoadRate::DEFAULT).filter(|_| self.objective == Objective::P99);
        self.load_rate.or(default).filter(|_| matches!(self.generator, Generator::Own(_)))
    }

    /// Checks the whole plan.
    ///
    /// # Errors
    /// What is wrong with it, the value, and what is allowed.
    pub fn check(&self) -> Result<(), Fault> {
        let fault = |field, message: String| Err(Fault { part: FaultAt::Field(field), message });
        if self.rungs.iter().all(|rung| matches!(rung.change, Attempt::Skip(_))) {
            return fault("rungs", "there is no rung to try; name tunings, or give a variant".to_owned());
        }
        if self.rungs.len() > RUNGS_MAX {
            let message = format!("rungs: got {}, need 1 to {RUNGS_MAX}", self.rungs.len());
            return Err(Fault { part: FaultAt::Rung(RUNGS_MAX), message });
        }
        let least = flatout_trial::compare::PAIRS_MIN;
        for (field, name, got, min, max) in [
            ("pairs_min", "pairs at least", self.pairs_min, least, PAIRS_MAX),
            ("pairs_max", "pairs at most", self.pairs_max, self.pairs_min, PAIRS_MAX),
        ] {
            if !(min..=max).contains(&got) {
                return fault(field, format!("{name}: got {got}, need {min} to {max}"));
            }
        }
        let fewest = flatout_trial::ORDERS_MIN;
        if self.orders != 0 && !(fewest..=ORDERS_MAX).contains(&self.orders) {
            return fault("orders", format!("orders: got {}, need {fewest} to {ORDERS_MAX}", self.orders));
        }
        if self.is_lab && matches!(self.server, ServerPlan::Running(_)) {
            let why =
                "the lab has networks of its own, so the climb has to start the server; give its command";
            return fault("is_lab", why.to_owned());
        }
        if self.lab_setup.is_some() && !self.is_lab {
            return fault("lab_setup", "lab-setup: there is no lab; add --lab, or leave it out".to_owned());
        }
        if self.is_lab && self.keep {
            let why = "changes in the lab disappear with it; leave out --keep or --lab";
            return fault("is_lab", why.to_owned());
        }
        if !(self.width_max > 0.0 && self.width_max.is_finite()) {
            return fault("width_max", format!("interval: got {}, need more than 0", self.width_max));
        }
        if self.interface.is_some() && matches!(self.generator, Generator::Own(_)) {
            let why = "the built-in generator loads the server from this machine, which passes no network device; \
                       give a command that loads it from another machine (--bench 'ssh client …'), or try --lab";
            return fault("interface", format!("interface: {why}"));
        }
        if let Some(rate) = self.load_rate {
            rate.check().or_else(|message| fault("load_rate", message))?;
            let why = match (&self.generator, self.objective) {
                (_, Objective::Throughput) => {
                    "at a given rate every server has the same throughput; use --for p99 or --for cpu"
                }
                (Generator::Command(_), _) => {
                    "your own generator sets its rate itself; leave out --load-rate or \
                                               --bench"
                }
                _ => "",
            };
            if !why.is_empty() {
                return fault("load_rate", format!("load rate: {why}"));
            }
        }
        for (at, rung) in self.rungs.iter().enumerate() {
            let fault = |message| Err(Fault { part: FaultAt::Rung(at), message });
            if self.rungs[..at].iter().any(|other| other.name == rung.name) {
                return fault(format!("there are two rungs named `{}`", rung.name));
            }
            self.check_rung(rung).or_else(|why| fault(format!("rung `{}`: {why}", rung.name)))?;
        }
        match &self.generator {
            Generator::Own(plan) => plan.check().or_else(|load| fault(load.field, load.message)),
            Generator::Command(_) => Ok(()),
        }
    }

    fn check_rung(&self, rung: &Rung) -> Result<(), String> {
        let Attempt::Variant(variant) = &rung.change else { return Ok(()) };
        let is_ours = matches!(self.server, ServerPlan::Command(_));
        match variant {
            Variant { is_burden: true, .. } if rung.needs == Needs::Reboot => {
                Err("a burden is added for a run only; it cannot need a reboot".to_owned())
            }
            Variant { server_command: None, server_arguments: None, set: None, .. } => {
                Err("it changes nothing; add a server command, server arguments or a set command".to_owned())
            }
            Variant { set: Some(_), unset: None, .. } => {
                Err("a set command needs an unset command: otherwise it could not be undone".to_owned())
            }
            Variant { set: None, unset: Some(_), .. } => {
                Err("it has an unset command and no set command".to_owned())
            }
            _ if !is_ours && variant.restarts() => Err(
                "it needs a restart of the server, and this climb did not start the server; give its command"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

impl Variant {
    /// Whether it needs a restart of the server.
    pub(crate) fn restarts(&self) -> bool {
        self.is_restarting || self.server_command.is_some() || self.server_arguments.is_some()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Plan(message)
        | Error::Server(message)
        | Error::Generator(message)
        | Error::Change(message)
        | Error::System(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(server: ServerPlan, variant: Variant) -> Plan {
        let rung = Rung { name: "a".to_owned(), change: Attempt::Variant(variant), needs: Needs::AnyPath };
        Plan::new(
            server,
            "http://127.0.0.1:1/".to_owned(),
            Generator::Command("echo 1".to_owned()),
            vec![rung],
        )
    }

    #[test]
    fn mistakes_are_reported() {
        let set = Variant { set: Some("true".to_owned()), ..Variant::default() };
        let whole = Variant { unset: Some("true".to_owned()), ..set.clone() };
        let other = Variant { server_command: Some("x".to_owned()), ..Variant::default() };
        let (ours, running) = (ServerPlan::Command("x".to_owned()), ServerPlan::Running(None));
        assert_eq!(plan(running.clone(), whole.clone()).check(), Ok(()));
        assert_eq!(plan(ours.clone(), other.clone()).check(), Ok(()));
        let good = plan(ours.clone(), whole);
        let mut burden = good.clone();
        burden.rungs[0].needs = Needs::Reboot;
        if let Attempt::Variant(variant) = &mut burden.rungs[0].change {
            variant.is_burden = true;
        }
        for (plan, expected) in [
            (burden, "rung `a`: a burden is added for a run only; it cannot need a reboot"),
            (plan(ours.clone(), Variant::default()), "rung `a`: it changes nothing"),
            (plan(ours.clone(), set), "could not be undone"),
            (plan(running, other), "did not start the server"),
            (Plan { rungs: Vec::new(), ..good.clone() }, "no rung to try"),
            (
                Plan { rungs: [&good.rungs[..], &good.rungs[..]].concat(), ..good.clone() },
                "two rungs named `a`",
            ),
            (Plan { orders: 2, ..good.clone() }, "orders: got 2, need 6 to"),
            (Plan { load_rate: Some(LoadRate::Share(1.5)), ..good.clone() }, "load rate: got 150 %"),
            (Plan { load_rate: Some(LoadRate::PerS(0.0)), ..good.clone() }, "load rate: got 0"),
            (Plan { load_rate: Some(LoadRate::DEFAULT), ..good.clone() }, "the same throughput"),
            (
                Plan { load_rate: Some(LoadRate::DEFAULT), objective: Objective::P99, ..good.clone() },
                "sets its rate itself",
            ),
            (Plan { width_max: f64::NAN, ..good.clone() }, "interval: got NaN"),
            (Plan { pairs_min: 1, ..good.clone() }, "pairs at least: got 1, need 4 to"),
            (Plan { pairs_max: 4, ..good }, "pairs at most: got 4, need 5 to"),
        ] {
            let message = plan.check().unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_change_of_the_device_is_for_all_servers() {
        let rung = |command: &str, needs: Needs| {
            let unset = Some("true".to_owned());
            let variant = Variant { set: Some(command.to_owned()), unset, ..Variant::default() };
            Rung { needs, ..plan(ServerPlan::Running(None), variant).rungs[0].clone() }
        };
        assert!(rung("ethtool -K flatout0 gro off", Needs::Card).is_for_all_servers(8080));
        assert!(!rung("sysctl -w a=1", Needs::AnyPath).is_for_all_servers(8080), "its scope is unknown");
        assert!(!rung("nft add rule notrack tcp dport 8080", Needs::Card).is_for_all_servers(8080));
        assert!(!rung("renice -5 $FLATOUT_PIDS", Needs::Card).is_for_all_servers(8080));
    }

    #[test]
    fn cpu_time_decides_where_the_generator_limits() {
        let changed = || Variant { server_command: Some("x".to_owned()), ..Variant::default() };
        let machine =
            || Variant { set: Some("true".to_owned()), unset: Some("true".to_owned()), ..Variant::default() };
        let target = load::Target::parse("http://127.0.0.1:1/").unwrap();
        let request = load::Request::get(&target.host, &target.path);
        let own = Generator::Own(Box::new(load::Plan::new(target.remote, vec![request])));
        let ours = ServerPlan::Command("x".to_owned());
        let local = Plan { generator: own, ..plan(ours.clone(), changed()) };
        let far = Plan { url: "http://192.0.2.1/".to_owned(), ..local.clone() };
        let of_the_machine = Plan { rungs: plan(ours.clone(), machine()).rungs, ..local.clone() };
        let running = Plan { server: ServerPlan::Running(None), ..local.clone() };
        assert_eq!(local.objective_by_limit(false, false), Objective::Cpu);
        for (plan, is_lab) in [(&local, true), (&of_the_machine, false), (&of_the_machine, true)] {
            assert_eq!(plan.objective_by_limit(is_lab, true), Objective::Cpu);
            assert_eq!(plan.objective_by_limit(is_lab, false), Objective::Throughput);
        }
        for other in [far, running, plan(ours, changed())] {
            assert_eq!(other.objective_by_limit(false, true), Objective::Throughput, "{other:?}");
        }
    }
}
