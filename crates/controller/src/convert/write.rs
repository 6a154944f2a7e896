//! JSON values as YAML, in block style.

use std::fmt::Write;

use serde_json::Value;

/// Words that YAML reads as something else than a text.
const WORDS: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Documents of these objects, one after another.
pub fn yaml_documents(objects: &[Value]) -> String {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        write(object, 0, &mut out);
    }
    out
}

/// Writes a value that begins on a line of its own.
fn write(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let _ = write!(out, "{indent}{}:", scalar(&Value::String(name.clone())));
                write_inner(value, depth, out);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                let mut inner = String::new();
                write(value, depth + 1, &mut inner);
                // The first line of the item follows the dash.
                let _ = write!(out, "{indent}- {}", inner.trim_start());
            }
        }
        other => {
            let _ = writeln!(out, "{indent}{}", scalar(other));
        }
    }
}

/// Writes the value of a name.
fn write_inner(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            write(value, depth + 1, out);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            write(value, depth, out);
        }
        other => {
            let _ = writeln!(out, " {}", scalar(other));
        }
    }
}

/// A value on one line. Texts that YAML could read otherwise are quoted as in JSON, which YAML reads too.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
                && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter))
                && !WORDS.contains(&text.to_ascii_lowercase().as_str());
            if is_plain { text.clone() } else { value.to_string() }
        }
        other => other.to_string(),
    }
}
