//! Spans of requests: their fields, and what belongs to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use flatout::middleware::Tracing;
use flatout::test::Client;
use flatout::{App, Path, Status};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the fields of all spans, and the names of spans with events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    spans: Vec<BTreeMap<String, String>>,
    entered: Vec<u64>,
    events: Vec<Option<u64>>,
}

struct Into<'s>(&'s mut BTreeMap<String, String>);

impl Visit for Into<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        let mut fields = BTreeMap::new();
        attributes.record(&mut Into(&mut fields));
        state.spans.push(fields);
        Id::from_u64(state.spans.len() as u64)
    }

    fn record(&self, span: &Id, record: &Record<'_>) {
        record.record(&mut Into(&mut self.0.lock().unwrap().spans[span.into_u64() as usize - 1]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let mut state = self.0.lock().unwrap();
        let inside = state.entered.last().copied();
        state.events.push(inside);
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

#[test]
fn each_request_has_a_span_with_the_names_of_opentelemetry() {
    let app = App::new()
        .with(Tracing::new().on_span(|span, context| {
            span.record("server.address", context.header("x-name").is_some());
        }))
        .get("/items/{id}", |Path(id): Path<u32>| {
            tracing::info!("sync");
            id.to_string()
        })
        .get("/waits", async || {
            tracing::info!("before");
            tokio::task::yield_now().await;
            tracing::info!("after");
            Status::SERVICE_UNAVAILABLE
        });
    let kept = Recorder::default();
    tracing::subscriber::with_default(kept.clone(), || {
        let client = Client::new(app).unwrap();
        client.get("/items/7?a=b").header("User-Agent", "tests/1").send();
        client.get("/waits").send();
        client.post("/nothing").send();
    });
    let state = kept.0.lock().unwrap();
    let has = |span: usize, fields: &[(&str, &str)]| {
        for (name, value) in fields {
            assert_eq!(state.spans[span].get(*name).map(String::as_str), Some(*value), "{name} of {span}");
        }
    };
    has(
        0,
        &[
            ("otel.name", "GET /items/{id}"),
            ("otel.kind", "server"),
            ("http.request.method", "GET"),
            ("http.route", "/items/{id}"),
            ("url.path", "/items/7"),
            ("url.query", "a=b"),
            ("user_agent.original", "tests/1"),
            ("network.protocol.version", "1.1"),
            ("http.response.status_code", "200"),
            ("server.address", "false"),
        ],
    );
    assert!(!state.spans[0].contains_key("error.type"));
    has(1, &[("http.response.status_code", "503"), ("error.type", "503"), ("otel.status_code", "ERROR")]);
    has(2, &[("otel.name", "POST"), ("http.response.status_code", "404")]);
    assert!(!state.spans[2].contains_key("http.route") && !state.spans[2].contains_key("error.type"));
    // Events of a handler belong to its request, also after a wait.
    assert_eq!(state.events, [Some(1), Some(2), Some(2)]);
    assert!(state.entered.is_empty());
}
