//! A list of paths with weights, as text: one per line, `3 /often` or `/seldom`; `#` starts a comment.

use crate::target::Target;

/// A non-empty line: its weight and its path.
type Line = (u32, String);

/// Parses the list. Whole URLs are allowed if they lead to `base`'s address.
///
/// # Errors
/// The line's number, what was got, and what is allowed.
pub fn list(text: &str, base: &Target) -> Result<Vec<(u32, String)>, String> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read: Result<Vec<Line>, String> = lines
        .map(|(number, line)| entry(line, base).map_err(|error| format!("line {number}: {error}")))
        .collect();
    match read {
        Ok(lines) if lines.is_empty() => Err("it has no path".to_owned()),
        read => read,
    }
}

fn entry(line: &str, base: &Target) -> Result<Line, String> {
    let (weight, path) = match line.split_once(char::is_whitespace) {
        Some((weight, path)) => {
            let weight = weight.parse().ok().filter(|&weight| weight > 0);
            (
                weight
                    .ok_or_else(|| format!("got `{line}`, need `WEIGHT PATH` with a weight of 1 or more"))?,
                path.trim(),
            )
        }
        None => (1, line),
    };
    if path.starts_with('/') {
        return Ok((weight, path.to_owned()));
    }
    let target = Target::parse(path)?;
    if target.remote != base.remote {
        return Err(format!(
            "`{path}` is at {}, not at {}: all requests of a run must go to one address",
            target.remote, base.remote
        ));
    }
    if target.secure_name.is_some() != base.secure_name.is_some() {
        return Err(format!("`{path}`: all requests of a run must use http, or all https"));
    }
    Ok((weight, target.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let base = Target::parse("http://127.0.0.1:80/").unwrap();
        let text = "# often\n3 /a\n\n/b?c={counter}\n2\thttp://127.0.0.1/d\n";
        let expected = [(3, "/a".to_owned()), (1, "/b?c={counter}".to_owned()), (2, "/d".to_owned())];
        assert_eq!(list(text, &base).unwrap(), expected);
        for (text, expected) in [
            ("", "it has no path"),
            ("/a\n0 /b", "line 2: got `0 /b`"),
            ("x /b", "line 1: got `x /b`"),
            ("b", "need a URL"),
            ("http://127.0.0.2/b", "must go to one address"),
            ("https://127.0.0.1:80/b", "must use http, or all https"),
        ] {
            let message = list(text, &base).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
