//! Names of files and folders that are not served.

use std::path::Path;

use super::load::plain_of;

/// Compressed names within names: `x.php.gz.br`.
const CODINGS_MAX: usize = 4;

/// A name, or a pattern in which `*` stands for any text. Case does not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// Reads a pattern, such as `*.php`.
    ///
    /// # Errors
    /// It is empty, or contains a slash.
    pub fn parse(text: &str) -> Result<NamePattern, String> {
        match text.is_empty() || text.contains(['/', '\0']) {
            true => Err(format!("got `{text}`, need the name of a file or folder, such as *.php")),
            false => Ok(NamePattern(text.to_ascii_lowercase())),
        }
    }

    /// The pattern as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn matches(&self, name: &[u8]) -> bool {
        let mut parts = self.0.as_bytes().split(|&byte| byte == b'*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = strip_start(name, first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = position(rest, part) else { return false };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        rest.len() >= last.len() && rest[rest.len() - last.len()..].eq_ignore_ascii_case(last)
    }
}

fn strip_start<'n>(name: &'n [u8], start: &[u8]) -> Option<&'n [u8]> {
    let (begin, rest) = name.split_at_checked(start.len())?;
    begin.eq_ignore_ascii_case(start).then_some(rest)
}

fn position(name: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return Some(0);
    }
    name.windows(part.len()).position(|window| window.eq_ignore_ascii_case(part))
}

/// Whether a path may be served: no part of it is hidden, or starts with a dot, except `.well-known` (RFC 8615). The
/// compressed form of a hidden file is hidden too.
pub(crate) fn is_visible(path: &Path, hide: &[NamePattern]) -> bool {
    path.components().all(|part| {
        let name = part.as_os_str().as_encoded_bytes();
        let is_dotted = name.starts_with(b".") && name != b".well-known";
        !is_dotted && (hide.is_empty() || !is_hidden(Path::new(part.as_os_str()), hide))
    })
}

fn is_hidden(name: &Path, hide: &[NamePattern]) -> bool {
    let plain = std::iter::successors(Some(name.to_path_buf()), |name| plain_of(name));
    plain.take(CODINGS_MAX).any(|name| {
        let name = name.as_os_str().as_encoded_bytes();
        hide.iter().any(|pattern| pattern.matches(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("*.php", "index.php", true),
            ("*.php", "INDEX.PhP", true),
            ("*.php", ".php", true),
            ("*.php", "index.php.txt", false),
            ("*.php*", "index.php.txt", true),
            ("*.php.*", "index.php.txt", true),
            ("*.php", "php", false),
            ("*~", "a~", true),
            ("*~", "~a", false),
            (".ht*", ".htaccess", true),
            ("web.config", "Web.config", true),
            ("web.config", "web.config.js", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "acb", false),
            ("a*b*c", "abbc", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*", "anything", true),
            ("#*#", "#a#", true),
        ] {
            assert_eq!(
                NamePattern::parse(pattern).unwrap().matches(name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
        assert!(NamePattern::parse("").is_err() && NamePattern::parse("a/b").is_err());
    }

    #[test]
    fn each_part_of_a_path_counts() {
        let hide = ["*.php", "private"].map(|text| NamePattern::parse(text).unwrap());
        for (path, expected) in [
            ("", true),
            ("a/b.css", true),
            ("a/b.php", false),
            ("a.php/b.css", false),
            ("private", false),
            ("a/Private/b", false),
            ("a/b.php.gz", false),
            ("a/b.php.gz.br", false),
            ("a/b.css.gz", true),
            (".git/config", false),
            (".well-known/x", true),
            (".well-known/.env", false),
            ("a/.env", false),
        ] {
            assert_eq!(is_visible(Path::new(path), &hide), expected, "{path}");
        }
    }
}
