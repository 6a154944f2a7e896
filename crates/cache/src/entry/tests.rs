use super::*;

#[test]
fn entry_fields_are_read_back() {
    let key = Key { url: b"http://a/b", rest: b"\0up", is_custom: false, hash: 1 };
    let fields: [(&[u8], &[u8]); 4] =
        [(b"ETag", b"\"x\""), (b"Connection", b"x"), (b"Set-Cookie", b"y"), (b"Empty", b"")];
    let withheld = [b"set-cookie".to_vec()];
    let lines = stored_lines(fields.into_iter(), &withheld, Some(784_111_777));
    let parts = Parts {
        key,
        vary: b"\na",
        selected: b",1\n",
        lines: &lines,
        status: Status::OK,
        policy: Policy::default(),
    };
    let entry = Arc::new(Entry::new(&parts, b"body".to_vec()));
    assert_eq!((entry.url(), entry.rest()), (&b"http://a/b"[..], &b"\0up"[..]));
    assert_eq!((entry.vary(), entry.selected()), (&b"\na"[..], &b",1\n"[..]));
    assert_eq!(entry.lines(), b"ETag: \"x\"\r\nEmpty: \r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    assert_eq!(entry.fields().nth(1), Some((&b"Empty"[..], &b""[..])));
    assert_eq!((entry.etag(), entry.modified()), (&b"\"x\""[..], None));
    assert!(entry.has_date() && !entry.has_server() && entry.is_of(&key));
    assert!(!entry.is_of(&Key { url: b"http://a/c", ..key }));
    assert!(entry.is_of(&Key { url: b"http://a/c", is_custom: true, ..key }));
    assert_eq!(&body_of(&entry)[..], b"body");
    let updated = Arc::new(Entry::new(&parts, Content::Of(entry.owner().clone())));
    let again = Arc::new(Entry::new(&parts, Content::Of(updated.owner().clone())));
    for entry in [&updated, &again] {
        assert!(entry.shares_body(&updated) && &body_of(entry)[..] == b"body");
    }
    assert_eq!(again.weight(), 2 * entry.weight() - 4);
    entry.expire();
    assert!(entry.is_live() && entry.is_expired());
    entry.kill();
    entry.expire();
    assert!(!entry.is_live());
}
