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
    objects_within(text, DOCUMENTS_MAX, VALUES_MAX)
}

fn objects_within(text: &str, documents_max: usize, values_max: usize) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: documents_max,
            max_nodes: values_max,
            max_events: 2 * values_max,
        },
        // Lines of a Secret must not get into a log.
        with_snippet: false,
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let why = error.to_string().lines().next().unwrap_or_default().to_owned();
        match why.contains("budget breached") {
            true => format!("{why}; a file has at most {documents_max} documents with {values_max} values"),
            false => why,
        }
    })?;
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
        // A thousand routes with ten thousand endpoints, and as many Ingresses as `kubectl get` writes of a large cluster.
        let route = |at: usize| {
            format!(
                "---\nkind: HTTPRoute\nmetadata: {{name: r{at}, labels: {{app: a{at}}}}}\nspec:\n  hostnames: [h{at}.test]\n  rules: [{{matches: \
                     [{{path: {{type: PathPrefix, value: /}}}}], backendRefs: [{{name: s{at}, port: 80}}]}}]\n"
            )
        };
        let slice = |at: usize| {
            let endpoints: Vec<String> = (0..10)
                .map(|it| {
                    format!(
                        "{{addresses: [10.0.{}.{it}], conditions: {{ready: true, serving: true}}}}",
                        at % 250
                    )
                })
                .collect();
            format!(
                "---\nkind: EndpointSlice\nmetadata: {{name: s{at}}}\nendpoints: [{}]\n",
                endpoints.join(", ")
            )
        };
        let all: String = (0..1000).map(|at| route(at) + &slice(at)).collect();
        assert_eq!(objects(&all).unwrap().len(), 2000);
        let item = format!("- kind: B\n  spec: [{}]\n", "1, ".repeat(100));
        assert_eq!(objects(&format!("kind: List\nitems:\n{}", item.repeat(3_000))).unwrap().len(), 3_000);
    }

    #[test]
    fn malformed_and_hostile_texts_are_refused() {
        for bad in ["a: [", "- a\n- b", "text", "a: b: c", "\t- x", "kind: Secret\ndata: {key: hidden"] {
            let why = objects(bad).unwrap_err();
            assert!(!why.contains('\n') && !why.contains("hidden"), "{why}");
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                    g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
        assert!(objects(bomb).is_err());
        for (text, limit) in [
            ("a: [1, 2, 3, 4]", "at most 3 documents with 6 values"),
            ("a: 1\n---\nb: 1\n---\nc: 1\n---\nd: 1", "at most 3 documents with 6 values"),
        ] {
            let why = objects_within(text, 3, 6).unwrap_err();
            assert!(why.ends_with(limit) && !why.contains('\n'), "{why}");
        }
        assert_eq!(objects_within("a: [1, 2]", 3, 6).unwrap().len(), 1);
        assert!(objects(&"[".repeat(100_000)).is_err());
    }
}
