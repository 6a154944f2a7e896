//! A climb that waits for a reboot, as a file: its command line and folder, the results so far, and the runs that
//! those of the next boot are compared with.

use std::fmt;
use std::path::{Path, PathBuf};

use flatout_trial::{Block, Sample};
use flatout_tune::{Boot, Host, Unknown, sealed};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::outcome::Waiting;
use crate::plan::{Error, PAIRS_MAX};
use crate::tuned::Reading;

/// A climb that waits for a reboot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The arguments after `climb`.
    pub arguments: Vec<String>,
    /// The working directory.
    pub folder: PathBuf,
    /// The tunings that it tries, in order.
    pub tunings: Vec<String>,
    /// The results so far, in the caller's format.
    pub found: Value,
    boot: Boot,
    rung: String,
    reading: Option<Reading>,
    noise_floor: f64,
    runs: Vec<StoredRun>,
}

/// A [`Sample`] in the file's format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct StoredRun {
    requests_per_s: f64,
    p99_ns: Option<f64>,
    cpu_us_per_request: Option<f64>,
    requests: u64,
    errors: u64,
}

/// The file's name in the journal's folder. The journal takes files that end in `.json` for its own.
const NAME: &str = "climb.waiting";

const HEADING: &str = "flatout climb 1";

impl State {
    /// A climb with a rung that waits, in this boot.
    ///
    /// # Errors
    /// The kernel does not report which boot this is.
    pub fn new(
        host: &Host,
        waiting: &Waiting,
        arguments: Vec<String>,
        folder: PathBuf,
        tunings: Vec<String>,
        found: Value,
    ) -> Result<State, Error> {
        let boot = Boot::now(host).map_err(|Unknown(why)| Error::System(why))?;
        Ok(State {
            arguments,
            folder,
            tunings,
            found,
            boot,
            rung: waiting.rung.clone(),
            reading: waiting.reading.clone(),
            noise_floor: waiting.block.noise_floor,
            runs: waiting.block.samples.iter().map(StoredRun::of).collect(),
        })
    }

    /// Its path, for the journal in `folder`.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Writes it into a folder; it is on disk when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, host: &Host, folder: &Path) -> Result<(), Error> {
        let path = State::path(folder);
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from);
        let written = text.and_then(|text| sealed::write(host, &path, HEADING, &text));
        written.map_err(|error| Error::System(format!("cannot write {}: {error}", path.display())))
    }

    /// Reads it from a folder; `None` if no climb waits there.
    ///
    /// # Errors
    /// It cannot be read, is damaged, has another version, or contains invalid values.
    pub fn read(folder: &Path) -> Result<Option<State>, Error> {
        let path = State::path(folder);
        let broken = |why: String| Error::Plan(format!("{}: {why}", path.display()));
        let Some(text) = sealed::read(&path, HEADING).map_err(broken)? else { return Ok(None) };
        let state: State = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        state.check().map_err(broken)?;
        Ok(Some(state))
    }

    /// Removes it: the climb is complete.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(host: &Host, folder: &Path) -> Result<(), Error> {
        let path = State::path(folder);
        sealed::remove(host, &path)
            .map_err(|error| Error::System(format!("cannot remove {}: {error}", path.display())))
    }

    /// What waits, when called in the next boot.
    ///
    /// # Errors
    /// It is still the same boot, or another machine.
    pub fn waiting(&self, host: &Host) -> Result<Waiting, Error> {
        let now = Boot::now(host).map_err(|Unknown(why)| Error::System(why))?;
        if !self.boot.is_of_same_machine(&now) {
            return Err(Error::Plan(format!(
                "this climb belongs to the machine {}, and this is {}: figures of two machines cannot be compared",
                named(&self.boot),
                named(&now)
            )));
        }
        if self.boot.id == now.id {
            return Err(Error::Plan(format!(
                "this machine has not been rebooted since (boot {}): make the change for `{}`, reboot, and try again",
                now.id, self.rung
            )));
        }
        Ok(Waiting {
            rung: self.rung.clone(),
            reading: self.reading.clone(),
            block: Block {
                samples: self.runs.iter().map(StoredRun::sample).collect(),
                noise_floor: self.noise_floor,
            },
        })
    }

    /// The kernel command lines of both boots.
    pub fn command_lines(&self, host: &Host) -> String {
        let now = Boot::now(host).map(|boot| boot.command_line).unwrap_or_default();
        format!("the kernel was booted with `{now}`, before with `{}`", self.boot.command_line)
    }

    fn check(&self) -> Result<(), String> {
        let is_share = |value: f64| value.is_finite() && value >= 0.0;
        if !is_share(self.noise_floor) {
            return Err(format!("its noise floor is {}", self.noise_floor));
        }
        if self.runs.len() > 2 * PAIRS_MAX {
            return Err(format!("it has {} runs, more than {}", self.runs.len(), 2 * PAIRS_MAX));
        }
        let figures = |run: &StoredRun| [Some(run.requests_per_s), run.p99_ns, run.cpu_us_per_request];
        match self.runs.iter().flat_map(figures).flatten().all(is_share) {
            true => Ok(()),
            false => Err("one of its runs has a figure less than 0".to_owned()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a climb in {} whose rung `{}` waits for a reboot", self.folder.display(), self.rung)
    }
}

impl StoredRun {
    fn of(sample: &Sample) -> StoredRun {
        let Sample { requests_per_s, p99_ns, cpu_us_per_request, requests, errors, .. } = *sample;
        StoredRun { requests_per_s, p99_ns, cpu_us_per_request, requests, errors }
    }

    fn sample(&self) -> Sample {
        let StoredRun { requests_per_s, p99_ns, cpu_us_per_request, requests, errors } = *self;
        Sample { requests_per_s, p99_ns, cpu_us_per_request, requests, errors, ..Sample::default() }
    }
}

fn named(boot: &Boot) -> String {
    match boot.machine.as_str() {
        "" => format!("`{}`", boot.host),
        id => format!("`{}` ({id})", boot.host),
    }
}
