//! What is wrong with a value that serde refused, in words that a client may read.

use serde::de::DeserializeOwned;

/// What stands between the value and what is expected instead.
const EXPECTED: &str = ", expected ";

/// How serde begins to say that it expects a type of the program, and what a client expects instead.
const TYPES: [(&str, &str); 10] = [
    ("struct variant ", "an object"),
    ("tuple variant ", "an array"),
    ("newtype variant ", "a value"),
    ("unit variant ", "null"),
    ("tuple struct ", "an array"),
    ("unit struct ", "null"),
    ("struct ", "an object"),
    ("enum ", "a string or an object with one field"),
    ("internally tagged enum ", "an object"),
    ("adjacently tagged enum ", "an object"),
];

/// What a client expects instead of a number's type.
const NUMBERS: [(&str, &str); 16] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 to 18446744073709551615"),
    ("u128", "a whole number from 0"),
    ("usize", "a whole number from 0 to 18446744073709551615"),
    ("i8", "a whole number from -128 to 127"),
    ("i16", "a whole number from -32768 to 32767"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ("i128", "a whole number"),
    ("isize", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("bool", "`true` or `false`"),
    ("char", "one character"),
];

/// What Rust says about a text that is not the value wanted, and what a client reads. The type is not in these messages.
const PARSED: [(&str, &str); 10] = [
    ("invalid digit found in string", "expected a whole number, of digits only"),
    ("cannot parse integer from empty string", "expected a whole number, got nothing"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "expected a number"),
    ("cannot parse float from empty string", "expected a number, got nothing"),
    ("provided string was not `true` or `false`", "expected `true` or `false`"),
    ("too many characters in string", "expected one character"),
    ("cannot parse char from empty string", "expected one character, got nothing"),
    ("unsupported value", "given more than once"),
];

/// What a client expects instead of a type of Rust, of which serde says only the name.
pub(super) fn expected_value(type_name: &str) -> Option<String> {
    let (name, rest) = match type_name.strip_prefix("a nonzero ") {
        Some(name) => (name, " except 0"),
        None => (type_name, ""),
    };
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, words)| format!("{words}{rest}"))
}

/// The rest of this message is the name of a type.
const UNTAGGED: &str = "data did not match any variant of untagged enum ";

/// The message without the value itself, which may be a password and would appear in the logs of everybody who reads
/// the response, and without names of the program's types. Messages of an author's own `Deserialize` are unchanged.
///
/// `invalid type: string "hunter2", expected u64 at line 1 column 20` becomes
/// `invalid type: string, expected u64 at line 1 column 20`.
pub(super) fn without_value(error: &impl std::fmt::Display) -> String {
    let message = error.to_string();
    let stripped = ["invalid type:", "invalid value:", "unknown variant"].iter().find_map(|prefix| {
        let rest = message.strip_prefix(prefix)?;
        // What is expected is the program's own text: the value ends before the last of these.
        let end = rest.rfind(EXPECTED).or_else(|| rest.rfind(", there are no "))?;
        let kind = rest[..end].split(['"', '`']).next().unwrap_or_default().trim_end();
        Some(format!("{prefix}{kind}{}", &rest[end..]))
    });
    without_types(&stripped.unwrap_or(message))
}

/// The message without names of the program's types, which mean nothing to a client: `expected struct NewNote with 1 element`
/// becomes `expected an object`.
fn without_types(message: &str) -> String {
    // The place, as serde_json adds it.
    let (text, place) = message.split_at(message.rfind(" at line ").unwrap_or(message.len()));
    if text.starts_with(UNTAGGED) {
        return format!("the value has none of the possible forms{place}");
    }
    let Some((before, expected)) = text.rsplit_once(EXPECTED) else { return message.to_owned() };
    let shape = TYPES.iter().find(|(prefix, _)| expected.starts_with(prefix));
    match shape.map(|(_, shape)| (*shape).to_owned()).or_else(|| expected_value(expected)) {
        Some(shape) => format!("{before}{EXPECTED}{shape}{place}"),
        None => message.to_owned(),
    }
}

/// Reads the fields of a query or form.
///
/// # Errors
/// The name of the first invalid field and what is wrong with it: `` `page`: expected a whole number, of digits only ``.
pub(super) fn fields<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let pairs = serde_html_form::Deserializer::from_bytes(bytes);
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let (path, message) = (error.path().to_string(), without_value(error.inner()));
        let words = PARSED.iter().find(|(known, _)| *known == message);
        let message = words.map_or(message, |(_, words)| (*words).to_owned());
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

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "only refused")]
    enum Untagged {
        Number(u8),
        Text(String),
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind")]
    #[allow(dead_code, reason = "only refused")]
    enum Tagged {
        Circle { radius: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only refused")]
    enum Outer {
        Tuple(u8, u8),
        Struct { number: u8 },
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only refused")]
    struct Pair(u8, u8);

    fn refused<T: serde::de::DeserializeOwned + std::fmt::Debug>(sent: &str) -> String {
        without_value(&serde_json::from_str::<T>(sent).unwrap_err())
    }

    #[test]
    fn types_are_not_named() {
        for (message, said) in [
            (refused::<Value>("[]"), "invalid length 0, expected an object"),
            (refused::<Value>("7"), "invalid type: integer, expected an object"),
            (refused::<Vec<Value>>("[7]"), "invalid type: integer, expected an object"),
            (refused::<Pair>("[1]"), "invalid length 1, expected an array"),
            (refused::<Pair>("{}"), "invalid type: map, expected an array"),
            (refused::<Outer>(r#"{"Tuple":[1]}"#), "invalid length 1, expected an array"),
            (refused::<Outer>(r#"{"Struct":7}"#), "invalid type: integer, expected an object"),
            (refused::<Untagged>("[]"), "the value has none of the possible forms"),
            (refused::<Tagged>("7"), "invalid type: integer, expected an object"),
            (
                refused::<Tagged>(r#"{"kind":"Circle","radius":"x"}"#),
                "invalid type: string, expected a whole number from 0 to 255",
            ),
        ] {
            let message = message.split(" at line ").next().unwrap();
            assert_eq!(message, said);
        }
        // A field's name that looks like a type's.
        let form = serde_html_form::from_str::<Value>("a=, expected struct ").unwrap_err();
        assert!(!without_value(&form).contains("Value"), "{form}");
    }

    #[test]
    fn values_are_not_repeated() {
        for (sent, said) in [
            (
                r#"{"number":"se, expected \"`cret"}"#,
                "invalid type: string, expected a whole number from 0 to 255",
            ),
            (r#"{"number":7777}"#, "invalid value: integer, expected a whole number from 0 to 255"),
            (r#"{"number":7.5}"#, "invalid type: floating point, expected a whole number from 0 to 255"),
            (r#"{"number":true}"#, "invalid type: boolean, expected a whole number from 0 to 255"),
            (r#"{"number":null}"#, "invalid type: null, expected a whole number from 0 to 255"),
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
