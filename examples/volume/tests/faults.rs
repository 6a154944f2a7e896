//! The same on a volume with faults: full disks, errors, writers that are killed, machines whose clocks differ.

use std::fs;
use std::time::Duration;

use flatout::test::Client;
use flatout_tests::Folder as Place;
use flatout_tests::faulty_volume::{Faults, FaultyVolume, Operation};
use rustix::io::Errno;
use volume::name::Name;
use volume::queue::{LEASE_TIME, Queue};
use volume::store::Volume;
use volume::transformer::Transformer;
use volume::tus::Uploads;
use volume::writer::app;

use super::FILE_BYTES_MAX;

const TEXT: &str = "a,b\n1,2\n";

/// A folder, mounted as often as there are machines.
struct Shared {
    behind: Place,
    mounts: Vec<FaultyVolume>,
}

impl Shared {
    /// `None`, if this machine cannot mount it.
    fn mount(count: usize) -> Option<Shared> {
        let behind = Place::new();
        let mounts: Option<Vec<_>> = (0..count).map(|_| FaultyVolume::mount(&behind.0)).collect();
        Some(Shared { mounts: mounts?, behind })
    }

    fn volume(&self, mount: usize) -> Volume {
        Volume::open(self.mounts[mount].path()).unwrap()
    }

    fn writer(&self, mount: usize) -> Client {
        Client::over_socket(app(Uploads::new(self.volume(mount)), FILE_BYTES_MAX)).unwrap()
    }

    /// What is in a folder, past all mounts.
    fn read(&self, folder: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.behind.0.join(folder).join(file)).ok()
    }

    fn files(&self, folder: &str) -> usize {
        fs::read_dir(self.behind.0.join(folder)).unwrap().count()
    }

    fn fail(&self, operation: Operation, error: Errno) {
        let error = Some((operation, error.raw_os_error()));
        self.mounts[0].set(Faults { error, ..Faults::default() });
    }
}

/// Begins an upload of [`TEXT`] as `t.csv`. Returns where it is.
fn begin(client: &Client) -> Option<String> {
    let request = client.post("/uploads").header("Tus-Resumable", "1.0.0");
    let request = request.header("Upload-Length", &TEXT.len().to_string());
    let response = request.header("Upload-Metadata", "filename dC5jc3Y=").send();
    response.header("Location").map(str::to_owned)
}

/// Appends what is missing, as a client does that has lost its connection. Returns whether the upload is known.
fn resume(client: &Client, at: &str, bytes_max: usize) -> bool {
    let about = client.get(at).send();
    let Some(offset) = about.header("Upload-Offset").and_then(|it| it.parse::<usize>().ok()) else {
        return false;
    };
    let end = TEXT.len().min(offset + bytes_max);
    let request =
        client.patch(at).header("Tus-Resumable", "1.0.0").header("Upload-Offset", &offset.to_string());
    let request = request.header("Content-Type", "application/offset+octet-stream");
    request.body(TEXT[offset..end].to_owned()).send();
    true
}

#[test]
fn full_disks_and_errors_leave_no_file() {
    let Some(shared) = Shared::mount(1) else { return };
    let client = shared.writer(0);
    for (operation, error, status) in [
        (Operation::Write, Errno::NOSPC, 507),
        (Operation::Write, Errno::DQUOT, 507),
        (Operation::Write, Errno::IO, 503),
        (Operation::Make, Errno::NOSPC, 507),
        (Operation::Sync, Errno::IO, 503),
        (Operation::Sync, Errno::NOSPC, 507),
        (Operation::Rename, Errno::STALE, 503),
        (Operation::Rename, Errno::IO, 503),
    ] {
        shared.fail(operation, error);
        let response = client.put("/files/t.csv").body(TEXT).send();
        assert_eq!(response.status().code(), status, "{operation:?} {error}");
        assert_eq!(response.header("Retry-After"), Some("5"), "{operation:?} {error}");
        assert_eq!(client.get("/healthz").send().status().code() == 200, operation == Operation::Rename);
        shared.mounts[0].set(Faults::default());
        // A failed sync of the folder comes after the rename: the file is whole then, and the client may send it again.
        let found = shared.read("inbox", "t.csv");
        assert!(found.is_none() || found.as_deref() == Some(TEXT), "{operation:?} {error}: {found:?}");
        assert_eq!(shared.files("parts"), 0, "{operation:?} {error}: nothing stays behind");
        let _ = fs::remove_file(shared.behind.0.join("inbox/t.csv"));
    }
    assert_eq!(client.put("/files/t.csv").body(TEXT).send().status().code(), 201, "it goes on afterwards");
    assert_eq!(shared.read("inbox", "t.csv").as_deref(), Some(TEXT));
}

#[test]
fn uploads_go_on_after_a_full_disk() {
    let Some(shared) = Shared::mount(1) else { return };
    let client = shared.writer(0);
    let at = begin(&client).unwrap();
    assert!(resume(&client, &at, 3));
    shared.fail(Operation::Write, Errno::NOSPC);
    let request = client.patch(&at).header("Tus-Resumable", "1.0.0").header("Upload-Offset", "3");
    let refused = request.header("Content-Type", "application/offset+octet-stream").body("\n1").send();
    assert_eq!(refused.status().code(), 507, "{}", refused.text());
    shared.mounts[0].set(Faults::default());
    assert_eq!(client.get(&at).send().header("Upload-Offset"), Some("3"));
    assert!(resume(&client, &at, TEXT.len()));
    assert_eq!(shared.read("inbox", "t.csv").as_deref(), Some(TEXT));
}

/// After any number of changes the volume is gone, as for a process that is killed there. Another writer, of another machine, goes on.
#[test]
fn a_writer_that_is_killed_at_any_step_publishes_whole_files_only() {
    for killed_after in 0.. {
        let Some(shared) = Shared::mount(2) else { return };
        let (client, other) = (shared.writer(0), shared.writer(1));
        shared.mounts[0].set(Faults { changes_left: Some(killed_after), ..Faults::default() });
        let is_done = client.put("/files/t.csv").body(TEXT).send().status().code() == 201;
        let found = shared.read("inbox", "t.csv");
        assert!(found.is_none() || found.as_deref() == Some(TEXT), "step {killed_after}: {found:?}");
        assert!(!is_done || found.is_some(), "step {killed_after}: it said that it has the file");
        assert_eq!(other.put("/files/t.csv").body(TEXT).send().status().code(), 201, "step {killed_after}");
        assert_eq!(shared.read("inbox", "t.csv").as_deref(), Some(TEXT), "step {killed_after}");
        if is_done {
            assert!(killed_after > 3, "{killed_after} steps");
            return;
        }
    }
}

#[test]
fn an_upload_is_resumed_wherever_its_writer_was_killed() {
    let mut were_resumed = 0;
    for killed_after in 0.. {
        let Some(shared) = Shared::mount(2) else { return };
        let (client, other) = (shared.writer(0), shared.writer(1));
        shared.mounts[0].set(Faults { changes_left: Some(killed_after), ..Faults::default() });
        let began = begin(&client);
        if let Some(at) = &began {
            resume(&client, at, 3);
            resume(&client, at, TEXT.len());
        }
        let is_done = shared.read("inbox", "t.csv").is_some() && shared.files("uploads") == 0;
        let found = shared.read("inbox", "t.csv");
        assert!(found.is_none() || found.as_deref() == Some(TEXT), "step {killed_after}: {found:?}");
        if let Some(at) = &began {
            // What has come was kept; or the file is there already.
            let is_known = resume(&other, at, TEXT.len());
            were_resumed += usize::from(is_known && found.is_none());
            let found = shared.read("inbox", "t.csv");
            assert_eq!(found.as_deref(), Some(TEXT), "step {killed_after}: {is_known}");
        }
        if is_done {
            assert!(were_resumed > 2, "{were_resumed} of {killed_after} steps");
            return;
        }
    }
}

#[test]
fn a_slow_volume_delays_a_transformer_and_changes_nothing_else() {
    let Some(shared) = Shared::mount(2) else { return };
    shared.mounts[1].set(Faults { delay: Duration::from_millis(10), ..Faults::default() });
    let client = shared.writer(0);
    for file in ["a.csv", "b.csv"] {
        assert_eq!(client.put(&format!("/files/{file}")).body(TEXT).send().status().code(), 201);
    }
    let queue = Queue::join(shared.volume(1), Name::parse("slow").unwrap()).unwrap();
    assert_eq!(Transformer::new(shared.volume(1), queue).turn(&|_| Ok(())).unwrap().len(), 2);
    for file in ["a.csv.json", "b.csv.json"] {
        assert_eq!(shared.read("public", file).as_deref(), Some("[\n{\"a\":1,\"b\":2}\n]\n"), "{file}");
    }
}

#[test]
fn errors_of_the_volume_stop_a_transformer_and_lose_nothing() {
    for (operation, error) in [
        (Operation::Read, Errno::IO),
        (Operation::Read, Errno::STALE),
        (Operation::Write, Errno::NOSPC),
        (Operation::Sync, Errno::IO),
        (Operation::Rename, Errno::STALE),
    ] {
        let Some(shared) = Shared::mount(1) else { return };
        let volume = shared.volume(0);
        fs::write(shared.behind.0.join("inbox/a.csv"), TEXT).unwrap();
        let queue = Queue::join(volume.clone(), Name::parse("one").unwrap()).unwrap();
        let transformer = Transformer::new(volume, queue);
        shared.fail(operation, error);
        assert!(transformer.turn(&|_| Ok(())).is_err(), "{operation:?} {error}");
        shared.mounts[0].set(Faults::default());
        transformer.turn(&|_| Ok(())).unwrap();
        let found = shared.read("public", "a.csv.json");
        assert_eq!(found.as_deref(), Some("[\n{\"a\":1,\"b\":2}\n]\n"), "{operation:?} {error}");
        assert_eq!(shared.read("done", "a.csv").as_deref(), Some(TEXT), "{operation:?} {error}");
        assert_eq!(shared.files("failed"), 0, "{operation:?} {error}: the file was not at fault");
    }
}

/// One machine's clock is an hour behind the volume's, the other one's an hour ahead.
#[test]
fn clocks_of_two_machines_apart_change_nothing() {
    let Some(shared) = Shared::mount(2) else { return };
    shared.volume(0);
    shared.mounts[0].set(Faults { ahead_s: 3600, ..Faults::default() });
    shared.mounts[1].set(Faults { ahead_s: -3600, ..Faults::default() });
    let join =
        |mount: usize, name: &str| Queue::join(shared.volume(mount), Name::parse(name).unwrap()).unwrap();
    for (living, other) in [(0, 1), (1, 0)] {
        fs::write(shared.behind.0.join("inbox/a.csv"), TEXT).unwrap();
        let first = join(living, "first");
        assert_eq!(first.claim().unwrap().len(), 1);
        let second = join(other, "second");
        let now = second.show_alive().unwrap();
        assert!(second.take_over(now).unwrap().is_empty(), "the other one lives");
        assert_eq!(second.take_over(now + LEASE_TIME * 2).unwrap().len(), 1, "and now it does not");
        Transformer::new(shared.volume(other), second).turn(&|_| Ok(())).unwrap();
        assert_eq!(shared.read("done", "a.csv").as_deref(), Some(TEXT));
        let part = shared.volume(living).part().unwrap();
        assert_eq!(shared.volume(living).remove_old_parts().unwrap(), 0, "it was begun just now");
        drop(part);
        fs::remove_file(shared.behind.0.join("done/a.csv")).unwrap();
    }
}
