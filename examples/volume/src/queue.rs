//! The queue that the volume is: which transformer works on which file.
//!
//! A transformer claims a file by moving it from `inbox/` to its own folder `work/OWNER/`: of several that try, one succeeds. Locks over
//! NFS are lost when a server restarts; a rename is not. While it lives, a transformer writes to `work/OWNER/.alive`. One that has not
//! for [`LEASE_TIME`] is taken for dead, and others move its files to their folders. Ages are differences of two times of the volume's
//! own clock, so that the clocks of the machines do not matter.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::name::Name;
use crate::store::{Folder, Volume, move_file};

/// How long a transformer may be silent before others take over its files. One that was only slow finds that its file is gone before it
/// publishes what it has made of it.
pub const LEASE_TIME: Duration = Duration::from_secs(15);

/// How often a transformer shows that it lives.
pub const ALIVE_PERIOD: Duration = Duration::from_secs(3);

/// Files that are claimed at once, so that other transformers have some too.
pub const CLAIMS_MAX: usize = 16;

const ALIVE: &str = ".alive";

/// One transformer's view of the queue.
#[derive(Debug, Clone)]
pub struct Queue {
    volume: Volume,
    owner: Name,
}

impl Queue {
    /// Joins the queue. No other transformer may have this name while this one lives.
    ///
    /// # Errors
    /// The volume cannot be written to.
    pub fn join(volume: Volume, owner: Name) -> io::Result<Queue> {
        let queue = Queue { volume, owner };
        match fs::create_dir(queue.own_folder()) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        queue.show_alive()?;
        Ok(queue)
    }

    fn own_folder(&self) -> PathBuf {
        self.volume.path(Folder::Work, &self.owner)
    }

    /// The path of a file that this transformer has claimed.
    pub fn claimed(&self, name: &Name) -> PathBuf {
        self.own_folder().join(name.as_str())
    }

    /// Shows that this transformer lives, and returns the volume's time.
    ///
    /// # Errors
    /// The volume cannot be written to.
    pub fn show_alive(&self) -> io::Result<SystemTime> {
        let path = self.own_folder().join(ALIVE);
        // Written, not only touched: a client of NFS may keep times to itself.
        fs::write(&path, std::process::id().to_string())?;
        fs::File::open(&path)?.sync_all()?;
        fs::metadata(&path)?.modified()
    }

    /// What this transformer has claimed and not finished: its own from before it was restarted, too.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn unfinished(&self) -> io::Result<Vec<Name>> {
        names(self.own_folder())
    }

    /// Claims files of the inbox, the oldest names first. A name that another transformer has claimed waits: an older file of that name
    /// must not be published after a newer one.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn claim(&self) -> io::Result<Vec<Name>> {
        let mut waiting = names(self.volume.folder(Folder::Inbox))?;
        waiting.sort();
        let folders = self.folders_of_others()?;
        let is_claimed = |name: &Name| folders.iter().any(|folder| folder.join(name.as_str()).exists());
        let mut claimed = Vec::new();
        for name in waiting {
            if claimed.len() == CLAIMS_MAX {
                break;
            }
            if is_claimed(&name) {
                continue;
            }
            match move_file(&self.volume.path(Folder::Inbox, &name), &self.claimed(&name)) {
                Ok(()) => claimed.push(name),
                // Another transformer was first.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(claimed)
    }

    fn folders_of_others(&self) -> io::Result<Vec<PathBuf>> {
        let owners = names(self.volume.folder(Folder::Work))?;
        let others = owners.iter().filter(|owner| **owner != self.owner);
        Ok(others.map(|owner| self.volume.path(Folder::Work, owner)).collect())
    }

    /// Takes over the files of transformers that have been silent for too long at this time of the volume's clock, and returns them.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn take_over(&self, now: SystemTime) -> io::Result<Vec<Name>> {
        let mut found = Vec::new();
        for owner in names(self.volume.folder(Folder::Work))? {
            let folder = self.volume.path(Folder::Work, &owner);
            if owner == self.owner || !is_abandoned(&folder.join(ALIVE), now) {
                continue;
            }
            for name in names(folder.clone())? {
                let (abandoned, own) = (folder.join(name.as_str()), self.claimed(&name));
                let moved = match is_older(&abandoned, &own) {
                    // A newer file of that name is on its way already.
                    true => fs::remove_file(&abandoned),
                    false => move_file(&abandoned, &own),
                };
                match moved {
                    Ok(()) => found.push(name),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            let _ = fs::remove_file(folder.join(ALIVE));
            let _ = fs::remove_dir(folder);
        }
        Ok(found)
    }
}

/// Whether a file was written before another one, which is there.
fn is_older(one: &std::path::Path, other: &std::path::Path) -> bool {
    let written = |path| fs::metadata(path).and_then(|about| about.modified());
    written(one).is_ok_and(|one| written(other).is_ok_and(|other| one < other))
}

/// Whether a transformer was not heard of for too long. One without a sign of life has just joined, or just left.
fn is_abandoned(alive: &std::path::Path, now: SystemTime) -> bool {
    let shown = fs::metadata(alive).and_then(|about| about.modified());
    shown.is_ok_and(|shown| now.duration_since(shown).unwrap_or_default() > LEASE_TIME)
}

/// The names in a folder, without hidden ones and those that no client could have chosen.
fn names(folder: PathBuf) -> io::Result<Vec<Name>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| Name::parse(name).ok()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn put(volume: &Volume, file: &str) {
        fs::write(volume.path(Folder::Inbox, &name(file)), "a\n1\n").unwrap();
    }

    #[test]
    fn each_file_is_claimed_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let queues = ["one", "two"].map(|owner| Queue::join(volume.clone(), name(owner)).unwrap());
        for number in 0..CLAIMS_MAX + 4 {
            put(&volume, &format!("{number:02}.csv"));
        }
        let (first, second) = (queues[0].claim().unwrap(), queues[1].claim().unwrap());
        assert_eq!((first.len(), second.len()), (CLAIMS_MAX, 4));
        assert_eq!(queues[0].unfinished().unwrap().len(), CLAIMS_MAX);
        assert!(queues[0].claim().unwrap().is_empty());
    }

    #[test]
    fn files_of_the_silent_are_taken_over_and_those_of_the_living_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::open(folder.path()).unwrap();
        let [one, two] = ["one", "two"].map(|owner| Queue::join(volume.clone(), name(owner)).unwrap());
        put(&volume, "a.csv");
        assert_eq!(one.claim().unwrap(), [name("a.csv")]);
        let now = two.show_alive().unwrap();
        assert!(two.take_over(now).unwrap().is_empty(), "it lives");
        assert_eq!(two.take_over(now + LEASE_TIME * 2).unwrap(), [name("a.csv")]);
        assert_eq!(two.unfinished().unwrap(), [name("a.csv")]);
        assert!(!one.claimed(&name("a.csv")).exists());
        // The same name again: the older file comes first, whoever has it.
        put(&volume, "a.csv");
        assert!(one.claim().unwrap().is_empty(), "two has the older one");
        assert_eq!(two.claim().unwrap(), [name("a.csv")], "it has that name already");
        fs::remove_file(two.claimed(&name("a.csv"))).unwrap();
        put(&volume, "a.csv");
        let one = Queue::join(volume.clone(), name("one")).unwrap();
        assert_eq!(one.claim().unwrap(), [name("a.csv")]);
        // A clock that runs behind makes nobody look dead.
        assert!(two.take_over(now - LEASE_TIME * 100).unwrap().is_empty());
    }
}
