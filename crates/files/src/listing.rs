//! The listing of a folder, as a page.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use flatout_wire::date;

use super::Listing;
use super::listing_data::{json, xml};
use super::tree::{Known, Thing};

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.25rem;font-weight:600;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}\
th,td{padding:.3rem .5rem;text-align:left;border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}\
th{font-weight:500;font-size:.85rem;opacity:.7}\
td:first-child{overflow-wrap:anywhere;width:100%}\
td+td,th+th{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
a{color:light-dark(#0b57d0,#8ab4f8);text-decoration:none}a:hover,a:focus-visible{text-decoration:underline}\
@media(max-width:32rem){td:last-child,th:last-child{display:none}}";

/// The listing of the folder at `path`, if folders are listed: folders first, each group by name.
pub(crate) fn listing(form: Listing, path: &Path, known: &Known) -> Option<Bytes> {
    match form {
        Listing::Off => None,
        Listing::Html => Some(html(path, known)),
        Listing::Json => Some(json(&items(path, known))),
        Listing::Xml => Some(xml(&items(path, known))),
    }
}

/// What a listing says of a file or a folder.
pub(super) struct Item<'k> {
    pub(super) name: &'k Path,
    /// Seconds since 1970.
    pub(super) modified: u64,
    /// The bytes of a file; `None` for a folder.
    pub(super) bytes: Option<u64>,
}

/// The folders of a folder, then its files; the compressed forms of files are listed under their own names.
fn items<'k>(path: &'k Path, known: &'k Known) -> Vec<Item<'k>> {
    let item = |(name, thing): (&'k Path, &'k Thing)| match thing {
        Thing::Folder(modified) => Some(Item { name, modified: *modified, bytes: None }),
        Thing::File(entry) if entry.has_plain => {
            let modified = entry.modified().unwrap_or_default();
            Some(Item { name, modified, bytes: Some(entry.stamp.bytes) })
        }
        Thing::File(_) => None,
    };
    let mut items: Vec<Item<'k>> = children(path, known).filter_map(item).collect();
    items.sort_by_key(|item| item.bytes.is_some());
    items
}

fn html(path: &Path, known: &Known) -> Bytes {
    let title = format!("/{}", escape(&path.to_string_lossy()));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n\
         <table><thead><tr><th>Name<th>Size<th>Changed (UTC)</thead><tbody>\n"
    );
    if path != Path::new("") {
        page.push_str("<tr><td><a href=\"../\">..</a><td><td>\n");
    }
    for Item { name, modified, bytes } in items(path, known) {
        match bytes {
            None => row(&mut page, name, "/", "", ""),
            Some(bytes) => row(&mut page, name, "", &size(bytes), &changed(modified)),
        }
    }
    page.push_str("</tbody></table>\n</html>\n");
    page.into()
}

fn children<'k>(path: &'k Path, known: &'k Known) -> impl Iterator<Item = (&'k Path, &'k Thing)> {
    known
        .range(path.to_path_buf()..)
        .take_while(move |(this, _)| this.starts_with(path))
        .filter(move |(this, _)| this.parent() == Some(path))
        .filter_map(|(this, thing)| Some((Path::new(this.file_name()?), thing)))
}

fn row(page: &mut String, name: &Path, slash: &str, size: &str, changed: &str) {
    let href = href(name.as_os_str().as_bytes());
    let text = escape(&name.to_string_lossy());
    // Writing to a `String` cannot fail.
    let _ = writeln!(page, "<tr><td><a href=\"{href}{slash}\">{text}{slash}</a><td>{size}<td>{changed}");
}

/// `1.5 KiB`: three digits, binary units.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", units[unit])
}

/// `2026-11-20 09:15`.
fn changed(modified: u64) -> String {
    let time = date::rfc_3339(modified);
    format!("{} {}", time.get(..10).unwrap_or_default(), time.get(11..16).unwrap_or_default())
}

pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

/// Percent-encodes all but unreserved bytes. A name with a colon is no URL then.
fn href(name: &[u8]) -> String {
    name.iter().fold(String::with_capacity(name.len()), |mut out, &byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out() {
        let mut known = Known::new();
        let folder = || Thing::Folder(784_111_777);
        known.insert("d".into(), folder());
        known.insert("d/<script>alert('1')&".into(), folder());
        known.insert("d/sub".into(), folder());
        known.insert("d/sub/deep".into(), folder());
        known.insert("d2".into(), folder());
        let page = html(Path::new("d"), &known);
        let page = String::from_utf8_lossy(&page);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;alert(&#39;1&#39;)&amp;"));
        assert!(page.contains("href=\"%3Cscript%3Ealert%28%271%27%29%26/\""));
        assert!(page.contains("\"sub/\"") && !page.contains("deep") && !page.contains("d2"));
    }

    #[test]
    fn sizes_and_times() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(300 << 20), "300 MiB");
        assert_eq!(changed(784_111_777), "1994-11-06 08:49");
    }
}
