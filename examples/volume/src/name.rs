//! Names of files, as clients choose them.

use std::fmt;

/// Longest name in bytes: folders of NFS allow 255, and we append to it.
pub const NAME_BYTES_MAX: usize = 200;

/// A file name that is one part of a path: letters, digits, `.`, `_` and `-`, and no `.` at its start, which hides a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// # Errors
    /// A text for people, if the name is not allowed.
    pub fn parse(text: &str) -> Result<Name, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match text {
            "" => Err("the file has no name".to_owned()),
            _ if text.len() > NAME_BYTES_MAX => {
                Err(format!("the name has {} bytes; {NAME_BYTES_MAX} are allowed", text.len()))
            }
            _ if text.starts_with('.') => Err(format!("the name `{text}` starts with a dot")),
            _ if !text.bytes().all(is_allowed) => {
                Err(format!("the name {text:?} has other characters than letters, digits, `.`, `_` and `-`"))
            }
            _ => Ok(Name(text.to_owned())),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_of_a_path() {
        for good in ["a", "table.csv", "2026-11-23_a.b"] {
            assert_eq!(Name::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "ä", "a\0", &"x".repeat(201)] {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
    }
}
