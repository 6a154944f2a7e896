//! Request targets and their normal form: no dot segments, stable, and never two readings.
#![no_main]

use flatout_wire::head::{HeadLimits, parse};
use flatout_wire::target::{decode_component, normal_path};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|target: &[u8]| {
    let mut out = Vec::new();
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    if let Ok(normal) = normal_path(path, &mut out) {
        assert_normal(normal, path);
    }
    as_request_target(target);
});

fn assert_normal(normal: &[u8], path: &[u8]) {
    assert!(has_no_way_out(normal), "{path:?}");
    assert_eq!(decode_component(path, false).as_deref(), Some(normal), "one decoding is all");
    let slashes = |text: &[u8]| text.iter().filter(|&&byte| byte == b'/').count();
    assert_eq!(slashes(normal), slashes(path), "the segments are those of the raw path");
    // Stable: written anew in escapes, it comes back; where nothing is left to decode, it is its own form.
    assert_eq!(normal_path(&escaped(normal), &mut Vec::new()), Ok(normal));
    if !normal.contains(&b'%') {
        assert_eq!(normal_path(normal, &mut Vec::new()), Ok(normal));
    } else if let Some(twice) = decode_component(normal, false) {
        assert!(has_no_way_out(&twice), "a second decoding gives {twice:?}");
        assert_eq!(slashes(&twice), slashes(path));
    }
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

/// The same bytes in a request line: path and query put together are the target again.
fn as_request_target(target: &[u8]) {
    let text = [b"GET ", target, b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    let mut fields = Vec::new();
    let Ok(Some(head)) = parse(&text, &mut fields, &HeadLimits::default()) else { return };
    // What has a space ends there, and may bring lines of its own.
    let Some(target) = target.split(|&byte| byte == b' ').next() else { return };
    assert_eq!(head.target(), target);
    let question = if head.query().is_some() { &b"?"[..] } else { b"" };
    let together = [head.path(), question, head.query().unwrap_or_default()].concat();
    if target.starts_with(b"/") {
        assert_eq!(together, target);
    } else {
        // Absolute form: it may have no path, and then `/` is meant.
        let tail = together.strip_prefix(b"/").unwrap_or_default();
        assert!(head.path().starts_with(b"/") && target.ends_with(tail) && !head.authority().is_empty());
    }
    if !head.path_needs_care {
        assert_eq!(normal_path(head.path(), &mut Vec::new()), Ok(head.path()), "care was needed");
    }
}
