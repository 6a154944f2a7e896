//! Commands about the servers of running upstreams: `flatout upstream`, and the same by the admin listener. Each is logged with
//! who wanted it, and kept in the upstream's state file, if it has one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use flatout_admin::upstreams::{UpstreamAction, UpstreamCommand};
use flatout_engine::say;
use flatout_proxy::{Figures, Proxy, Server, ServerFigures, ServerMode, ServerStatus, UpstreamState};

use crate::upstream_state;

/// The most bytes of a name of who wants something.
const BY_BYTES_MAX: usize = 100;

/// Servers about which the last change is remembered; older ones are forgotten.
const CHANGES_MAX: usize = 4096;

/// The largest weight.
const WEIGHT_MAX: u32 = 1_000_000;

/// Who has last changed which server, by upstream and server.
#[derive(Default)]
pub(crate) struct UpstreamJournal(Mutex<BTreeMap<(String, String), JournalEntry>>);

struct JournalEntry {
    by: String,
    at: Instant,
}

impl UpstreamJournal {
    pub(crate) fn note(&self, upstream: &str, server: &str, by: &str) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CHANGES_MAX
            && let Some(oldest) = entries.iter().min_by_key(|(_, it)| it.at).map(|(key, _)| key.clone())
        {
            entries.remove(&oldest);
        }
        let entry = JournalEntry { by: by.to_owned(), at: Instant::now() };
        entries.insert((upstream.to_owned(), server.to_owned()), entry);
    }

    /// ` (by NAME, 12 s ago)`, or nothing.
    fn shown(&self, upstream: &str, server: &str) -> String {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(&(upstream.to_owned(), server.to_owned()));
        entry.map_or(String::new(), |it| format!(" (by {}, {} s ago)", it.by, it.at.elapsed().as_secs()))
    }
}

/// What a command works on.
pub(crate) struct UpstreamCommands<'c> {
    pub(crate) proxy: &'c Proxy,
    pub(crate) figures: Option<&'c Figures>,
    pub(crate) journal: &'c UpstreamJournal,
    /// See [`crate::Source::owns_servers`].
    pub(crate) owns_servers: bool,
}

impl UpstreamCommands<'_> {
    /// Runs a command. Returns what has happened.
    pub(crate) fn run(&self, command: &[u8]) -> Result<String, String> {
        let command: UpstreamCommand = serde_json::from_slice(command).map_err(|error| {
            format!(
                "the command is not understood: {error}; need JSON such as \
                 {{\"upstream\":\"app\",\"action\":\"drain\",\"server\":\"127.0.0.1:8000\"}}"
            )
        })?;
        let by = checked_name(command.by.as_deref())?;
        let upstream = match (&command.upstream, &command.action) {
            (upstream, UpstreamAction::List) => return self.list(upstream.as_deref()),
            (Some(upstream), _) => upstream.as_str(),
            (None, _) => return Err("the command names no upstream".to_owned()),
        };
        let message = self.change(upstream, &command.action, &by)?;
        say(format_args!("{message}; by {by}"));
        match upstream_state::write(self.proxy, upstream) {
            Ok(true) => Ok(message),
            Ok(false) => Ok(format!(
                "{message}; this stays until the site file has other servers for the upstream, or the server is restarted"
            )),
            Err(why) => Err(format!("{message}; but it was not written to the upstream's state file: {why}")),
        }
    }

    fn change(&self, upstream: &str, action: &UpstreamAction, by: &str) -> Result<String, String> {
        match action {
            UpstreamAction::List => self.list(Some(upstream)),
            UpstreamAction::Add { server, weight, backup } => {
                self.add(upstream, server, weight.unwrap_or(1), *backup, by)
            }
            UpstreamAction::Remove { server } => self.remove(upstream, server, by),
            UpstreamAction::Drain { server } => self.mode(upstream, server, ServerMode::Draining, by),
            UpstreamAction::Down { server } => self.mode(upstream, server, ServerMode::SetDown, by),
            UpstreamAction::Up { server } => self.mode(upstream, server, ServerMode::Serving, by),
            UpstreamAction::Weight { server, weight } => self.weight(upstream, server, *weight, by),
            UpstreamAction::Set { servers } => self.set(upstream, servers, by),
            UpstreamAction::Undo => self.undo(upstream, by),
        }
    }

    fn add(
        &self,
        upstream: &str,
        server: &str,
        weight: u32,
        backup: bool,
        by: &str,
    ) -> Result<String, String> {
        check_weight(weight)?;
        let state = self.owned_state(upstream)?;
        let server = Server { weight, backup, ..self.server(&state, server)? };
        if let Some(known) = state.servers.iter().find(|it| it.server.address == server.address) {
            let by = self.journal.shown(upstream, &known.label);
            return Err(format!(
                "upstream {upstream} has server {} already{by}: weight {}, {}",
                known.label,
                known.server.weight,
                known.state.name()
            ));
        }
        let label = server.address.to_string();
        let servers: Vec<Server> = state.servers.into_iter().map(|it| it.server).chain([server]).collect();
        self.proxy.set_servers(upstream, &servers)?;
        self.journal.note(upstream, &label, by);
        let count = servers.len();
        Ok(format!("upstream {upstream}: added server {label} with weight {weight}; it has {count} now"))
    }

    fn remove(&self, upstream: &str, server: &str, by: &str) -> Result<String, String> {
        let state = self.owned_state(upstream)?;
        let known = state.server(&self.server(&state, server)?.address)?.clone();
        let rest = state.servers.iter().filter(|it| it.server.address != known.server.address);
        let servers: Vec<Server> = rest.map(|it| it.server.clone()).collect();
        self.proxy.set_servers(upstream, &servers)?;
        self.journal.note(upstream, &known.label, by);
        let (busy, rest) = (self.busy(upstream, &known.label), self.rest(upstream));
        Ok(format!("upstream {upstream}: removed server {}{busy}{rest}", known.label))
    }

    fn mode(&self, upstream: &str, server: &str, mode: ServerMode, by: &str) -> Result<String, String> {
        let state = self.state(upstream)?;
        let known = state.server(&self.server(&state, server)?.address)?;
        let label = &known.label;
        if mode == ServerMode::Serving && known.server.drain {
            let places: Vec<String> = state.sources.iter().map(|it| it.source.place.to_string()).collect();
            let places = places.join(" and ");
            return Err(format!("upstream {upstream}: server {label} is drained by {places}: change that"));
        }
        let former = self.proxy.set_mode(upstream, &known.server.address, mode)?;
        let what = match mode {
            ServerMode::Serving => "gets requests while it is up",
            ServerMode::Draining => "is draining and gets no more requests",
            ServerMode::SetDown => "is set down and gets no more requests",
        };
        let busy = if mode == ServerMode::Serving { String::new() } else { self.busy(upstream, label) };
        if former == mode {
            let by = self.journal.shown(upstream, label);
            return Ok(format!(
                "upstream {upstream}: nothing to do, server {label} {what} already{by}{busy}"
            ));
        }
        self.journal.note(upstream, label, by);
        let was = match former {
            ServerMode::Serving => "",
            ServerMode::Draining => " (it was draining)",
            ServerMode::SetDown => " (it was set down)",
        };
        let rest = self.rest(upstream);
        Ok(format!("upstream {upstream}: server {label} {what}{was}{busy}{rest}"))
    }

    fn weight(&self, upstream: &str, server: &str, weight: u32, by: &str) -> Result<String, String> {
        check_weight(weight)?;
        let state = self.owned_state(upstream)?;
        let known = state.server(&self.server(&state, server)?.address)?;
        let former = self.proxy.set_weight(upstream, &known.server.address, weight)?;
        self.journal.note(upstream, &known.label, by);
        let label = &known.label;
        Ok(format!("upstream {upstream}: server {label} has the weight {weight} now (it was {former})"))
    }

    fn set(&self, upstream: &str, servers: &[String], by: &str) -> Result<String, String> {
        let state = self.owned_state(upstream)?;
        let wanted = |text: &String| {
            let server = self.server(&state, text)?;
            // Weights stay.
            let known = state.servers.iter().find(|it| it.server.address == server.address);
            Ok(known.map_or(server, |it| it.server.clone()))
        };
        let servers = servers.iter().map(wanted).collect::<Result<Vec<_>, String>>()?;
        let changes = self.proxy.set_servers(upstream, &servers)?;
        for label in changes.added.iter().chain(&changes.removed) {
            self.journal.note(upstream, label, by);
        }
        let (count, rest) = (servers.len(), self.rest(upstream));
        Ok(format!("upstream {upstream}: {changes}; it has {count} now{rest}"))
    }

    /// Makes the servers those of the plan again. Of one whose list comes from elsewhere only drains and the like are taken back.
    fn undo(&self, upstream: &str, by: &str) -> Result<String, String> {
        let plan =
            self.proxy.plan(upstream).ok_or_else(|| format!("there is no plan of upstream {upstream}"))?;
        if self.owns_servers {
            return Err(format!(
                "upstream {upstream}: its servers come from a controller; drain and up are for one of them"
            ));
        }
        let mut undone = Vec::new();
        // First the list: a server that is to go must not get requests again before.
        if plan.sources.is_empty() {
            let changes = self.proxy.set_servers(upstream, &plan.servers)?;
            for label in changes.added.iter().chain(&changes.removed).chain(&changes.weighted) {
                self.journal.note(upstream, label, by);
            }
            undone.extend((!changes.is_empty()).then(|| changes.to_string()));
        }
        let left = self.state(upstream)?.servers;
        for known in left.iter().filter(|it| it.mode != ServerMode::Serving) {
            self.proxy.set_mode(upstream, &known.server.address, ServerMode::Serving)?;
            self.journal.note(upstream, &known.label, by);
            undone.push(format!("{} gets requests while it is up", known.label));
        }
        Ok(match undone.is_empty() {
            true => format!("upstream {upstream}: nothing to do, nobody has changed its servers"),
            false => {
                format!(
                    "upstream {upstream}: changes were undone: {}; it has {} now",
                    undone.join("; "),
                    left.len()
                )
            }
        })
    }

    fn list(&self, upstream: Option<&str>) -> Result<String, String> {
        let states = match upstream {
            Some(upstream) => vec![self.state(upstream)?],
            None => self.proxy.states(),
        };
        if states.is_empty() {
            return Err("this server has no upstreams".to_owned());
        }
        let head = ["upstream", "server", "weight", "state", "active", "open", "changed by"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for state in &states {
            if state.servers.is_empty() {
                rows.push(vec![state.name.clone(), "(none)".to_owned()]);
            }
            for server in &state.servers {
                let figures = self.figures_of(&state.name, &server.label);
                let count = |of: fn(&ServerFigures) -> u64| {
                    figures.as_ref().map_or("-".to_owned(), |it| of(it).to_string())
                };
                let backup = if server.server.backup { ", backup" } else { "" };
                let why = server.ejection.map(|why| format!(" ({why})")).unwrap_or_default();
                rows.push(vec![
                    state.name.clone(),
                    server.label.clone(),
                    server.server.weight.to_string(),
                    format!("{}{why}{backup}", server.state.name()),
                    count(|it| it.active),
                    count(|it| it.open),
                    self.journal.shown(&state.name, &server.label).trim().to_owned(),
                ]);
            }
        }
        let sources = states.iter().flat_map(|state| state.sources.iter().map(|it| (&state.name, it)));
        let lines = sources.map(|(name, it)| match &it.problem {
            None => format!("\nupstream {name}: {}: {} servers", it.source.place, it.servers_count),
            Some(why) => {
                format!(
                    "\nupstream {name}: {}: {} servers, last good list: {why}",
                    it.source.place, it.servers_count
                )
            }
        });
        Ok(aligned(&rows) + &lines.collect::<String>())
    }

    fn state(&self, upstream: &str) -> Result<UpstreamState, String> {
        self.proxy.find_state(upstream)
    }

    /// The same, of an upstream whose list of servers operators may change.
    fn owned_state(&self, upstream: &str) -> Result<UpstreamState, String> {
        self.proxy.check_has_no_source(upstream)?;
        self.state(upstream)
    }

    /// A server as it is written in a site file. With TLS, it has the settings of the upstream's other servers.
    fn server(&self, state: &UpstreamState, text: &str) -> Result<Server, String> {
        let server: Server = text.parse()?;
        Ok(upstream_state::with_tls_of(server, &state.planned_tls))
    }

    fn figures_of(&self, upstream: &str, label: &str) -> Option<ServerFigures> {
        Some(self.figures?.server(upstream, label))
    }

    /// What is in progress at a server.
    fn busy(&self, upstream: &str, label: &str) -> String {
        let Some(figures) = self.figures_of(upstream, label) else { return String::new() };
        let connections = figures.open.saturating_sub(figures.idle);
        format!("; {} requests in progress on {connections} connections", figures.active)
    }

    fn rest(&self, upstream: &str) -> &'static str {
        rest(self.proxy, upstream)
    }
}

/// A warning, if no server is left.
pub(crate) fn rest(proxy: &Proxy, upstream: &str) -> &'static str {
    let serves = |it: &ServerStatus| it.mode == ServerMode::Serving && !it.server.drain;
    match proxy.state(upstream).is_some_and(|state| state.servers.iter().any(serves)) {
        true => "",
        false => "; no server is left: requests get 503",
    }
}

fn check_weight(weight: u32) -> Result<(), String> {
    match weight {
        1..=WEIGHT_MAX => Ok(()),
        0 => Err("got the weight 0, allowed are 1 to 1000000; to stop requests, drain the server".to_owned()),
        _ => Err(format!("got the weight {weight}, allowed are 1 to {WEIGHT_MAX}")),
    }
}

fn checked_name(by: Option<&str>) -> Result<String, String> {
    let by = by.unwrap_or("the admin listener");
    let is_text = by.chars().all(|it| !it.is_control()) && !by.is_empty() && by.len() <= BY_BYTES_MAX;
    match is_text {
        true => Ok(by.to_owned()),
        false => Err(format!("`by` needs 1 to {BY_BYTES_MAX} bytes without control characters")),
    }
}

/// Rows of cells as a table.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|it| it.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
