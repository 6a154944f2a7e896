//! YAML with any number of objects.

use serde_json::Value;

/// Documents of one text.
const DOCUMENTS_MAX: usize = 100_000;

/// The objects of a text: each document is one, or a list of them; empty documents are left out.
///
/// # Errors
/// The text is not YAML, with line and column.
pub fn objects(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    if documents.len() > DOCUMENTS_MAX {
        return Err(format!("{} documents; allowed are {DOCUMENTS_MAX}", documents.len()));
    }
    let mut found = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut map) if map.get("kind").and_then(Value::as_str) == Some("List") => {
                if let Some(Value::Array(items)) = map.remove("items") {
                    found.extend(items);
                }
            }
            Value::Object(map) => found.push(Value::Object(map)),
            _ => {
                return Err(
                    "a document that is no object; need `apiVersion`, `kind` and `metadata`".to_owned()
                );
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_read() {
        let text = "kind: A\n---\n---\n# nothing\n---\nkind: List\nitems:\n- kind: B\n- kind: C\n";
        let kinds: Vec<String> =
            objects(text).unwrap().iter().map(|it| it["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
        assert_eq!(objects("").unwrap(), Vec::<Value>::new());
    }

    #[test]
    fn malformed_and_hostile_texts_are_refused() {
        for bad in ["a: [", "- a\n- b", "text", "a: b: c", "\t- x"] {
            assert!(objects(bad).is_err(), "{bad}");
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                    g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert!(objects(bomb).is_err());
        assert!(objects(&"[".repeat(100_000)).is_err());
    }
}
