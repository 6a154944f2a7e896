//! What is wrong with a value that serde refused, in words that a client may read.

use serde::de::DeserializeOwned;

/// The message without the value itself, which may be a password and would appear in the logs of everybody who reads
/// the response. Messages of an author's own `Deserialize` are unchanged.
///
/// `invalid type: string "hunter2", expected u64 at line 1 column 20` becomes
/// `invalid type: string, expected u64 at line 1 column 20`.
pub(super) fn without_value(error: &impl std::fmt::Display) -> String {
    let message = error.to_string();
    let stripped = ["invalid type:", "invalid value:", "unknown variant"].iter().find_map(|prefix| {
        let rest = message.strip_prefix(prefix)?;
        // What is expected is the program's own text: the value ends before the last of these.
        let end = rest.rfind(", expected ").or_else(|| rest.rfind(", there are no "))?;
        let kind = rest[..end].split(['"', '`']).next().unwrap_or_default().trim_end();
        Some(format!("{prefix}{kind}{}", &rest[end..]))
    });
    stripped.unwrap_or(message)
}

/// Reads the fields of a query or form.
///
/// # Errors
/// The name of the first invalid field and what is wrong with it: `` `page`: invalid digit found in string ``.
pub(super) fn fields<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let pairs = serde_html_form::Deserializer::from_bytes(bytes);
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let (path, message) = (error.path().to_string(), without_value(error.inner()));
        // A missing field is named by the message alone.
        if path == "." { message } else { format!("`{path}`: {message}") }
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only refused")]
    struct Value {
        number: u8,
        kind: Kind,
        flag: bool,
        letter: char,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        One,
        Other,
    }

    #[test]
    fn values_are_not_repeated() {
        for (sent, said) in [
            (r#"{"number":"se, expected \"`cret"}"#, "invalid type: string, expected u8"),
            (r#"{"number":7777}"#, "invalid value: integer, expected u8"),
            (r#"{"number":7.5}"#, "invalid type: floating point, expected u8"),
            (r#"{"number":true}"#, "invalid type: boolean, expected u8"),
            (r#"{"number":null}"#, "invalid type: null, expected u8"),
            (r#"{"kind":"secret"}"#, "unknown variant, expected `one` or `other`"),
            (r#"{"letter":"secret"}"#, "invalid value: string, expected a character"),
            (r#"{"number":1}"#, "missing field `kind`"),
            (r#"{"x":1}"#, "unknown field `x`, expected one of `number`, `kind`, `flag`, `letter`"),
            (r#"{"number":"#, "EOF while parsing a value"),
        ] {
            let message = without_value(&serde_json::from_str::<Value>(sent).unwrap_err());
            let (message, position) = message.split_once(" at ").unwrap();
            assert_eq!(message, said, "{sent}");
            assert!(position.starts_with("line 1 column "), "{position}");
        }
        let form = |sent| without_value(&serde_html_form::from_str::<Value>(sent).unwrap_err());
        for sent in ["number=secret", "kind=secret", "flag=secret", "letter=secret"] {
            assert!(!form(sent).contains("secret"), "{}", form(sent));
        }
    }
}
