//! `-f`, `-d`, `-e` and `-x` of an `if`: methods of a path.

use super::chain::Chain;
use super::values;

/// The test for a file, in the syntax of the site file; `None` if this is none, or its path is not known here.
pub(super) fn file_test(operator: &str, path: &str, maps: &[String]) -> Option<String> {
    let (not, operator) = match operator.strip_prefix('!') {
        Some(operator) => ("!", operator),
        None => ("", operator),
    };
    let method = match operator {
        "-f" => "isFile",
        "-d" => "isDirectory",
        "-e" => "exists",
        "-x" => "isExecutable",
        _ => return None,
    };
    if !path.starts_with('/') || values::unknown_variable(path, maps).is_some() {
        return None;
    }
    let pieces = pieces(path)?;
    let joined = pieces.join(" + ");
    Some(match pieces.len() {
        1 => format!("{not}{joined}.{method}()"),
        _ => format!("{not}({joined}).{method}()"),
    })
}

/// The path of an `if`, with the folder in place of `$document_root` and `$request_filename`.
pub(super) fn path_of_test(path: &str, chain: &Chain<'_>) -> Option<String> {
    let root = chain.word("root").trim_end_matches('/');
    for (name, is_path) in [("request_filename", true), ("document_root", false), ("realpath_root", false)] {
        let braced = path.strip_prefix(&format!("${{{name}}}"));
        let Some(rest) = braced.or_else(|| path.strip_prefix(&format!("${name}"))) else { continue };
        if chain.find("alias").is_some() || root.is_empty() {
            return None;
        }
        return Some(format!("{root}{}{rest}", if is_path { "${uri}" } else { "" }));
    }
    Some(path.to_owned())
}

/// The literals and variables of a text, as an expression writes them.
pub(super) fn pieces(text: &str) -> Option<Vec<String>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    for name in values::variables(text) {
        let (literal, behind) = rest.split_once('$')?;
        let behind = match behind.strip_prefix('{') {
            Some(braced) => braced.strip_prefix(name)?.strip_prefix('}')?,
            None => behind.strip_prefix(name)?,
        };
        pieces.extend(quoted(literal)?);
        pieces.push(format!("${name}"));
        rest = behind;
    }
    pieces.extend(quoted(rest)?);
    Some(pieces)
}

/// A literal in quotes, if there is any; `None` if it would need escapes.
fn quoted(literal: &str) -> Option<Option<String>> {
    if literal.contains(['\'', '\\']) {
        return None;
    }
    Some((!literal.is_empty()).then(|| format!("'{literal}'")))
}
