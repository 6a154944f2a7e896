//! Plans become a server.

use std::io::{self, ErrorKind, IsTerminal, Write};

use flatout_engine::{Address, Error};
use flatout_report::unit::{bytes, count};
use flatout_serve::files::Site;
use flatout_serve::site::plan::{Action, PathMatch, Plan};

use super::settings::LISTEN_DEFAULT;
use super::source::Origin;
use crate::Failure;
use crate::command::VERSION;

/// Serves until a signal ends it.
pub(super) fn run(origin: &Origin) -> Result<(), Failure> {
    let mut built = origin.read().map_err(Failure::Usage)?;
    if built.server.listen.is_empty() {
        built.server.listen.extend(LISTEN_DEFAULT.parse());
    }
    built.server.check().map_err(Failure::Usage)?;
    let Some(folder) = only_folder(&built.sites) else {
        return Err(Failure::Run("only folders are served so far".to_owned()));
    };
    let root = folder.root.display().to_string();
    // A mistake on the command line is found before anything is bound. Rights are not looked at yet: on a network file
    // system root may have fewer of them than the user who serves.
    match std::fs::metadata(&root) {
        Ok(found) if !found.is_dir() => {
            return Err(cannot_read(&root, None, &ErrorKind::NotADirectory.into()));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(cannot_read(&root, None, &error)),
        _ => {}
    }
    let user = built.server.user.clone();
    let bound = flatout_engine::bind(built.server).map_err(failure)?;
    // As the user who serves them: what this user may not read is not served.
    let site = Site::open(folder).map_err(|error| cannot_read(&root, user.as_deref(), &error))?;
    let served = site.clone();
    let server = bound.start(move |_| site.service()).map_err(failure)?;
    let workers = server.workers_count();
    match std::io::stderr().is_terminal() {
        true => server.run_announced(|addresses| welcome(&root, &served, workers, addresses)),
        // One line, that programs wait for.
        false => server.run(),
    }
    .map_err(failure)
}

/// The folder of a plan that is one folder and nothing else.
fn only_folder(plan: &Plan) -> Option<flatout_serve::files::Plan> {
    let [site] = &plan.sites[..] else { return None };
    let [route] = &site.routes[..] else { return None };
    match route.action {
        Action::Files(folder) if route.path == PathMatch::prefix("/") => plan.folders.get(folder).cloned(),
        _ => None,
    }
}

fn cannot_read(root: &str, user: Option<&str>, error: &io::Error) -> Failure {
    match (error.kind(), user) {
        (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
            Failure::Usage(format!("`{root}` is not a folder: {error}; give the folder to serve"))
        }
        (_, Some(user)) => Failure::Run(format!("cannot read `{root}` as user `{user}`: {error}")),
        (_, None) => Failure::Run(format!("cannot read `{root}`: {error}")),
    }
}

/// What a person wants to know who has started it.
fn welcome(root: &str, site: &Site, workers: usize, addresses: &[Address]) {
    let folder =
        std::path::absolute(root).map_or_else(|_| root.to_owned(), |path| path.display().to_string());
    let urls = addresses.iter().map(|address| ("URL", url(address)));
    let lines = urls.chain([
        ("folder", folder),
        (
            "files",
            format!("{}, {} in memory", count(site.files_count() as u64), bytes(site.memory_bytes() as f64)),
        ),
        ("workers", workers.to_string()),
        ("stop", "Ctrl-C".to_owned()),
    ]);
    let text: String = lines.map(|(name, value)| format!("  {name:<8} {value}\n")).collect();
    // A terminal that is gone is no reason not to serve.
    let _ = write!(std::io::stderr(), "flatout {VERSION}\n{text}");
}

/// Where a browser on this machine finds it.
fn url(address: &Address) -> String {
    match address {
        Address::Tcp(address) if address.ip().is_unspecified() && address.port() == 80 => {
            "http://localhost/".to_owned()
        }
        Address::Tcp(address) if address.ip().is_unspecified() => {
            format!("http://localhost:{}/ (listening on every address)", address.port())
        }
        Address::Tcp(_) => format!("{address}/"),
        _ => address.to_string(),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Plan(message) => Failure::Usage(message),
        error => Failure::Run(error.to_string()),
    }
}
