//! The options of `climb`, and the plan that follows from them.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use flatout_climb::{
    Attempt, Config, Facts, Fault, FaultAt, Generator, LAB_DEVICE, LoadRate, Needs, Objective, Plan, Rung,
    ServerPlan, Tuned, Variant,
};
use flatout_config::Places;
use flatout_load::{self as load, Remote, Request, Target, allowed_cpus};
use flatout_report::climb::Today;
use flatout_tune::{Consent, Host, ServerSelector, TAPS, find, quote};

use crate::shared::{Loading, Showing};

/// Default connections and duration of a run: short, because there are many.
const CONNECTIONS: usize = 64;
const RUN_TIME: Duration = Duration::from_millis(500);
const WARMUP: Duration = Duration::from_millis(100);

/// Shows the congestion control.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const CONGESTION_AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// The congestion control with the least work per packet.
const CONGESTION_CHEAPEST: &str = "reno";

/// The values as given; `None` if not given.
pub(crate) struct ClimbOptions {
    pub(crate) loading: Loading,
    pub(crate) showing: Showing,
    pub(crate) server_command: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) port: Option<u16>,
    pub(crate) url: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) generator_command: Option<String>,
    pub(crate) connections: usize,
    pub(crate) run_time: Duration,
    pub(crate) warmup: Duration,
    pub(crate) plan_file: Option<PathBuf>,
    /// Positions of the plan file's settings.
    pub(crate) places: Option<Places>,
    /// Rungs in order: those of a plan file, or the variants of flags.
    pub(crate) rungs: Vec<Rung>,
    pub(crate) low_risk: bool,
    pub(crate) cache_time: Option<Duration>,
    pub(crate) accepts_risk: bool,
    pub(crate) stops: Vec<u32>,
    pub(crate) state: Option<PathBuf>,
    pub(crate) root: Option<PathBuf>,
    pub(crate) is_resumed: bool,
    pub(crate) objective: Option<Objective>,
    pub(crate) load_rate: Option<LoadRate>,
    pub(crate) width_max: Option<f64>,
    pub(crate) pairs_min: Option<usize>,
    pub(crate) pairs_max: Option<usize>,
    pub(crate) budget: Option<Duration>,
    pub(crate) orders: usize,
    pub(crate) is_lab: bool,
    pub(crate) lab_setup: Option<String>,
    pub(crate) keep: bool,
    pub(crate) profile_time: Option<Duration>,
    pub(crate) json: Option<String>,
    pub(crate) today: Today,
}

impl Default for ClimbOptions {
    fn default() -> Self {
        ClimbOptions {
            loading: Loading::default(),
            showing: Showing::default(),
            server_command: None,
            pid: None,
            port: None,
            url: None,
            interface: None,
            generator_command: None,
            connections: CONNECTIONS,
            run_time: RUN_TIME,
            warmup: WARMUP,
            plan_file: None,
            places: None,
            rungs: Vec::new(),
            low_risk: false,
            cache_time: None,
            accepts_risk: false,
            stops: Vec::new(),
            state: None,
            root: None,
            is_resumed: false,
            objective: None,
            load_rate: None,
            width_max: None,
            pairs_min: None,
            pairs_max: None,
            budget: None,
            orders: 0,
            is_lab: false,
            lab_setup: None,
            keep: false,
            profile_time: None,
            json: None,
            today: Today::default(),
        }
    }
}

impl ClimbOptions {
    /// The variant that the flags after `--variant` apply to.
    pub(crate) fn variant(&mut self) -> Result<&mut Variant, String> {
        match self.rungs.last_mut().map(|rung| &mut rung.change) {
            Some(Attempt::Variant(variant)) => Ok(variant),
            _ => Err("give --variant NAME first; this flag applies to the variant before it".to_owned()),
        }
    }

    /// The machine to climb.
    pub(crate) fn host(&self) -> Host {
        self.root.as_deref().map_or_else(Host::live, Host::at)
    }

    /// The journal's folder.
    pub(crate) fn state_folder(&self, host: &Host) -> PathBuf {
        self.state.clone().unwrap_or_else(|| host.state_default())
    }

    /// The tunings of this machine, for the server at `url`.
    pub(crate) fn tunings<'h>(&self, host: &'h Host, url: &str) -> Result<Tuned<'h>, String> {
        let device = self.is_lab.then(|| LAB_DEVICE.to_owned()).or_else(|| self.interface.clone());
        let tunings = self.tunings_by(device, host, url)?;
        tunings.stopping(self.stops.clone()).map_err(|error| format!("--stop: {error}"))
    }

    /// The same for requests that arrive on `device`; if `None`, on the device that leads to the port.
    fn tunings_by<'h>(&self, device: Option<String>, host: &'h Host, url: &str) -> Result<Tuned<'h>, String> {
        let port = match self.target(url)?.remote {
            Remote::Tcp(address) => Some(address.port()),
            Remote::Unix(_) => None,
        };
        let asked = ServerSelector { port, pid: self.pid, device };
        Ok(Tuned::new(host, asked, self.state_folder(host), self.accepts_risk))
    }

    /// The checked plan; tunings come before the variants.
    pub(crate) fn plan(&self, mut names: Vec<String>, host: &Host) -> Result<Plan, String> {
        // Before anything is printed; a file's rungs are checked at their positions.
        let consent = Consent { is_named: true, accepts_risk: self.accepts_risk };
        for name in &names {
            let about = crate::tune::known(name)?.about();
            if consent.permits(about).is_err() {
                let risk = about.risk.name();
                return Err(format!(
                    "{name}: {risk} risk: {}; if that is acceptable here: --accept-risk",
                    about.lost
                ));
            }
        }
        let (server, url) = self.server()?;
        if self.low_risk {
            // The lab does not exist yet: useful tunings are looked up outside.
            let all = self.tunings_by(self.interface.clone(), host, &url)?.low_risk();
            let new: Vec<String> = all.into_iter().filter(|name| !names.contains(name)).collect();
            names.extend(new);
        }
        let is_by_itself = names.is_empty() && self.rungs.is_empty() && !self.low_risk;
        if is_by_itself {
            names = self.tunings_by(self.interface.clone(), host, &url)?.proposals(self.accepts_risk).0;
        }
        let tuning = |name| Rung { name, change: Attempt::Tuning, needs: Needs::AnyPath };
        let mut rungs: Vec<Rung> = names.into_iter().map(tuning).collect();
        rungs.extend(self.rungs.iter().cloned().map(|rung| self.permitted(rung)));
        let mut config = None;
        if is_by_itself && self.is_bundled() {
            rungs.extend(bundled_rungs());
        } else if is_by_itself && let ServerPlan::Command(command) = &server {
            let (proposals, found) = Config::proposals(command, self.facts());
            let new = proposals.into_iter().filter(|rung| rungs.iter().all(|other| other.name != rung.name));
            rungs.extend(new.collect::<Vec<_>>());
            config = found;
        }
        let generator = self.generator(&url)?;
        let defaults = Plan::new(server, url, generator, rungs);
        let pairs_min = self.pairs_min.unwrap_or(defaults.pairs_min);
        let plan = Plan {
            objective: self.objective.unwrap_or_else(|| {
                defaults.objective_by_limit(self.is_lab, load::KernelWork::start().is_ok())
            }),
            load_rate: self.load_rate,
            interface: self.interface.clone(),
            config,
            width_max: self.width_max.unwrap_or(defaults.width_max),
            pairs_min,
            pairs_max: self.pairs_max.unwrap_or(defaults.pairs_max.max(pairs_min)),
            budget: self.budget.unwrap_or(defaults.budget),
            orders: self.orders,
            keep: self.keep,
            is_lab: self.is_lab,
            lab_setup: self.lab_setup.clone(),
            profile_time: self.profile_time.unwrap_or(defaults.profile_time),
            seed: self.loading.seed,
            ..defaults
        };
        plan.check().map_err(|fault| self.shown(&plan, fault))?;
        self.check_stops(&plan)?;
        Ok(plan)
    }

    /// The tunings of a plan that are in no file: named on the command line, or found to be of low risk.
    pub(crate) fn named(&self, plan: &Plan) -> Vec<String> {
        let count = plan.rungs.len().saturating_sub(self.rungs.len());
        let named = plan.rungs.iter().take(count).filter(|rung| rung.change == Attempt::Tuning);
        named.map(|rung| rung.name.clone()).collect()
    }

    fn check_stops(&self, plan: &Plan) -> Result<(), String> {
        let has_rung = plan.rungs.iter().any(|rung| rung.change == Attempt::Tuning && rung.name == TAPS);
        let why = match self.stops.is_empty() {
            true => return Ok(()),
            false if !has_rung => format!("it needs the tuning `{TAPS}`; name that too"),
            false if self.is_lab => {
                "in the lab only programs that the climb starts exist; leave out --stop or --lab".to_owned()
            }
            false if !(self.accepts_risk && self.keep) => {
                "it ends another program for good, which needs --accept-risk and --keep; the cost of the tap is \
                 measured without --stop, too"
                    .to_owned()
            }
            false => return Ok(()),
        };
        Err(format!("--stop: {why}"))
    }

    /// A fault of the plan, with its position if it comes from a file.
    fn shown(&self, plan: &Plan, fault: Fault) -> String {
        let Fault { part, message } = fault;
        let Some(places) = &self.places else { return message };
        let mistake = match part {
            FaultAt::Field("rungs") => Some(places.whole(&message)),
            FaultAt::Field(field) => places.setting(word(field), &message),
            FaultAt::Rung(at) => plan.rungs.get(at).and_then(|rung| places.rung(&rung.name, &message)),
        };
        mistake.map_or(message, |mistake| mistake.to_string())
    }

    /// The same for an invalid address.
    fn target(&self, url: &str) -> Result<Target, String> {
        let shown = |message: String| match &self.places {
            Some(places) => places.setting("url", &message).map_or(message, |mistake| mistake.to_string()),
            None => message,
        };
        Target::parse_plain(url).map_err(shown)
    }

    /// These options from a file, prepared for `flags` named `given` to be read over them: anything named on the
    /// command line replaces everything of its kind.
    pub(crate) fn under(mut self, flags: &ClimbOptions, names: &[String], given: &[&str]) -> ClimbOptions {
        if flags.server_command.is_some() || flags.pid.is_some() {
            (self.server_command, self.pid) = (None, None);
        }
        if flags.url.is_some() || flags.port.is_some() {
            (self.url, self.port) = (None, None);
        }
        if !flags.loading.fields.is_empty() {
            self.loading.fields.clear();
        }
        let has_rungs = !names.is_empty() || !flags.rungs.is_empty() || flags.low_risk;
        if has_rungs {
            self.rungs.clear();
        }
        if let Some(places) = &mut self.places {
            given.iter().for_each(|name| places.forget_setting(name));
            if has_rungs {
                places.forget_rungs();
            }
        }
        self
    }

    /// The rung; or, if a file names a tuning that reduces protection and --accept-risk is missing, the reason why it
    /// is skipped. A name on the command line is refused instead, before anything is done.
    fn permitted(&self, rung: Rung) -> Rung {
        let consent = Consent { is_named: true, accepts_risk: self.accepts_risk };
        let about = (rung.change == Attempt::Tuning).then(|| find(&rung.name)).flatten().map(|t| t.about());
        match about {
            Some(about) if consent.permits(about).is_err() => Rung {
                change: Attempt::Skip(format!("{}; if that is acceptable: --accept-risk", about.lost)),
                ..rung
            },
            _ => rung,
        }
    }

    /// What proposals for a server's configuration depend on.
    fn facts(&self) -> Facts {
        Facts { cpus: allowed_cpus().len(), cache_time: self.cache_time }
    }

    /// Whether the bundled server is used.
    fn is_bundled(&self) -> bool {
        self.server_command.is_none() && self.pid.is_none() && self.port.is_none() && self.url.is_none()
    }

    fn server(&self) -> Result<(ServerPlan, String), String> {
        let url = match (&self.url, self.port) {
            (Some(url), _) => Some(url.clone()),
            (None, Some(port)) => Some(format!("http://127.0.0.1:{port}/")),
            (None, None) => None,
        };
        match (&self.server_command, self.pid, url) {
            (Some(_), Some(_), _) => {
                Err("--server-cmd starts a server, --pid names one that runs; give one".to_owned())
            }
            (Some(command), None, Some(url)) => Ok((ServerPlan::Command(command.clone()), url)),
            (None, pid, Some(url)) => Ok((ServerPlan::Running(pid), url)),
            (Some(_), None, None) => Err("--server-cmd needs --url: what to request".to_owned()),
            (None, Some(_), None) => Err("--pid needs --url or --port: what to request".to_owned()),
            (None, None, None) => self.bundled(),
        }
    }

    /// The bundled JSON API on a free port, with one worker.
    fn bundled(&self) -> Result<(ServerPlan, String), String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(|error| format!("no free port on 127.0.0.1: {error}"))?.port();
        let host = if self.is_lab { "0.0.0.0" } else { "127.0.0.1" };
        let program = quote(&program.display().to_string());
        let command = format!("exec {program} json-api --listen {host}:{port}");
        Ok((ServerPlan::Command(format!("{command} --workers 1")), format!("http://127.0.0.1:{port}/json")))
    }

    fn generator(&self, url: &str) -> Result<Generator, String> {
        if let Some(command) = &self.generator_command {
            return Ok(Generator::Command(command.clone()));
        }
        let target = self.target(url)?;
        let request =
            Request { fields: self.loading.fields.clone(), ..Request::get(&target.host, &target.path) };
        Ok(Generator::Own(Box::new(load::Plan {
            threads: self.loading.threads.min(self.connections.max(1)),
            connections: self.connections,
            cpus: self.loading.cpus.clone(),
            duration: self.run_time,
            warmup: self.warmup,
            is_spread: true,
            seed: self.loading.seed,
            ..load::Plan::new(target.remote, vec![request])
        })))
    }
}

/// The name of a plan's field in a file.
fn word(field: &'static str) -> &'static str {
    match field {
        "pairs_min" => "pairs",
        "pairs_max" => "pairs-max",
        "load_rate" => "load-rate",
        "orders" => "shapley",
        "is_lab" => "lab",
        "lab_setup" => "lab-setup",
        "width_max" => "interval",
        // A file gives a request's header fields; its address is checked before.
        "requests" => "header",
        same => same,
    }
}

/// The rungs for the bundled server: the narrowest form of each, without effect on the host.
fn bundled_rungs() -> Vec<Rung> {
    let rung = |name: &str, arguments: String| {
        let variant = Variant { server_arguments: Some(arguments), ..Variant::default() };
        Rung { name: name.to_owned(), change: Attempt::Variant(variant), needs: Needs::AnyPath }
    };
    let mut rungs = vec![rung("workers", format!("--workers {}", allowed_cpus().len().max(2)))];
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (now, available) = (read(CONGESTION), read(CONGESTION_AVAILABLE));
    if now.trim() != CONGESTION_CHEAPEST
        && available.split_whitespace().any(|name| name == CONGESTION_CHEAPEST)
    {
        rungs.push(rung(CONGESTION_CHEAPEST, format!("--congestion {CONGESTION_CHEAPEST}")));
    }
    let locality = rung("locality", "--locality on".to_owned());
    rungs.push(Rung { needs: Needs::Card, ..locality });
    rungs
}
