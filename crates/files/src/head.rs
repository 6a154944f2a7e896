//! The field lines of a file's variants, encoded in advance.

use std::path::Path;

use flatout_wire::accept::Coding;
use flatout_wire::date;

use super::entry::{Content, Variant};
use super::write_detection::Stamp;

/// For shorter texts a `Content-Encoding` line is not worth it.
const COMPRESSIBLE_BYTES_MIN: u64 = 256;

/// The input for a variant's field lines.
pub(crate) struct Head<'a> {
    /// Of the file that the variant was read or made from.
    pub(crate) stamp: Stamp,
    pub(crate) content_type: &'a str,
    pub(crate) coding: Coding,
    pub(crate) is_negotiable: bool,
    pub(crate) cache_control: Option<&'a str>,
}

impl Head<'_> {
    pub(crate) fn variant(&self, content: Content) -> Variant {
        let etag = self.etag();
        let mut common = format!("ETag: {etag}\r\n");
        if let Some(modified) = self.stamp.since_1970() {
            let date = date::format(modified.as_secs());
            common.push_str(&format!("Last-Modified: {}\r\n", String::from_utf8_lossy(&date)));
        }
        if self.is_negotiable {
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
            modified: self.stamp.since_1970().map(|time| time.as_secs()),
            etag: etag.into_bytes(),
            fields: fields.into_bytes(),
            fields_unmodified: common.into_bytes(),
            content,
        }
    }

    /// A strong ETag: versions differ in modification time (in nanoseconds), size or inode; the coding is part of it.
    fn etag(&self) -> String {
        let Stamp { inode, bytes, .. } = self.stamp;
        let time = self.stamp.since_1970().unwrap_or_default().as_nanos();
        match self.coding {
            Coding::Identity => format!("\"{time:x}-{bytes:x}-{inode:x}\""),
            coding => format!("\"{time:x}-{bytes:x}-{inode:x}-{}\"", coding.token()),
        }
    }
}

pub(crate) fn content_type(path: &Path) -> String {
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    let is_text = mime.type_() == mime_guess::mime::TEXT || mime.subtype() == mime_guess::mime::JAVASCRIPT;
    if is_text { format!("{}; charset=utf-8", mime.essence_str()) } else { mime.essence_str().to_owned() }
}

pub(crate) fn is_compressible(content_type: &str, bytes: u64) -> bool {
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
