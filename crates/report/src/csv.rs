//! The result for spreadsheets: a line of names and a line of figures, with the same columns for every run.

use flatout_load::ErrorKind;

use crate::Measured;

/// Two lines that end with CRLF (RFC 4180). Missing figures are empty.
pub fn csv(measured: &Measured) -> String {
    let cells = cells(measured);
    let names: Vec<&str> = cells.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<&str> = cells.iter().map(|(_, value)| value.as_str()).collect();
    format!("{}\r\n{}\r\n", names.join(","), values.join(","))
}

fn cells(measured: &Measured) -> Vec<(String, String)> {
    let outcome = &measured.outcome;
    let mut cells = vec![
        ("url".to_owned(), quoted(&measured.url)),
        ("threads".to_owned(), measured.plan.threads.to_string()),
        ("connections".to_owned(), measured.plan.connections.to_string()),
        ("seconds".to_owned(), format!("{:.6}", outcome.elapsed.as_secs_f64())),
        ("requests".to_owned(), outcome.requests.to_string()),
        ("requests_per_s".to_owned(), format!("{:.3}", outcome.requests_per_s())),
    ];
    for kind in ErrorKind::ALL {
        cells.push((format!("errors_{}", kind.name()), outcome.errors.of(kind).to_string()));
    }
    let named =
        [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99_9", 99.9), ("p99_99", 99.99), ("max", 100.0)];
    for (name, percent) in named {
        cells.push((format!("latency_ns_{name}"), outcome.latency.percentile(percent).to_string()));
    }
    for (name, percent) in named {
        let raw = outcome.latency_raw.as_ref().map(|raw| raw.percentile(percent).to_string());
        cells.push((format!("latency_raw_ns_{name}"), raw.unwrap_or_default()));
    }
    let server = outcome.server_cpu_us_per_request();
    let each = |value: Option<f64>| value.map(|value| format!("{value:.3}")).unwrap_or_default();
    cells.push(("server_cpu_us_user".to_owned(), each(server.map(|(user, _)| user))));
    cells.push(("server_cpu_us_kernel".to_owned(), each(server.map(|(_, kernel)| kernel))));
    cells.push(("warnings".to_owned(), measured.warnings().len().to_string()));
    cells
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
