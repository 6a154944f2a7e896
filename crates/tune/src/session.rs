//! Changes the machine and undoes changes: one run at a time, and nothing without the journal.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use crate::boot::BOOT_ID;
use crate::change::{Change, Content};
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::journal::{Beside, Journal, Place, Record};
use crate::namespaces;
use crate::settings::{Commands, Setting};

/// A run that may change settings: it holds the journal's lock until it is dropped.
pub struct Session<'h> {
    host: &'h Host,
    journal: Journal,
    /// The records that this run has written and that still exist.
    own: RefCell<BTreeSet<u32>>,
}

/// The result of undoing one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The tuning that made it.
    pub tuning: String,
    /// The setting's name.
    pub setting: String,
    /// The result.
    pub fate: Fate,
}

/// What happened to a setting that was to be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It has its old value again.
    Restored(Content),
    /// It already had its old value.
    Already(Content),
    /// There is nothing left to restore, and why.
    Gone(String),
    /// Someone else has changed it since; it stays, and its record was moved aside.
    LeftAlone {
        /// Its current value.
        now: Content,
        /// The value that we had set.
        ours: Content,
        /// The value before.
        before: Content,
        /// The path of the record.
        record: String,
    },
    /// It could not be restored; its record is kept. Why, and what to do.
    Kept(String),
}

impl<'h> Session<'h> {
    /// Starts a run with the journal in `state`, a folder on our own disk.
    ///
    /// # Errors
    /// Another run holds it, or it cannot be opened.
    pub fn open(host: &'h Host, state: &Path) -> Result<Session<'h>, Error> {
        Ok(Session { host, journal: Journal::open(host.system(), state)?, own: RefCell::default() })
    }

    /// Tunings and variants of earlier runs that were applied and not undone, for a check before anything starts;
    /// empty if unknown. Does not take the lock.
    pub fn left_over(host: &Host, state: &Path) -> BTreeSet<String> {
        Journal::look(host.system(), state).into_iter().map(|record| record.tuning).collect()
    }

    /// Whether there is nothing to restore; does not take the lock.
    pub fn is_clean(host: &Host, state: &Path) -> bool {
        Journal::is_empty(host.system(), state)
    }

    /// The tunings that were applied and not undone.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn applied(&self) -> Result<BTreeSet<String>, Error> {
        let entries = self.journal.entries(self.host.system())?;
        Ok(entries.records.into_iter().map(|(_, record)| record.tuning).collect())
    }

    /// Makes all changes of one tuning, or none. Returns the changes that were needed, with the old values.
    ///
    /// # Errors
    /// A setting that cannot be read or restored, a damaged journal, or a change that the system refuses.
    pub fn apply(&self, tuning: &str, changes: &[Change]) -> Result<Vec<(Setting, Content)>, Error> {
        let entries = self.journal.entries(self.host.system())?;
        if let Some(broken) = entries.broken.first() {
            return Err(damaged(broken));
        }
        let mut made = Vec::new();
        for change in changes {
            match self.make(tuning, change) {
                Ok(before) => made.extend(before.map(|before| (change.setting.clone(), before))),
                Err(error) => return Err(self.taken_back(tuning, entries.records.len(), error)),
            }
        }
        Ok(made)
    }

    /// Undoes what these tunings changed, the latest first; all of them if none is named.
    ///
    /// # Errors
    /// The journal cannot be read or written. A setting that cannot be restored is not an error; its fate says so.
    pub fn undo(&self, names: &[String]) -> Result<(Vec<Undone>, Vec<String>), Error> {
        self.undo_if(&|_, record| names.is_empty() || names.contains(&record.tuning))
    }

    /// Undoes what this run changed under this name, but not what an earlier run changed under it.
    ///
    /// # Errors
    /// As [`undo`](Session::undo).
    pub fn undo_own(&self, name: &str) -> Result<(Vec<Undone>, Vec<String>), Error> {
        let own = self.own.borrow().clone();
        self.undo_if(&|number, record| own.contains(&number) && record.tuning == name)
    }

    fn undo_if(&self, selected: &dyn Fn(u32, &Record) -> bool) -> Result<(Vec<Undone>, Vec<String>), Error> {
        let entries = self.journal.entries(self.host.system())?;
        let mut undone = Vec::new();
        for (at, (number, record)) in entries.records.iter().enumerate().rev() {
            if !selected(*number, record) {
                continue;
            }
            let later = entries.records[at + 1..].iter().rev();
            let covered = later
                .filter(|(number, later)| !selected(*number, later))
                .find_map(|(_, later)| later.covers(record));
            let fates = match covered {
                Some(why) => vec![(record.setting.name(), Fate::Kept(why))],
                None => self.put_back(*number, record)?,
            };
            let tuning = &record.tuning;
            undone.extend(fates.into_iter().map(|(setting, fate)| Undone {
                tuning: tuning.clone(),
                setting,
                fate,
            }));
        }
        Ok((undone, entries.broken))
    }

    /// Records, before its first command is run, that a change by commands is about to be made. Until the record is
    /// deleted, [`undo`](Session::undo) runs its second command.
    ///
    /// # Errors
    /// A journal that is damaged or cannot be written: then the command must not be run.
    pub fn begin(&self, name: &str, commands: Commands) -> Result<Begun, Error> {
        let system = self.host.system();
        let entries = self.journal.entries(system)?;
        if let Some(broken) = entries.broken.first() {
            return Err(damaged(broken));
        }
        let number = self.journal.next_number(system)?;
        let record = Record {
            tuning: name.to_owned(),
            setting: commands.into(),
            before: Content::Absent,
            wanted: Content::Text("set".to_owned()),
            settled: None,
            place: place(self.host),
            beside: Vec::new(),
        };
        self.journal.write(system, number, &record)?;
        self.own.borrow_mut().insert(number);
        Ok(Begun { number, record })
    }

    /// Records that its first command has finished.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn made(&self, begun: &Begun) -> Result<(), Error> {
        let settled = Some(begun.record.wanted.clone());
        self.journal.write(self.host.system(), begun.number, &Record { settled, ..begun.record.clone() })
    }

    /// Deletes the record of a change by commands that was undone.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget(&self, begun: &Begun) -> Result<(), Error> {
        self.own.borrow_mut().remove(&begun.number);
        self.journal.forget(self.host.system(), begun.number)
    }

    /// Makes one change. Returns the old value, or `None` if the setting already had the wanted value.
    fn make(&self, tuning: &str, change: &Change) -> Result<Option<Content>, Error> {
        let Change { setting, to } = change;
        let refused = |Unknown(reason)| Error::Refused(format!("{tuning}: {reason}"));
        let before = setting.kind().read(self.host).map_err(refused)?;
        if setting.kind().holds(&before, to) {
            return Ok(None);
        }
        let unreturnable = |reason| Error::Refused(format!("{tuning}: {reason}"));
        setting.kind().can_return(self.host, &before).map_err(unreturnable)?;
        let beside = beside(self.host, setting).map_err(unreturnable)?;

        let system = self.host.system();
        let number = self.journal.next_number(system)?;
        let mut record = Record {
            tuning: tuning.to_owned(),
            setting: setting.clone(),
            before,
            wanted: to.clone(),
            settled: None,
            place: place(self.host),
            beside,
        };
        self.journal.write(system, number, &record)?;
        self.own.borrow_mut().insert(number);
        let failed = |reason| Error::Failed(format!("{tuning}: {reason}"));
        setting.kind().write(self.host, to).map_err(failed)?;
        let settled = setting.kind().read(self.host).map_err(|Unknown(reason)| failed(reason))?;
        if settled == record.before {
            return Err(failed(format!(
                "{} was set to {} and is still {}: the kernel or driver accepts the value and ignores it",
                setting.name(),
                to.line(),
                settled.line()
            )));
        }
        record.settled = Some(settled);
        for one in &mut record.beside {
            one.settled = state(self.host, &one.setting);
        }
        self.journal.write(system, number, &record)?;
        Ok(Some(record.before))
    }

    /// Undoes what a tuning did before it failed; reports this, or what could not be undone.
    fn taken_back(&self, tuning: &str, records_before: usize, error: Error) -> Error {
        let undo = || -> Result<Vec<Undone>, Error> {
            let entries = self.journal.entries(self.host.system())?;
            let ours = entries.records.iter().skip(records_before).rev();
            let fates: Result<Vec<_>, Error> =
                ours.map(|(number, record)| self.put_back(*number, record)).collect();
            let fates = fates?.into_iter().flatten();
            Ok(fates.map(|(setting, fate)| Undone { tuning: tuning.to_owned(), setting, fate }).collect())
        };
        let all_back = undo().is_ok_and(|undone| {
            undone
                .iter()
                .all(|undone| matches!(undone.fate, Fate::Restored(_) | Fate::Already(_) | Fate::Gone(_)))
        });
        match (all_back, error) {
            (true, error) => error,
            (false, error) => Error::Failed(format!(
                "{error}; some of it could not be undone right away: run `flatout tune undo {tuning}`"
            )),
        }
    }

    /// Restores a setting, and those that were reset with it. Returns their names and what happened; of the others only those
    /// that were written or left alone.
    fn put_back(&self, number: u32, record: &Record) -> Result<Vec<(String, Fate)>, Error> {
        let (host, system) = (self.host, self.host.system());
        let kind = record.setting.kind();
        let alone = |fate| Ok(vec![(record.setting.name(), fate)]);
        match elsewhere(host, record) {
            Some(Elsewhere::Gone(reason)) => return alone(self.forgotten(number, Fate::Gone(reason))?),
            Some(Elsewhere::Other(reason)) => return alone(Fate::Kept(reason)),
            None => {}
        }
        if let Setting::Commands(commands) = &record.setting {
            return alone(self.undo_commands(number, record, commands)?);
        }
        kind.tidy(host);
        if let Some(reason) = kind.gone(host) {
            return alone(self.forgotten(number, Fate::Gone(reason))?);
        }
        let now = match kind.read(host) {
            Ok(now) => now,
            Err(Unknown(reason)) => return alone(Fate::Kept(reason)),
        };
        if now == record.before {
            let (record, others) = self.staged(number, record)?;
            return self.put_back_beside(number, &record, Fate::Already(now), others);
        }
        let is_ours = match &record.settled {
            Some(settled) => now == *settled,
            None => kind.holds(&now, &record.wanted) || self.is_made_of(record, &now),
        };
        if !is_ours {
            let ours = record.settled.clone().unwrap_or_else(|| record.wanted.clone());
            let path = self.journal.set_aside(system, number)?.display().to_string();
            return alone(Fate::LeftAlone { now, ours, before: record.before.clone(), record: path });
        }
        if let Err(reason) = kind.can_return(host, &record.before) {
            return alone(Fate::Kept(reason));
        }
        let (record, others) = self.staged(number, record)?;
        let written = kind.write(host, &record.before);
        let now = match kind.read(host) {
            Ok(now) => now,
            Err(Unknown(reason)) => return alone(Fate::Kept(written.err().unwrap_or(reason))),
        };
        let reason = match written {
            Ok(()) if now == record.before => {
                return self.put_back_beside(number, &record, Fate::Restored(now), others);
            }
            Ok(()) => format!("it was restored to {}, but holds {}", record.before.line(), now.line()),
            Err(reason) => reason,
        };
        // The current value is our doing: the next undo tries again. The others are restored even if this cannot be
        // recorded.
        let noted = self.journal.write(system, number, &Record { settled: Some(now), ..record.clone() });
        alone(Fate::Kept(match noted {
            Ok(()) => reason,
            Err(error) => format!("{reason}; {error}"),
        }))
    }

    /// The record before its setting is restored, which may reset those beside it once more: whatever they hold then is ours or
    /// the driver's. What somebody else has set meanwhile is what they get again; it is in the second list.
    fn staged(&self, number: u32, record: &Record) -> Result<(Record, Vec<(String, Fate)>), Error> {
        let mut staged = Record { place: place(self.host), ..record.clone() };
        let mut foreign = Vec::new();
        for one in &mut staged.beside {
            let Some(now) = state(self.host, &one.setting) else { continue };
            let is_ours = match &one.settled {
                Some(settled) => now == *settled,
                None => record.place.boot == staged.place.boot,
            };
            if !is_ours && now != one.before && now != Content::Absent {
                let told = format!("somebody changed it to {}, and it stays so", now.line());
                foreign.push((one.setting.name(), Fate::Gone(told)));
                one.before = now;
            }
            one.settled = None;
        }
        if !staged.beside.is_empty() {
            self.journal.write(self.host.system(), number, &staged)?;
        }
        Ok((staged, foreign))
    }

    /// Restores what was reset beside a setting that has its old value again.
    fn put_back_beside(
        &self,
        number: u32,
        record: &Record,
        fate: Fate,
        others: Vec<(String, Fate)>,
    ) -> Result<Vec<(String, Fate)>, Error> {
        let mut fates = vec![(record.setting.name(), fate)];
        for Beside { setting, before, .. } in &record.beside {
            let Some(now) = state(self.host, setting) else { continue };
            // A queue that existed with the other number only has nothing to restore.
            if now == *before || [&now, before].contains(&&Content::Absent) {
                continue;
            }
            let written = setting.kind().write(self.host, before);
            let fate = match (written, state(self.host, setting)) {
                (Ok(()), Some(now)) if now == *before => Fate::Restored(now),
                (Ok(()), Some(now)) => {
                    Fate::Kept(format!("it was restored to {}, but holds {}", before.line(), now.line()))
                }
                (Ok(()), None) => Fate::Kept("it can no longer be read".to_owned()),
                (Err(reason), _) => Fate::Kept(reason),
            };
            fates.push((setting.name(), fate));
        }
        if fates.iter().all(|(_, fate)| fate.is_settled()) {
            self.own.borrow_mut().remove(&number);
            self.journal.forget(self.host.system(), number)?;
        }
        fates.extend(others);
        Ok(fates)
    }

    /// Runs the second command of a change by commands.
    fn undo_commands(&self, number: u32, record: &Record, commands: &Commands) -> Result<Fate, Error> {
        match (commands.undo(), &record.settled) {
            (Ok(()), _) => {
                let done = Content::Text(format!("what it was, by `{}`", commands.unset));
                self.forgotten(number, Fate::Restored(done))
            }
            // Perhaps nothing of it was done, so undoing it fails.
            (Err(why), None) => {
                let told = format!("`{}` did not finish, and {why}", commands.set);
                self.forgotten(number, Fate::Gone(told))
            }
            (Err(why), Some(_)) => Ok(Fate::Kept(format!("{why}; by hand: {}", commands.undoing()))),
        }
    }

    /// Whether a value is what the kernel makes of the wanted one, if we died before reading it: it rounds sizes of
    /// tables and rings. The wanted value is written once more; if the result differs, the previous value was someone
    /// else's, and is written back.
    fn is_made_of(&self, record: &Record, now: &Content) -> bool {
        let kind = record.setting.kind();
        if !kind.may_be_rounded(now, &record.wanted) || kind.write(self.host, &record.wanted).is_err() {
            return false;
        }
        let is_same = kind.read(self.host).is_ok_and(|made| made == *now);
        if !is_same {
            let _ = kind.write(self.host, now);
        }
        is_same
    }

    fn forgotten(&self, number: u32, fate: Fate) -> Result<Fate, Error> {
        self.own.borrow_mut().remove(&number);
        self.journal.forget(self.host.system(), number)?;
        Ok(fate)
    }
}

impl Record {
    /// Why an earlier record cannot be undone before this one, if both are about one setting: either would restore what the other
    /// has set or reset.
    fn covers(&self, earlier: &Record) -> Option<String> {
        let by = &self.tuning;
        let resets =
            |record: &Record, setting: &Setting| record.beside.iter().any(|one| one.setting == *setting);
        if self.setting == earlier.setting {
            Some(format!("`{by}` changed it later: undo {by} too"))
        } else if resets(self, &earlier.setting) {
            Some(format!("the driver may have reset it with a later change, `{by}`: undo {by} too"))
        } else if resets(earlier, &self.setting) {
            let name = self.setting.name();
            Some(format!("the driver may reset {name} with it, which `{by}` changed later: undo {by} too"))
        } else {
            None
        }
    }
}

impl Fate {
    /// Whether nothing of ours is left.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Fate::Kept(_))
    }
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fate::Restored(content) => write!(f, "restored to {}", content.line()),
            Fate::Already(content) => write!(f, "is {} already", content.line()),
            Fate::Gone(reason) => write!(f, "nothing to restore: {reason}"),
            Fate::Kept(reason) => write!(f, "NOT restored: {reason}"),
            Fate::LeftAlone { now, ours, before, record } => write!(
                f,
                "left alone: somebody changed it from {} to {}; before flatout it was {} (in full in {record})",
                ours.line(),
                now.line(),
                before.line()
            ),
        }
    }
}

/// A recorded change by commands.
#[derive(Debug)]
pub struct Begun {
    number: u32,
    record: Record,
}

fn damaged(broken: &str) -> Error {
    Error::Refused(format!(
        "{broken}; nothing is changed while a record cannot be read: run `flatout tune undo`, check what it should \
         have restored, then remove the file"
    ))
}

/// A setting's value, [`Content::Absent`] if it no longer exists; `None` if it cannot be read.
fn state(host: &Host, setting: &Setting) -> Option<Content> {
    match setting.kind().gone(host) {
        Some(_) => Some(Content::Absent),
        None => setting.kind().read(host).ok(),
    }
}

/// The settings that may be reset with this one, and their values. An error is a value that could not be restored.
pub(crate) fn beside(host: &Host, setting: &Setting) -> Result<Vec<Beside>, String> {
    let mut all = Vec::new();
    for setting in setting.kind().resets(host) {
        // Many drivers have only some of them.
        let Ok(before) = setting.kind().read(host) else { continue };
        let unreturnable = |reason| format!("the driver may reset the {}: {reason}", setting.name());
        setting.kind().can_return(host, &before).map_err(unreturnable)?;
        all.push(Beside { setting, before, settled: None });
    }
    Ok(all)
}

/// Why a record does not apply here.
enum Elsewhere {
    /// Its setting has disappeared with its boot.
    Gone(String),
    /// It is for another network namespace that may still exist.
    Other(String),
}

fn elsewhere(host: &Host, record: &Record) -> Option<Elsewhere> {
    let now = place(host);
    if !record.setting.kind().is_namespaced() || record.place == now {
        return None;
    }
    if record.place.boot != now.boot {
        if let Setting::Commands(_) = &record.setting {
            // It may have changed a file.
            return None;
        }
        // Every boot has an initial namespace; the others no longer exist.
        let gone = "it belonged to a network namespace of an earlier boot";
        return (!record.place.is_first).then(|| Elsewhere::Gone(gone.to_owned()));
    }
    if record.place.namespace == now.namespace {
        return None;
    }
    let theirs = &record.place.namespace;
    Some(match namespaces::is_gone(host, theirs) {
        true => Elsewhere::Gone(format!("its network namespace {theirs} no longer exists")),
        false => Elsewhere::Other(format!(
            "it belongs to the network namespace {theirs}, and this one is {}: run it there",
            now.namespace
        )),
    })
}

fn place(host: &Host) -> Place {
    let namespace = host.link("/proc/self/ns/net").unwrap_or_default();
    Place {
        boot: host.text(BOOT_ID).unwrap_or_default(),
        is_first: host.link("/proc/1/ns/net").is_none_or(|first| first == namespace),
        namespace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Folder};
    use crate::netlink::fake::{card, qdisc, qdisc_to_attach};
    use crate::settings::{Ethtool, Group, Qdisc};

    const DEFAULT_QDISC: &str = "/proc/sys/net/core/default_qdisc";

    /// A machine with a sysctl, a choice in sysfs, a card and a qdisc.
    fn machine() -> Fake {
        let fake = Fake::with(&[
            ("/proc/sys/net/core/somaxconn", "4096\n"),
            ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            (DEFAULT_QDISC, "pfifo_fast\n"),
            ("/proc/net/dev", "a\nb\n eth0: 0\n"),
            ("/proc/sys/kernel/random/boot_id", "boot-1\n"),
            ("/etc/sysctl.d/99-own.conf", "# mine\n"),
        ]);
        fake.link("/proc/self/ns/net", "net:[1]");
        fake.link("/proc/1/ns/net", "net:[1]");
        fake.tell_all(card());
        fake.tell_all(qdisc("pfifo_fast", 0, &[3, 0, 0, 0], 0));
        fake
    }

    fn changes() -> Vec<Change> {
        vec![
            Change::text(Setting::sysctl("net.core.somaxconn"), 32_768),
            Change::text(Setting::sysctl("net.ipv4.tcp_rmem"), "4096 131072 16777216"),
            Change::text(Ethtool::new("eth0", Group::Coalesce, "rx-usecs"), 256),
            Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue"),
            Change::text(Setting::file("/etc/sysctl.d/zz-flatout-t.conf"), "net.core.somaxconn = 32768\n"),
            Change::text(Setting::file("/etc/sysctl.d/99-own.conf"), "ours\n"),
        ]
    }

    fn undo(host: &Host, state: &Path) -> Vec<Fate> {
        let (undone, broken) = Session::open(host, state).unwrap().undo(&[]).unwrap();
        assert!(broken.is_empty());
        undone.into_iter().map(|one| one.fate).collect()
    }

    #[test]
    fn applied_settings_are_fully_restored() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        let made = Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
        assert_eq!(made.len(), changes().len());
        assert_eq!(fake.read("/proc/sys/net/core/somaxconn"), "32768");
        assert!(!Session::is_clean(&host, &state.0));
        let again = Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
        assert_eq!(again, []);
        let fates = undo(&host, &state.0);
        assert!(fates.iter().all(|fate| matches!(fate, Fate::Restored(_))), "{fates:?}");
        assert_eq!(fake.snapshot(), before);
        assert!(Session::is_clean(&host, &state.0));
    }

    /// Killed at each write, rename, removal and sync of applying: undo restores everything.
    #[test]
    fn killed_at_any_operation_of_apply() {
        for operations in 0.. {
            let (fake, state) = (machine(), Folder::new());
            let (host, before) = (fake.host(), fake.snapshot());
            fake.die_after(Some(operations));
            let applied = Session::open(&host, &state.0).and_then(|session| session.apply("t", &changes()));
            fake.die_after(None);
            undo(&host, &state.0);
            assert_eq!(fake.snapshot(), before, "killed after {operations} operations");
            assert!(Session::is_clean(&host, &state.0), "killed after {operations} operations");
            if applied.is_ok() {
                assert!(operations > 40, "{operations}");
                break;
            }
        }
    }

    /// The same for a kill during undo: the next undo completes it.
    #[test]
    fn killed_at_any_operation_of_undo() {
        for operations in 0.. {
            let (fake, state) = (machine(), Folder::new());
            let (host, before) = (fake.host(), fake.snapshot());
            Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
            fake.die_after(Some(operations));
            let undone = Session::open(&host, &state.0).and_then(|session| session.undo(&[]));
            fake.die_after(None);
            undo(&host, &state.0);
            assert_eq!(fake.snapshot(), before, "killed after {operations} operations");
            assert!(Session::is_clean(&host, &state.0));
            if undone.is_ok_and(|(undone, _)| undone.iter().all(|one| one.fate.is_settled())) {
                break;
            }
        }
    }

    const XPS: &str = "/sys/class/net/eth0/queues/tx-0/xps_cpus";
    const RPS: &str = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
    const AFFINITY: &str = "/proc/irq/30/smp_affinity_list";

    /// The same with queues and an interrupt, which the driver resets with its rings.
    fn machine_with_queues() -> Fake {
        let fake = machine();
        for (path, value) in [
            (XPS, "2\n"),
            (RPS, "3\n"),
            (AFFINITY, "1\n"),
            ("/proc/interrupts", " CPU0\n 30: 1 PCI-MSI eth0-TxRx-0\n"),
            ("/proc/sys/kernel/osrelease", "6.18.0\n"),
        ] {
            fake.file(path, value);
        }
        fake.reset_with_rings(&[(XPS, "0\n"), (RPS, "0\n"), (AFFINITY, "0-3\n")]);
        fake
    }

    fn rings() -> Vec<Change> {
        vec![Change::text(Ethtool::new("eth0", Group::Ring, "rx"), 1024)]
    }

    /// Queues that the driver makes anew lose their masks, interrupts and table: undoing a longer ring restores all, no matter
    /// when either was killed.
    #[test]
    fn masks_interrupts_and_tables_are_restored_with_rings() {
        for is_undo_killed in [false, true] {
            for operations in 0.. {
                let (fake, state) = (machine_with_queues(), Folder::new());
                let (host, before) = (fake.host(), fake.snapshot());
                let apply =
                    || Session::open(&host, &state.0).and_then(|session| session.apply("rings", &rings()));
                if is_undo_killed {
                    apply().unwrap();
                    assert_eq!((&*fake.read(XPS), &*fake.read(AFFINITY)), ("0\n", "0-3\n"));
                }
                fake.die_after(Some(operations));
                let is_done = match is_undo_killed {
                    false => apply().is_ok(),
                    true => Session::open(&host, &state.0)
                        .and_then(|session| session.undo(&[]))
                        .is_ok_and(|(undone, _)| undone.iter().all(|one| one.fate.is_settled())),
                };
                fake.die_after(None);
                undo(&host, &state.0);
                assert_eq!(fake.snapshot(), before, "{is_undo_killed}, killed after {operations} operations");
                assert!(Session::is_clean(&host, &state.0), "{is_undo_killed}, {operations}");
                if is_done {
                    assert!(operations > 9, "{operations}");
                    break;
                }
            }
        }
    }

    /// What somebody else has set after the ring was changed is not overwritten, although the driver resets it once more.
    #[test]
    fn foreign_masks_stay_when_rings_are_undone() {
        let (fake, state) = (machine_with_queues(), Folder::new());
        let host = fake.host();
        Session::open(&host, &state.0).unwrap().apply("rings", &rings()).unwrap();
        fake.file(XPS, "8\n");
        let (undone, _) = Session::open(&host, &state.0).unwrap().undo(&[]).unwrap();
        assert_eq!((&*fake.read(XPS), &*fake.read(RPS), &*fake.read(AFFINITY)), ("8\n", "3\n", "1\n"));
        let left = undone.iter().find(|one| one.setting == XPS && matches!(one.fate, Fate::Gone(_)));
        assert!(left.unwrap().fate.to_string().contains("changed it to 8"), "{undone:?}");
        assert!(Session::is_clean(&host, &state.0));
        // After a reboot, masks are those of that boot.
        Session::open(&host, &state.0).unwrap().apply("rings", &rings()).unwrap();
        fake.file("/proc/sys/kernel/random/boot_id", "boot-2\n");
        fake.file(XPS, "4\n");
        undo(&host, &state.0);
        assert_eq!((&*fake.read(XPS), &*fake.read(RPS)), ("4\n", "3\n"));
    }

    /// Changed masks have records of their own. The earlier of both changes is not undone alone: either would restore what the
    /// other has set or reset. In reverse order, and together, all values are restored.
    #[test]
    fn rings_and_masks_are_undone_in_reverse_order() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for order in [["rings", "xps"], ["xps", "rings"]] {
            for undone_together in [false, true] {
                let (fake, state) = (machine_with_queues(), Folder::new());
                let (host, before) = (fake.host(), fake.snapshot());
                let session = Session::open(&host, &state.0).unwrap();
                for name in order {
                    let masks = || vec![Change::text(Setting::file(XPS), "1")];
                    session.apply(name, &if name == "rings" { rings() } else { masks() }).unwrap();
                }
                let applied = fake.snapshot();
                let (undone, _) = session.undo(&names(&order[..1])).unwrap();
                let [Undone { fate: Fate::Kept(why), .. }] = &undone[..] else { panic!("{undone:?}") };
                assert!(why.contains(&format!("undo {} too", order[1])), "{why}");
                assert_eq!(fake.snapshot(), applied, "{order:?}");
                if !undone_together {
                    session.undo(&names(&order[1..])).unwrap();
                    let left = if order[0] == "xps" { "1" } else { "0\n" };
                    assert_eq!(fake.read(XPS), left, "{order:?}");
                }
                session.undo(&[]).unwrap();
                assert_eq!(fake.snapshot(), before, "{order:?}, {undone_together}");
                assert!(Session::is_clean(&host, &state.0));
            }
        }
    }

    /// A mask that holds the driver's value, and is reset to it once more.
    #[test]
    fn a_mask_that_was_reset_to_its_old_value_keeps_its_record() {
        let (fake, state) = (machine_with_queues(), Folder::new());
        fake.file(XPS, "0\n");
        let (host, before) = (fake.host(), fake.snapshot());
        let session = Session::open(&host, &state.0).unwrap();
        session.apply("xps", &[Change::text(Setting::file(XPS), "1")]).unwrap();
        session.apply("rings", &rings()).unwrap();
        assert_eq!(fake.read(XPS), "0\n");
        for name in ["xps", "rings", "xps"] {
            session.undo(&[name.to_owned()]).unwrap();
        }
        assert_eq!(fake.snapshot(), before);
        assert!(Session::is_clean(&host, &state.0));
    }

    #[test]
    fn foreign_changes_are_left_alone_and_reported() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
        fake.file("/proc/sys/net/core/somaxconn", "1000\n");
        let fates = undo(&host, &state.0);
        let Some(left @ Fate::LeftAlone { record, .. }) = fates.last() else { panic!("{fates:?}") };
        let told = left.to_string();
        assert!(told.contains("from 32768 to 1000") && told.contains("it was 4096"), "{told}");
        assert!(Path::new(record).exists());
        assert_eq!(fake.read("/proc/sys/net/core/somaxconn"), "1000\n");
        assert!(Session::is_clean(&host, &state.0));
    }

    /// If the last change of a tuning fails, none is made.
    #[test]
    fn a_tuning_is_applied_whole_or_not_at_all() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        let session = Session::open(&host, &state.0).unwrap();
        let ignored = Change::text(Ethtool::new("eth0", Group::Coalesce, "adaptive-rx"), "on");
        // The kernel stores the request, but keeps it off, because checksums are off.
        let held = Change::text(Ethtool::new("eth0", Group::Feature, "tcp-segmentation-offload"), "on");
        let refused = Change::text(Ethtool::new("eth0", Group::Ring, "rx"), 5000);
        let missing = Change::text(Setting::sysctl("net.core.nothing"), 7);
        for (last, said) in [
            (ignored, "ignores it"),
            (held, "was set to on and is off [requested on]: another offload keeps it there"),
            (refused, "setting eth0 rx to 5000: Invalid argument"),
            (missing, "there is no"),
        ] {
            let all: Vec<Change> = changes().into_iter().take(3).chain([last]).collect();
            let error = session.apply("t", &all).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("right away"), "{error}");
            assert_eq!(fake.snapshot(), before);
            assert!(Session::is_clean(&host, &state.0));
        }
    }

    /// A qdisc with more than options could not be restored, so it is not changed.
    #[test]
    fn settings_that_cannot_be_restored_are_not_changed() {
        for (kind, handle, filters_count) in [("htb", 0x1_0000, 0), ("fq_codel", 0x8001_0000, 1)] {
            let (fake, state) = (machine(), Folder::new());
            fake.tell_all(qdisc(kind, handle, b"1234", filters_count));
            let (host, before) = (fake.host(), fake.snapshot());
            let change = Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue");
            let error = Session::open(&host, &state.0).unwrap().apply("t", &[change]).unwrap_err();
            assert!(error.to_string().contains("configured by somebody"), "{error}");
            assert!(Session::is_clean(&host, &state.0));
            assert_eq!(fake.snapshot(), before);
        }
    }

    /// A qdisc that is completely described by its options is restored with its handle and every byte of them.
    #[test]
    fn a_configured_qdisc_is_put_back_byte_for_byte() {
        let (fake, state) = (machine(), Folder::new());
        fake.tell_all(qdisc("fq", 0x8001_0000, b"anybytes", 0));
        let (host, before) = (fake.host(), fake.snapshot());
        let change = Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue");
        Session::open(&host, &state.0).unwrap().apply("t", &[change]).unwrap();
        assert_ne!(fake.snapshot(), before);
        let fates = undo(&host, &state.0);
        assert!(fates[0].to_string().contains("restored to qdisc fq 8001: root options 616e79"), "{fates:?}");
        assert_eq!(fake.snapshot(), before);
    }

    /// The kernel attaches its default qdisc: a different one must not replace the old one.
    #[test]
    fn the_kernels_own_qdisc_is_replaced_only_while_it_would_come_back() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        let session = Session::open(&host, &state.0).unwrap();
        let change = [Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue")];
        fake.file(DEFAULT_QDISC, "fq_codel\n");
        let error = session.apply("t", &change).unwrap_err().to_string();
        assert!(error.contains("pfifo_fast") && error.contains("tune undo default-qdisc"), "{error}");
        fake.file(DEFAULT_QDISC, "pfifo_fast\n");
        assert_eq!(fake.snapshot(), before);
        session.apply("t", &change).unwrap();
        let ours = fake.replies();
        fake.file(DEFAULT_QDISC, "fq_codel\n");
        for _ in 0..2 {
            let (undone, _) = session.undo(&[]).unwrap();
            assert!(
                matches!(&undone[0].fate, Fate::Kept(why) if why.contains("default_qdisc")),
                "{undone:?}"
            );
            assert_eq!(fake.replies(), ours);
        }
        fake.file(DEFAULT_QDISC, "pfifo_fast\n");
        session.undo(&[]).unwrap();
        assert_eq!(fake.snapshot(), before);
    }

    /// What a failed restore leaves is not someone else's change: each undo tries again.
    #[test]
    fn a_failed_put_back_is_tried_again() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        let session = Session::open(&host, &state.0).unwrap();
        session.apply("t", &[Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue")]).unwrap();
        fake.tell_all(qdisc_to_attach("fq", b"1234"));
        for _ in 0..2 {
            let (undone, _) = session.undo(&[]).unwrap();
            assert!(
                matches!(&undone[0].fate, Fate::Kept(why) if why.contains("holds qdisc fq")),
                "{undone:?}"
            );
        }
        // What someone else did after it is theirs.
        fake.tell_all(qdisc("pfifo", 0x8001_0000, &[], 0));
        let (undone, _) = session.undo(&[]).unwrap();
        assert!(matches!(undone[0].fate, Fate::LeftAlone { .. }), "{undone:?}");
    }

    #[test]
    fn one_tuning_is_undone_without_the_other() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        let session = Session::open(&host, &state.0).unwrap();
        let set = |value: u32| [Change::text(Setting::sysctl("net.core.somaxconn"), value)];
        session.apply("one", &set(8192)).unwrap();
        session.apply("two", &set(16_384)).unwrap();
        let (undone, _) = session.undo(&["one".to_owned()]).unwrap();
        assert!(undone[0].fate.to_string().contains("undo two too"), "{}", undone[0].fate);
        session.undo(&["two".to_owned()]).unwrap();
        assert_eq!(fake.read("/proc/sys/net/core/somaxconn"), "8192");
        session.undo(&["one".to_owned()]).unwrap();
        assert_eq!(fake.read("/proc/sys/net/core/somaxconn"), "4096\n");
    }

    #[test]
    fn another_namespace_is_not_written_to() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        Session::open(&host, &state.0).unwrap().apply("t", &changes()[..1]).unwrap();
        fake.link("/proc/self/ns/net", "net:[2]");
        assert!(
            matches!(&undo(&host, &state.0)[..], [Fate::Kept(reason)] if reason.contains("run it there"))
        );
        assert_eq!(fake.read("/proc/sys/net/core/somaxconn"), "32768");
    }

    /// After a reboot a persistent value is restored, and one that is the default again is left alone.
    #[test]
    fn after_a_reboot() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
        fake.file("/proc/sys/kernel/random/boot_id", "boot-2\n");
        fake.file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        undo(&host, &state.0);
        fake.file("/proc/sys/kernel/random/boot_id", "boot-1\n");
        assert_eq!(fake.snapshot(), before);
    }

    /// A climb undoes its own changes; what the operator applied before under the same name stays.
    #[test]
    fn a_run_takes_back_its_own_alone() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        let somaxconn = |value: u32| Change::text(Setting::sysctl("net.core.somaxconn"), value);
        Session::open(&host, &state.0).unwrap().apply("t", &changes()[4..]).unwrap();
        Session::open(&host, &state.0).unwrap().apply("t", &[somaxconn(8192)]).unwrap();
        let applied = fake.snapshot();
        assert_eq!(Session::left_over(&host, &state.0), BTreeSet::from(["t".to_owned()]));
        let session = Session::open(&host, &state.0).unwrap();
        session.apply("t", &[somaxconn(32_768), changes()[1].clone()]).unwrap();
        let (undone, _) = session.undo_own("t").unwrap();
        assert_eq!(undone.len(), 2, "{undone:?}");
        assert!(undone.iter().all(|one| matches!(one.fate, Fate::Restored(_))), "{undone:?}");
        assert_eq!((fake.snapshot(), session.undo_own("t").unwrap().0.len()), (applied, 0));
    }

    /// The kernel makes 400 of 310. After a kill between the write and the record of its result, the value is still
    /// recognised as ours; a near value that someone else set is left as it was.
    #[test]
    fn a_value_that_the_kernel_rounded_is_ours() {
        const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";
        let change = [Change::text(Setting::file(BUCKETS), 310)];
        let killed = |operations: u32| {
            let (fake, state) = (machine(), Folder::new());
            fake.file(BUCKETS, "100\n");
            fake.round(BUCKETS, 100);
            let host = fake.host();
            fake.die_after(Some(operations));
            let _ = Session::open(&host, &state.0).and_then(|session| session.apply("t", &change));
            fake.die_after(None);
            (fake, state)
        };
        // Just after the write.
        let at = (0..).find(|operations| killed(*operations).0.read(BUCKETS) == "400").unwrap();
        for (found, left, is_ours) in [("400", "100\n", true), ("500", "500", false), ("9000", "9000", false)]
        {
            let (fake, state) = killed(at);
            fake.file(BUCKETS, found);
            let fates = undo(&fake.host(), &state.0);
            assert_eq!(matches!(fates[..], [Fate::Restored(_)]), is_ours, "{found}: {fates:?}");
            assert_eq!((fates.len(), fake.read(BUCKETS).as_str()), (1, left));
        }
    }

    /// After a reboot the interrupt of a queue has another number, and its old number belongs to another card.
    #[test]
    fn an_interrupt_is_known_by_its_name() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        let table = |first: &str, second: &str| {
            fake.file(
                "/proc/interrupts",
                format!(" CPU0\n {first}: 1 PCI eth0-TxRx-0\n {second}: 1 PCI nvme0q0\n"),
            );
        };
        table("30", "31");
        fake.file("/proc/irq/30/smp_affinity_list", "0-3\n");
        fake.file("/proc/irq/31/smp_affinity_list", "0-3\n");
        let interrupt = crate::settings::Interrupt { name: "eth0-TxRx-0".to_owned(), number: 30 };
        let change = [Change::text(interrupt, 1)];
        Session::open(&host, &state.0).unwrap().apply("t", &change).unwrap();
        assert_eq!(fake.read("/proc/irq/30/smp_affinity_list"), "1");
        table("31", "30");
        fake.file("/proc/irq/31/smp_affinity_list", "1");
        let fates = undo(&host, &state.0);
        assert!(matches!(fates[..], [Fate::Restored(_)]), "{fates:?}");
        let read = |number: u32| fake.read(&format!("/proc/irq/{number}/smp_affinity_list"));
        assert_eq!((read(31).as_str(), read(30).as_str()), ("0-3\n", "1"));
        table("40", "41");
        fake.file("/proc/irq/40/smp_affinity_list", "0-3\n");
        Session::open(&host, &state.0)
            .unwrap()
            .apply(
                "t",
                &[Change::text(crate::settings::Interrupt { name: "eth0-TxRx-0".to_owned(), number: 40 }, 1)],
            )
            .unwrap();
        fake.file("/proc/interrupts", " CPU0\n");
        assert!(matches!(undo(&host, &state.0)[..], [Fate::Gone(_)]), "the card is gone");
    }

    #[test]
    fn a_namespace_that_has_ended_is_gone() {
        let (fake, state) = (machine(), Folder::new());
        let host = fake.host();
        Session::open(&host, &state.0).unwrap().apply("t", &changes()[..1]).unwrap();
        fake.file("/proc/self/mountinfo", "1 0 0:4 / / rw - ext4 /dev/vda rw\n");
        fake.link("/proc/self/ns/net", "net:[2]");
        fake.link("/proc/1/ns/net", "net:[2]");
        let fates = undo(&host, &state.0);
        assert!(
            matches!(&fates[..], [Fate::Gone(why)] if why.contains("net:[1] no longer exists")),
            "{fates:?}"
        );
        assert!(Session::is_clean(&host, &state.0));
    }

    /// Whenever flatout is killed, `undo` runs the second command; if the first had not finished it may fail.
    #[test]
    fn commands_are_undone_by_their_second_one() {
        let (fake, state, folder) = (machine(), Folder::new(), Folder::new());
        let host = fake.host();
        let commands = |unset: &str| Commands {
            set: "touch it".to_owned(),
            unset: unset.to_owned(),
            folder: folder.0.display().to_string(),
            variables: Vec::new(),
        };
        let there = folder.0.join("it");
        let session = Session::open(&host, &state.0).unwrap();
        session.begin("v", commands("rm it")).unwrap();
        drop(session);
        let fates = undo(&host, &state.0);
        assert!(matches!(&fates[..], [Fate::Gone(why)] if why.contains("did not finish")), "{fates:?}");
        std::fs::write(&there, "").unwrap();
        let session = Session::open(&host, &state.0).unwrap();
        let begun = session.begin("v", commands("rm it")).unwrap();
        session.made(&begun).unwrap();
        drop(session);
        assert_eq!(Session::left_over(&host, &state.0), BTreeSet::from(["v".to_owned()]));
        assert!(matches!(undo(&host, &state.0)[..], [Fate::Restored(_)]) && !there.exists());
        let session = Session::open(&host, &state.0).unwrap();
        let begun = session.begin("v", commands("exit 3")).unwrap();
        session.made(&begun).unwrap();
        drop(session);
        assert!(matches!(&undo(&host, &state.0)[..], [Fate::Kept(why)] if why.contains("exit status 3")));
        let session = Session::open(&host, &state.0).unwrap();
        session.forget(&begun).unwrap();
        assert!(Session::is_clean(&host, &state.0));
    }

    /// Nothing is changed next to a record that cannot be read; the others are restored.
    #[test]
    fn a_damaged_record_stops_apply_and_not_undo() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        Session::open(&host, &state.0).unwrap().apply("t", &changes()).unwrap();
        std::fs::write(state.0.join("000099.json"), "flatout journal 1 0\n{").unwrap();
        let session = Session::open(&host, &state.0).unwrap();
        let error = session.apply("u", &changes()).unwrap_err().to_string();
        assert!(error.contains("000099.json") && error.contains("tune undo"), "{error}");
        let (_, broken) = session.undo(&[]).unwrap();
        assert_eq!(broken.len(), 1);
        assert_eq!(fake.snapshot(), before);
        assert!(state.0.join("000099.json").exists());
    }
}
