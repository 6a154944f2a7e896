//! A running server in the hands of its operator: reloads, purges and upgrades, by the admin listener or a signal.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use flatout_admin::Action;
use flatout_admin::upstreams::UPSTREAM_PATH;
use flatout_cache::Purge;
use flatout_engine::{Address, Handle, say};
use flatout_proxy::{Figures, Server, ServerChanges, SourceFollower};
use rustix::process::{Pid, Signal, kill_process};

use crate::addresses::Numbers;
use crate::bus::{self, BusRuntime};
use crate::certificates::Secure;
use crate::changes::Parts;
use crate::live::{Live, Opened};
use crate::plan::{Checked, NumberedSites, Plan, Source};
use crate::secure::SecurePort;
use crate::start;
use crate::turns::Turns;
use crate::upgrade::Predecessor;
use crate::upgrade::Program;
use crate::upstream_commands::{UpstreamCommands, UpstreamJournal};
use crate::{Failure, prerender, signals, upstream_state};

/// Commands of the operator.
pub(crate) struct Control {
    source: Box<dyn Source>,
    program: Program,
    turns: Turns,
    numbers: Numbers,
    pub(crate) upstream_journal: UpstreamJournal,
    pub(crate) source_follower: Mutex<Option<SourceFollower>>,
    me: Weak<Control>,
    /// `None` before the start. Reloads take turns.
    pub(crate) running: Mutex<Option<Running>>,
}

/// The parts of a running server that a command changes.
pub(crate) struct Running {
    /// The settings that need a restart, as they were at the start.
    pub(crate) restart: Vec<(&'static str, String)>,
    /// What is served, for the differences to the next plan.
    pub(crate) parts: Parts,
    /// Its sites, as the source gave them and as they are served.
    pub(crate) numbered: NumberedSites,
    pub(crate) secure: Option<Secure>,
    pub(crate) secure_port: SecurePort,
    pub(crate) live: Live,
    pub(crate) handle: Handle,
    pub(crate) sharing: Option<BusRuntime>,
    /// Counters of upstreams, if metrics are on.
    pub(crate) figures: Option<Figures>,
}

/// The result of a change.
struct Changed {
    added: Vec<Address>,
    removed: Vec<Address>,
}

impl Control {
    /// Of a server that has not started yet.
    pub(crate) fn new(source: Box<dyn Source>, numbers: Numbers) -> Arc<Control> {
        Arc::new_cyclic(|me| Control {
            source,
            program: Program::current(),
            turns: Turns::default(),
            numbers,
            upstream_journal: UpstreamJournal::default(),
            source_follower: Mutex::new(None),
            me: me.clone(),
            running: Mutex::new(None),
        })
    }

    /// The actions of the admin listener.
    pub(crate) fn actions(self: &Arc<Control>) -> Vec<Action> {
        let action = |path, run: fn(&Control, &[u8]) -> Result<String, String>| {
            let control = self.clone();
            Action { path, run: Arc::new(move |what| run(&control, what)) }
        };
        vec![
            action("/reload", |control, _| {
                let _turn = control.turns.take()?;
                // Whoever has asked gets the message; the log of the server has it too.
                control
                    .reload()
                    .map_err(|failure| failure.to_string())
                    .inspect(|message| say(format_args!("{message}")))
                    .inspect_err(|why| {
                        flatout_engine::report(
                            flatout_engine::Severity::Error,
                            format_args!("not reloaded, the old configuration stays in use: {why}"),
                        );
                    })
            }),
            action("/purge", |control, what| {
                let _turn = control.turns.take()?;
                control.purge(what)
            }),
            action(UPSTREAM_PATH, |control, what| {
                let _turn = control.turns.take()?;
                control.change_upstream(what)
            }),
            action("/upgrade", |control, _| control.upgrade()),
            action("/prerender/status", |control, _| prerender::status(&control.live()?)),
            action("/prerender/preview", |control, what| {
                prerender::preview(&control.live()?, &String::from_utf8_lossy(what))
            }),
            action("/prerender/warm", |control, what| {
                prerender::warm(&control.live()?, &String::from_utf8_lossy(what))
            }),
        ]
    }

    /// Lets signals do the same.
    pub(crate) fn follow_signals(self: &Arc<Control>) -> Result<(), Failure> {
        let control = self.clone();
        signals::on(signals::SIGHUP, move || control.reload_by_signal())?;
        let control = self.clone();
        signals::on(signals::SIGUSR2, move || {
            if let Err(why) = control.upgrade() {
                flatout_engine::report(flatout_engine::Severity::Error, format_args!("not upgraded: {why}"));
            }
        })
    }

    /// The server runs. It takes no commands before [`Control::begin`].
    pub(crate) fn set(&self, running: Running) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        self.follow_sources(&self.me);
    }

    /// This process is the only one that serves.
    pub(crate) fn begin(&self, former: Predecessor) {
        self.turns.begin(former);
    }

    /// Waits until another process has taken over, which may be never.
    pub(crate) fn wait_for_successor(&self) {
        self.turns.wait_for_successor();
    }

    /// This process is about to end. Returns whether the admin listener has to complete its responses.
    pub(crate) fn end(&self) -> bool {
        self.turns.end()
    }

    /// Nobody reads the result of a signal and tries again, so it waits for its turn. If another process takes over
    /// meanwhile, that one gets the signal.
    fn reload_by_signal(&self) {
        self.turns.take_by_signal(|turn| match turn {
            Ok(_turn) => match self.reload() {
                Ok(message) => say(format_args!("{message}")),
                Err(why) => flatout_engine::report(
                    flatout_engine::Severity::Error,
                    format_args!("not reloaded, the old configuration stays in use: {why}"),
                ),
            },
            Err(pid) => pass_on(pid, Signal::HUP, "the reload"),
        });
    }

    /// Called after the logs were reopened by a signal: a process that took over meanwhile may have opened the old
    /// files.
    pub(crate) fn reopened_by_signal(&self) {
        self.turns.take_by_signal(|turn| {
            if let Err(pid) = turn {
                pass_on(pid, Signal::USR1, "reopening the logs");
            }
        });
    }

    /// What is served.
    fn live(&self) -> Result<Live, String> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running
            .as_ref()
            .map(|running| running.live.clone())
            .ok_or_else(|| "the server has not started yet".to_owned())
    }

    /// Removes stored responses. Returns how many, or why it failed.
    fn purge(&self, what: &[u8]) -> Result<String, String> {
        let purge = Purge::from_text(&String::from_utf8_lossy(what)).map_err(|bad| bad.to_string())?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = running.as_ref().and_then(|running| running.live.opened().cache.clone());
        let sharing = running.as_ref().and_then(|running| running.sharing.clone());
        drop(running);
        if let Some(sharing) = sharing {
            return sharing.purge(&purge);
        }
        let Some(cache) = cache else {
            return Err("this server has no cache: no route stores responses".to_owned());
        };
        Ok(bus::purge_message(&purge, cache.purge(&purge)))
    }

    /// Runs a command about the servers of an upstream.
    fn change_upstream(&self, command: &[u8]) -> Result<String, String> {
        // Not while a reload opens the same upstreams: it would lose the change.
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.as_ref().ok_or("the server has not started yet")?;
        let opened = running.live.opened();
        let (proxy, journal) = (&opened.proxy, &self.upstream_journal);
        let owns_servers = self.owns_servers();
        UpstreamCommands { proxy, figures: running.figures.as_ref(), journal, owns_servers }.run(command)
    }

    /// See [`crate::Source::owns_servers`].
    pub(crate) fn owns_servers(&self) -> bool {
        self.source.owns_servers()
    }

    /// The same as [`Control::reload`], for code of this process.
    pub(crate) fn reload_in_turn(&self) -> Result<String, Failure> {
        let _turn = self.turns.take_in_time().map_err(Failure::Run)?;
        self.reload()
    }

    /// Replaces the servers of an upstream: at any time, because requests must not wait for an upgrade to reach servers that exist.
    pub(crate) fn set_servers(&self, upstream: &str, servers: &[Server]) -> Result<ServerChanges, String> {
        // Not while a reload opens the same upstreams: it would lose the change.
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.as_ref().ok_or("the server has not started yet")?;
        running.live.opened().proxy.set_servers(upstream, servers)
    }

    /// Reads the configuration again and applies it. Returns what happened, or why the old plan stays.
    fn reload(&self) -> Result<String, Failure> {
        let message = self.reload_plan()?;
        self.follow_sources(&self.me);
        Ok(message)
    }

    fn reload_plan(&self) -> Result<String, Failure> {
        let Some(file) = self.source.name() else {
            return Err(Failure::Usage(
                "there is no file to read again; restart the server to change its settings".to_owned(),
            ));
        };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let not_started = || Failure::Run("the server has not started yet".to_owned());
        let running = running.as_mut().ok_or_else(not_started)?;
        let mut checked = self.source.checked().map_err(Failure::Usage)?;
        let keeps = checked.plan().sites.keeps_unchanged;
        let given = if keeps { checked.plan().sites.sites.clone() } else { Vec::new() };
        checked.take_numbered(&running.numbered);
        checked.number(&self.numbers)?;
        let Changed { added, removed } = running.change(&mut checked, self.source.owns_servers())?;
        running.numbered = NumberedSites::of(given, &checked.plan().sites.sites);
        let sites = &checked.plan().sites;
        let routes: usize = sites.sites.iter().map(|site| site.routes.len()).sum();
        let counted = [
            several(sites.sites.len(), "site"),
            several(routes, "route"),
            several(sites.upstreams.len(), "upstream"),
        ]
        .join(", ");
        let parts = Parts::of_owned(checked.into_plan());
        let differences = std::mem::replace(&mut running.parts, parts).until(&running.parts);
        let listed = |what: &str, addresses: Vec<Address>| match addresses.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<String> = addresses.iter().map(Address::to_string).collect();
                format!("; {what} {}", names.join(" "))
            }
        };
        let (added, removed) = (listed("now listening on", added), listed("no longer listening on", removed));
        Ok(format!("reloaded {file}: {counted}; {differences}{added}{removed}"))
    }

    /// Replaces this process by another one. Returns a message with the result, or why this process continues.
    fn upgrade(&self) -> Result<String, String> {
        self.turns.upgrade(|former| self.program.replace(former))
    }
}

impl Running {
    /// Changes to another plan, or changes nothing: everything that can fail comes first.
    fn change(&self, checked: &mut Checked, owns_servers: bool) -> Result<Changed, Failure> {
        checked.check_change(&self.restart).map_err(Failure::Usage)?;
        // A part of the plan that is not named here would be forgotten by reloads.
        let Plan {
            server: _,         // prepared below
            site_listen: _,    // the same
            secure: _,         // prepared below, with its certificates
            site_secure: _,    // the same
            issue: _,          // the same
            sites: _,          // opened below
            state: _,          // these need a restart: `Plan::restart` has them
            https_redirect: _, //
            prerender: _,      // opened below
            push: _,           //
            bus: _,            //
            messages: _,       // applied below
            logs: _,           // these need a restart too
            route_logs: _,     // their numbers are those of the logs
            admin: _,          //
            admin_public: _,   //
            is_constant: _,    // a file that is read again is not
            restart: _,        // checked above
        } = checked.plan();
        let secure = self.secure.as_ref().map(|secure| secure.prepare(checked.plan())).transpose();
        let secure = secure.map_err(Failure::Usage)?;
        if let Some(secure) = &secure {
            checked.set_tls_rules(|profile| secure.rules(profile));
        }
        prerender::prepare(checked)?;
        let former = self.live.opened();
        let opened = start::open(checked, &former.hub, Some(&former))?;
        opened.sites.copy_for(self.handle.workers_count(), &former.sites);
        let acceptor = self.secure.as_ref().map(|secure| &secure.acceptor);
        let change = self.handle.prepare(checked.listening(acceptor)).map_err(Failure::from)?;
        // The renderer changes at once, if it can.
        let prerender = prerender::open(checked, former.prerender.as_ref())?;
        let opened = Opened { prerender, ..opened };
        // From here on nothing fails, and until here nothing has changed. In this order, so that a new listener never serves the old plan.
        start::take_effect(&opened, checked);
        if let Some(secure) = secure {
            secure.commit();
        }
        checked.plan().messages.apply();
        for upstream in opened.proxy.lost_changes().filter(|_| !owns_servers) {
            upstream_state::say_replaced(upstream);
        }
        let proxy = opened.proxy.clone();
        self.live.replace(opened);
        upstream_state::write_after_reload(&proxy);
        let changed = change.commit();
        self.secure_port.set(self.handle.secure_port());
        Ok(Changed { added: changed.added, removed: changed.removed })
    }
}

/// A count and its noun.
fn several(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Sends a signal to the process that has taken over.
fn pass_on(pid: u32, signal: Signal, what: &str) {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match id.map(|id| kill_process(id, signal)) {
        Some(Ok(())) => say(format_args!("process {pid} has taken over, and was asked for {what}")),
        _ => flatout_engine::report(
            flatout_engine::Severity::Error,
            format_args!("process {pid} has taken over, but it could not be asked for {what}"),
        ),
    }
}
