//! Where the debug information of a stripped program is: in a file of its own, found as debuggers find it.
//!
//! # Source
//! GDB's manual, "Debugging Information in Separate Files".

use std::path::{Path, PathBuf};

use object::Object;

/// The folder in which distributions put debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// The places where the debug file of `program` may be, the most certain first. `path` is where the program is installed.
pub(super) fn places(program: &object::File<'_>, path: &Path) -> Vec<PathBuf> {
    let by_id = program.build_id().ok().flatten().and_then(below_build_ids);
    let linked = program.gnu_debuglink().ok().flatten();
    let linked =
        linked.and_then(|(name, _)| std::str::from_utf8(name).ok()).filter(|name| !name.contains('/'));
    let beside = linked.zip(path.parent()).into_iter().flat_map(|(name, folder)| {
        let below = folder.strip_prefix("/").unwrap_or(folder);
        [folder.join(name), folder.join(".debug").join(name), Path::new(DEBUG_FOLDER).join(below).join(name)]
    });
    by_id.into_iter().chain(beside).collect()
}

/// Whether a debug file was made from this very program.
pub(super) fn belongs_to(debug: &object::File<'_>, program: &object::File<'_>) -> bool {
    let id = |file: &object::File<'_>| file.build_id().ok().flatten().map(<[u8]>::to_vec);
    id(program).is_some_and(|of_program| id(debug) == Some(of_program))
}

fn below_build_ids(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    (!rest.is_empty()).then(|| PathBuf::from(format!("{DEBUG_FOLDER}/.build-id/{first:02x}/{rest}.debug")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_become_paths() {
        let path = below_build_ids(&[0xab, 0x01, 0xff]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/01ff.debug"));
        assert_eq!(below_build_ids(&[]), None);
        assert_eq!(below_build_ids(&[7]), None);
    }
}
