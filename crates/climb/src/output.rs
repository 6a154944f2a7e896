//! Parses the output of other load generators: wrk's text, the JSON of oha, k6 and `flatout bench`, or a number.

use serde_json::Value;

/// The result of one run of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct GeneratorResult {
    pub(crate) requests_per_s: f64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) requests: Option<u64>,
    pub(crate) errors: u64,
}

/// Parses a generator's output.
///
/// # Errors
/// It has none of the known formats.
pub(crate) fn parse_output(output: &str) -> Result<GeneratorResult, String> {
    let text = output.trim();
    let json = text.find('{').and_then(|at| serde_json::from_str::<Value>(&text[at..]).ok());
    let reading = match json {
        Some(value) => flatout(&value).or_else(|| oha(&value)).or_else(|| k6(&value)),
        None => wrk(text).or_else(|| number(text)),
    };
    reading.filter(|reading| reading.requests_per_s.is_finite() && reading.requests_per_s >= 0.0).ok_or_else(
        || {
            let line = text.lines().last().unwrap_or_default();
            let line: String = line.chars().take(100).collect();
            format!(
                "its output is not understood (last line: `{line}`); need wrk's text, the JSON of oha \
                 (--output-format json), of k6 (--summary-export=/dev/stdout) or of flatout bench (--json), or a \
                 number of requests per second on the last line"
            )
        },
    )
}

fn flatout(value: &Value) -> Option<GeneratorResult> {
    let latency = |name: &str| value.pointer(&format!("/latency_ns/{name}")).and_then(Value::as_f64);
    let errors = value.get("errors")?.as_object()?.values().filter_map(Value::as_u64).sum();
    Some(GeneratorResult {
        requests_per_s: value.get("requests_per_s")?.as_f64()?,
        p50_ns: latency("p50"),
        p99_ns: latency("p99"),
        requests: value.get("requests")?.as_u64(),
        errors,
    })
}

/// Latencies are in seconds, errors and statuses are maps of counts.
fn oha(value: &Value) -> Option<GeneratorResult> {
    let seconds = |name: &str| {
        let value = value.pointer(&format!("/latencyPercentiles/{name}")).and_then(Value::as_f64);
        value.map(|seconds| seconds * 1e9)
    };
    let counts = |name: &str| value.get(name).and_then(Value::as_object).into_iter().flatten();
    let statuses = || counts("statusCodeDistribution").filter_map(|(code, n)| Some((code, n.as_u64()?)));
    let bad = statuses().filter(|(code, _)| !code.starts_with(['2', '3'])).map(|(_, n)| n);
    let failed = counts("errorDistribution")
        // Requests in flight at the end of the time.
        .filter(|(kind, _)| !kind.contains("deadline"))
        .filter_map(|(_, n)| n.as_u64());
    Some(GeneratorResult {
        requests_per_s: value.pointer("/summary/requestsPerSec")?.as_f64()?,
        p50_ns: seconds("p50"),
        p99_ns: seconds("p99"),
        requests: Some(statuses().map(|(_, n)| n).sum()),
        errors: bad.sum::<u64>() + failed.sum::<u64>(),
    })
}

/// Latencies are in milliseconds; p(99) needs `--summary-trend-stats`.
fn k6(value: &Value) -> Option<GeneratorResult> {
    let metric = |name: &str, of: &str| {
        let metric = value.get("metrics")?.get(name)?;
        // `--summary-export` has the values directly, `handleSummary` one level deeper.
        metric.get(of).or_else(|| metric.get("values")?.get(of))?.as_f64()
    };
    let milliseconds = |of: &str| metric("http_req_duration", of).map(|time| time * 1e6);
    let requests = metric("http_reqs", "count")?;
    let failed = metric("http_req_failed", "passes").unwrap_or(0.0);
    Some(GeneratorResult {
        requests_per_s: metric("http_reqs", "rate")?,
        p50_ns: milliseconds("med"),
        p99_ns: milliseconds("p(99)"),
        requests: Some(requests as u64),
        errors: failed as u64,
    })
}

fn wrk(text: &str) -> Option<GeneratorResult> {
    let after = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.next().map(str::trim)
    };
    let percentile = |name: &str| duration_ns(after(name)?.split_whitespace().next()?);
    // `1000 requests in 2.00s, 1.0MB read`
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
    // `Socket errors: connect 0, read 1, write 0, timeout 2`
    let words = after("Socket errors:").unwrap_or_default().split([' ', ',']);
    let socket: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    let status: u64 = after("Non-2xx or 3xx responses:").and_then(|count| count.parse().ok()).unwrap_or(0);
    Some(GeneratorResult {
        requests_per_s: after("Requests/sec:")?.parse().ok()?,
        p50_ns: percentile("50%"),
        p99_ns: percentile("99%"),
        requests,
        errors: socket + status,
    })
}

/// The last line is a number.
fn number(text: &str) -> Option<GeneratorResult> {
    let requests_per_s = text.lines().last()?.trim().parse().ok()?;
    Some(GeneratorResult { requests_per_s, ..GeneratorResult::default() })
}

/// A duration as wrk writes it: `635.00us`, `1.20ms`, `2.00s`.
fn duration_ns(text: &str) -> Option<f64> {
    let units = [("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    units
        .into_iter()
        .find_map(|(unit, ns)| text.strip_suffix(unit)?.parse::<f64>().ok().map(|time| time * ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_wrk_is_parsed() {
        let text = "Running 2s test @ http://127.0.0.1:1/\n  2 threads and 10 connections\n  Thread Stats   Avg      \
            Stdev     Max   +/- Stdev\n    Latency   635.91us    0.89ms  12.92ms   93.69%\n    Req/Sec    56.20k     \
            8.07k   62.00k    86.54%\n  Latency Distribution\n     50%  250.00us\n     99%    1.50ms\n  1000 requests in \
            2.00s, 11.91MB read\n  Socket errors: connect 0, read 1, write 0, timeout 2\n  Non-2xx or 3xx responses: 4\n\
            Requests/sec: 500.25\nTransfer/sec: 606.33MB\n";
        let expected = GeneratorResult {
            requests_per_s: 500.25,
            p50_ns: Some(250_000.0),
            p99_ns: Some(1_500_000.0),
            requests: Some(1000),
            errors: 7,
        };
        assert_eq!(parse_output(text), Ok(expected));
    }

    #[test]
    fn json_output_is_parsed() {
        let oha = r#"{"summary":{"requestsPerSec":100.5},"latencyPercentiles":{"p50":0.001,"p99":0.002},
            "statusCodeDistribution":{"200":90,"500":3},
            "errorDistribution":{"aborted due to deadline":7,"connection refused":2}}"#;
        let expected = GeneratorResult {
            requests_per_s: 100.5,
            p50_ns: Some(1e6),
            p99_ns: Some(2e6),
            requests: Some(93),
            errors: 5,
        };
        assert_eq!(parse_output(oha), Ok(expected));
        let k6 = r#"{"metrics":{"http_reqs":{"count":50,"rate":25.0},"http_req_duration":{"med":1.5,"p(99)":3},
            "http_req_failed":{"passes":1,"fails":49,"value":0.02}}}"#;
        let expected = GeneratorResult {
            requests_per_s: 25.0,
            p50_ns: Some(1.5e6),
            p99_ns: Some(3e6),
            requests: Some(50),
            errors: 1,
        };
        assert_eq!(parse_output(k6), Ok(expected));
        let bench =
            r#"{"requests_per_s":7.5,"requests":15,"errors":{"reset":1,"closed":1},"latency_ns":{"p99":9}}"#;
        let reading = parse_output(bench).unwrap();
        assert_eq!((reading.requests_per_s, reading.p99_ns, reading.errors), (7.5, Some(9.0), 2));
    }

    #[test]
    fn a_number_is_enough() {
        assert_eq!(parse_output("warming up\n 1234.5 \n").unwrap().requests_per_s, 1234.5);
    }

    #[test]
    fn unknown_output_is_reported() {
        for text in ["", "hello", "{}", "{\"metrics\":{}}", "NaN", "-1", "inf", "{", "Requests/sec: x"] {
            let message = parse_output(text).unwrap_err();
            assert!(message.contains("not understood"), "{text}: {message}");
        }
    }
}
