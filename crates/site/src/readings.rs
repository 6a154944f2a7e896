//! Checks the different ways in which applications read a path, so that none of them evades a rule.
//!
//! A route, and with it its rules, is chosen by the normal form
//! ([`forward_path`](flatout_wire::target::forward_path)). The application then reads the path again in its own way:
//! it may treat `%2F` or a backslash as a separator, cut `;…` off each segment, or decode twice; or it may resolve,
//! merge or decode nothing. So an ambiguous path is read here in all of these ways, and every reading must lead to a
//! route with the same rules:
//!
//! - If a reading of what the client sent does not, the normal form is sent instead: it has nothing left to resolve,
//!   merge or decode.
//! - If a reading of the normal form itself does not, the request is refused.
//!
//! An unambiguous path, which most are, is its own normal form and costs one comparison.

/// The ways of reading that make a difference for a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PathReading {
    /// `%2F` is a slash.
    slash: bool,
    /// A backslash is a slash.
    backslash: bool,
    /// `;` and what follows it in its segment is cut off.
    parameters: bool,
    /// The same before anything is decoded.
    parameters_first: bool,
    /// Decoded text is decoded again.
    twice: bool,
}

/// Whether every reading of a path in its normal form leads to the same place as the form itself; `same` compares one
/// path.
pub(crate) fn form_is_clear(form: &[u8], mut same: impl FnMut(&[u8]) -> bool) -> bool {
    let ways = PathReading::of(form);
    if ways == PathReading::default() {
        return true;
    }
    // Parameters could be cut before, between or after the decodings. A path needs both too rarely to check this, so
    // it is refused.
    if ways.parameters && ways.twice {
        return false;
    }
    let (mut read, mut out) = (Vec::with_capacity(form.len()), Vec::new());
    ways.subsets().all(|ways| {
        ways.read(form, &mut read);
        all_structures(&read, &mut out, &mut same)
    })
}

/// Whether every reading of the path as sent leads to the same place as its normal form. Call it only if the form is
/// clear.
pub(crate) fn sent_is_clear(sent: &[u8], form: &[u8], mut same: impl FnMut(&[u8]) -> bool) -> bool {
    if sent == form {
        return true;
    }
    let mut decoded = Vec::with_capacity(sent.len());
    decode(sent, &mut decoded);
    let is_plain = decoded == form;
    // Few paths have both, so not all combinations are checked.
    if !is_plain && PathReading::of(&decoded) != PathReading::default() {
        return false;
    }
    if is_plain {
        return same(sent);
    }
    let mut out = Vec::with_capacity(sent.len());
    all_structures(sent, &mut out, &mut same) && all_structures(&decoded, &mut out, &mut same)
}

/// Whether a text leads to the same place whether or not slashes are merged and dot segments resolved, in either
/// order.
fn all_structures(text: &[u8], out: &mut Vec<u8>, same: &mut impl FnMut(&[u8]) -> bool) -> bool {
    if !same(text) {
        return false;
    }
    let has_structure = text.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    // No route is above the root.
    !has_structure
        || [(true, false), (true, true), (false, true)].iter().all(|&(merges, resolves)| {
            if !resolve(text, merges, resolves, out) || !same(out) {
                return false;
            }
            let mut merged = Vec::new();
            merges || (resolve(out, true, false, &mut merged) && same(&merged))
        })
}

impl PathReading {
    fn of(form: &[u8]) -> PathReading {
        let mut ways = PathReading::default();
        let mut rest = form;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match (byte, tail) {
                (b'%', [b'2', b'F', ..]) => ways.slash = true,
                (b'%', [b'5', b'C', ..]) => ways.backslash = true,
                (b'%', [b'2', b'5', tail @ ..]) => {
                    if let Some(value) = escape(tail) {
                        ways.twice = true;
                        ways.backslash |= value == b'\\';
                        ways.parameters |= value == b';';
                    }
                }
                (b';', _) => (ways.parameters, ways.parameters_first) = (true, true),
                _ => {}
            }
        }
        ways
    }

    /// All non-empty combinations of these ways: 31 at most.
    fn subsets(self) -> impl Iterator<Item = PathReading> {
        (1..32u8).filter_map(move |bits| {
            let ways = PathReading {
                slash: bits & 1 > 0,
                backslash: bits & 2 > 0,
                parameters: bits & 4 > 0,
                parameters_first: bits & 8 > 0,
                twice: bits & 16 > 0,
            };
            let has_no_more = self.slash >= ways.slash
                && self.backslash >= ways.backslash
                && self.parameters >= ways.parameters
                && self.parameters_first >= ways.parameters_first
                && self.twice >= ways.twice;
            has_no_more.then_some(ways)
        })
    }

    /// Reads a normal form in these ways.
    fn read(self, form: &[u8], out: &mut Vec<u8>) {
        out.clear();
        let (mut is_cut, mut is_cut_first) = (false, false);
        let mut rest = form;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            match byte {
                b'/' => is_cut_first = false,
                b';' if self.parameters_first => is_cut_first = true,
                _ => {}
            }
            if is_cut_first {
                continue;
            }
            let mut read = byte;
            match (byte, tail) {
                (b'%', [b'2', b'F', tail @ ..]) if self.slash => (read, rest) = (b'/', tail),
                (b'%', [b'5', b'C', tail @ ..]) if self.backslash => (read, rest) = (b'/', tail),
                (b'%', [b'2', b'5', tail @ ..]) if self.twice => {
                    if let (Some(value), Some(tail)) = (escape(tail), tail.get(2..)) {
                        (read, rest) = (value, tail);
                    }
                }
                _ => {}
            }
            if read == b'\\' && self.backslash {
                read = b'/';
            }
            match read {
                b'/' => is_cut = false,
                b';' if self.parameters => is_cut = true,
                _ => {}
            }
            if !is_cut {
                out.push(read);
            }
        }
    }
}

/// Decodes once, like the normal form, and changes nothing else.
fn decode(path: &[u8], out: &mut Vec<u8>) {
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match escape(tail).filter(|_| byte == b'%') {
            Some(value) => {
                rest = tail.get(2..).unwrap_or_default();
                match value {
                    b'/' => out.extend_from_slice(b"%2F"),
                    b'\\' => out.extend_from_slice(b"%5C"),
                    b'%' => out.extend_from_slice(b"%25"),
                    _ => out.push(value),
                }
            }
            None => out.push(byte),
        }
    }
}

/// Merges slashes and resolves dot segments, as asked; `false` if they lead above the root.
fn resolve(text: &[u8], merges: bool, resolves: bool, path: &mut Vec<u8>) -> bool {
    path.clear();
    let mut segments = text.split(|&byte| byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let is_dots = resolves && matches!(segment, b"." | b"..");
        if segment == b".." && resolves {
            let Some(parent) = path.iter().rposition(|&byte| byte == b'/') else { return false };
            path.truncate(parent);
        }
        if is_dots || (merges && segment.is_empty()) {
            if is_last {
                path.push(b'/');
            }
            continue;
        }
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    true
}

/// The value of the two hexadecimal digits at the start of `text`.
fn escape(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| text.get(at).and_then(|&byte| (byte as char).to_digit(16));
    Some((digit(0)? << 4 | digit(1)?) as u8)
}
