//! Spans for a collector, by OTLP over HTTP.

use std::collections::HashMap;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::registry::LookupSpan;

use crate::middleware::Tracing;
use crate::{Error, Result};

/// Sends the spans of requests to an OpenTelemetry collector, in batches, from a separate thread. Spans that
/// the collector does not accept in time are dropped: no request waits for it. Clones share it.
///
/// ```no_run
/// use flatout::{App, Otlp};
/// use tracing_subscriber::layer::SubscriberExt;
/// use tracing_subscriber::util::SubscriberInitExt;
///
/// let otlp = Otlp::to("http://127.0.0.1:4318", "shop")?;
/// tracing_subscriber::registry().with(otlp.layer()).init();
/// let stopped = otlp.clone();
/// App::new()
///     .with(Otlp::middleware())
///     .get("/items/{id}", || "item")
///     .on_stop(async move || stopped.stop())
///     .listen("0.0.0.0:8080")
///     .run()?;
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Clone)]
pub struct Otlp(SdkTracerProvider);

impl Otlp {
    /// To the collector at this address, such as `http://127.0.0.1:4318`, as the service of this name.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn to(collector: &str, service: &str) -> Result<Otlp> {
        let endpoint = format!("{}/v1/traces", collector.trim_end_matches('/'));
        let exporter = SpanExporter::builder().with_http().with_endpoint(endpoint).build();
        let exporter = exporter.map_err(|error| Error::Usage(format!("OTLP: got `{collector}`: {error}")))?;
        let resource = Resource::builder().with_service_name(service.to_owned()).build();
        Ok(Otlp(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
    }

    /// The layer for a `tracing_subscriber` registry.
    pub fn layer<S: Subscriber + for<'s> LookupSpan<'s>>(&self) -> OpenTelemetryLayer<S, SdkTracer> {
        tracing_opentelemetry::layer().with_tracer(self.0.tracer("flatout"))
    }

    /// The middleware that makes the spans, as parts of the traces that clients name in `traceparent` (W3C Trace Context).
    pub fn middleware() -> Tracing {
        Tracing::new().on_span(|span, context| {
            let fields: HashMap<String, String> = ["traceparent", "tracestate"]
                .into_iter()
                .filter_map(|name| {
                    Some((name.to_owned(), String::from_utf8(context.header(name)?.to_vec()).ok()?))
                })
                .collect();
            if fields.is_empty() {
                return;
            }
            use opentelemetry::propagation::TextMapPropagator;
            // A subscriber without the layer has no traces to join.
            let _ = span.set_parent(TraceContextPropagator::new().extract(&fields));
        })
    }

    /// Sends what is left, and ends the thread; for [`App::on_stop`](crate::App::on_stop).
    pub fn stop(&self) {
        if let Err(error) = self.0.shutdown() {
            flatout_engine::say(format_args!("the last spans were not sent: {error}"));
        }
    }
}
