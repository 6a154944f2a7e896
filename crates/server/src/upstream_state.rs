//! The state file of an upstream: what operators have changed of its servers, kept over restarts. It counts as long as the site
//! file has the same servers as when it was written.

use std::ffi::OsStr;
use std::path::Path;

use flatout_certify::State;
use flatout_engine::{Severity, report, say};
use flatout_proxy::{Proxy, Server, ServerMode, ServerSource, SourcePlace, Tls, Upstream, UpstreamState};
use serde::{Deserialize, Serialize};

/// The file's content.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedUpstream {
    upstream: String,
    /// The servers of the plan that was changed.
    planned: Vec<SavedServer>,
    /// The servers now.
    servers: Vec<SavedServer>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedServer {
    /// As it is written in a site file.
    server: String,
    weight: u32,
    #[serde(default)]
    backup: bool,
    #[serde(default)]
    mode: SavedMode,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedMode {
    #[default]
    Serving,
    Draining,
    SetDown,
}

impl SavedUpstream {
    fn of(plan: &Upstream, state: &UpstreamState) -> SavedUpstream {
        SavedUpstream {
            upstream: plan.name.clone(),
            planned: SavedServer::planned(plan),
            servers: state.servers.iter().map(|it| SavedServer::of(&it.server, it.mode)).collect(),
        }
    }
}

impl SavedServer {
    fn of(server: &Server, mode: ServerMode) -> SavedServer {
        let scheme = if server.tls.is_some() { "https://" } else { "http://" };
        let mode = match mode {
            ServerMode::Serving => SavedMode::Serving,
            ServerMode::Draining => SavedMode::Draining,
            ServerMode::SetDown => SavedMode::SetDown,
        };
        let text = format!("{scheme}{}", server.address);
        SavedServer { server: text, weight: server.weight, backup: server.backup, mode }
    }

    fn planned(plan: &Upstream) -> Vec<SavedServer> {
        plan.servers.iter().map(|server| SavedServer::of(server, ServerMode::Serving)).collect()
    }
}

/// Gives a server with TLS the settings that the others have.
pub(crate) fn with_tls_of(server: Server, planned: &Option<Tls>) -> Server {
    match (&server.tls, planned) {
        (Some(_), Some(planned)) => Server { tls: Some(planned.clone()), ..server },
        _ => server,
    }
}

/// Writes the state file of an upstream: all of it or nothing. Returns whether it has one.
pub(crate) fn write(proxy: &Proxy, upstream: &str) -> Result<bool, String> {
    let (Some(plan), Some(state)) = (proxy.plan(upstream), proxy.state(upstream)) else { return Ok(false) };
    let Some(file) = &plan.state_file else { return Ok(false) };
    let saved = SavedUpstream::of(plan, &state);
    let text = serde_json::to_string_pretty(&saved).map_err(|error| error.to_string())?;
    let (folder, name) = split(file)?;
    folder.write(name, &format!("{text}\n"))?;
    Ok(true)
}

/// Writes the state files of upstreams whose plan may have replaced their changes.
pub(crate) fn write_after_reload(proxy: &Proxy) {
    let lost: Vec<&str> = proxy.lost_changes().collect();
    for state in proxy.kept_upstreams().filter_map(|name| proxy.state(name)) {
        if !state.has_changes && !lost.contains(&state.name.as_str()) {
            continue;
        }
        if let Err(why) = write(proxy, &state.name) {
            report(Severity::Error, format_args!("upstream {}: its state file: {why}", state.name));
        }
    }
}

/// Applies the state files of the upstreams of a server that starts.
///
/// # Errors
/// A file cannot be read, or is not one.
pub(crate) fn restore(proxy: &Proxy) -> Result<(), String> {
    for state in proxy.states() {
        let Some(plan) = proxy.plan(&state.name) else { continue };
        let Some(file) = &plan.state_file else { continue };
        let (folder, name) = split(file)?;
        let Some(text) = folder.read(name)? else { continue };
        let shown = file.display();
        let saved: SavedUpstream =
            serde_json::from_str(&text).map_err(|error| format!("{shown}: not a state file: {error}"))?;
        apply(proxy, plan, &saved, false).map_err(|why| format!("{shown}: {why}"))?;
    }
    Ok(())
}

/// Upstreams whose servers were changed, or come from a service, for the process that replaces this one.
pub(crate) fn changed(proxy: &Proxy) -> Vec<String> {
    let has_service = |state: &UpstreamState| state.sources.iter().any(|it| is_service(&it.source));
    let changed = proxy.states().into_iter().filter(|state| state.has_changes || has_service(state));
    let saved = changed.filter_map(|state| {
        let saved = SavedUpstream::of(proxy.plan(&state.name)?, &state);
        serde_json::to_string(&saved).ok()
    });
    saved.collect()
}

/// Applies the changes of the process that this one replaces, to the upstreams that both have. `owns_servers`: see
/// [`crate::Source::owns_servers`]; they are newer than those of the plan.
pub(crate) fn take_over(proxy: &Proxy, changed: &[String], owns_servers: bool) {
    for text in changed {
        let Ok(saved) = serde_json::from_str::<SavedUpstream>(text) else { continue };
        let Some(plan) = proxy.plan(&saved.upstream) else { continue };
        keep_service(proxy, plan, &saved);
        if let Err(why) = apply(proxy, plan, &saved, owns_servers) {
            let name = &saved.upstream;
            report(Severity::Error, format_args!("upstream {name}: changes of its servers were lost: {why}"));
        }
    }
}

fn is_service(source: &ServerSource) -> bool {
    matches!(source.place, SourcePlace::Service { .. })
}

/// Keeps the servers of a service that cannot be looked up just when this process starts. Of several such services, nobody knows whose
/// servers they were.
fn keep_service(proxy: &Proxy, plan: &Upstream, saved: &SavedUpstream) {
    let Some(state) = proxy.state(&plan.name) else { return };
    let mut unknown = state
        .sources
        .iter()
        .filter(|it| is_service(&it.source) && it.servers_count == 0 && it.problem.is_some());
    let (Some(status), None) = (unknown.next(), unknown.next()) else { return };
    let has = |server: &Server| state.servers.iter().any(|it| it.server.address == server.address);
    let known = saved.servers.iter().filter_map(|it| {
        let server: Server = it.server.parse().ok()?;
        let tls = status.source.tls_of_service();
        (!has(&server)).then_some(Server { weight: it.weight, backup: it.backup, tls, ..server })
    });
    let known: Vec<Server> = known.collect();
    if known.is_empty() {
        return;
    }
    let (name, place, count) = (&plan.name, &status.source.place, known.len());
    match proxy.set_source(name, &status.source, Ok(known)) {
        Ok(_) => say(format_args!(
            "upstream {name}: {place} could not be looked up; its {count} servers of before the upgrade are used"
        )),
        Err(why) => report(
            Severity::Error,
            format_args!("upstream {name}: {place}: its servers of before the upgrade were lost: {why}"),
        ),
    }
}

/// Logs that the servers of the site file replace the changes of an upstream.
pub(crate) fn say_replaced(upstream: &str) {
    say(format_args!(
        "upstream {upstream}: the site file has other servers than before: they replace what was changed with `flatout upstream`"
    ));
}

/// Applies what was saved of an upstream. If its plan has other servers than then, these replace it, unless what was saved `is_newer`.
fn apply(proxy: &Proxy, plan: &Upstream, saved: &SavedUpstream, is_newer: bool) -> Result<(), String> {
    let is_same_plan = || !plan.sources.is_empty() || saved.planned == SavedServer::planned(plan);
    if saved.upstream != plan.name || !(is_newer || is_same_plan()) {
        say_replaced(&plan.name);
        return Ok(());
    }
    let mode = |it: &SavedServer| match it.mode {
        SavedMode::Serving => ServerMode::Serving,
        SavedMode::Draining => ServerMode::Draining,
        SavedMode::SetDown => ServerMode::SetDown,
    };
    let server = |it: &SavedServer| {
        let server: Server = it.server.parse()?;
        // With the settings of the plan, TLS included.
        let planned = plan.servers.iter().find(|known| known.address == server.address).cloned();
        let server = planned.unwrap_or_else(|| with_tls_of(server, &plan.tls_of_servers()));
        Ok(Server { weight: it.weight, backup: it.backup, ..server })
    };
    let servers = saved.servers.iter().map(server).collect::<Result<Vec<_>, String>>()?;
    if !plan.sources.is_empty() {
        // The list is that of the source. What operators wanted counts for the servers that it still has.
        let marked = servers.iter().zip(&saved.servers).filter(|(_, it)| it.mode != SavedMode::Serving);
        let restored =
            marked.filter(|(server, it)| proxy.set_mode(&plan.name, &server.address, mode(it)).is_ok());
        let count = restored.count();
        if count > 0 {
            say(format_args!(
                "upstream {}: {count} of its servers are drained or set down as before",
                plan.name
            ));
        }
        return Ok(());
    }
    let changes = proxy.set_servers(&plan.name, &servers)?;
    for (server, it) in servers.iter().zip(&saved.servers) {
        proxy.set_mode(&plan.name, &server.address, mode(it))?;
    }
    say(format_args!("upstream {}: changes of its servers were restored: {changes}", plan.name));
    Ok(())
}

/// The folder of a file, and its name.
fn split(file: &Path) -> Result<(State, &str), String> {
    let name = file.file_name().and_then(OsStr::to_str);
    match (file.parent(), name) {
        (Some(folder), Some(name)) => Ok((State::at(folder), name)),
        _ => Err(format!("`{}` is no path of a file", file.display())),
    }
}
