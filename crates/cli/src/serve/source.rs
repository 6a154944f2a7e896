//! The source of a plan: a site file, or flags alone, which form a short site file.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use flatout_config::{Mistake, SITE_FILE, Source, Tree, quoted, read_tree};
use flatout_engine::Address;
use flatout_import::compare::Vocabulary;
use flatout_server::Checked;
use flatout_site::plan::{Action, Host, PathMatch};

use super::grammar::grammar;
use super::site::{Built, Flag, build, build_all};
use super::{CONFIG, FOLDER, PHP, PORT_OFFSET, PUSH, TO, flags_of, parse, php};
use crate::{Failure, setting::words, value};

/// Default folder: the working directory.
const DIR_DEFAULT: &str = ".";

/// A file that can be read again, and flags that do not change.
pub(super) struct Origin {
    /// The site file.
    file: Option<PathBuf>,
    /// The text that flags form in place of a file.
    text: String,
    flags: Vec<Flag>,
    /// What is added to the ports of all listeners.
    port_offset: u16,
}

/// The source given on a command line.
pub(super) fn of(matches: &ArgMatches) -> Result<Origin, Failure> {
    let flags = flags_of(matches)?;
    let mut file = matches.get_one::<String>(CONFIG).map(PathBuf::from);
    let upstreams = words(matches, TO);
    // A service's unit may pass an empty folder.
    let mut folder = matches.get_one::<String>(FOLDER).cloned().filter(|folder| !folder.is_empty());
    if file.is_none() && folder.as_deref().is_some_and(is_site_file) {
        file = folder.take().map(PathBuf::from);
    }
    let push = matches.get_one::<String>(PUSH);
    let mut php = matches.get_one::<String>(PHP).cloned();
    if folder.is_none() && php.as_deref().is_some_and(|given| !given.is_empty() && !php::is_address(given)) {
        // `--php DIR`.
        folder = php.replace(String::new());
    }
    if file.is_some() && (folder.is_some() || !upstreams.is_empty() || push.is_some() || php.is_some()) {
        return Err(Failure::Usage(
            "a site file defines what is served; leave out DIR, --to, --php and --push".to_owned(),
        ));
    }
    if php.is_some() && !upstreams.is_empty() {
        return Err(Failure::Usage("use one of --php and --to: both get what is no file".to_owned()));
    }
    if let Some(path) = push.filter(|path| !path.starts_with('/') || path.len() < 2) {
        return Err(Failure::Usage(format!("--{PUSH}: got `{path}`, need a path such as /live")));
    }
    let is_alone = file.is_none() && upstreams.is_empty() && push.is_none();
    let folder = folder.or_else(|| (is_alone || php.is_some()).then(|| DIR_DEFAULT.to_owned()));
    let mut text = String::new();
    for upstream in &upstreams {
        let checked = match flatout_proxy::service(upstream) {
            Some(place) => place.map(drop),
            None => parse::server(upstream).map(drop),
        };
        checked.map_err(|message| Failure::Usage(format!("--{TO}: {message}")))?;
    }
    if !upstreams.is_empty() {
        let servers: String = upstreams.iter().map(|url| format!("  server {}\n", quoted(url))).collect();
        text = format!("upstream {TO} {{\n{servers}}}\nproxy {TO}\n");
    }
    match &folder {
        Some(folder) if php.is_some() => {
            let refused = |message| Failure::Usage(format!("--{PHP}: {message}"));
            let hide: Vec<&str> = flags
                .iter()
                .filter(|(setting, _)| setting.name == "hide")
                .flat_map(|(_, given)| given.values())
                .filter(|name| *name != "off")
                .collect();
            let address = php::address(php.as_deref().unwrap_or_default()).map_err(refused)?;
            text = php::site_file(folder, &address, &hide).map_err(refused)?;
        }
        Some(folder) if upstreams.is_empty() => text = format!("files {}\n", quoted(folder)),
        Some(folder) => text.push_str(&format!("try-files {}\n", quoted(folder))),
        None => {}
    }
    if let Some(path) = push {
        text.push_str(&format!("route {} {{\n  push\n}}\n", quoted(path.trim_end_matches('/'))));
    }
    let port_offset = matches.get_one::<u16>(PORT_OFFSET).copied().unwrap_or(0);
    Ok(Origin { file, text, flags, port_offset })
}

/// Whether this is a site file rather than a folder.
fn is_site_file(name: &str) -> bool {
    let path = Path::new(name);
    path.extension().is_some_and(|extension| extension == "kdl") && !path.is_dir()
}

impl flatout_server::Source for Origin {
    fn checked(&self) -> Result<Checked, String> {
        self.read()?.check()
    }

    fn name(&self) -> Option<String> {
        self.file.as_ref().map(|file| file.display().to_string())
    }
}

impl Origin {
    /// Reads it.
    ///
    /// # Errors
    /// All mistakes in it, formatted.
    pub(super) fn read(&self) -> Result<Built, String> {
        let mut built = self.unmoved()?;
        let of_sites = built.plan.site_listen.iter_mut().flatten().map(|own| &mut own.listen);
        for listen in built.plan.server.listen.iter_mut().chain(of_sites) {
            let Address::Tcp(address) = &mut listen.address else { continue };
            // The kernel chooses in place of 0.
            if address.port() > 0 {
                let port = address.port().checked_add(self.port_offset);
                let too_high =
                    || format!("--{PORT_OFFSET}: {} would be above 65535 for {address}", self.port_offset);
                address.set_port(port.ok_or_else(too_high)?);
            }
        }
        Ok(built)
    }

    /// The same, at the ports that it names.
    fn unmoved(&self) -> Result<Built, String> {
        match &self.file {
            Some(file) => {
                build(tree(file)?, folder_of(file), &self.flags).map_err(|mistakes| hinted(file, mistakes))
            }
            None => {
                let source = Source::new("flags", self.text.clone().into_bytes(), &SITE_FILE);
                let source = source.map_err(|mistake| mistake.to_string())?;
                let mut built = build(read_tree(source, &grammar()), Path::new(""), &self.flags)?;
                built.plan.is_constant = true;
                Ok(built)
            }
        }
    }
}

/// The checked plan from the file at `path`, without flags.
pub(crate) fn checked(path: &Path) -> Result<Checked, String> {
    built(path)?.check()
}

/// Whether this is a site file without mistakes.
pub(crate) fn is_valid(file: &str) -> bool {
    checked(Path::new(file)).is_ok()
}

/// The plan from the file at `path`, without flags.
pub(super) fn built(path: &Path) -> Result<Built, String> {
    build(tree(path)?, folder_of(path), &[]).map_err(|mistakes| hinted(path, mistakes))
}

/// What can be read of the file at `path`, and all its mistakes.
///
/// # Errors
/// It cannot be read at all.
pub(super) fn read(path: &Path) -> Result<(Built, Vec<Mistake>), String> {
    build_all(tree(path)?, folder_of(path), &[]).map_err(|mistakes| hinted(path, mistakes))
}

/// The mistakes in a text, if any.
pub(crate) fn mistake(name: &str, text: &str) -> Option<String> {
    let source = Source::new(name, text.as_bytes().to_vec(), &SITE_FILE);
    let source = source.map_err(|mistake| mistake.to_string());
    source.and_then(|source| build(read_tree(source, &grammar()), Path::new(""), &[])).err()
}

/// Adds the hosts and routes of a site file, and the files in its folders.
pub(crate) fn add_requests(path: &Path, count_max: usize, vocabulary: &mut Vocabulary) -> Result<(), String> {
    let built = built(path)?;
    for site in &built.plan.sites.sites {
        let hosts: Vec<String> = site
            .hosts
            .iter()
            .filter_map(|known| match known {
                Host::Exact(name) => Some(name.clone()),
                Host::Below(name) => Some(format!("any.{name}")),
                Host::Pattern(pattern) => Vocabulary::host_of(pattern),
                Host::Unnamed | Host::Any => None,
            })
            .collect();
        let mut paths = Vec::new();
        for route in &site.routes {
            match &route.path {
                PathMatch::Exact(path) => paths.push(path.clone()),
                PathMatch::Prefix { path, .. } => {
                    paths.extend([path.clone(), format!("{}/nothing-is-here", path.trim_end_matches('/'))]);
                }
                PathMatch::Regex { pattern, .. } => paths.extend(Vocabulary::paths_of(pattern)),
                // A pattern does not show what it matches.
                PathMatch::Glob(_) => {}
            }
            let (PathMatch::Prefix { path, .. }, Action::Files(folder)) = (&route.path, &route.action) else {
                continue;
            };
            let Some(folder) = built.plan.sites.folders.get(*folder) else { continue };
            // If a prefix is removed, files are below it.
            let is_taken_off = !route.rewrites.is_empty() || !route.files_at.is_empty();
            let below = |file: String| match is_taken_off {
                true => format!("{}{file}", path.trim_end_matches('/')),
                false => file,
            };
            let files = files_below(&folder.root, count_max).into_iter().map(below);
            paths.extend(files.filter(|target| target.starts_with(path.as_str())));
        }
        vocabulary.add(&hosts, paths);
    }
    Ok(())
}

/// URL paths of files in a folder, if their names need no escaping.
fn files_below(root: &Path, count_max: usize) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![(root.to_owned(), "/".to_owned())];
    while let Some((folder, path)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
            let Ok(kind) = entry.file_type() else { continue };
            if !is_plain || files.len() + folders.len() >= count_max {
                continue;
            }
            match kind.is_dir() {
                true => folders.push((entry.path(), format!("{path}{name}/"))),
                false => files.push(format!("{path}{name}")),
            }
        }
    }
    files.sort_unstable();
    files
}

/// The folder that names in a site file are relative to.
fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// A site file as it was parsed, with the mistakes of its grammar.
fn tree(path: &Path) -> Result<(Tree, Vec<Mistake>), String> {
    Ok(read_tree(source(path)?, &grammar()))
}

/// The mistakes of a file, behind what to do if it seems to be another server's.
pub(super) fn hinted(path: &Path, mistakes: String) -> String {
    let name = path.display().to_string();
    let hint = source(path).ok().and_then(|source| foreign(source.text(), &name));
    hint.map_or_else(|| mistakes.clone(), |hint| format!("{hint}\n{mistakes}"))
}

/// What to do with a file that seems to be the configuration of another server. Only for files with a mistake: ours may have the
/// same words.
fn foreign(text: &str, name: &str) -> Option<String> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let is_nginx = lines().any(|line| {
        let ends = line.ends_with(';') || line.ends_with('{');
        ends && ["server {", "location ", "http {", "server_name ", "proxy_pass ", "worker_processes "]
            .iter()
            .any(|word| line.starts_with(word))
    });
    let is_caddy = lines().any(|line| {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        matches!(first, "reverse_proxy" | "file_server" | "php_fastcgi" | "handle_path")
            || (first == "root" && words.next() == Some("*"))
    });
    match (is_nginx, is_caddy) {
        (true, _) => Some(format!("this looks like nginx; convert it: flatout import {name} > site.kdl")),
        (_, true) => Some(
            "this looks like a Caddyfile, which is not imported; docs/site-file.md has the settings, such as files, proxy \
             and tls"
                .to_owned(),
        ),
        _ => None,
    }
}

/// The text of a site file.
pub(super) fn source(path: &Path) -> Result<Source, String> {
    let name = path.display().to_string();
    let bytes = value::contents(path, SITE_FILE.bytes_max as u64)?;
    Source::new(&name, bytes, &SITE_FILE).map_err(|mistake| mistake.to_string())
}
