//! Files that are complete or reported as damaged: a line with their kind, version and checksum, and then the text.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::host::Host;
use crate::system::{MODE_OWN, replace};
use crate::trust;

/// Largest file; more than any content needs.
pub const BYTES_MAX: u64 = 64 << 20;

/// Writes a file atomically; it is on disk when this returns. `heading` names its kind and version.
///
/// # Errors
/// It is too large, or cannot be written.
pub fn write(host: &Host, path: &Path, heading: &str, text: &str) -> io::Result<()> {
    let bytes = seal(heading, text);
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {BYTES_MAX} bytes")));
    }
    replace(host.system(), path, &bytes, MODE_OWN)
}

/// Reads what [`write`](fn@write) wrote; `None` if there is no such file.
///
/// # Errors
/// The file cannot be read, is damaged, or has another kind or version.
pub fn read(path: &Path, heading: &str) -> Result<Option<String>, String> {
    trust::check(path)?;
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    unseal(heading, &bytes).map(|text| Some(text.to_owned()))
}

/// Removes such a file.
///
/// # Errors
/// It cannot be removed.
pub fn remove(host: &Host, path: &Path) -> io::Result<()> {
    host.system().remove(path)?;
    host.system().sync(path.parent().unwrap_or(Path::new("/")))
}

pub(crate) fn seal(heading: &str, text: &str) -> Vec<u8> {
    format!("{heading} {:08x}\n{text}\n", crc32fast::hash(text.as_bytes())).into_bytes()
}

pub(crate) fn unseal<'b>(heading: &str, bytes: &'b [u8]) -> Result<&'b str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is no text".to_owned())?;
    let (first, text) = text.split_once('\n').ok_or("has no checksum")?;
    let checksum = first.strip_prefix(heading).and_then(|rest| rest.strip_prefix(' '));
    let checksum = checksum.ok_or_else(|| format!("is of another kind or version; need `{heading}`"))?;
    let text = text.trim_end_matches('\n');
    match u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(text.as_bytes())) {
        true => Ok(text),
        false => Err("its checksum is wrong: it was damaged or edited".to_owned()),
    }
}
