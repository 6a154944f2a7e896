//! One file, with everything encoded that an answer needs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flatout_wire::accept::{Coding, choose};
use flatout_wire::date;

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

/// After so long without a write, a file that its writer has not closed is taken for whole.
const SETTLE_TIME: Duration = Duration::from_secs(1);

impl Stamp {
    /// Whether this may be half of a version that is just being written over `former`, in place. What has only grown,
    /// as logs do, is not.
    pub(crate) fn is_rewriting(&self, former: &Stamp) -> bool {
        let is_recent = SystemTime::now().duration_since(self.modified).is_ok_and(|age| age < SETTLE_TIME);
        self.inode == former.inode && self.bytes <= former.bytes && is_recent
    }

    /// The time of change since 1970, if it was after it.
    fn since_1970(&self) -> Option<Duration> {
        self.modified.duration_since(UNIX_EPOCH).ok()
    }
}

/// A file as it is served.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    pub(crate) stamp: Stamp,
    /// Of the compressed files beside it that its variants were read from.
    pub(crate) sidecars: Vec<Stamp>,
    pub(crate) content_type: String,
    /// Identity first.
    pub(crate) variants: Vec<Variant>,
    /// Of `variants`, in the order in which the server prefers them.
    codings: Vec<Coding>,
    /// The epoch in which it was last asked for.
    used: AtomicU32,
    /// Whether it was handed to be compressed.
    pressed: AtomicBool,
}

/// One coding of a file.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) coding: Coding,
    pub(crate) etag: Vec<u8>,
    /// Field lines of a 200 or 206.
    pub(crate) fields: Vec<u8>,
    /// Field lines of a 304.
    pub(crate) fields_unmodified: Vec<u8>,
    pub(crate) content: Content,
}

/// Where the bytes are.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Memory(Bytes),
    /// On disk, so many.
    Disk(u64),
}

/// What the server prefers among codings that the client likes alike: the smallest first.
const PREFERENCE: [Coding; 4] = [Coding::Brotli, Coding::Zstd, Coding::Gzip, Coding::Identity];

/// Texts below this size are not worth a `Content-Encoding` line.
const COMPRESSIBLE_BYTES_MIN: u64 = 256;

impl Entry {
    /// Encodes the heads of a file with these contents, of which the first is identity.
    pub(crate) fn new(
        path: PathBuf,
        stamp: Stamp,
        sidecars: Vec<Stamp>,
        contents: Vec<(Coding, Content)>,
        cache_control: Option<&str>,
    ) -> Entry {
        let content_type = content_type(&path);
        let negotiable = contents.len() > 1 || is_compressible(&content_type, stamp.bytes);
        let variants: Vec<Variant> = contents
            .into_iter()
            .map(|(coding, content)| {
                let head = Head { stamp, content_type: &content_type, coding, negotiable, cache_control };
                head.variant(content)
            })
            .collect();
        let has = |coding: &Coding| variants.iter().any(|variant| variant.coding == *coding);
        let codings = PREFERENCE.into_iter().filter(|coding| has(coding)).collect();
        Entry {
            path,
            stamp,
            sidecars,
            content_type,
            variants,
            codings,
            used: AtomicU32::new(0),
            pressed: AtomicBool::new(false),
        }
    }

    /// The variant that the client likes best; identity for one that likes none.
    #[inline]
    pub(crate) fn choose(&self, accept: Option<&[u8]>) -> Option<&Variant> {
        if self.variants.len() > 1 && accept.is_some() {
            let chosen = choose(accept, &self.codings);
            let found = self.variants.iter().find(|variant| Some(variant.coding) == chosen);
            return found.or(self.variants.first());
        }
        self.variants.first()
    }

    /// Notes that it was asked for; writes only once an epoch, so that workers do not fight for the line.
    #[inline]
    pub(crate) fn use_in(&self, epoch: u32) {
        if self.used.load(Ordering::Relaxed) != epoch {
            self.used.store(epoch, Ordering::Relaxed);
        }
    }

    /// Whether it is to be compressed, and was not handed out for that before.
    pub(crate) fn begin_pressing(&self) -> bool {
        self.to_compress().is_some() && !self.pressed.swap(true, Ordering::Relaxed)
    }

    /// The same version with other contents.
    pub(crate) fn with_contents(
        &self,
        contents: Vec<(Coding, Content)>,
        cache_control: Option<&str>,
    ) -> Entry {
        let sidecars = self.sidecars.clone();
        let entry = Entry::new(self.path.clone(), self.stamp, sidecars, contents, cache_control);
        entry.used.store(self.used(), Ordering::Relaxed);
        entry
    }

    /// The epoch in which it was last asked for.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of memory that its contents take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = |variant: &Variant| match &variant.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Disk(_) => 0,
        };
        self.variants.iter().map(bytes).sum()
    }

    /// Whether its content is kept in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.variants.first(), Some(Variant { content: Content::Memory(_), .. }))
    }

    /// The plain bytes, if it is text that has not been compressed yet.
    pub(crate) fn to_compress(&self) -> Option<&Bytes> {
        match self.variants.as_slice() {
            [Variant { content: Content::Memory(bytes), .. }]
                if is_compressible(&self.content_type, self.stamp.bytes) =>
            {
                Some(bytes)
            }
            _ => None,
        }
    }

    /// The time of change in seconds since 1970, if there is one.
    pub(crate) fn modified(&self) -> Option<u64> {
        self.stamp.since_1970().map(|time| time.as_secs())
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

/// What the field lines of a variant are made of.
struct Head<'a> {
    stamp: Stamp,
    content_type: &'a str,
    coding: Coding,
    negotiable: bool,
    cache_control: Option<&'a str>,
}

impl Head<'_> {
    fn variant(&self, content: Content) -> Variant {
        let etag = self.etag();
        let mut common = format!("ETag: {etag}\r\n");
        if let Some(modified) = self.stamp.since_1970() {
            let date = date::format(modified.as_secs());
            common.push_str(&format!("Last-Modified: {}\r\n", String::from_utf8_lossy(&date)));
        }
        if self.negotiable {
            common.push_str("Vary: Accept-Encoding\r\n");
        }
        if let Some(cache_control) = self.cache_control {
            common.push_str(&format!("Cache-Control: {cache_control}\r\n"));
        }
        let mut fields = format!("Content-Type: {}\r\n", self.content_type);
        if self.coding != Coding::Identity {
            fields.push_str(&format!("Content-Encoding: {}\r\n", self.coding.token()));
        }
        fields.push_str("Accept-Ranges: bytes\r\n");
        fields.push_str(&common);
        Variant {
            coding: self.coding,
            etag: etag.into_bytes(),
            fields: fields.into_bytes(),
            fields_unmodified: common.into_bytes(),
            content,
        }
    }

    /// Strong: time to the nanosecond, size and inode change with every replacement; the coding is part of it.
    fn etag(&self) -> String {
        let Stamp { inode, bytes, .. } = self.stamp;
        let time = self.stamp.since_1970().unwrap_or_default().as_nanos();
        match self.coding {
            Coding::Identity => format!("\"{time:x}-{bytes:x}-{inode:x}\""),
            coding => format!("\"{time:x}-{bytes:x}-{inode:x}-{}\"", coding.token()),
        }
    }
}

fn content_type(path: &std::path::Path) -> String {
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    let is_text = mime.type_() == mime_guess::mime::TEXT || mime.subtype() == mime_guess::mime::JAVASCRIPT;
    if is_text { format!("{}; charset=utf-8", mime.essence_str()) } else { mime.essence_str().to_owned() }
}

fn is_compressible(content_type: &str, bytes: u64) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    let named = [
        "application/javascript",
        "application/json",
        "application/manifest+json",
        "application/wasm",
        "application/xml",
        "font/otf",
        "font/ttf",
        "image/bmp",
        "image/x-icon",
    ];
    let is_text = essence.starts_with("text/") || essence.ends_with("+xml") || essence.ends_with("+json");
    bytes >= COMPRESSIBLE_BYTES_MIN && (is_text || named.contains(&essence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, codings: &[Coding]) -> Entry {
        let modified = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let stamp = Stamp { inode: 1, bytes: 1000, modified };
        let contents = codings.iter().map(|coding| (*coding, Content::Memory(Bytes::from_static(b"x"))));
        Entry::new(name.into(), stamp, Vec::new(), contents.collect(), Some("max-age=60"))
    }

    #[test]
    fn heads_are_encoded() {
        let css = entry("a.css", &[Coding::Identity, Coding::Gzip]);
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
        assert!(!String::from_utf8_lossy(&png.variants[0].fields).contains("Vary"));
        assert_eq!(entry("a", &[Coding::Identity]).content_type, "application/octet-stream");
        assert_eq!(entry("a.js", &[Coding::Identity]).content_type, "text/javascript; charset=utf-8");
    }

    #[test]
    fn variants_are_chosen() {
        let css = entry("a.css", &[Coding::Identity, Coding::Gzip, Coding::Brotli]);
        let chosen = |accept: Option<&str>| css.choose(accept.map(str::as_bytes)).unwrap().coding;
        assert_eq!(chosen(None), Coding::Identity);
        assert_eq!(chosen(Some("gzip, br")), Coding::Brotli);
        assert_eq!(chosen(Some("gzip, br;q=0.5")), Coding::Gzip);
        assert_eq!(chosen(Some("identity;q=0, zstd")), Coding::Identity, "better than nothing");
    }
}
