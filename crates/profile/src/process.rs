//! Processes in `/proc`: their descendants and names.

use std::collections::HashSet;
use std::fs;
use std::io;

use flatout_owner::{Here, Stat, numbers};

/// How far a process's ancestors are followed; no server is nested more deeply.
const ANCESTORS_MAX: usize = 32;

/// Whether there is such a process.
pub fn exists(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}/stat")).unwrap_or(false)
}

/// A process's short name, at most 15 characters.
pub fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Whether a process is one of `roots` or descends from one.
pub(crate) fn descends_from(pid: u32, roots: &HashSet<u32>) -> bool {
    let line = std::iter::successors(Some(pid), |&pid| parent(pid));
    line.take(ANCESTORS_MAX).any(|pid| roots.contains(&pid))
}

/// `roots` and all their descendants, in ascending order.
pub(crate) fn family(roots: &HashSet<u32>) -> io::Result<Vec<u32>> {
    Ok(all()?.into_iter().filter(|&pid| descends_from(pid, roots)).collect())
}

/// The threads of a process.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    numbers(&Here, &format!("/proc/{pid}/task"))
}

fn all() -> io::Result<Vec<u32>> {
    numbers(&Here, "/proc")
}

fn parent(pid: u32) -> Option<u32> {
    Some(Stat::read(&Here, pid).ok()?.parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_followed_upwards() {
        let us = std::process::id();
        let child = std::process::Command::new("sleep").arg("10").spawn();
        let mut child = child.unwrap();
        let roots = HashSet::from([us]);
        assert!(descends_from(child.id(), &roots) && descends_from(us, &roots));
        assert!(family(&roots).unwrap().contains(&child.id()));
        assert!(!descends_from(1, &roots));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(name(us).is_some() && exists(us) && !exists(child.id()));
        assert!(threads(us).unwrap().contains(&us));
    }
}
