//! The `Basic` scheme: names and passwords (RFC 7617).

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_engine::say;
use flatout_wire::Head;

use super::fault::{Fault, Place};
use super::passwords::{self, Users};
use super::plan::{self, User};

/// The limit for a name with its password, as sent.
const CREDENTIALS_BYTES_MAX: usize = 1024;

/// Bytes of a file of users.
const USER_FILE_BYTES_MAX: usize = 16 << 20;

/// The rule of one route.
#[derive(Debug, Clone)]
pub(crate) struct Basic {
    pub(crate) users: Arc<Users>,
    /// The value of `WWW-Authenticate`.
    pub(crate) challenge: String,
}

/// The credentials in a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) name: Vec<u8>,
    pub(crate) password: Vec<u8>,
}

impl Basic {
    /// # Errors
    /// The file is unreadable, a user is invalid, or there are no users.
    pub(crate) fn new(plan: &plan::BasicAuth, place: Place) -> Result<Basic, Fault> {
        let mut users = plan.users.clone();
        if let Some(path) = &plan.user_file {
            users.extend(read(path, place)?);
        }
        if users.is_empty() {
            return Err(place.fault("basic-auth needs at least one user"));
        }
        let realm = &plan.realm;
        if realm.bytes().any(|byte| byte < 0x20 || byte == 0x7f || byte == b'"' || byte == b'\\') {
            return Err(place.fault(format!("the realm {realm:?} has a quote or a control byte in it")));
        }
        Ok(Basic {
            users: Arc::new(Users::new(&users, place)?),
            challenge: format!("Basic realm=\"{realm}\", charset=\"UTF-8\""),
        })
    }
}

impl Credentials {
    /// The credentials in the only `Authorization` field; `None` if there is none or it is invalid.
    pub(crate) fn of(head: &Head<'_>) -> Option<Credentials> {
        let mut values = head.field_all("authorization");
        let value = values.next()?;
        // With two fields, two readers could each use a different one.
        if values.next().is_some() || value.len() > CREDENTIALS_BYTES_MAX {
            return None;
        }
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
        let colon = decoded.iter().position(|&byte| byte == b':')?;
        let (name, password) = decoded.split_at(colon);
        Some(Credentials { name: name.to_vec(), password: password.get(1..)?.to_vec() })
    }
}

/// Reads the users of a file: one `name:hash` a line. Users whose hash is not supported are reported and left out; empty lines and lines that start with `#` are skipped.
fn read(path: &Path, place: Place) -> Result<Vec<User>, Fault> {
    let fault =
        |what: &dyn std::fmt::Display| place.fault_of_file(path, format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| fault(&error))?;
    if text.len() > USER_FILE_BYTES_MAX {
        return Err(fault(&format_args!("larger than {USER_FILE_BYTES_MAX} bytes")));
    }
    let mut users = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, hash)) = line.split_once(':') else {
            return Err(fault(&format_args!("line {}: expected name:hash", at + 1)));
        };
        // A comment may follow, as nginx allows.
        let hash = hash.split(':').next().unwrap_or_default();
        // The file may belong to another server, which accepts more: the others can log in.
        if let Err(why) = passwords::check(hash) {
            let (file, line) = (path.display(), at + 1);
            say(format_args!("{file}: line {line}: the user `{name}` cannot log in: {why}"));
            continue;
        }
        users.push(User { name: name.to_owned(), hash: hash.to_owned() });
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flatout_wire::head::{HeadLimits, parse};

    fn credentials(fields: &str) -> Option<(String, String)> {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut spans = Vec::new();
        let head = parse(text.as_bytes(), &mut spans, &HeadLimits::default()).unwrap().unwrap();
        let Credentials { name, password } = Credentials::of(&head)?;
        Some((String::from_utf8(name).unwrap(), String::from_utf8(password).unwrap()))
    }

    #[test]
    fn credentials_are_read() {
        let some = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        for (fields, expected) in [
            ("Authorization: Basic YW5uOnNlY3JldA==\r\n", some("ann", "secret")),
            ("authorization: bAsIc  YW5uOnNlY3JldA== \r\n", some("ann", "secret")),
            ("Authorization: Basic YW5uOmE6Yg==\r\n", some("ann", "a:b")),
            ("Authorization: Basic Og==\r\n", some("", "")),
            ("Authorization: Basic YW5u\r\n", None),
            ("Authorization: Basic YW5uOnNlY3JldA\r\n", None),
            ("Authorization: Basic !\r\n", None),
            ("Authorization: Basic\r\n", None),
            ("Authorization: Bearer YW5uOnNlY3JldA==\r\n", None),
            ("Authorization: Basic Og==\r\nAuthorization: Basic Og==\r\n", None),
            ("", None),
        ] {
            assert_eq!(credentials(fields), expected, "{fields}");
        }
        assert_eq!(credentials(&format!("Authorization: Basic {}\r\n", "A".repeat(2000))), None);
    }

    #[test]
    fn a_file_of_users_is_read_or_refused_with_its_line() {
        let folder = std::env::temp_dir().join(format!("flatout-users-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("users");
        let hash = passwords::tests::bcrypt_of("secret");
        let text =
            format!("# people\n\nann:{hash}\n bob:{{PLAIN}}x:a comment \neve:saK8NpLaeYLyo\ntom:$apr1$\n");
        std::fs::write(&file, text).unwrap();
        let users = read(&file, Place::Plan).unwrap();
        let users: Vec<(&str, &str)> = users.iter().map(|user| (&*user.name, &*user.hash)).collect();
        assert_eq!(users, [("ann", &*hash), ("bob", "{PLAIN}x")], "the others are left out");
        std::fs::write(&file, "ann:x\nbob\n").unwrap();
        assert!(read(&file, Place::Plan).unwrap_err().reason.ends_with("users: line 2: expected name:hash"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(read(&file, Place::Plan).unwrap_err().reason.contains("No such file"));
    }

    #[test]
    fn basic_auth_needs_a_user_and_a_valid_realm() {
        let nobody =
            |realm: &str| plan::BasicAuth { realm: realm.to_owned(), users: Vec::new(), user_file: None };
        assert!(Basic::new(&nobody("a"), Place::Plan).unwrap_err().reason.contains("at least one user"));
        let mut quoted = nobody("a\"b");
        quoted.users.push(User { name: "ann".to_owned(), hash: String::new() });
        assert!(Basic::new(&quoted, Place::Plan).unwrap_err().reason.contains("realm"));
    }
}
