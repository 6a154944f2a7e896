//! The options of `bench`, and the plan that follows from them.

use std::time::Duration;

use flatout_load::find_max::Slo;
use flatout_load::{
    Arrival, ClientPlan, Expect, Outcome, Pacing, Plan, Request, Security, Stage, Target, Transport, list,
};
use flatout_report::require::{Check, Requirement};

use crate::Failure;
use crate::shared::{Loading, Showing};

/// Default duration of a run; shorter if there are many.
const DURATION: Duration = Duration::from_secs(10);
const DURATION_OF_MANY: Duration = Duration::from_secs(1);

/// Time limit of a run by count.
const DURATION_BY_COUNT: Duration = Duration::from_secs(3600);

/// Default warm-up of a closed loop: in its first moments no response can have arrived yet, but the time would count.
const WARMUP: Duration = Duration::from_millis(500);

/// How often a held connection sends a request: more often than servers close idle ones.
const HOLD_INTERVAL: Duration = Duration::from_secs(10);

/// The schemes of WebSocket URLs, and the schemes that they are requested with.
const WEBSOCKETS: [(&str, &str); 2] = [("ws://", "http://"), ("wss://", "https://")];

/// The values as given; `None` if not given.
pub(crate) struct BenchOptions {
    pub(crate) loading: Loading,
    pub(crate) showing: Showing,
    pub(crate) connections: usize,
    pub(crate) duration: Option<Duration>,
    pub(crate) requests_max: Option<u64>,
    pub(crate) warmup: Option<Duration>,
    pub(crate) trials: usize,
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) arrival: Arrival,
    pub(crate) stages: Vec<Stage>,
    pub(crate) hold: Option<usize>,
    pub(crate) find_max: bool,
    pub(crate) objective: Option<Slo>,
    pub(crate) method: Option<String>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) list: Option<String>,
    pub(crate) pipeline: usize,
    pub(crate) close: bool,
    pub(crate) http2: bool,
    pub(crate) streams: Option<usize>,
    pub(crate) tls: ClientPlan,
    /// The name in the server's certificate, if it differs from the URL's.
    pub(crate) secure_name: Option<String>,
    pub(crate) subscribe: Option<Transport>,
    pub(crate) sources: Vec<std::net::IpAddr>,
    pub(crate) expect: Expect,
    pub(crate) answer_time_max: Duration,
    pub(crate) connect_time_max: Duration,
    pub(crate) head_bytes_max: usize,
    /// By default 0, or no limit if a requirement limits errors.
    pub(crate) errors_max: Option<u64>,
    pub(crate) requirements: Vec<Requirement>,
    pub(crate) junit: Option<String>,
    pub(crate) markdown: Option<String>,
    pub(crate) vs: Option<String>,
    pub(crate) vs_commands: Vec<String>,
    pub(crate) pairs: usize,
    pub(crate) server_pid: Option<u32>,
    pub(crate) latency: bool,
    pub(crate) json: bool,
    pub(crate) csv: bool,
    pub(crate) hdr: Option<String>,
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            loading: Loading::default(),
            showing: Showing::default(),
            connections: 10,
            duration: None,
            requests_max: None,
            warmup: None,
            trials: 1,
            rate_per_s: None,
            arrival: Arrival::Constant,
            stages: Vec::new(),
            hold: None,
            find_max: false,
            objective: None,
            method: None,
            body: None,
            list: None,
            pipeline: 1,
            close: false,
            http2: false,
            streams: None,
            tls: ClientPlan::default(),
            secure_name: None,
            subscribe: None,
            sources: Vec::new(),
            expect: Expect::default(),
            answer_time_max: Duration::from_secs(10),
            connect_time_max: Duration::from_secs(5),
            head_bytes_max: 16 << 10,
            errors_max: None,
            requirements: Vec::new(),
            junit: None,
            markdown: None,
            vs: None,
            vs_commands: Vec::new(),
            pairs: 10,
            server_pid: None,
            latency: false,
            json: false,
            csv: false,
            hdr: None,
        }
    }
}

impl BenchOptions {
    /// The objective of a search, if requested.
    pub(crate) fn find_max(&self) -> Result<Option<Slo>, Failure> {
        match (self.find_max, self.objective) {
            (true, None) => Err(Failure::Usage("--find-max needs an objective: --slo p99=5ms".to_owned())),
            (false, Some(_)) => Err(Failure::Usage("--slo is for --find-max; give both".to_owned())),
            (_, objective) => Ok(objective),
        }
    }

    /// Checks that requirements, and files of their results, are those of plain runs.
    pub(crate) fn check_requirements(&self) -> Result<(), Failure> {
        let wrong = |message: &str| Err(Failure::Usage(message.to_owned()));
        let has_some = self.junit.is_some() || !self.requirements.is_empty();
        match has_some && self.is_of_many() {
            true => {
                wrong("--require and --junit are for plain runs; leave out --find-max, --vs and --vs-cmd")
            }
            false => Ok(()),
        }
    }

    /// Most errors of a good run; `None` if requirements say it in another way.
    pub(crate) fn errors_max(&self) -> Option<u64> {
        let is_limited = self.requirements.iter().any(Requirement::is_on_errors);
        self.errors_max.or((!is_limited).then_some(0))
    }

    /// All that decides about the exit status.
    pub(crate) fn checks(&self, outcome: &Outcome) -> Vec<Check> {
        let errors = self.errors_max().map(Requirement::errors_at_most);
        // A run that was stopped at once has nothing to report.
        let errors = errors.filter(|_| !outcome.is_stopped || outcome.requests > 0);
        self.requirements.iter().chain(&errors).map(|it| it.check(outcome)).collect()
    }

    /// Whether it consists of several runs that are compared.
    fn is_of_many(&self) -> bool {
        self.find_max || self.vs.is_some() || !self.vs_commands.is_empty()
    }

    /// The checked plan of a run against `url`.
    pub(crate) fn plan(&self, url: &str) -> Result<Plan, String> {
        let (target, subscribe) = self.target(url)?;
        let mut plan = Plan {
            tls: self.security(&target),
            streams: self.streams()?,
            threads: self.loading.threads,
            connections: self.hold.unwrap_or(self.connections),
            cpus: self.loading.cpus.clone(),
            duration: self.duration(),
            requests_max: self.requests_max,
            warmup: self.warmup()?,
            pacing: self.pacing()?,
            stages: self.stages.clone(),
            pipeline: self.pipeline,
            close: self.close,
            subscribe,
            sources: self.sources.clone(),
            expect: self.expect.clone(),
            connect_time_max: self.connect_time_max,
            answer_time_max: self.answer_time_max,
            head_bytes_max: self.head_bytes_max,
            server_pids: self.server_pid.into_iter().collect(),
            seed: self.loading.seed,
            ..Plan::new(target.remote.clone(), self.requests(&target)?)
        };
        // More threads than connections would be idle.
        plan.threads = plan.threads.min(plan.connections.max(1));
        plan.check()?;
        Ok(plan)
    }

    /// The target, and how its messages are subscribed to, if they are.
    fn target(&self, url: &str) -> Result<(Target, Option<Transport>), String> {
        let is_of =
            |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        let Some((scheme, http)) = WEBSOCKETS.into_iter().find(|(scheme, _)| is_of(scheme)) else {
            return Ok((Target::parse(url)?, self.subscribe));
        };
        let target = Target::parse(&format!("{http}{}", &url[scheme.len()..]))?;
        match self.subscribe {
            Some(Transport::Events | Transport::WebSocket) => Ok((target, Some(Transport::WebSocket))),
            Some(Transport::LongPoll) => Err(format!("`{url}`: --long-poll needs an http URL")),
            None => Err(format!("`{url}`: a ws URL is for subscribers; add --events")),
        }
    }

    fn security(&self, target: &Target) -> Option<Security> {
        let name = target.secure_name.as_ref()?;
        let name = self.secure_name.as_ref().unwrap_or(name).clone();
        Some(Security { name, client: self.tls.clone() })
    }

    fn streams(&self) -> Result<Option<usize>, String> {
        match (self.http2, self.streams) {
            (false, Some(_)) => Err("--streams is for --http2; give both".to_owned()),
            (false, None) => Ok(None),
            (true, streams) => Ok(Some(streams.unwrap_or(1))),
        }
    }

    fn duration(&self) -> Duration {
        if !self.stages.is_empty() {
            return self.stages.iter().map(|stage| stage.time).sum();
        }
        self.duration.unwrap_or(match self.requests_max {
            Some(_) => DURATION_BY_COUNT,
            None if self.is_of_many() => DURATION_OF_MANY,
            None => DURATION,
        })
    }

    fn warmup(&self) -> Result<Duration, String> {
        let is_by_time =
            self.pacing()? == Pacing::Closed && self.requests_max.is_none() && self.subscribe.is_none();
        let default = if is_by_time { WARMUP.min(self.duration()) } else { Duration::ZERO };
        Ok(self.warmup.unwrap_or(default))
    }

    fn pacing(&self) -> Result<Pacing, String> {
        if !self.stages.is_empty() {
            if self.rate_per_s.is_some()
                || self.hold.is_some()
                || self.duration.is_some()
                || self.is_of_many()
            {
                let message = "--stage sets rates and times; leave out --rate, --hold, --duration, --find-max, --vs and --vs-cmd";
                return Err(message.to_owned());
            }
            return Ok(Pacing::Staged { arrival: self.arrival });
        }
        match (self.rate_per_s, self.hold) {
            (Some(_), Some(_)) => Err("--hold sets the rate itself; leave out --rate".to_owned()),
            (Some(per_s), None) => Ok(Pacing::Open { per_s, arrival: self.arrival }),
            (None, Some(count)) => {
                Ok(Pacing::Open { per_s: count as f64 / HOLD_INTERVAL.as_secs_f64(), arrival: self.arrival })
            }
            (None, None) => Ok(Pacing::Closed),
        }
    }

    fn requests(&self, target: &Target) -> Result<Vec<Request>, String> {
        let paths = match &self.list {
            Some(file) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|error| format!("--urls: cannot read `{file}`: {error}"))?;
                list(&text, target).map_err(|error| format!("--urls: `{file}`, {error}"))?
            }
            None => vec![(1, target.path.clone())],
        };
        let method = match (&self.method, &self.body) {
            (Some(method), _) => method,
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        let request = |(weight, path): (u32, String)| Request {
            method: method.to_owned(),
            fields: self.loading.fields.clone(),
            body: self.body.clone(),
            weight,
            ..Request::get(&target.host, &path)
        };
        Ok(paths.into_iter().map(request).collect())
    }
}
