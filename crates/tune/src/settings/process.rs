//! Settings of a process: its CPUs and its limit of open files. A process is identified by its number and start time,
//! because numbers are reused.

use std::time::{Duration, SystemTime};

use flatout_owner::{Stat, TICKS_PER_S};
use serde::{Deserialize, Serialize};

use super::{Kind, Lasting, Step};
use crate::change::Content;
use crate::error::Unknown;
use crate::host::Host;
use crate::script::quote;

/// A process or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// When it started, in clock ticks since boot.
    pub started_ticks: u64,
}

impl Process {
    /// The process that has this number now.
    pub(crate) fn now(host: &Host, id: u32) -> Result<Process, Unknown> {
        let stat = Stat::read(host, id).map_err(|error| Unknown::at(&format!("/proc/{id}/stat"), &error))?;
        Ok(Process { id, started_ticks: stat.started_ticks })
    }

    /// Its start time by the clock.
    pub(crate) fn started(self, host: &Host) -> Result<SystemTime, Unknown> {
        let stat = host.text("/proc/stat")?;
        let boot_s = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
        let boot_s: u64 =
            boot_s.ok_or_else(|| Unknown("/proc/stat does not report the time of boot".to_owned()))?;
        let after_epoch = Duration::from_secs(boot_s.saturating_add(self.started_ticks / TICKS_PER_S));
        let started = SystemTime::UNIX_EPOCH.checked_add(after_epoch);
        started.ok_or_else(|| Unknown("/proc/stat reports an impossible time of boot".to_owned()))
    }

    fn check(self, host: &Host) -> Result<(), Unknown> {
        match Process::now(host, self.id) {
            Ok(now) if now == self => Ok(()),
            _ => Err(Unknown(self.ended())),
        }
    }

    fn gone(self, host: &Host) -> Option<String> {
        self.check(host).is_err().then(|| self.ended())
    }

    /// The condition that it is still the same process and has this value.
    fn holds_in_shell(self, holds: String) -> String {
        let Process { id, started_ticks } = self;
        format!("[ \"$(started {id})\" = {started_ticks} ] && {holds}")
    }

    fn ended(self) -> String {
        format!("process {} has ended", self.id)
    }
}

/// The CPUs that a thread may run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The thread.
    pub thread: Process,
}

/// A process's limits of open files: soft and hard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFiles {
    /// The process.
    pub process: Process,
}

impl Kind for Affinity {
    fn name(&self) -> String {
        format!("CPUs of thread {}", self.thread.id)
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        self.thread.check(host)?;
        status_field(host, self.thread.id, "Cpus_allowed_list").map(Content::Text)
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(cpus) = to else { return Err(format!("{} always has a value", self.name())) };
        Ok(vec![Step::command("taskset", &["-pc", cpus.trim(), &self.thread.id.to_string()])])
    }

    fn holds_in_shell(&self, ours: &Content) -> Option<String> {
        let cpus = format!("[ \"$(allowed {})\" = {} ]", self.thread.id, quote(&ours.line()));
        Some(self.thread.holds_in_shell(cpus))
    }

    fn lasting(&self, _: &Content) -> Lasting {
        Lasting::Not("the server itself sets the CPUs of a thread when it starts")
    }

    fn gone(&self, host: &Host) -> Option<String> {
        self.thread.gone(host)
    }
}

impl Kind for OpenFiles {
    fn name(&self) -> String {
        format!("open files of process {}", self.process.id)
    }

    fn is_namespaced(&self) -> bool {
        false
    }

    fn read(&self, host: &Host) -> Result<Content, Unknown> {
        self.process.check(host)?;
        let path = format!("/proc/{}/limits", self.process.id);
        let limits = host.text(&path)?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let mut values = line.unwrap_or_default().split_whitespace();
        match (values.next(), values.next()) {
            (Some(soft), Some(hard)) => Ok(Content::Text(format!("{soft}:{hard}"))),
            _ => Err(Unknown(format!("{path} does not show the limit of open files"))),
        }
    }

    fn steps(&self, to: &Content) -> Result<Vec<Step>, String> {
        let Content::Text(limits) = to else { return Err(format!("{} always has a value", self.name())) };
        let (pid, limits) = (self.process.id.to_string(), format!("--nofile={limits}"));
        Ok(vec![Step::command("prlimit", &["--pid", &pid, &limits])])
    }

    fn holds_in_shell(&self, ours: &Content) -> Option<String> {
        let files = format!("[ \"$(files {})\" = {} ]", self.process.id, quote(&ours.line()));
        Some(self.process.holds_in_shell(files))
    }

    fn lasting(&self, to: &Content) -> Lasting {
        match to {
            Content::Text(limits) => Lasting::Server { line: format!("LimitNOFILE={limits}") },
            _ => Lasting::Already,
        }
    }

    fn gone(&self, host: &Host) -> Option<String> {
        self.process.gone(host)
    }
}

/// A field of `/proc/PID/status`.
pub(crate) fn status_field(host: &Host, pid: u32, field: &str) -> Result<String, Unknown> {
    let path = format!("/proc/{pid}/status");
    let status = host.text(&path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned()).ok_or_else(|| Unknown(format!("{path} has no field {field}")))
}
