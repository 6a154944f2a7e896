//! Objects from a folder of YAML files, which is read again when a file changes.
//!
//! A file that cannot be read, or is not YAML, leaves the objects that it had before: it may be half written. So does a malformed object: the
//! one before it, with the same name, stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io, thread};

use flatout_engine::{Severity, report};
use serde_json::Value;

use crate::objects::{Insertion, Objects};
use crate::store::Store;
use crate::yaml;

/// The time between two looks at the folder. It is a system call for each file.
const LOOK: Duration = Duration::from_millis(50);

/// Files of a folder.
const FILES_MAX: usize = 10_000;

/// Bytes of a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A folder, and what was read from it.
struct ObjectFolder {
    path: PathBuf,
    files: BTreeMap<PathBuf, ObjectFile>,
}

struct ObjectFile {
    /// None, if it is to be read again in any case.
    stamp: Option<Stamp>,
    objects: Vec<Value>,
    /// Why it has no objects of its own: they are those before. Malformed YAML is read again when the file has changed.
    fault: Option<String>,
}

/// Another one means that the file has changed.
type Stamp = (Option<SystemTime>, u64);

/// Reads all objects of a folder once. Returns also what is wrong with files and objects: the others are there.
///
/// # Errors
/// The folder cannot be read.
pub fn read_once(path: &Path) -> Result<(Objects, Vec<String>), String> {
    let mut folder = ObjectFolder { path: path.to_owned(), files: BTreeMap::new() };
    let looked = folder.look().map_err(|error| format!("cannot read the folder {}: {error}", path.display()));
    let (_, mut faults) = looked?;
    let (objects, of_objects) = folder.objects();
    faults.extend(of_objects);
    Ok((objects, faults))
}

/// Reads all objects of a folder, and follows its changes on a thread of its own.
///
/// # Errors
/// The folder cannot be read, a file is wrong, or there is no thread.
pub fn follow(path: &Path, store: Arc<Store>) -> Result<(), String> {
    let mut folder = ObjectFolder { path: path.to_owned(), files: BTreeMap::new() };
    let (_, faults) =
        folder.look().map_err(|error| format!("cannot read the folder {}: {error}", path.display()))?;
    if let Some(fault) = faults.first() {
        return Err(fault.clone());
    }
    let (objects, faults) = folder.objects();
    if let Some(fault) = faults.first() {
        return Err(fault.clone());
    }
    store.change(|known| {
        *known = objects;
        true
    });
    let watch = move || {
        let mut said = Vec::new();
        loop {
            thread::sleep(LOOK);
            let faults = folder.refresh(&store);
            for fault in faults.iter().filter(|fault| !said.contains(*fault)) {
                report(Severity::Error, format_args!("{fault}"));
            }
            said = faults;
        }
    };
    let named = thread::Builder::new().name("flatout-objects".to_owned());
    named
        .spawn(watch)
        .map(drop)
        .map_err(|error| format!("cannot start the thread for {}: {error}", path.display()))
}

impl ObjectFolder {
    /// Reads what has changed. Returns what is wrong with the files.
    fn refresh(&mut self, store: &Store) -> Vec<String> {
        let (has_changed, mut faults) = match self.look() {
            Ok(seen) => seen,
            Err(error) => {
                return vec![format!(
                    "cannot read the folder {}: {error}; its objects stay",
                    self.path.display()
                )];
            }
        };
        if has_changed {
            let (objects, wrong) = self.objects();
            faults.extend(wrong);
            store.change(|known| {
                *known = objects;
                true
            });
        }
        faults
    }

    /// Reads the files that have changed. Returns whether any has, and what is wrong with them.
    fn look(&mut self) -> io::Result<(bool, Vec<String>)> {
        let (mut has_changed, mut faults) = (false, Vec::new());
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "yaml" || it == "yml" || it == "json") {
                found.insert(path);
            }
        }
        if found.len() > FILES_MAX {
            found = found.into_iter().take(FILES_MAX).collect();
            faults.push(format!(
                "{} has more than {FILES_MAX} files; the first ones are read",
                self.path.display()
            ));
        }
        let before = self.files.len();
        self.files.retain(|path, _| found.contains(path));
        has_changed |= self.files.len() != before;
        for path in found {
            // Links are followed: a mounted ConfigMap is a folder of links.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let stamp = (metadata.modified().ok(), metadata.len());
            let known = self.files.get(&path).and_then(|file| file.stamp);
            if !metadata.is_file() || known == Some(stamp) {
                continue;
            }
            match read(&path, metadata.len()) {
                Ok(objects) => {
                    let former =
                        self.files.get(&path).map(|file| file.objects.as_slice()).unwrap_or_default();
                    let (objects, wrong) = with_former(objects, former);
                    faults.extend(
                        wrong
                            .into_iter()
                            .map(|why| format!("{}: {why}; the one before stays", path.display())),
                    );
                    self.files.insert(path, ObjectFile { stamp: Some(stamp), objects, fault: None });
                    has_changed = true;
                }
                Err((why, is_lasting)) => {
                    let stamp = is_lasting.then_some(stamp);
                    let fault = Some(format!("{}: {why}", path.display()));
                    let objects = self.files.remove(&path).map(|file| file.objects).unwrap_or_default();
                    self.files.insert(path, ObjectFile { stamp, objects, fault });
                }
            }
        }
        faults.extend(self.files.values().filter_map(|file| file.fault.clone()));
        Ok((has_changed, faults))
    }

    /// All objects, and what is wrong with others.
    fn objects(&self) -> (Objects, Vec<String>) {
        let (mut objects, mut faults) = (Objects::default(), Vec::new());
        for (path, file) in &self.files {
            for value in &file.objects {
                match objects.insert(value.clone()) {
                    Ok(Insertion::Changed(..) | Insertion::Same(..) | Insertion::Ignored(_)) => {}
                    Err(why) => faults.push(format!("{}: {why}", path.display())),
                }
            }
        }
        (objects, faults)
    }
}

/// The objects, with the former one in place of each that is malformed. Returns also what is wrong with those.
fn with_former(objects: Vec<Value>, former: &[Value]) -> (Vec<Value>, Vec<String>) {
    let mut faults = Vec::new();
    let objects = objects.into_iter().map(|value| {
        let Err(why) = Objects::default().insert(value.clone()) else { return value };
        let Some(known) = former.iter().find(|known| is_same_object(known, &value)) else { return value };
        faults.push(why);
        known.clone()
    });
    (objects.collect(), faults)
}

fn is_same_object(one: &Value, other: &Value) -> bool {
    let names = ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"];
    one.pointer("/metadata/name").is_some()
        && names.iter().all(|pointer| one.pointer(pointer) == other.pointer(pointer))
}

/// The objects of a file; or why there are none, and whether that is so until the file changes.
fn read(path: &Path, bytes: u64) -> Result<Vec<Value>, (String, bool)> {
    if bytes > FILE_BYTES_MAX {
        return Err((format!("{bytes} bytes; allowed are {FILE_BYTES_MAX}"), true));
    }
    let text = fs::read_to_string(path).map_err(|error| {
        let is_lasting = error.kind() == io::ErrorKind::InvalidData;
        (format!("cannot be read: {error}"), is_lasting)
    })?;
    yaml::objects(&text).map_err(|why| (why, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n";

    fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, ObjectFolder) {
        let made = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(made.path().join(name), text).unwrap();
        }
        let folder = ObjectFolder { path: made.path().to_owned(), files: BTreeMap::new() };
        (made, folder)
    }

    #[test]
    fn a_broken_file_keeps_its_objects() {
        let (made, mut folder) = folder(&[("a.yaml", SERVICE), ("notes.txt", "no YAML: [")]);
        let store = Store::default();
        assert_eq!(folder.refresh(&store), [""; 0]);
        assert_eq!(store.read(Objects::count).0, 1);
        fs::write(made.path().join("a.yaml"), "kind: [").unwrap();
        let faults = folder.refresh(&store);
        assert!(faults[0].contains("a.yaml"), "{faults:?}");
        assert_eq!(store.read(Objects::count).0, 1);
        assert_eq!(folder.refresh(&store), faults, "it is still broken");
        assert_eq!(store.read(Objects::count).0, 1);
        fs::write(made.path().join("a.yaml"), SERVICE.replace("{name: a}", "{name: other}")).unwrap();
        assert_eq!(folder.refresh(&store), [""; 0]);
        assert!(store.read(|objects| objects.services.keys().all(|key| key.name == "other")).0);
        fs::remove_file(made.path().join("a.yaml")).unwrap();
        assert_eq!(folder.refresh(&store), [""; 0]);
        assert_eq!(store.read(Objects::count).0, 0);
    }

    /// A file whose rights are mended has the same time and size as before.
    #[test]
    fn a_file_that_could_not_be_read_is_read_again() {
        let (made, mut folder) = folder(&[("a.yaml", SERVICE)]);
        let store = Store::default();
        let path = made.path().join("a.yaml");
        let stamp = fs::metadata(&path).map(|it| (it.modified().ok(), it.len())).unwrap();
        // As it is left after an attempt that failed.
        let fault = Some(format!("{}: cannot be read", path.display()));
        let failed = match read(made.path(), 1) {
            Err((_, is_lasting)) => {
                ObjectFile { stamp: is_lasting.then_some(stamp), objects: Vec::new(), fault }
            }
            Ok(_) => panic!("a folder was read as a file"),
        };
        folder.files.insert(path, failed);
        assert_eq!(folder.refresh(&store), [""; 0]);
        assert_eq!(store.read(Objects::count).0, 1);
    }

    #[test]
    fn a_malformed_object_leaves_the_one_before() {
        let port = |port: &str| format!("{SERVICE}spec: {{ports: [{{port: {port}}}]}}\n");
        let (made, mut folder) = folder(&[("a.yaml", &port("80"))]);
        let store = Store::default();
        assert_eq!(folder.refresh(&store), [""; 0]);
        fs::write(
            made.path().join("a.yaml"),
            format!("{}---\n{}", port("eighty"), SERVICE.replace("{name: a}", "{name: b}")),
        )
        .unwrap();
        let faults = folder.refresh(&store);
        assert!(
            faults[0].contains("Service default/a") && faults[0].contains("the one before stays"),
            "{faults:?}"
        );
        assert_eq!(store.read(Objects::count).0, 2);
        let ports = |store: &Store| {
            let port = |objects: &Objects| {
                objects.services.values().flat_map(|it| &it.spec.ports).next().map(|it| it.port)
            };
            store.read(port).0
        };
        // Once more, with another mistake; then it is removed, and then it is right again.
        fs::write(made.path().join("a.yaml"), port("[]")).unwrap();
        assert_eq!(folder.refresh(&store).len(), 1);
        assert_eq!((store.read(Objects::count).0, ports(&store)), (1, Some(80)));
        fs::write(made.path().join("a.yaml"), "").unwrap();
        assert_eq!((folder.refresh(&store), store.read(Objects::count).0), (Vec::new(), 0));
        fs::write(made.path().join("a.yaml"), port("81")).unwrap();
        assert_eq!((folder.refresh(&store), ports(&store)), (Vec::new(), Some(81)));
    }

    #[test]
    fn a_malformed_object_leaves_the_others_of_its_file() {
        let (_made, mut folder) = folder(&[("a.yaml", &format!("{SERVICE}---\nkind: Service\n"))]);
        let store = Store::default();
        assert_eq!(folder.refresh(&store).len(), 1);
        assert_eq!(store.read(Objects::count).0, 1);
    }
}
