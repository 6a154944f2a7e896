//! Patterns of paths: globs and regular expressions, compiled.

use flatout_expression::Regex;

use super::fault::{Fault, Place};

/// Compiles a regular expression for paths. It matches bytes, so that invalid UTF-8 in a path cannot evade a rule.
pub(crate) fn expression(pattern: &str, ignore_case: bool, place: Place) -> Result<Regex, Fault> {
    Regex::new(pattern, ignore_case).map_err(|why| place.fault(format!("the expression `{pattern}`: {why}")))
}

/// Compiles a glob: `*` is any text without a slash, `**` any text, `?` one byte that is no slash.
pub(crate) fn glob(pattern: &str, place: Place) -> Result<Regex, Fault> {
    let mut text = String::from("^");
    let mut rest = pattern;
    while let Some(byte) = rest.chars().next() {
        let taken = match byte {
            '*' if rest.starts_with("**") => {
                text.push_str(".*");
                2
            }
            '*' => {
                text.push_str("[^/]*");
                1
            }
            '?' => {
                text.push_str("[^/]");
                1
            }
            _ => {
                text.push_str(&regex::escape(byte.encode_utf8(&mut [0; 4])));
                byte.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    text.push('$');
    expression(&text, false, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_they_are_written() {
        for (pattern, path, fits) in [
            ("/img/*.png", "/img/a.png", true),
            ("/img/*.png", "/img/a/b.png", false),
            ("/img/*.png", "/img/apng", false),
            ("/img/**.png", "/img/a/b.png", true),
            ("/a?c", "/abc", true),
            ("/a?c", "/a/c", false),
            ("/a+(b)", "/a+(b)", true),
            ("/a+(b)", "/aab", false),
            ("/é*", "/éa", true),
            ("**", "/", true),
            ("", "/", false),
        ] {
            let glob = glob(pattern, Place::Plan).unwrap();
            assert_eq!(glob.is_match(path.as_bytes()), fits, "{pattern} {path}");
        }
        assert!(glob("/a/*", Place::Plan).unwrap().is_match(b"/a/\xff\xfe"));
    }

    #[test]
    fn expressions_match_bytes() {
        let admin = expression("^/admin/.*$", false, Place::Plan).unwrap();
        assert!(admin.is_match(b"/admin/\xff"), "what is no UTF-8 must not lead around a rule");
        assert!(expression("/A", true, Place::Plan).unwrap().is_match(b"/a"));
    }

    #[test]
    fn errors_in_expressions_are_described() {
        let fault = expression("/(a", false, Place::Route(1, 2)).unwrap_err();
        assert_eq!(fault.to_string(), "site 2, route 3: the expression `/(a`: unclosed group");
        let fault = expression("(((a{100}){100}){100})", false, Place::Plan).unwrap_err();
        assert!(fault.reason.contains("size limit"), "{fault}");
    }
}
