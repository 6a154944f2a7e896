//! Transforms what is in the inbox. Each step can be repeated: a transformer that is killed leaves a file where the next one finds it.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;

use crate::name::Name;
use crate::queue::Queue;
use crate::store::{Folder, Volume, move_file};
use crate::table::{TableFault, write_json};

/// How often a file is opened again whose handle the server of the volume no longer knows (ESTALE).
pub const STALE_MAX: u32 = 3;

/// What became of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Transformed {
    /// It is served, with this number of rows.
    Published(u64),
    /// It is in `failed/`, for this reason.
    Refused(String),
    /// Another transformer has it: this one was silent for too long.
    Lost,
}

/// Transforms files of a queue.
#[derive(Debug)]
pub struct Transformer {
    volume: Volume,
    queue: Queue,
}

impl Transformer {
    /// A transformer of this volume.
    pub fn new(volume: Volume, queue: Queue) -> Transformer {
        Transformer { volume, queue }
    }

    /// Claims files, those of transformers that died too, and transforms them. Returns each with what became of it; nothing if there is
    /// nothing to do. `step` is called before each step, and ends the turn by an error: tests kill it there.
    ///
    /// # Errors
    /// The volume failed; the files stay claimed, and the next turn goes on with them.
    pub fn turn(&self, step: &dyn Fn(&str) -> io::Result<()>) -> io::Result<Vec<(Name, Transformed)>> {
        let now = self.queue.show_alive()?;
        let mut names = self.queue.unfinished()?;
        step("take over")?;
        names.extend(self.queue.take_over(now)?);
        step("claim")?;
        names.extend(self.queue.claim()?);
        names.sort();
        names.dedup();
        let mut done = Vec::new();
        for name in names {
            self.queue.show_alive()?;
            let outcome = self.transform(&name, step)?;
            done.push((name, outcome));
        }
        Ok(done)
    }

    /// Transforms one claimed file.
    fn transform(&self, name: &Name, step: &dyn Fn(&str) -> io::Result<()>) -> io::Result<Transformed> {
        let from = self.queue.claimed(name);
        let outcome = match self.publish(name, &from, step) {
            Ok(rows) => Transformed::Published(rows),
            Err(TableFault::Table(why)) => Transformed::Refused(why),
            Err(TableFault::Volume(error)) if error.kind() == ErrorKind::NotFound && !from.exists() => {
                return Ok(Transformed::Lost);
            }
            Err(TableFault::Volume(error)) => return Err(error),
        };
        let to = match &outcome {
            Transformed::Refused(why) => {
                step("write the reason")?;
                let mut reason = self.volume.part()?;
                writeln!(reason, "{why}")?;
                reason.publish(&self.volume.folder(Folder::Failed).join(format!("{name}.reason")))?;
                Folder::Failed
            }
            _ => Folder::Done,
        };
        step("move")?;
        match move_file(&from, &self.volume.path(to, name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Transformed::Lost),
            moved => moved.map(|()| outcome),
        }
    }

    /// Writes the JSON of a table, and makes it visible.
    fn publish(
        &self,
        name: &Name,
        from: &Path,
        step: &dyn Fn(&str) -> io::Result<()>,
    ) -> Result<u64, TableFault> {
        if !name.as_str().ends_with(".csv") {
            return Err(TableFault::Table(
                "the name does not end in .csv; nothing else can be transformed".to_owned(),
            ));
        }
        let mut attempt = 0;
        loop {
            step("write")?;
            match self.write(from) {
                Err(TableFault::Volume(error))
                    if error.kind() == ErrorKind::StaleNetworkFileHandle && attempt < STALE_MAX =>
                {
                    attempt += 1;
                }
                Err(fault) => return Err(fault),
                Ok((rows, part)) => {
                    step("publish")?;
                    // Another one has taken it for dead, and may have published a newer file of that name.
                    if !from.exists() {
                        return Err(TableFault::Volume(ErrorKind::NotFound.into()));
                    }
                    part.publish(&self.volume.folder(Folder::Public).join(format!("{name}.json")))?;
                    return Ok(rows);
                }
            }
        }
    }

    fn write(&self, from: &Path) -> Result<(u64, crate::store::Part), TableFault> {
        let table = BufReader::with_capacity(1 << 20, File::open(from)?);
        let mut out = BufWriter::with_capacity(1 << 20, self.volume.part()?);
        let rows = write_json(table, &mut out)?;
        let part = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((rows, part))
    }
}

/// Removes what was transformed or refused longer ago than `age`, by the volume's clock, and returns how many files.
///
/// # Errors
/// The volume cannot be read.
pub fn remove_old(volume: &Volume, age: std::time::Duration) -> io::Result<usize> {
    let now = volume.now()?;
    let mut count = 0;
    for folder in [Folder::Done, Folder::Failed] {
        for entry in fs::read_dir(volume.folder(folder))? {
            let entry = entry?;
            let Ok(moved) = entry.metadata().and_then(|about| about.modified()) else { continue };
            if now.duration_since(moved).unwrap_or_default() > age {
                count += usize::from(fs::remove_file(entry.path()).is_ok());
            }
        }
    }
    Ok(count)
}
