//! The indexer's parts together, on real folders.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::disk::{self, Found, Reached};
use super::entry::Entry;
use super::inbox::Batch;
use super::indexer::{self, FolderState, Indexer};
use super::load::load;
use super::opened::OpenFiles;
use super::tree::Node;
use super::{Listing, NamePattern, Plan, Site, Watch, pool};

/// A folder that is removed with its test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("flatout-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        // Paths from the kernel contain no links.
        Folder(path.canonicalize().unwrap())
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A indexer that the test drives step by step.
struct ManualKeeper {
    folder: Folder,
    site: Arc<FolderState>,
    indexer: Indexer,
}

impl ManualKeeper {
    fn new(files: &[(&str, &str)], change: impl FnOnce(&mut Plan)) -> ManualKeeper {
        let folder = Folder::new();
        for (name, content) in files {
            folder.write(&format!("root/{name}"), content);
        }
        let mut plan = Plan { root: folder.0.join("root"), ..Plan::default() };
        change(&mut plan);
        let (site, indexer) = indexer::prepare(plan).unwrap();
        let mut kept = ManualKeeper { folder, site, indexer };
        kept.look("");
        kept
    }

    fn sweeping(files: &[(&str, &str)]) -> ManualKeeper {
        // No sweep happens during the test.
        ManualKeeper::new(files, |plan| plan.watch = Watch::Sweep(Duration::from_secs(3600)))
    }

    fn look(&mut self, path: &str) {
        self.indexer.turn(&self.site, Batch::changed(path));
    }

    fn next_epoch(&mut self) {
        self.indexer.next_epoch = Instant::now();
        self.indexer.turn(&self.site, Batch::default());
    }

    /// Handles all messages so far.
    fn hear(&mut self) {
        let told = self.site.inbox.take(Instant::now() + Duration::from_secs(30));
        self.indexer.turn(&self.site, told);
    }

    fn write(&self, name: &str, content: &str) {
        self.folder.write(&format!("root/{name}"), content);
    }

    fn fail(&self, name: &str, errno: Errno) {
        self.site.source.load().faults.lock().unwrap().insert(name.into(), errno);
    }

    fn heal(&self) {
        self.site.source.load().faults.lock().unwrap().clear();
    }

    fn entry(&self, path: &str) -> Option<Arc<Entry>> {
        match self.site.tree.load().get(path.as_bytes()) {
            Some(Node::File(entry)) => Some(entry.clone()),
            _ => None,
        }
    }

    /// The content that is served from memory.
    fn text(&self, path: &str) -> Option<String> {
        let contents = self.entry(path)?.contents().plain().cloned()?;
        Some(String::from_utf8_lossy(&contents).into_owned())
    }
}

#[test]
fn temporary_errors_remove_no_files() {
    for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::MFILE] {
        let mut kept = ManualKeeper::sweeping(&[("a", "a"), ("sub/b", "b"), ("c", "c")]);
        kept.fail("a", errno);
        kept.fail("sub", errno);
        // Otherwise they would not even be opened.
        for name in ["a", "sub/b", "c"] {
            kept.write(name, "changed");
        }
        kept.look("");
        kept.look("sub");
        assert_eq!(kept.text("/a").as_deref(), Some("a"), "{errno:?}");
        assert_eq!(kept.text("/sub/b").as_deref(), Some("b"), "{errno:?}");
        if errno != Errno::MFILE {
            assert_eq!(kept.text("/c").as_deref(), Some("changed"), "the others are kept up with");
        }
        kept.heal();
        kept.next_epoch();
        for path in ["/a", "/sub/b", "/c"] {
            assert_eq!(kept.text(path).as_deref(), Some("changed"), "{errno:?}: it is tried again");
        }
        kept.fail("a", Errno::ACCESS);
        kept.look("a");
        assert!(kept.entry("/a").is_none(), "this one says that it is not for us");
    }
}

#[test]
fn an_unreadable_version_does_not_replace_a_readable_one() {
    let mut kept = ManualKeeper::sweeping(&[("a", "a")]);
    // Opening it and reading its metadata succeed, but reading it fails.
    kept.write("a", "longer");
    let a = kept.entry("/a").unwrap();
    let source = kept.site.source.load_full();
    let newer = Entry::new("a".into(), a.stamp, Vec::new(), None);
    kept.fail("a", Errno::IO);
    assert!(load(&source, &newer, 100).is_err());
    kept.look("a");
    assert_eq!(kept.text("/a").as_deref(), Some("a"));
}

#[test]
fn a_file_that_changes_while_it_is_read_stays() {
    let mut kept = ManualKeeper::sweeping(&[("a", "a")]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                kept.folder.write("root/a", vec![b'x'; 200_000 + number % 2]);
            }
        });
        let site = kept.site.clone();
        for _ in 0..200 {
            kept.indexer.turn(&site, Batch::changed("a"));
            assert!(matches!(site.tree.load().get(b"/a"), Some(Node::File(_))));
        }
        stop.store(true, Ordering::Relaxed);
    });
    kept.look("a");
    assert!(kept.entry("/a").unwrap().contents().is_in_memory());
}

#[test]
fn a_root_that_returns_is_scanned_again() {
    let mut kept = ManualKeeper::sweeping(&[("a", "old"), ("b", "b")]);
    let (root, away) = (kept.folder.0.join("root"), kept.folder.0.join("away"));
    std::fs::rename(&root, &away).unwrap();
    kept.folder.write("away/a", "new");
    kept.look("a");
    assert_eq!(kept.text("/a").as_deref(), Some("old"), "served until something else is there");
    kept.folder.write("away/c", "c");
    std::fs::rename(&away, &root).unwrap();
    kept.next_epoch();
    assert_eq!(kept.text("/a").as_deref(), Some("new"));
    assert_eq!(kept.text("/c").as_deref(), Some("c"), "nobody told of it");
    // Delete and create it again: another folder.
    std::fs::remove_dir_all(&root).unwrap();
    kept.next_epoch();
    assert_eq!(kept.text("/a").as_deref(), Some("new"));
    kept.write("d", "d");
    kept.next_epoch();
    assert!(kept.entry("/a").is_none());
    assert_eq!(kept.text("/d").as_deref(), Some("d"));
}

#[test]
fn scans_replace_a_failed_watcher() {
    let mut kept = ManualKeeper::new(&[("a", "a")], |_| {});
    assert!(kept.indexer.watching.inotify().is_some());
    kept.write("b", "b");
    // The change was lost together with the watch.
    kept.site.inbox.take(Instant::now() + Duration::from_secs(30));
    kept.indexer.turn(&kept.site, Batch { blind: Some("a test".to_owned()), ..Batch::default() });
    assert_eq!(kept.text("/b").as_deref(), Some("b"));
    assert!(kept.indexer.watching.inotify().is_none() && kept.indexer.watching.due().is_some());
}

#[test]
fn new_files_in_new_folders_are_reported() {
    let mut kept = ManualKeeper::new(&[("a", "a")], |_| {});
    kept.write("new/deep/first", "first");
    // The scan itself watches what it finds, without waiting for the watcher.
    kept.site.inbox.take(Instant::now() + Duration::from_secs(30));
    kept.look("new");
    assert_eq!(kept.text("/new/deep/first").as_deref(), Some("first"));
    kept.write("new/deep/second", "second");
    kept.hear();
    assert_eq!(kept.text("/new/deep/second").as_deref(), Some("second"));
}

#[test]
fn requested_files_replace_unused_ones_in_memory() {
    let mut kept =
        ManualKeeper::new(&[("a", "0123456789"), ("b", "0123456789")], |plan| plan.memory_bytes_max = 15);
    assert!(kept.text("/a").is_some() && kept.text("/b").is_none());
    let b = kept.entry("/b").unwrap();
    for _ in 0..3 {
        kept.next_epoch();
    }
    b.use_in(kept.site.epoch.load(Ordering::Relaxed));
    kept.site.ask_to_load(&b);
    kept.hear();
    assert!(kept.text("/b").is_some() && kept.text("/a").is_none());
}

#[test]
fn files_are_served_before_the_first_scan() {
    let folder = Folder::new();
    folder.write("a.css", "a");
    folder.write("sub/index.html", "sub");
    folder.write("empty/.hidden", "hidden");
    folder.write("only.css.gz", "packed");
    folder.write("source.php", "source");
    folder.write("source.php.gz", "source");
    std::os::unix::fs::symlink("/etc", folder.0.join("etc")).unwrap();
    let hide = vec![NamePattern::parse("*.php").unwrap()];
    let plan = Plan { root: folder.0.clone(), listing: Listing::Html, hide, ..Plan::default() };
    let (site, _keeper) = indexer::prepare(plan).unwrap();
    assert!(!site.tree.load().is_complete());
    let found = |path: &str| disk::find(&site, path.as_bytes());
    for path in ["/a.css", "/sub/", "/sub/index.html", "/only.css", "/only.css.gz"] {
        assert!(matches!(found(path), Found::File(..)), "{path}");
    }
    assert!(matches!(found("/sub"), Found::Folder));
    assert!(matches!(found("/"), Found::Listing(html) if html.windows(5).any(|at| at == b"a.css")));
    for path in ["/source.php", "/source.php.gz", "/a.css.gz", "/nothing.css"] {
        assert!(matches!(found(path), Found::Nothing), "{path}");
    }
    for path in ["/nothing", "/a.css/", "/etc/passwd", "/etc/", "/empty/.hidden", "/sub/../a.css", "//a.css"]
    {
        assert!(matches!(found(path), Found::Nothing), "{path}");
    }
    site.source.load().faults.lock().unwrap().insert("a.css".into(), Errno::IO);
    assert!(matches!(found("/a.css"), Found::NotNow));
}

#[test]
fn the_first_index_file_that_is_there_is_served() {
    let files = [
        ("a/two", "a two"),
        ("b/two", "b two"),
        ("b/one", "b one"),
        ("c/one/x", "x"),
        ("c/two", "c two"),
        ("d/x", "x"),
    ];
    let kept = ManualKeeper::new(&files, |plan| plan.index = vec!["one".to_owned(), "two".to_owned()]);
    let before =
        Plan { root: kept.folder.0.join("root"), index: kept.site.plan.index.clone(), ..Plan::default() };
    let (unscanned, _keeper) = indexer::prepare(before).unwrap();
    for (path, expected) in
        [("/a/", Some("a/two")), ("/b/", Some("b/one")), ("/c/", Some("c/two")), ("/d/", None)]
    {
        assert_eq!(kept.entry(path).map(|entry| entry.path.clone()), expected.map(Into::into), "{path}");
        let found = match disk::find(&unscanned, path.as_bytes()) {
            Found::File(entry, _) => Some(entry.path.clone()),
            _ => None,
        };
        assert_eq!(found, expected.map(Into::into), "{path}: before the first scan");
    }
}

#[test]
fn a_temporarily_unreadable_file_is_not_missing() {
    let kept = ManualKeeper::new(&[("a", "a")], |plan| plan.small_bytes_max = 0);
    let entry = kept.entry("/a").unwrap();
    let reach = || disk::reach(&kept.site, &mut OpenFiles::default(), &entry);
    assert!(matches!(reach(), Reached::Same(_)));
    kept.fail("a", Errno::STALE);
    assert!(matches!(reach(), Reached::NotNow));
    kept.heal();
    std::fs::remove_file(kept.folder.0.join("root/a")).unwrap();
    assert!(matches!(reach(), Reached::Nothing));
}

#[test]
fn a_file_rewritten_and_extended_while_sent_is_torn() {
    let former = "a line\n".repeat(10_000);
    let (log, other) = (former.clone() + "one more\n", "another line\n".repeat(10_000));
    let kept = ManualKeeper::new(&[("log", &former), ("file", &former)], |plan| plan.small_bytes_max = 0);
    let mut open = OpenFiles::default();
    for (name, content, is_whole) in [("log", log, true), ("file", other, false)] {
        let entry = kept.entry(&format!("/{name}")).unwrap();
        assert!(matches!(disk::reach(&kept.site, &mut open, &entry), Reached::Same(_)));
        let writer =
            std::fs::File::options().write(true).open(kept.folder.0.join("root").join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&writer, content.as_bytes(), 0).unwrap();
        let reached = disk::reach(&kept.site, &mut open, &entry);
        assert_eq!(matches!(reached, Reached::Newer(..)), is_whole, "{name}");
        assert_eq!(matches!(reached, Reached::NotNow), !is_whole, "{name}");
    }
}

/// A compressed file that is being written is not served, and neither half of it.
#[test]
fn a_compressed_file_appears_when_it_is_whole() {
    let mut kept = ManualKeeper::sweeping(&[("other", "x")]);
    let path = kept.folder.0.join("root/a.css.gz");
    let writer = std::fs::File::create(&path).unwrap();
    if flatout_lane::file::writer(&std::fs::File::open(&path).unwrap()) == flatout_lane::file::Writer::Unknown
    {
        return;
    }
    std::io::Write::write_all(&mut &writer, b"half").unwrap();
    kept.look("");
    assert!(kept.entry("/a.css").is_none());
    drop(writer);
    kept.next_epoch();
    let entry = kept.entry("/a.css").unwrap();
    assert!(!entry.has_plain && entry.sidecars.len() == 1);
    // Its plain file, and then nothing.
    kept.write("a.css", "plain and longer");
    kept.look("a.css");
    assert!(kept.entry("/a.css").unwrap().has_plain);
    std::fs::remove_file(kept.folder.0.join("root/a.css")).unwrap();
    kept.look("a.css");
    assert!(!kept.entry("/a.css").unwrap().has_plain);
    std::fs::remove_file(&path).unwrap();
    kept.look("a.css.gz");
    assert!(kept.entry("/a.css").is_none());
}

/// The threads of this process with this name.
fn threads(name: &str) -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    all.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    })
    .count()
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn many_folders_share_threads() {
    const FOLDERS: usize = 200;
    let folder = Folder::new();
    let open = |at: usize| {
        folder.write(&format!("{at}/a.css"), "a text ".repeat(200));
        Site::open(Plan { root: folder.0.join(at.to_string()), ..Plan::default() }).unwrap()
    };
    let sites: Vec<Site> = (0..FOLDERS).map(open).collect();
    wait_until("all are compressed", || sites.iter().all(|site| site.memory_bytes() > 1400));
    // Other tests have some threads of their own.
    for name in ["files-indexer", "files-compress", "files-watch"] {
        assert!((1..FOLDERS / 2).contains(&threads(name)), "{name}: {}", threads(name));
    }
    for at in 0..FOLDERS {
        folder.write(&format!("{at}/b.css"), "b");
    }
    wait_until("all changes are found", || sites.iter().all(|site| site.files_count() == 2));
    let ended: Vec<_> = sites.iter().map(|site| Arc::downgrade(&site.site)).collect();
    drop(sites);
    wait_until("nothing is left", || ended.iter().all(|site| site.strong_count() == 0));
    wait_until("no task is left", || pool::count() < FOLDERS);
}
