//! The few messages of PostgreSQL's protocol (version 3) that prepared statements need.

use std::io;

use bytes::{BufMut, BytesMut};
use postgres_protocol::message::frontend;

/// A tag and a length.
pub(super) const HEAD_BYTES: usize = 5;

/// A longer message does not come from these tables.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The type of `int` in arrays.
const INT4_OID: i32 = 23;

/// Writes statements of one `ask`.
pub struct Statements<'o> {
    out: &'o mut BytesMut,
    count: usize,
}

/// The rows of all statements of one `ask`.
pub struct Rows(Vec<u8>);

/// The rest of a row.
pub struct Columns<'r>(&'r [u8]);

impl<'o> Statements<'o> {
    pub(super) fn new(out: &'o mut BytesMut) -> Statements<'o> {
        Statements { out, count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Executes the prepared statement with this index, in its own transaction.
    pub fn none(&mut self, statement: u8) {
        self.bind(statement, 0, |_| {});
    }

    /// The same with one number.
    pub fn int(&mut self, statement: u8, value: i32) {
        self.bind(statement, 1, |out| {
            out.put_i32(4);
            out.put_i32(value);
        });
    }

    /// The same with two arrays of numbers.
    pub fn arrays(&mut self, statement: u8, one: &[i32], other: &[i32]) {
        self.bind(statement, 2, |out| [one, other].iter().for_each(|values| array(out, values)));
    }

    /// Bind, Execute, Sync.
    fn bind(&mut self, statement: u8, parameters: i16, write: impl FnOnce(&mut BytesMut)) {
        let out = &mut *self.out;
        out.put_u8(b'B');
        let length_at = out.len();
        // The portal has no name; the length is filled in below.
        out.put_slice(&[0, 0, 0, 0, 0, statement, 0]);
        // All parameters in binary.
        out.put_slice(&[0, 1, 0, 1]);
        out.put_i16(parameters);
        write(out);
        // All columns in binary.
        out.put_slice(&[0, 1, 0, 1]);
        let length = i32::try_from(out.len() - length_at).unwrap_or(i32::MAX);
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        out.put_slice(b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04");
        self.count += 1;
    }
}

/// The name of the prepared statement of a place: one letter.
pub(super) fn name(place: usize) -> u8 {
    b'a' + u8::try_from(place).unwrap_or(0)
}

/// Prepares a statement.
pub(super) fn prepare(place: usize, sql: &str, out: &mut BytesMut) -> io::Result<()> {
    frontend::parse(char::from(name(place)).encode_utf8(&mut [0; 4]), sql, [], out)
}

fn array(out: &mut BytesMut, values: &[i32]) {
    let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
    out.put_i32(20 + 8 * count);
    // One dimension, no NULL, from 1 on.
    for number in [1, 0, INT4_OID, count, 1] {
        out.put_i32(number);
    }
    for value in values {
        out.put_i32(4);
        out.put_i32(*value);
    }
}

/// The first message, if it is complete: its tag and body.
///
/// # Errors
/// A length that cannot be.
pub(super) fn first(bytes: &[u8]) -> io::Result<Option<(u8, &[u8])>> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(rest.get(..length - 4).map(|body| (head[0], body)))
}

/// The server's error message.
pub(super) fn fault(body: &[u8]) -> String {
    let field = |letter: u8| body.split(|&byte| byte == 0).find(|field| field.first() == Some(&letter));
    let text = field(b'M').map_or(&b"no message"[..], |field| &field[1..]);
    String::from_utf8_lossy(text).into_owned()
}

impl Rows {
    pub(super) fn new(bytes: Vec<u8>) -> Rows {
        Rows(bytes)
    }

    /// All rows, made of their columns; those that are not as expected end it.
    pub fn read<'r, T>(&'r self, mut row: impl FnMut(&mut Columns<'r>) -> Option<T>) -> io::Result<Vec<T>> {
        let mut left = Columns(&self.0);
        let mut all = Vec::new();
        while !left.0.is_empty() {
            let value = left.skip(2).and_then(|()| row(&mut left));
            all.push(value.ok_or(io::ErrorKind::InvalidData)?);
        }
        Ok(all)
    }
}

impl<'r> Columns<'r> {
    fn skip(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }

    fn bytes(&mut self) -> Option<&'r [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)?;
        self.0 = rest;
        Some(value)
    }

    /// The next column, a number.
    pub fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.bytes()?.try_into().ok()?))
    }

    /// The next column, a text.
    pub fn text(&mut self) -> Option<&'r str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_bound_executed_and_ended() {
        let mut out = BytesMut::new();
        let mut statements = Statements::new(&mut out);
        statements.int(b'a', 7);
        statements.none(b'b');
        assert_eq!(statements.count(), 2);
        let mut left = &out[..];
        let mut tags = Vec::new();
        while let Some((tag, body)) = first(left).unwrap() {
            tags.push(tag);
            left = &left[HEAD_BYTES + body.len()..];
        }
        assert_eq!((tags, left.len()), (b"BESBES".to_vec(), 0));
        assert!(first(b"Z\0\0\0\x05").unwrap().is_none() && first(b"Z\0").unwrap().is_none());
        assert!(first(b"Z\0\0\0\x03I").is_err() && first(b"Z\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn incomplete_rows_are_refused() {
        let row = b"\0\x02\0\0\0\x04\0\0\0\x07\0\0\0\x02hi".to_vec();
        let read = |rows: &Rows| rows.read(|row| Some((row.int()?, row.text()?.to_owned())));
        let two = Rows::new([row.clone(), row.clone()].concat());
        assert_eq!(read(&two).unwrap(), [(7, "hi".to_owned()), (7, "hi".to_owned())]);
        for length in 1..row.len() {
            assert!(read(&Rows::new(row[..length].to_vec())).is_err(), "{length}");
        }
        assert!(read(&Rows::new(b"\0\x01\xff\xff\xff\xff".to_vec())).is_err());
    }
}
