//! The table as a JSON schema: for editors, and for programs that write site files. A word is a property; several
//! values are an array, and a word with keys or braces is an object with `values`.

use flatout_config::{Kind, Part, parts};
use serde_json::{Map, Value, json};

use super::blocks::{BLOCKS, SCOPES};
use super::grammar::scopes_of;
use super::setting::Key;
use super::settings::all;

/// The schema as text.
pub(super) fn text() -> String {
    let scopes = SCOPES.iter().enumerate().map(|(scope, (name, _))| ((*name).to_owned(), of_scope(scope)));
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "flatout site file",
        "$ref": format!("#/$defs/{}", SCOPES[0].0),
        "$defs": scopes.collect::<Map<String, Value>>(),
    });
    format!("{schema:#}\n")
}

fn of_scope(scope: usize) -> Value {
    let mut properties = Map::new();
    for block in BLOCKS.iter().filter(|block| block.within.contains(&scope)) {
        let word = word(block.value, block.keys, block.braces);
        properties.insert(block.name.to_owned(), described(listed(word, block.is_list), block.help, ""));
    }
    for setting in all().filter(|setting| scopes_of(setting).contains(&scope)) {
        let word = word(setting.value, setting.keys, None);
        properties.insert(
            setting.name.to_owned(),
            described(
                listed(word, setting.is_list),
                &format!("{}{}", setting.help, setting.change.text()),
                setting.default,
            ),
        );
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// The schema of a word.
fn word(notation: &str, keys: &[Key], braces: Option<usize>) -> Value {
    let values = values(notation);
    if keys.is_empty() && braces.is_none() {
        return values;
    }
    let mut properties: Map<String, Value> = keys
        .iter()
        .map(|key| (key.name.to_owned(), described(values_of_key(key), key.help, key.default)))
        .collect();
    properties.insert("values".to_owned(), values);
    if let Some(scope) = braces {
        properties.insert("inner".to_owned(), json!({ "$ref": format!("#/$defs/{}", SCOPES[scope].0) }));
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn values_of_key(key: &Key) -> Value {
    values(key.value)
}

fn values(notation: &str) -> Value {
    let all: Vec<Part<'_>> = parts(notation).collect();
    match &all[..] {
        [] => json!({ "const": true }),
        [one] if !one.repeats => value(one),
        all => {
            let least = all.iter().filter(|part| !part.is_optional).count();
            let mut array = json!({
                "type": "array",
                "minItems": least,
                "prefixItems": all.iter().map(value).collect::<Vec<_>>(),
            });
            array["items"] = all.last().filter(|part| part.repeats).map_or(json!(false), value);
            array
        }
    }
}

fn value(part: &Part<'_>) -> Value {
    match part.kind() {
        Kind::Text => json!({ "type": "string", "title": part.name }),
        Kind::Number => json!({ "type": "integer", "title": part.name }),
        Kind::Either => json!({ "type": ["string", "integer"], "title": part.name }),
        Kind::Choice => json!({ "enum": part.choices().collect::<Vec<_>>() }),
    }
}

fn listed(word: Value, is_list: bool) -> Value {
    if is_list { json!({ "type": "array", "items": word }) } else { word }
}

fn described(mut schema: Value, help: &str, default: &str) -> Value {
    schema["description"] = match default {
        "" => json!(help),
        default => json!(format!("{help} (default: {default})")),
    };
    schema
}
