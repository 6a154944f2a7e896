//! Variants of the server's own configuration, for popular servers: reads the configuration, and proposes changes
//! that are known to help.
//!
//! ```text
//! command ──> which server? ──> its files ──> proposals ──> (a rung each)
//!                                  │
//!                 with some of them in place: written to a temporary copy ──> the command that names the copy
//!                                                                         └─> a diff for whoever wants to keep them
//! ```
//!
//! Each server is one file here, all with the same shape: how to recognise it, and what to propose. Servers
//! configured by flags get flags; servers with files get edits of them. The user's files are never written to.

mod diff;
mod files;
mod flatout;
mod gunicorn;
mod haproxy;
mod nginx;
mod syntax;

use std::cell::OnceCell;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::plan::{Attempt, Rung, Variant};
use files::Files;
use flatout_tune::Needs;

/// The configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    kind: Kind,
    /// The command that starts the server.
    command: String,
    /// The word of the command that names the main file, to be replaced; `None` if the command names none.
    word: Option<String>,
    files: Files,
    facts: Facts,
}

/// A server with configuration files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
}

/// One edit of a server's files; its name is unique for the server.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// Its name.
    pub name: &'static str,
    /// A one-line description.
    pub what: &'static str,
    /// Makes the edit; returns false if there is nothing to do, or nothing known to be right.
    make: fn(&mut Files, &Facts) -> bool,
}

/// What is known beside the server's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// CPUs that the server may use.
    pub cpus: usize,
    /// How long a response may be served again, in the words of the application's author.
    pub cache_time: Option<Duration>,
}

/// The rung that puts a cache in front of the application.
pub(crate) const CACHE: &str = "response-cache";

/// The rung that compresses responses.
pub(crate) const COMPRESSION: &str = "compression";

/// The rung that keeps connections to the application open.
pub(crate) const UPSTREAM_KEEPALIVE: &str = "upstream-keepalive";

/// Why no cache is tried without the author's consent.
const NO_CONSENT: &str = "only the application's author knows how long a response may be served again; with --cache-time TIME it is tried";

/// Names are unique for each kind of server.
impl PartialEq for Edit {
    fn eq(&self, other: &Edit) -> bool {
        (self.name, self.what) == (other.name, other.what)
    }
}

impl Eq for Edit {}

impl Config {
    /// Rungs that are known to help a server that is started by this command; and its configuration files, if they
    /// are known.
    pub fn proposals(command: &str, facts: Facts) -> (Vec<Rung>, Option<Config>) {
        let words = words(command);
        let mut rungs: Vec<Rung> = [flatout::proposals, gunicorn::proposals]
            .iter()
            .flat_map(|proposals| proposals(&words, &facts))
            .map(|(name, arguments)| rung(name, Attempt::Variant(with_arguments(arguments))))
            .collect();
        let config = Config::find(command, &words, facts);
        if let Some(config) = &config {
            let edits = config.edits().iter().filter(|edit| (edit.make)(&mut config.files.clone(), &facts));
            rungs.extend(edits.map(|edit| rung(edit.name, Attempt::Edit(*edit))));
        }
        let has_cache = rungs.iter().any(|rung| rung.name == CACHE);
        let may_cache = || match &config {
            Some(config) => config.kind == Kind::Nginx && nginx::is_cacheable(&config.files),
            None => flatout::is_cacheable(&words),
        };
        if !has_cache && facts.cache_time.is_none() && may_cache() {
            rungs.insert(0, rung(CACHE, Attempt::Skip(NO_CONSENT.to_owned())));
        }
        (rungs, config)
    }

    /// The one server that requests are passed to, as the configuration names it.
    pub(crate) fn upstream(&self) -> Option<String> {
        match self.kind {
            Kind::Nginx => nginx::upstream_server(&self.files),
            Kind::Haproxy => None,
        }
    }

    /// The files that a command names, or the server's default file.
    fn find(command: &str, words: &[String], facts: Facts) -> Option<Config> {
        let named = words.iter().skip(1).filter(|word| Path::new(word).is_file());
        for word in named {
            let files = Files::read(Path::new(word));
            for (kind, is_meant) in
                [(Kind::Nginx, nginx::is_meant as fn(&str) -> bool), (Kind::Haproxy, haproxy::is_meant)]
            {
                if files.as_ref().is_some_and(|files| is_meant(files.main())) {
                    let (word, files) = (Some(word.clone()), kind.whole(files?)?);
                    return Some(Config { kind, command: command.to_owned(), word, files, facts });
                }
            }
        }
        let is_nginx = words.iter().any(|word| program(word) == "nginx");
        let files = is_nginx.then(|| Files::read(Path::new(nginx::DEFAULT)))??;
        let files = Kind::Nginx.whole(files)?;
        Some(Config { kind: Kind::Nginx, command: command.to_owned(), word: None, files, facts })
    }

    fn edits(&self) -> &'static [Edit] {
        match self.kind {
            Kind::Nginx => nginx::EDITS,
            Kind::Haproxy => haproxy::EDITS,
        }
    }

    /// The files with these edits made.
    fn edited(&self, edits: &[Edit]) -> Files {
        let mut files = self.files.clone();
        edits.iter().for_each(|edit| {
            (edit.make)(&mut files, &self.facts);
        });
        files
    }

    /// Writes a copy with these edits below `folder`, and returns the command that starts the server with it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn command_with(&self, edits: &[Edit], folder: &Path) -> io::Result<String> {
        let mut files = self.edited(edits);
        // Nothing is left of a cache when the climb has ended.
        files.replace(nginx::CACHE_FOLDER, &folder.join("cache").display().to_string());
        let main = files.write(folder)?;
        let quoted = flatout_tune::quote(&main.display().to_string());
        Ok(match &self.word {
            Some(word) => self.command.replacen(word.as_str(), &quoted, 1),
            None => format!("{} -c {quoted}", self.command),
        })
    }

    /// The changes that these edits make, as a diff for `patch -p1 -d /`.
    pub fn diff(&self, edits: &[Edit]) -> String {
        diff::of(&self.files, &self.edited(edits))
    }

    /// The paths of the files, for messages.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.paths()
    }
}

/// A folder for copies, removed at the end of the climb.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    folder: OnceCell<PathBuf>,
}

impl Copies {
    /// The folder of the copy with these edits.
    pub(crate) fn of(&self, edits: &[Edit]) -> io::Result<PathBuf> {
        let names: Vec<&str> = edits.iter().map(|edit| edit.name).collect();
        self.place(&names.join("+"))
    }

    /// A folder of this name, which need not exist.
    pub(crate) fn place(&self, name: &str) -> io::Result<PathBuf> {
        if self.folder.get().is_none() {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
            let folder = std::env::temp_dir().join(format!("flatout-climb-{}-{now}", std::process::id()));
            // A folder that already exists belongs to someone else.
            DirBuilder::new().mode(0o755).create(&folder)?;
            let _ = self.folder.set(folder);
        }
        Ok(self.folder.get().map_or_else(PathBuf::new, |folder| folder.join(name)))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.get() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Kind {
    /// The files with everything that they include.
    fn whole(self, files: Files) -> Option<Files> {
        match self {
            Kind::Nginx => nginx::with_includes(files),
            Kind::Haproxy => Some(files),
        }
    }
}

fn rung(name: &str, change: Attempt) -> Rung {
    Rung { name: name.to_owned(), change, needs: Needs::AnyPath }
}

fn with_arguments(arguments: String) -> Variant {
    Variant { server_arguments: Some(arguments), ..Variant::default() }
}

/// The file name of a program.
fn program(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The value of a flag in either form, `--workers 2` and `--workers=2`; the last one counts.
fn flag<'w>(words: &'w [String], names: &[&str]) -> Option<&'w str> {
    let value = |(at, word): (usize, &'w String)| {
        names.iter().find_map(|name| match word.strip_prefix(name)? {
            "" => words.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('=').or_else(|| (!name.starts_with("--")).then_some(rest)),
        })
    };
    words.iter().enumerate().filter_map(value).next_back()
}

/// The words of a shell command, without quotes. Nothing is expanded.
fn words(command: &str) -> Vec<String> {
    let (mut found, mut word, mut quote, mut is_word) = (Vec::new(), String::new(), None, false);
    let mut chars = command.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(open), char) if char == open => quote = None,
            (None, '\'' | '"') => (quote, is_word) = (Some(char), true),
            (None, '\\') => word.extend(chars.next()),
            (None, char) if char.is_whitespace() => {
                if is_word || !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            (_, char) => word.push(char),
        }
    }
    if is_word || !word.is_empty() {
        found.push(word);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts { cpus: 4, cache_time: None };

    fn names(command: &str) -> Vec<String> {
        Config::proposals(command, FACTS).0.into_iter().map(|rung| rung.name).collect()
    }

    #[test]
    fn servers_are_known_by_their_commands() {
        assert_eq!(names("exec flatout serve ./public --workers 1"), ["workers"]);
        assert_eq!(names("gunicorn -w2 app:app"), ["workers", "threads"]);
        for command in
            ["", "python3 -m http.server", "nginx -c /no/such/file", "sh -c 'echo \"'", "flatout serve ."]
        {
            let (rungs, config) = Config::proposals(command, FACTS);
            let is_default = config.is_some_and(|config| config.word.is_none());
            assert!(rungs.is_empty() || is_default, "{command}: {rungs:?}");
        }
    }

    #[test]
    fn a_cache_needs_the_consent_of_the_author() {
        let proposals = |cache_time| {
            let facts = Facts { cpus: 1, cache_time };
            Config::proposals("exec flatout serve --to http://127.0.0.1:3000", facts).0
        };
        let without = proposals(None);
        assert_eq!(without.len(), 1);
        assert!(
            matches!(&without[0].change, Attempt::Skip(why) if without[0].name == CACHE && why.contains("--cache-time")),
            "{without:?}"
        );
        let with = proposals(Some(Duration::from_secs(90)));
        assert_eq!(with.len(), 1);
        let Attempt::Variant(variant) = &with[0].change else { panic!("{with:?}") };
        assert_eq!(variant.server_arguments.as_deref(), Some("--cache 90s"));
        assert_eq!(names("flatout serve --to http://127.0.0.1:3000 --cache 1d"), [""; 0]);
    }

    #[test]
    fn commands_are_parsed() {
        assert_eq!(words("a  'b c' d\"e f\"g \\h ''"), ["a", "b c", "de fg", "h", ""]);
        let words = words("x -w 2 --workers=3 -w4");
        assert_eq!((flag(&words, &["-w", "--workers"]), flag(&words, &["--threads"])), (Some("4"), None));
    }
}
