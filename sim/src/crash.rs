//! What is left of the cache's folder when the process is killed, or when the machine loses its power too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flatout_lane::jobs;

/// A kill in the middle of a write leaves a part of the last record: its last bytes, at most so many, are missing.
const TORN_BYTES_MAX: u64 = 2_000;

/// Loses some of what the process has written and not synced. What was synced stays.
///
/// # Panics
/// The folder cannot be read or changed.
pub(crate) fn lose_unsynced(folder: &Path, has_lost_power: bool, random: &mut fastrand::Rng) {
    let mut segments: Vec<(u32, File, u64)> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".segment")?.parse().ok());
        let Some(number) = number else { continue };
        let file = OpenOptions::new().write(true).open(entry.path()).expect("a segment");
        let bytes = file.metadata().expect("a size").len();
        segments.push((number, file, bytes));
    }
    segments.sort_unstable_by_key(|(number, ..)| *number);
    let last = segments.last().map(|(number, ..)| *number);
    for (number, file, bytes) in segments {
        let synced = jobs::synced(number).min(bytes);
        let unsynced = bytes - synced;
        let left = match unsynced {
            0 => bytes,
            _ if has_lost_power => lose(&file, synced, bytes, random),
            _ if Some(number) == last && random.bool() => {
                bytes - random.u64(1..=unsynced.min(TORN_BYTES_MAX))
            }
            _ => bytes,
        };
        file.set_len(left).expect("a file that can be cut");
        // Nothing else of it is lost in the next crash.
        jobs::note_synced(number, left);
    }
}

/// Pages reach the disk in any order: the rest is missing, or there is a hole in it. Returns what is left.
fn lose(file: &File, synced: u64, bytes: u64, random: &mut fastrand::Rng) -> u64 {
    match random.u8(..3) {
        0 => synced + random.u64(..bytes - synced),
        1 => {
            let begin = random.u64(synced..bytes);
            let zeros = vec![0; random.u64(1..=bytes - begin) as usize];
            file.write_all_at(&zeros, begin).expect("a file that can be written");
            bytes
        }
        _ => bytes,
    }
}
