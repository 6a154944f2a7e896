//! YAML with any number of objects.

use serde_json::Value;

/// Documents of one text.
const DOCUMENTS_MAX: usize = 100_000;

/// Values of one text, with those of aliases: twenty thousand Ingresses as `kubectl get` writes them.
const VALUES_MAX: usize = 2_000_000;

/// The objects of a text: each document is one, or a list of them; empty documents are left out.
///
/// # Errors
/// The text is not YAML, with line and column.
pub fn objects(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: DOCUMENTS_MAX,
            max_nodes: VALUES_MAX,
            max_events: 2 * VALUES_MAX,
        },
    };
    let documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())?;
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
        // As many as a large cluster has.
        assert_eq!(objects(&"kind: A\n---\n".repeat(5_000)).unwrap().len(), 5_000);
        let item = format!("- kind: B\n  spec: [{}]\n", "1, ".repeat(100));
        assert_eq!(objects(&format!("kind: List\nitems:\n{}", item.repeat(5_000))).unwrap().len(), 5_000);
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
