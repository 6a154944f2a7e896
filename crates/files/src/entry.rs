//! One file, with everything that a response needs already encoded.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use flatout_wire::accept::{Coding, choose};

use super::head::{Head, content_type, is_compressible};
use super::load::sidecar;
use super::write_detection::Stamp;

/// One version of a file. The version is immutable; the location of its bytes changes, and workers see that at once.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    /// Without a plain file, that of its first compressed one.
    pub(crate) stamp: Stamp,
    /// Whether the file exists itself, and not only in compressed forms.
    pub(crate) has_plain: bool,
    /// The compressed files beside it.
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) content_type: String,
    contents: ArcSwap<Contents>,
    is_compressible: bool,
    /// The epoch of the last request for it.
    used: AtomicU32,
    /// The inode change time when a scan last opened it, in nanoseconds since 1970; a change of permissions changes
    /// it too.
    checked_ns: AtomicI64,
    /// Whether the indexer was asked to load it.
    requested: AtomicBool,
    /// Whether a client's request has asked for its compression.
    precompress_requested: AtomicBool,
    /// Whether it is queued for compression at low priority.
    precompress_queued: AtomicBool,
    /// Whether it was passed to the compressor.
    precompressed: AtomicBool,
    /// Whether its file was seen shorter than this version: then it is being rewritten, whatever its length is now.
    torn: AtomicBool,
    /// Since when the file on disk is incomplete, in seconds since 1970; 0 if it is complete.
    pub(crate) half_since_s: AtomicU64,
    /// Whether the indexer has dropped it.
    gone: AtomicBool,
}

/// A compressed file beside a plain one.
#[derive(Debug, Clone)]
pub(crate) struct Sidecar {
    pub(crate) coding: Coding,
    /// Its own version, with its own path.
    pub(crate) file: Arc<Entry>,
}

impl Sidecar {
    /// The compressed file of `plain` in this coding.
    pub(crate) fn new(plain: &Path, coding: Coding, stamp: Stamp) -> Sidecar {
        let file = Entry::new(sidecar(plain, coding), stamp, Vec::new(), None);
        Sidecar { coding, file: Arc::new(file) }
    }
}

/// Where the bytes of a version are.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Identity first, if there is a plain file.
    pub(crate) variants: Vec<Variant>,
    /// The codings of `variants`, in the server's order of preference.
    codings: Vec<Coding>,
    /// Whether the client's `Accept-Encoding` matters.
    is_negotiated: bool,
    /// Whether there is no plain file, so that even its absence matters.
    is_compressed_only: bool,
}

/// One coding of a file.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) coding: Coding,
    pub(crate) etag: Vec<u8>,
    /// The modification time in seconds since 1970, if there is one.
    pub(crate) modified: Option<u64>,
    /// Field lines of a 200 or 206.
    pub(crate) fields: Vec<u8>,
    /// Field lines of a 304.
    pub(crate) fields_unmodified: Vec<u8>,
    pub(crate) content: Content,
}

/// The location of a variant's bytes.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Memory(Bytes),
    /// On disk, with this length.
    Disk(u64),
}

/// The server's preference among codings that the client weighs equally: the smallest first.
const PREFERENCE: [Coding; 4] = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];

impl Entry {
    /// A version whose bytes are on disk.
    pub(crate) fn new(
        path: PathBuf,
        stamp: Stamp,
        sidecars: Vec<Sidecar>,
        cache_control: Option<&str>,
    ) -> Entry {
        let has_plain = true;
        Entry::with(path, stamp, has_plain, sidecars, cache_control)
    }

    /// A file of which only compressed forms exist; `None` without any.
    pub(crate) fn compressed_only(
        path: PathBuf,
        sidecars: Vec<Sidecar>,
        cache_control: Option<&str>,
    ) -> Option<Entry> {
        let stamp = sidecars.first()?.file.stamp;
        Some(Entry::with(path, stamp, false, sidecars, cache_control))
    }

    fn with(
        path: PathBuf,
        stamp: Stamp,
        has_plain: bool,
        sidecars: Vec<Sidecar>,
        cache_control: Option<&str>,
    ) -> Entry {
        let content_type = content_type(&path);
        let contents = Contents {
            variants: Vec::new(),
            codings: Vec::new(),
            is_negotiated: false,
            is_compressed_only: false,
        };
        let entry = Entry {
            is_compressible: has_plain && is_compressible(&content_type, stamp.bytes),
            path,
            stamp,
            has_plain,
            sidecars,
            content_type,
            contents: ArcSwap::from_pointee(contents),
            used: AtomicU32::new(0),
            checked_ns: AtomicI64::new(0),
            requested: AtomicBool::new(false),
            precompress_requested: AtomicBool::new(false),
            precompress_queued: AtomicBool::new(false),
            precompressed: AtomicBool::new(false),
            torn: AtomicBool::new(false),
            half_since_s: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        };
        entry.set_contents(entry.on_disk(), cache_control);
        entry
    }

    /// All its forms, on disk.
    pub(crate) fn on_disk(&self) -> Vec<(Coding, Content)> {
        let plain = self.has_plain.then_some((Coding::Identity, Content::Disk(self.stamp.bytes)));
        let of = |sidecar: &Sidecar| (sidecar.coding, Content::Disk(sidecar.file.stamp.bytes));
        plain.into_iter().chain(self.sidecars.iter().map(of)).collect()
    }

    /// The compressed file in this coding.
    pub(crate) fn sidecar(&self, coding: Coding) -> Option<&Arc<Entry>> {
        self.sidecars.iter().find(|sidecar| sidecar.coding == coding).map(|sidecar| &sidecar.file)
    }

    /// Whether these are its compressed files.
    pub(crate) fn has_sidecars(&self, found: &[(Coding, Stamp)]) -> bool {
        let own = self.sidecars.iter().map(|sidecar| (sidecar.coding, sidecar.file.stamp));
        own.eq(found.iter().copied())
    }

    /// Its current contents.
    #[inline]
    pub(crate) fn contents(&self) -> Guard<Arc<Contents>> {
        self.contents.load()
    }

    /// Encodes the heads for these contents, whose first coding is identity if there is a plain file, and publishes
    /// them to the workers.
    pub(crate) fn set_contents(&self, contents: Vec<(Coding, Content)>, cache_control: Option<&str>) {
        let is_negotiable = self.is_compressible || !self.sidecars.is_empty();
        let head = |coding| Head {
            stamp: self.sidecar(coding).map_or(self.stamp, |file| file.stamp),
            content_type: &self.content_type,
            coding,
            is_negotiable,
            cache_control,
        };
        let variants: Vec<Variant> =
            contents.into_iter().map(|(coding, content)| head(coding).variant(content)).collect();
        let has = |coding: &Coding| variants.iter().any(|variant| variant.coding == *coding);
        let codings = PREFERENCE.into_iter().filter(has).collect();
        let is_compressed_only = !self.has_plain;
        let is_negotiated = variants.len() > 1 || is_compressed_only;
        self.contents.store(Arc::new(Contents { variants, codings, is_negotiated, is_compressed_only }));
    }

    /// Notes a request for it. Writes only once an epoch, so that workers do not contend for the cache line.
    #[inline]
    pub(crate) fn use_in(&self, epoch: u32) {
        if self.used.load(Ordering::Relaxed) != epoch {
            self.used.store(epoch, Ordering::Relaxed);
        }
    }

    /// The epoch of the last request for it.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether this caller is to ask for it to be loaded.
    pub(crate) fn begin_asking(&self) -> bool {
        !self.requested.load(Ordering::Relaxed) && !self.requested.swap(true, Ordering::Relaxed)
    }

    /// Allows another request to load it.
    pub(crate) fn end_asking(&self) {
        self.requested.store(false, Ordering::Relaxed);
    }

    /// Whether it is text in memory without compressed variants.
    #[inline]
    pub(crate) fn is_to_precompress(&self, contents: &Contents) -> bool {
        self.is_compressible && contents.variants.len() == 1 && contents.is_in_memory()
    }

    /// Whether this caller is to ask for its compression.
    #[inline]
    pub(crate) fn note_precompression_request(&self) -> bool {
        !self.precompress_requested.load(Ordering::Relaxed)
            && !self.precompress_requested.swap(true, Ordering::Relaxed)
    }

    /// Whether this caller is to queue it for compression.
    pub(crate) fn note_precompression_queued(&self) -> bool {
        !self.precompress_queued.swap(true, Ordering::Relaxed)
    }

    /// It is no longer queued.
    pub(crate) fn clear_precompression_queued(&self) {
        self.precompress_queued.store(false, Ordering::Relaxed);
    }

    /// The plain bytes, if it is to be compressed and was not passed to the compressor before.
    pub(crate) fn begin_pressing(&self) -> Option<Bytes> {
        let contents = self.contents();
        let plain = contents.plain().filter(|_| self.is_to_precompress(&contents))?.clone();
        (!self.precompressed.swap(true, Ordering::Relaxed)).then_some(plain)
    }

    /// Resets the compression state, because its variants have left memory.
    pub(crate) fn reset_pressing(&self) {
        self.precompressed.store(false, Ordering::Relaxed);
        self.precompress_requested.store(false, Ordering::Relaxed);
    }

    /// Stores the inode change time of a scan that found it readable and unchanged.
    pub(crate) fn set_checked(&self, changed_ns: i64) {
        self.checked_ns.store(changed_ns, Ordering::Relaxed);
    }

    /// Whether the inode has not changed since that scan.
    pub(crate) fn is_checked(&self, changed_ns: i64) -> bool {
        self.checked_ns.load(Ordering::Relaxed) == changed_ns
    }

    pub(crate) fn tear(&self) {
        self.torn.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Relaxed)
    }

    /// Since when the file on disk is incomplete, in seconds since 1970; starts now if it was complete before.
    pub(crate) fn half_since_s(&self, now_s: u64) -> u64 {
        match self.half_since_s.compare_exchange(0, now_s, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now_s,
            Err(since) => since,
        }
    }

    /// Marks it as dropped by the indexer.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The modification time in seconds since 1970, if there is one.
    pub(crate) fn modified(&self) -> Option<u64> {
        self.stamp.since_1970().map(|time| time.as_secs())
    }
}

impl Contents {
    /// The variant that the client prefers; identity if it accepts none. `None` if there is no plain file, and the
    /// client accepts none of the codings.
    #[inline]
    pub(crate) fn choose(&self, accept: Option<&[u8]>) -> Option<&Variant> {
        if self.is_negotiated && (accept.is_some() || self.is_compressed_only) {
            return self.negotiate(accept);
        }
        self.variants.first()
    }

    fn negotiate(&self, accept: Option<&[u8]>) -> Option<&Variant> {
        let of = |coding: Coding| self.variants.iter().find(|variant| variant.coding == coding);
        match (accept, of(Coding::Identity)) {
            (None, Some(plain)) => Some(plain),
            // Any coding is acceptable (RFC 9110 section 12.5.3): the one that most clients know.
            (None, None) => of(Coding::Gzip).or(self.variants.first()),
            (Some(_), plain) => choose(accept, &self.codings).and_then(of).or(plain),
        }
    }

    /// Bytes of memory that they use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = |variant: &Variant| match &variant.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Disk(_) => 0,
        };
        self.variants.iter().map(bytes).sum()
    }

    /// Whether any of them is kept in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.variants.iter().any(|variant| matches!(variant.content, Content::Memory(_)))
    }

    /// The plain bytes, if they are in memory.
    pub(crate) fn plain(&self) -> Option<&Bytes> {
        match self.variants.first() {
            Some(Variant { coding: Coding::Identity, content: Content::Memory(bytes), .. }) => Some(bytes),
            _ => None,
        }
    }
}

impl Content {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Disk(bytes) => *bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn entry(name: &str, codings: &[Coding]) -> Entry {
        let modified = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let stamp = Stamp { device: 1, inode: 1, bytes: 1000, modified };
        let contents = codings.iter().map(|coding| (*coding, Content::Memory(Bytes::from_static(b"x"))));
        let entry = Entry::new(name.into(), stamp, Vec::new(), Some("max-age=60"));
        entry.set_contents(contents.collect(), Some("max-age=60"));
        entry
    }

    #[test]
    fn heads_are_encoded() {
        let css = entry("a.css", &[Coding::Identity, Coding::Gzip]);
        let css = css.contents();
        let fields = String::from_utf8(css.variants[1].fields.clone()).unwrap();
        for line in [
            "Content-Type: text/css; charset=utf-8\r\n",
            "Content-Encoding: gzip\r\n",
            "Vary: Accept-Encoding\r\n",
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            "Cache-Control: max-age=60\r\n",
            "Accept-Ranges: bytes\r\n",
        ] {
            assert!(fields.contains(line), "{fields}");
        }
        assert_ne!(css.variants[0].etag, css.variants[1].etag);
        let png = entry("a.png", &[Coding::Identity]);
        assert!(!String::from_utf8_lossy(&png.contents().variants[0].fields).contains("Vary"));
        assert_eq!(entry("a", &[Coding::Identity]).content_type, "application/octet-stream");
        assert_eq!(entry("a.js", &[Coding::Identity]).content_type, "text/javascript; charset=utf-8");
    }

    #[test]
    fn variants_are_chosen() {
        let css = entry("a.css", &[Coding::Identity, Coding::Gzip, Coding::Brotli]);
        let css = css.contents();
        let chosen = |accept: Option<&str>| css.choose(accept.map(str::as_bytes)).unwrap().coding;
        assert_eq!(chosen(None), Coding::Identity);
        assert_eq!(chosen(Some("gzip, br")), Coding::Brotli);
        assert_eq!(chosen(Some("gzip, br;q=0.5")), Coding::Gzip);
        assert_eq!(chosen(Some("identity;q=0, zstd")), Coding::Identity, "better than nothing");
    }

    #[test]
    fn a_file_that_is_only_compressed_needs_a_client_that_accepts_it() {
        let modified = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let stamp = |bytes| Stamp { device: 1, inode: bytes, bytes, modified };
        let path = Path::new("a.css");
        let sidecars = [(Coding::Brotli, 10), (Coding::Gzip, 20)];
        let sidecars = sidecars.map(|(coding, bytes)| Sidecar::new(path, coding, stamp(bytes)));
        let css = Entry::compressed_only(path.into(), sidecars.to_vec(), None).unwrap();
        assert_eq!(css.sidecar(Coding::Gzip).unwrap().path, Path::new("a.css.gz"));
        let contents = css.contents();
        let chosen = |accept: Option<&str>| {
            contents
                .choose(accept.map(str::as_bytes))
                .map(|variant| (variant.coding, variant.content.bytes()))
        };
        assert_eq!(chosen(None), Some((Coding::Gzip, 20)));
        assert_eq!(chosen(Some("gzip, br")), Some((Coding::Brotli, 10)));
        assert_eq!(chosen(Some("gzip")), Some((Coding::Gzip, 20)));
        for none in ["", "identity", "zstd", "br;q=0, gzip;q=0"] {
            assert_eq!(chosen(Some(none)), None, "{none}");
        }
        let fields = String::from_utf8_lossy(&contents.variants[0].fields).into_owned();
        assert!(
            fields.contains("Content-Type: text/css") && fields.contains("Vary: Accept-Encoding"),
            "{fields}"
        );
        assert!(contents.plain().is_none() && css.begin_pressing().is_none());
        assert!(Entry::compressed_only(path.into(), Vec::new(), None).is_none());
    }

    #[test]
    fn compression_is_handed_out_once() {
        let css = entry("a.css", &[Coding::Identity]);
        assert!(css.begin_pressing().is_some());
        assert!(css.begin_pressing().is_none());
        css.reset_pressing();
        assert!(css.begin_pressing().is_some());
        assert!(entry("a.png", &[Coding::Identity]).begin_pressing().is_none());
    }
}
