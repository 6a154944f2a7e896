//! The writer over its routes, and a transformer that is killed at each of its steps.

mod faults;

use std::cell::Cell;
use std::fs;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout::test::Client;
use sha2::{Digest, Sha256};
use volume::name::Name;
use volume::queue::{LEASE_TIME, Queue};
use volume::store::{Folder, Volume};
use volume::transformer::{Transformed, Transformer};
use volume::tus::Uploads;
use volume::writer::app;

const FILE_BYTES_MAX: u64 = 1 << 20;

struct Test {
    _folder: tempfile::TempDir,
    volume: Volume,
}

impl Test {
    fn new() -> Test {
        let folder = tempfile::tempdir().unwrap();
        Test { volume: Volume::open(folder.path()).unwrap(), _folder: folder }
    }

    fn writer(&self) -> Client {
        Client::over_socket(app(Uploads::new(self.volume.clone()), FILE_BYTES_MAX)).unwrap()
    }

    fn read(&self, folder: Folder, file: &str) -> Option<String> {
        fs::read_to_string(self.volume.folder(folder).join(file)).ok()
    }

    /// The visible files of a folder.
    fn files(&self, folder: Folder) -> Vec<String> {
        let entries = fs::read_dir(self.volume.folder(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn put(&self, file: &str, text: &str) {
        fs::write(self.volume.folder(Folder::Inbox).join(file), text).unwrap();
    }

    fn transformer(&self, owner: &str) -> Transformer {
        let queue = Queue::join(self.volume.clone(), Name::parse(owner).unwrap()).unwrap();
        Transformer::new(self.volume.clone(), queue)
    }
}

fn sha256(bytes: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(bytes))
}

#[test]
fn whole_files_are_checked_and_published() {
    let test = Test::new();
    let client = test.writer();
    let table = "a,b\n1,2\n".repeat(20_000);
    let digest = format!("sha-256=:{}:", sha256(table.as_bytes()));
    let response = client.put("/files/t.csv").header("Content-Digest", &digest).body(table.clone()).send();
    assert_eq!((response.status().code(), response.text().trim()), (201, digest.as_str()));
    assert_eq!(test.read(Folder::Inbox, "t.csv").unwrap(), table);
    let refused = client.put("/files/u.csv").header("Content-Digest", &digest).body("other").send();
    assert_eq!(refused.status().code(), 400);
    assert_eq!(client.put("/files/.hidden").body("x").send().status().code(), 400);
    assert_eq!(client.put("/files/a%20b").body("x").send().status().code(), 400);
    let large = client.put("/files/l.csv").body("x".repeat(FILE_BYTES_MAX as usize + 1)).send();
    assert_eq!(large.status().code(), 413);
    assert_eq!(test.files(Folder::Inbox), ["t.csv"], "what was refused leaves nothing");
    assert_eq!(test.files(Folder::Parts), Vec::<String>::new());
    assert_eq!(client.get("/healthz").send().status().code(), 200);
}

#[test]
fn uploads_are_resumed() {
    let test = Test::new();
    let client = test.writer();
    let begin = |length: &str| {
        let request =
            client.post("/uploads").header("Tus-Resumable", "1.0.0").header("Upload-Length", length);
        request.header("Upload-Metadata", "filename dC5jc3Y=").send()
    };
    let append = |at: &str, offset: usize, bytes: &str| {
        let request =
            client.patch(at).header("Tus-Resumable", "1.0.0").header("Upload-Offset", &offset.to_string());
        request.header("Content-Type", "application/offset+octet-stream").body(bytes.to_owned())
    };
    let created = begin("8");
    assert_eq!(created.status().code(), 201);
    let at = created.header("Location").unwrap().to_owned();
    assert_eq!(append(&at, 0, "a,b").send().header("Upload-Offset"), Some("3"));
    let conflict = append(&at, 0, "a,b").send();
    assert_eq!((conflict.status().code(), conflict.header("Upload-Offset")), (409, Some("3")));
    let wrong =
        append(&at, 3, "\n1").header("Upload-Checksum", &format!("sha256 {}", sha256(b"other"))).send();
    assert_eq!(wrong.status().code(), 460, "{}", wrong.text());
    assert_eq!(append(&at, 3, "\n1,2\n and more").send().status().code(), 413);
    // Another writer, as after a restart.
    let client = test.writer();
    let about = client.get(&at).send();
    assert_eq!((about.header("Upload-Offset"), about.header("Upload-Length")), (Some("3"), Some("8")));
    let right =
        append(&at, 3, "\n1,2\n").header("Upload-Checksum", &format!("sha256 {}", sha256(b"\n1,2\n"))).send();
    assert_eq!((right.status().code(), right.header("Upload-Offset")), (204, Some("8")));
    assert_eq!(test.read(Folder::Inbox, "t.csv").unwrap(), "a,b\n1,2\n");
    assert_eq!(test.files(Folder::Uploads), Vec::<String>::new());
    assert_eq!(client.get(&at).send().status().code(), 404);
}

#[test]
fn requests_about_uploads_are_checked() {
    let test = Test::new();
    let client = test.writer();
    let begin = |fields: &[(&str, &str)]| {
        let request = client.post("/uploads");
        fields
            .iter()
            .fold(request, |request, (name, value)| request.header(name, value))
            .send()
            .status()
            .code()
    };
    let (version, name) = (("Tus-Resumable", "1.0.0"), ("Upload-Metadata", "filename dC5jc3Y="));
    assert_eq!(begin(&[name, ("Upload-Length", "1")]), 412);
    assert_eq!(begin(&[version, name]), 400);
    assert_eq!(begin(&[version, ("Upload-Length", "1")]), 400);
    assert_eq!(begin(&[version, name, ("Upload-Length", "1048577")]), 413);
    assert_eq!(begin(&[version, name, ("Upload-Length", "0")]), 201);
    assert_eq!(test.read(Folder::Inbox, "t.csv").as_deref(), Some(""), "an empty file is complete at once");
    assert_eq!(begin(&[version, name, ("Upload-Length", "1")]), 201);
    let id = test.files(Folder::Uploads).into_iter().find(|file| file.ends_with(".json")).unwrap();
    let at = format!("/uploads/{}", id.trim_end_matches(".json"));
    assert_eq!(client.patch(&at).header("Tus-Resumable", "1.0.0").body("x").send().status().code(), 415);
    assert_eq!(client.delete(&at).send().status().code(), 204);
    assert_eq!(client.delete(&at).send().status().code(), 404);
    assert_eq!(client.get("/uploads/etc").send().status().code(), 404);
    let about = client.call("OPTIONS", "/uploads").send();
    assert_eq!(about.header("Tus-Extension"), Some("creation,termination,checksum"));
}

#[test]
fn tables_become_json_and_others_say_why_not() {
    let test = Test::new();
    test.put("good.csv", "a\n1\n");
    test.put("bad.csv", "a,b\n1\n");
    test.put("picture.png", "");
    let done = test.transformer("one").turn(&|_| Ok(())).unwrap();
    assert_eq!(done.len(), 3);
    assert!(done.contains(&(Name::parse("good.csv").unwrap(), Transformed::Published(1))));
    assert_eq!(test.read(Folder::Public, "good.csv.json").unwrap(), "[\n{\"a\":1}\n]\n");
    assert_eq!(test.files(Folder::Done), ["good.csv"]);
    assert_eq!(
        test.files(Folder::Failed),
        ["bad.csv", "bad.csv.reason", "picture.png", "picture.png.reason"]
    );
    let reason = test.read(Folder::Failed, "bad.csv.reason").unwrap();
    assert_eq!(reason, "line 2 has 1 fields; the first line has 2\n");
}

/// However a transformer ends, the next one finishes its files, and nobody sees half of one.
#[test]
fn a_transformer_that_is_killed_at_any_step_loses_nothing() {
    for killed_at in 0.. {
        let test = Test::new();
        test.put("a.csv", "n\n1\n2\n");
        test.put("b.csv", "broken,\n");
        let steps = Cell::new(0);
        let kill = |_: &str| {
            let step = steps.replace(steps.get() + 1);
            if step == killed_at { Err(io::Error::other("killed")) } else { Ok(()) }
        };
        let was_killed = test.transformer("first").turn(&kill).is_err();
        let public = test.read(Folder::Public, "a.csv.json");
        assert!(public.is_none_or(|text| text == "[\n{\"n\":1},\n{\"n\":2}\n]\n"), "step {killed_at}");
        // As long as the first one may live, its files are its own.
        let second = Queue::join(test.volume.clone(), Name::parse("second").unwrap()).unwrap();
        let now = second.show_alive().unwrap();
        assert!(second.take_over(now).unwrap().is_empty(), "step {killed_at}");
        second.take_over(now + LEASE_TIME * 2).unwrap();
        Transformer::new(test.volume.clone(), second).turn(&|_| Ok(())).unwrap();
        let public = test.read(Folder::Public, "a.csv.json").unwrap();
        assert_eq!(public, "[\n{\"n\":1},\n{\"n\":2}\n]\n", "step {killed_at}");
        assert_eq!(test.files(Folder::Done), ["a.csv"], "step {killed_at}");
        assert_eq!(test.files(Folder::Failed), ["b.csv", "b.csv.reason"], "step {killed_at}");
        assert_eq!(test.files(Folder::Inbox), Vec::<String>::new(), "step {killed_at}");
        if !was_killed {
            assert!(killed_at > 6, "{killed_at} steps");
            return;
        }
    }
}

#[test]
fn a_slow_transformer_does_not_undo_what_another_has_done() {
    let test = Test::new();
    test.put("a.csv", "n\n1\n");
    let slow = test.transformer("slow");
    let second = Queue::join(test.volume.clone(), Name::parse("second").unwrap()).unwrap();
    // While the slow one writes, the other takes its file over, and finishes it.
    let stolen = |step: &str| {
        if step == "publish" {
            let now = second.show_alive()? + LEASE_TIME * 2;
            second.take_over(now)?;
            Transformer::new(test.volume.clone(), second.clone()).turn(&|_| Ok(()))?;
        }
        Ok(())
    };
    let done = slow.turn(&stolen).unwrap();
    assert_eq!(done.len(), 1);
    assert_eq!(test.read(Folder::Public, "a.csv.json").unwrap(), "[\n{\"n\":1}\n]\n");
    assert_eq!(test.files(Folder::Done), ["a.csv"]);
}

#[test]
fn the_cluster_serves_with_the_settings_of_the_site_file() {
    let cluster = include_str!("../kubernetes.yaml");
    let settings = include_str!("../server.kdl").lines();
    let settings: Vec<_> =
        settings.filter(|line| !line.starts_with("//") && !line.starts_with("admin ")).collect();
    assert_eq!(settings.len(), 4);
    for line in settings {
        assert!(cluster.contains(line), "{line}");
    }
}
