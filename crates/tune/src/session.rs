//! Changing the machine and taking it back: one run at a time, and nothing without the journal.

use std::collections::BTreeSet;
use std::path::Path;

use crate::boot::BOOT_ID;
use crate::change::{Change, Content};
use crate::error::{Error, Unknown};
use crate::host::Host;
use crate::journal::{Journal, Place, Record};
use crate::settings::Setting;

/// A run that may change things: it holds the journal until it is dropped.
pub struct Session<'h> {
    host: &'h Host,
    journal: Journal,
}

/// What became of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Whose change it was.
    pub tuning: String,
    /// The setting's name.
    pub setting: String,
    /// What became of it.
    pub fate: Fate,
}

/// What became of one setting when it was to be put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It holds again what it held before.
    Restored(Content),
    /// It held that already.
    Already(Content),
    /// There is nothing to put back any more; why.
    Gone(String),
    /// Somebody else has changed it since; it stays, and its record lies at this path.
    LeftAlone {
        /// What it holds.
        now: Content,
        /// What we had set.
        ours: Content,
        /// What it held before us.
        before: Content,
        /// Where its record lies now.
        record: String,
    },
    /// It could not be put back; its record is kept. Why, and what to do.
    Kept(String),
}

impl<'h> Session<'h> {
    /// Begins a run with the journal in `state`, which lies on our own disk.
    ///
    /// # Errors
    /// Another run holds it, or it cannot be opened.
    pub fn open(host: &'h Host, state: &Path) -> Result<Session<'h>, Error> {
        Ok(Session { host, journal: Journal::open(host.system(), state)? })
    }

    /// Whether there is nothing to put back; looks without holding the journal.
    pub fn is_clean(host: &Host, state: &Path) -> bool {
        Journal::is_empty(host.system(), state)
    }

    /// The tunings that have been applied and not taken back.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn applied(&self) -> Result<BTreeSet<String>, Error> {
        let entries = self.journal.entries(self.host.system())?;
        Ok(entries.records.into_iter().map(|(_, record)| record.tuning).collect())
    }

    /// Makes all changes of one tuning, or none; returns those that were needed, with what each setting held before.
    ///
    /// # Errors
    /// A setting that cannot be read or brought back, a journal that is damaged, or a change that the system refuses.
    pub fn apply(&self, tuning: &str, changes: &[Change]) -> Result<Vec<(Setting, Content)>, Error> {
        let entries = self.journal.entries(self.host.system())?;
        if let Some(broken) = entries.broken.first() {
            return Err(Error::Refused(format!(
                "{broken}; nothing is changed while a record cannot be read: run `flatout tune undo`, see what it \
                 should have put back, then remove the file"
            )));
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

    /// Puts back what these tunings changed, the latest first; all of them where none is named.
    ///
    /// # Errors
    /// The journal cannot be read or written. What cannot be put back is no error of the run, but told with its fate.
    pub fn undo(&self, names: &[String]) -> Result<(Vec<Undone>, Vec<String>), Error> {
        let selected = |record: &Record| names.is_empty() || names.contains(&record.tuning);
        let entries = self.journal.entries(self.host.system())?;
        let mut undone = Vec::new();
        for (at, (number, record)) in entries.records.iter().enumerate().rev() {
            if !selected(record) {
                continue;
            }
            let later = entries.records[at + 1..].iter().map(|(_, later)| later);
            let mut covers = later.filter(|later| later.setting == record.setting && !selected(later));
            let fate = match covers.next_back() {
                Some(later) => Fate::Kept(format!("`{0}` changed it later: undo {0} too", later.tuning)),
                None => self.put_back(*number, record)?,
            };
            undone.push(Undone { tuning: record.tuning.clone(), setting: record.setting.name(), fate });
        }
        Ok((undone, entries.broken))
    }

    /// Makes one change. Returns what the setting held before, or nothing where it held what was wanted.
    fn make(&self, tuning: &str, change: &Change) -> Result<Option<Content>, Error> {
        let Change { setting, to } = change;
        let refused = |Unknown(reason)| Error::Refused(format!("{tuning}: {reason}"));
        let before = setting.kind().read(self.host).map_err(refused)?;
        if setting.kind().holds(&before, to) {
            return Ok(None);
        }
        let unreturnable = |reason| Error::Refused(format!("{tuning}: {reason}"));
        setting.kind().can_return(self.host, &before).map_err(unreturnable)?;

        let system = self.host.system();
        let number = self.journal.next_number(system)?;
        let mut record = Record {
            tuning: tuning.to_owned(),
            setting: setting.clone(),
            before,
            wanted: to.clone(),
            settled: None,
            place: place(self.host),
        };
        self.journal.write(system, number, &record)?;
        let failed = |reason| Error::Failed(format!("{tuning}: {reason}"));
        setting.kind().write(self.host, to).map_err(failed)?;
        let settled = setting.kind().read(self.host).map_err(|Unknown(reason)| failed(reason))?;
        if settled == record.before {
            return Err(failed(format!(
                "{} was set to {} and is still {}: the kernel or driver takes it and ignores it",
                setting.name(),
                to.line(),
                settled.line()
            )));
        }
        record.settled = Some(settled);
        self.journal.write(system, number, &record)?;
        Ok(Some(record.before))
    }

    /// Takes back what a tuning did before it failed; says so, or what could not be taken back.
    fn taken_back(&self, tuning: &str, records_before: usize, error: Error) -> Error {
        let undo = || -> Result<Vec<Undone>, Error> {
            let entries = self.journal.entries(self.host.system())?;
            let ours = entries.records.iter().skip(records_before).rev();
            ours.map(|(number, record)| {
                let fate = self.put_back(*number, record)?;
                Ok(Undone { tuning: tuning.to_owned(), setting: record.setting.name(), fate })
            })
            .collect()
        };
        let all_back = undo().is_ok_and(|undone| {
            undone
                .iter()
                .all(|undone| matches!(undone.fate, Fate::Restored(_) | Fate::Already(_) | Fate::Gone(_)))
        });
        match (all_back, error) {
            (true, error) => error,
            (false, error) => Error::Failed(format!(
                "{error}; not all of it could be taken back at once: run `flatout tune undo {tuning}`"
            )),
        }
    }

    fn put_back(&self, number: u32, record: &Record) -> Result<Fate, Error> {
        let (host, system) = (self.host, self.host.system());
        let kind = record.setting.kind();
        match elsewhere(host, record) {
            Some(Elsewhere::Gone(reason)) => return self.forgotten(number, Fate::Gone(reason)),
            Some(Elsewhere::Other(reason)) => return Ok(Fate::Kept(reason)),
            None => {}
        }
        kind.tidy(host);
        if let Some(reason) = kind.gone(host) {
            return self.forgotten(number, Fate::Gone(reason));
        }
        let now = match kind.read(host) {
            Ok(now) => now,
            Err(Unknown(reason)) => return Ok(Fate::Kept(reason)),
        };
        if now == record.before {
            return self.forgotten(number, Fate::Already(now));
        }
        let is_ours = match &record.settled {
            Some(settled) => now == *settled,
            None => kind.holds(&now, &record.wanted),
        };
        if !is_ours {
            let ours = record.settled.clone().unwrap_or_else(|| record.wanted.clone());
            let path = self.journal.set_aside(system, number)?.display().to_string();
            return Ok(Fate::LeftAlone { now, ours, before: record.before.clone(), record: path });
        }
        if let Err(reason) = kind.can_return(host, &record.before) {
            return Ok(Fate::Kept(reason));
        }
        let written = kind.write(host, &record.before);
        let now = match kind.read(host) {
            Ok(now) => now,
            Err(Unknown(reason)) => return Ok(Fate::Kept(written.err().unwrap_or(reason))),
        };
        let reason = match written {
            Ok(()) if now == record.before => return self.forgotten(number, Fate::Restored(now)),
            Ok(()) => format!("it was put back to {}, but holds {}", record.before.line(), now.line()),
            Err(reason) => reason,
        };
        // What is there now is our doing: the next undo tries again. The others are put back even where this cannot be noted.
        let noted = self.journal.write(system, number, &Record { settled: Some(now), ..record.clone() });
        Ok(Fate::Kept(match noted {
            Ok(()) => reason,
            Err(error) => format!("{reason}; {error}"),
        }))
    }

    fn forgotten(&self, number: u32, fate: Fate) -> Result<Fate, Error> {
        self.journal.forget(self.host.system(), number)?;
        Ok(fate)
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
            Fate::Restored(content) => write!(f, "put back to {}", content.line()),
            Fate::Already(content) => write!(f, "is {} already", content.line()),
            Fate::Gone(reason) => write!(f, "nothing to put back: {reason}"),
            Fate::Kept(reason) => write!(f, "NOT put back: {reason}"),
            Fate::LeftAlone { now, ours, before, record } => write!(
                f,
                "left alone: somebody changed it from {} to {} meanwhile; before flatout it was {} (whole in {record})",
                ours.line(),
                now.line(),
                before.line()
            ),
        }
    }
}

/// Why a record is not for the place we are in.
enum Elsewhere {
    /// What it describes has ended with its boot.
    Gone(String),
    /// It is for another network namespace that may still be there.
    Other(String),
}

fn elsewhere(host: &Host, record: &Record) -> Option<Elsewhere> {
    let now = place(host);
    if !record.setting.kind().is_namespaced() || record.place == now {
        return None;
    }
    if record.place.boot != now.boot {
        // Of the first namespace there is one in every boot; the others have ended.
        let gone = "it belonged to a network namespace of an earlier boot";
        return (!record.place.is_first).then(|| Elsewhere::Gone(gone.to_owned()));
    }
    (record.place.namespace != now.namespace).then(|| {
        Elsewhere::Other(format!(
            "it belongs to the network namespace {}, and this is {}: run it there",
            record.place.namespace, now.namespace
        ))
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
    fn what_is_applied_is_put_back_whole() {
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

    /// Killed at each write, rename, removal and sync of applying: undo brings everything back.
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

    /// The same for a kill while undoing: the next undo ends it.
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

    #[test]
    fn what_somebody_else_changed_is_left_alone_and_told() {
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

    /// A tuning whose last change fails has made none.
    #[test]
    fn a_tuning_is_applied_whole_or_not_at_all() {
        let (fake, state) = (machine(), Folder::new());
        let (host, before) = (fake.host(), fake.snapshot());
        let session = Session::open(&host, &state.0).unwrap();
        let ignored = Change::text(Ethtool::new("eth0", Group::Coalesce, "adaptive-rx"), "on");
        // The kernel notes it, and leaves it off: its checksums are.
        let held = Change::text(Ethtool::new("eth0", Group::Feature, "tcp-segmentation-offload"), "on");
        let refused = Change::text(Ethtool::new("eth0", Group::Ring, "rx"), 5000);
        let missing = Change::text(Setting::sysctl("net.core.nothing"), 7);
        for (last, said) in [
            (ignored, "ignores it"),
            (held, "was set to on and is off [requested on]: another offload holds it"),
            (refused, "setting eth0 rx to 5000: Invalid argument"),
            (missing, "there is no"),
        ] {
            let all: Vec<Change> = changes().into_iter().take(3).chain([last]).collect();
            let error = session.apply("t", &all).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("not all of it"), "{error}");
            assert_eq!(fake.snapshot(), before);
            assert!(Session::is_clean(&host, &state.0));
        }
    }

    /// A qdisc that is more than its options could not be brought back, so it is not touched.
    #[test]
    fn what_cannot_be_brought_back_is_not_changed() {
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

    /// A qdisc that is whole with its options comes back with its handle and every byte of them.
    #[test]
    fn a_configured_qdisc_is_put_back_byte_for_byte() {
        let (fake, state) = (machine(), Folder::new());
        fake.tell_all(qdisc("fq", 0x8001_0000, b"anybytes", 0));
        let (host, before) = (fake.host(), fake.snapshot());
        let change = Change::text(Qdisc { device: "eth0".to_owned() }, "noqueue");
        Session::open(&host, &state.0).unwrap().apply("t", &[change]).unwrap();
        assert_ne!(fake.snapshot(), before);
        let fates = undo(&host, &state.0);
        assert!(fates[0].to_string().contains("put back to qdisc fq 8001: root options 616e79"), "{fates:?}");
        assert_eq!(fake.snapshot(), before);
    }

    /// Which qdisc the kernel attaches goes by its default: another one must not come back in the place of what was there.
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
        let ours = fake.told();
        fake.file(DEFAULT_QDISC, "fq_codel\n");
        for _ in 0..2 {
            let (undone, _) = session.undo(&[]).unwrap();
            assert!(
                matches!(&undone[0].fate, Fate::Kept(why) if why.contains("default_qdisc")),
                "{undone:?}"
            );
            assert_eq!(fake.told(), ours);
        }
        fake.file(DEFAULT_QDISC, "pfifo_fast\n");
        session.undo(&[]).unwrap();
        assert_eq!(fake.snapshot(), before);
    }

    /// What a put-back left that failed is not somebody else's change: each undo tries again.
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
        // What somebody else did after it is theirs.
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

    /// After a reboot a value that was kept is put back, and one that is the default again is left.
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

    /// Nothing is changed beside a record that cannot be read; the others are put back.
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
