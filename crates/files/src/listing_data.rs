//! Listings of folders for programs: the formats of nginx's `autoindex_format`.

use std::fmt::Write;

use bytes::Bytes;
use flatout_engine::Quoted;
use flatout_wire::date;

use super::listing::{Item, escape};

/// An array with an object for each file and folder.
pub(crate) fn json(items: &[Item<'_>]) -> Bytes {
    let mut out = String::from("[");
    for (at, item) in items.iter().enumerate() {
        let Item { name, modified, bytes } = item;
        let (name, date) = (name.to_string_lossy(), date::format(*modified));
        let date = String::from_utf8_lossy(&date);
        let (comma, kind) = (if at == 0 { "" } else { "," }, kind(item));
        // Writing to a `String` cannot fail.
        let _ =
            write!(out, "{comma}\n{{ \"name\":{}, \"type\":\"{kind}\", \"mtime\":\"{date}\"", Quoted(&name));
        let _ = match bytes {
            Some(bytes) => write!(out, ", \"size\":{bytes} }}"),
            None => write!(out, " }}"),
        };
    }
    out.push_str("\n]\n");
    out.into()
}

/// A list of elements named `directory` or `file`.
pub(crate) fn xml(items: &[Item<'_>]) -> Bytes {
    let mut out = String::from("<?xml version=\"1.0\"?>\n<list>\n");
    for item in items {
        let (kind, name) = (kind(item), xml_text(&item.name.to_string_lossy()));
        let size = item.bytes.map(|bytes| format!(" size=\"{bytes}\"")).unwrap_or_default();
        let time = date::rfc_3339(item.modified);
        let _ = writeln!(out, "<{kind} mtime=\"{time}\"{size}>{name}</{kind}>");
    }
    out.push_str("</list>\n");
    out.into()
}

fn kind(item: &Item<'_>) -> &'static str {
    if item.bytes.is_some() { "file" } else { "directory" }
}

/// The text of an element. XML 1.0 has no way to write most control characters.
fn xml_text(text: &str) -> String {
    let visible: String =
        text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
    escape(&visible)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn items() -> [Item<'static>; 3] {
        let item = |name, bytes| Item { name: Path::new(name), modified: 784_111_777, bytes };
        [item("d", None), item("a\"\\\n'<", Some(42)), item("\u{444}", Some(0))]
    }

    fn text(bytes: Bytes) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn json_has_names_types_times_and_sizes() {
        assert_eq!(
            text(json(&items())),
            "[\n{ \"name\":\"d\", \"type\":\"directory\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\" },\n\
             { \"name\":\"a\\\"\\\\\\n'<\", \"type\":\"file\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\", \"size\":42 },\n\
             { \"name\":\"\u{444}\", \"type\":\"file\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\", \"size\":0 }\n]\n"
        );
        assert_eq!(text(json(&[])), "[\n]\n");
    }

    #[test]
    fn xml_has_the_same() {
        assert_eq!(
            text(xml(&items())),
            "<?xml version=\"1.0\"?>\n<list>\n<directory mtime=\"1994-11-06T08:49:37Z\">d</directory>\n\
             <file mtime=\"1994-11-06T08:49:37Z\" size=\"42\">a&quot;\\\u{fffd}&#39;&lt;</file>\n\
             <file mtime=\"1994-11-06T08:49:37Z\" size=\"0\">\u{444}</file>\n</list>\n"
        );
    }
}
