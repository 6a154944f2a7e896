//! Request targets and their normal forms: no dot segments, stable, and never two readings.

use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::{decode_component, encode_path, forward_path, normal_path};

pub fn run(target: &[u8]) {
    let mut out = Vec::new();
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    if let Ok(normal) = normal_path(path, &mut out) {
        assert_normal(normal, path);
    }
    assert_forward(path);
    as_request_target(target);
}

fn assert_normal(normal: &[u8], path: &[u8]) {
    assert!(has_no_way_out(normal), "{path:?}");
    assert_eq!(decode_component(path, false).as_deref(), Some(normal), "one decoding is all");
    let slashes = |text: &[u8]| text.iter().filter(|&&byte| byte == b'/').count();
    assert_eq!(slashes(normal), slashes(path), "the segments are those of the raw path");
    // Stable: escaping and normalising it again gives the same path; without anything to decode, it is its own normal
    // form.
    assert_eq!(normal_path(&escaped(normal), &mut Vec::new()), Ok(normal));
    if !normal.contains(&b'%') {
        assert_eq!(normal_path(normal, &mut Vec::new()), Ok(normal));
    } else if let Some(twice) = decode_component(normal, false) {
        assert!(has_no_way_out(&twice), "a second decoding gives {twice:?}");
        assert_eq!(slashes(&twice), slashes(path));
    }
}

/// The form for forwarded requests equals a simple implementation's, is its own normal form, and survives a round
/// trip through a target.
fn assert_forward(path: &[u8]) {
    let mut out = Vec::new();
    let form = forward_path(path, &mut out).ok();
    assert_eq!(form.map(<[u8]>::to_vec), plain_forward(path), "{path:?}");
    let Some(form) = form else { return };
    assert_eq!(forward_path(form, &mut Vec::new()), Ok(form));
    let mut target = Vec::new();
    encode_path(form, &mut target);
    assert_eq!(forward_path(&target, &mut Vec::new()), Ok(form), "{target:?}");
    // If the strict form accepts the path, the two differ only in slashes and in escapes that are kept.
    if let Ok(strict) = normal_path(path, &mut Vec::new()) {
        let merged: Vec<&[u8]> = strict.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        let decoded = decode_component(form, false).expect("its escapes are whole");
        let ours: Vec<&[u8]> = decoded.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        assert_eq!(ours, merged);
    }
}

/// A simple implementation: decodes segments first, as lists, and joins them at the end.
fn plain_forward(path: &[u8]) -> Option<Vec<u8>> {
    let text = path.strip_prefix(b"/")?;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut is_folder = false;
    for segment in text.split(|&byte| byte == b'/') {
        let decoded = decode_component(segment, false)?;
        if segment.contains(&b'\\') || decoded.iter().any(|&byte| byte < 0x20 || byte == 0x7f) {
            return None;
        }
        is_folder = matches!(&decoded[..], b"" | b"." | b"..");
        match &decoded[..] {
            b"" | b"." => {}
            b".." => drop(kept.pop()?),
            _ => kept.push(keep_some_escapes(&decoded)),
        }
    }
    let mut whole = [b"/", &kept.join(&b'/')[..]].concat();
    if is_folder && !kept.is_empty() {
        whole.push(b'/');
    }
    Some(whole)
}

fn keep_some_escapes(decoded: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b'/' | b'\\' | b'%' => format!("%{byte:02X}").into_bytes(),
        _ => vec![byte],
    };
    decoded.iter().flat_map(escape).collect()
}

fn has_no_way_out(path: &[u8]) -> bool {
    let name_end = |segment: &[u8]| segment.iter().position(|&byte| byte == b';').unwrap_or(segment.len());
    let is_dots = |segment: &[u8]| matches!(&segment[..name_end(segment)], b"." | b"..");
    let no_dots = !path.split(|&byte| byte == b'/').any(is_dots);
    no_dots && path.iter().all(|&byte| byte >= 0x20 && byte != 0x7f && byte != b'\\')
}

fn escaped(path: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b'/' | b'-' | b'a'..=b'z' => vec![byte],
        _ => format!("%{byte:02X}").into_bytes(),
    };
    path.iter().flat_map(escape).collect()
}

/// The same bytes in a request line: path and query joined are the target again.
fn as_request_target(target: &[u8]) {
    let text = [b"GET ", target, b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    let mut fields = Vec::new();
    let Ok(Some(head)) = parse(&text, &mut fields, &HeadLimits::default()) else { return };
    // The target ends at a space; the rest could contain further lines.
    let Some(target) = target.split(|&byte| byte == b' ').next() else { return };
    assert_eq!(head.target(), target);
    let question = if head.query().is_some() { &b"?"[..] } else { b"" };
    let together = [head.path(), question, head.query().unwrap_or_default()].concat();
    if target.starts_with(b"/") {
        assert_eq!(together, target);
    } else {
        // An absolute form without a path means `/`.
        let tail = together.strip_prefix(b"/").unwrap_or_default();
        assert!(head.path().starts_with(b"/") && target.ends_with(tail) && !head.authority().is_empty());
    }
    if !head.path_needs_care {
        assert_eq!(normal_path(head.path(), &mut Vec::new()), Ok(head.path()), "care was needed");
    }
}
