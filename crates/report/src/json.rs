//! The result for programs: one JSON object, whose fields are documented by the test below and never change meaning.

use flatout_load::find_max::confirmed;
use flatout_load::{
    Arrival, ErrorKind, Handshakes, Latency, Outcome, Pacing, Request, Security, Sequence, StageOutcome,
    Transport,
};
use flatout_trial::compare::Word;
use serde_json::{Map, Value, json};

use crate::{Measured, Opponent, limit, search};

/// One object over several lines.
pub fn json(measured: &Measured) -> String {
    let (outcome, limit) = (&measured.outcome, limit(measured));
    let mut object = json!({
        "requests_per_s": outcome.requests_per_s(),
        "requests": outcome.requests,
        "limit": { "who": limit.who, "reason": limit.reason },
        "date": measured.origin.date,
        "command": measured.origin.command,
        "errors_sum": outcome.errors.sum(),
        "errors": errors(outcome),
        "statuses": statuses(outcome),
        "latency_ns": latency(&outcome.latency),
        "seconds": outcome.elapsed.as_secs_f64(),
        "bytes_read": outcome.bytes_read,
        "connections_made": outcome.connections_made,
        "connections_held": outcome.connections_held,
        "unanswered": outcome.unanswered,
        "unsent": outcome.unsent,
        "requests_each_second": outcome.series,
        "client_cpu_us_per_request": outcome.client_cpu_us_per_request(),
        "client_cpu_share": outcome.threads.iter().map(|thread| thread.share()).collect::<Vec<_>>(),
        "warnings": measured.warnings(),
        "trials_requests_per_s": measured.trials,
        "machine": {
            "processor": measured.machine.processor,
            "cpus": measured.machine.cpus,
            "kernel": measured.machine.kernel,
        },
        "setup": setup(measured),
    });
    if let Some(fields) = object.as_object_mut() {
        optional(measured, fields);
    }
    let mut text = serde_json::to_string_pretty(&object).unwrap_or_default();
    text.push('\n');
    text
}

fn optional(measured: &Measured, fields: &mut Map<String, Value>) {
    if let Some(raw) = &measured.outcome.latency_raw {
        fields.insert("latency_raw_ns".to_owned(), latency(raw));
        fields.insert("send_lag_ns".to_owned(), latency(&measured.outcome.lag));
    }
    if let Some((user, kernel)) = measured.outcome.server_cpu_us_per_request() {
        fields.insert("server_cpu_us_per_request".to_owned(), json!({ "user": user, "kernel": kernel }));
    }
    if let Some(cost) = measured.outcome.machine_cpu_us_per_request() {
        fields.insert("machine_cpu_us_per_request".to_owned(), json!(cost));
    }
    if let Some(handshakes) = &measured.outcome.handshakes {
        fields.insert("tls".to_owned(), tls(&measured.outcome, handshakes));
    }
    if let Some(Sequence { missed, repeated, gaps }) = measured.outcome.sequence {
        let figures = json!({ "missed": missed, "repeated": repeated, "gaps_reported": gaps });
        fields.insert("sequence".to_owned(), figures);
    }
    if !measured.steps.is_empty() {
        let step = |step: &flatout_load::find_max::RateStep| json!({ "rate_per_s": step.rate_per_s, "latency_ns": step.latency_ns, "met": step.is_met() });
        fields.insert("steps".to_owned(), measured.steps.iter().map(step).collect());
        fields.insert("highest_rate_per_s".to_owned(), json!(confirmed(&measured.steps)));
        fields.insert("answer".to_owned(), json!(search::sentence(measured)));
    }
    if !measured.outcome.stages.is_empty() {
        fields.insert("stages".to_owned(), measured.outcome.stages.iter().map(stage).collect());
    }
    if let Some(comparison) = &measured.comparison {
        compared(comparison, fields);
    }
}

fn stage(found: &StageOutcome) -> Value {
    json!({
        "seconds": found.stage.time.as_secs_f64(),
        "from_per_s": found.stage.from_per_s,
        "to_per_s": found.stage.to_per_s,
        "requests": found.requests,
        "requests_per_s": found.requests_per_s(),
        "responses_per_s": found.responses_per_s(),
        "errors": found.errors,
        "latency_ns": latency(&found.latency),
    })
}

fn tls(outcome: &Outcome, handshakes: &Handshakes) -> Value {
    let agreed = handshakes.agreed.as_ref();
    json!({
        "version": agreed.map(|agreed| agreed.version),
        "cipher": agreed.map(|agreed| &agreed.cipher),
        "key_exchange": agreed.and_then(|agreed| agreed.key_exchange.as_ref()),
        "protocol": agreed.and_then(|agreed| agreed.protocol.as_ref()),
        "handshakes_full": handshakes.full,
        "handshakes_resumed": handshakes.resumed,
        "handshakes_per_s": outcome.handshakes_per_s(),
    })
}

fn security(security: &Security) -> Value {
    let client = &security.client;
    json!({
        "server_name": security.name,
        "verify": client.verify,
        "ca": client.authorities.as_ref().map(|path| path.display().to_string()),
        "resume": client.sessions_max > 0,
        "cipher": client.cipher,
        "key_exchange": client.key_exchange,
    })
}

fn compared(comparison: &Opponent, fields: &mut Map<String, Value>) {
    let verdict = match comparison.verdict.word {
        Word::Faster => "faster",
        Word::Slower => "slower",
        Word::NoDifference => "no significant difference",
    };
    fields.insert("ratio".to_owned(), json!(comparison.verdict.ratio));
    fields.insert("ratio_low".to_owned(), json!(comparison.verdict.low));
    fields.insert("ratio_high".to_owned(), json!(comparison.verdict.high));
    fields.insert("verdict".to_owned(), json!(verdict));
    fields.insert("vs".to_owned(), json!(comparison.other));
    fields.insert("vs_run".to_owned(), other_run(&comparison.outcome));
    fields.insert("pairs_requests_per_s".to_owned(), json!(comparison.pairs));
}

/// The other candidate's median run.
fn other_run(outcome: &Outcome) -> Value {
    let cpu = outcome.server_cpu_us_per_request();
    json!({
        "requests_per_s": outcome.requests_per_s(),
        "latency_ns": latency(&outcome.latency),
        "errors_sum": outcome.errors.sum(),
        "server_cpu_us_per_request": cpu.map(|(user, kernel)| json!({ "user": user, "kernel": kernel })),
    })
}

fn errors(outcome: &Outcome) -> Value {
    ErrorKind::ALL.into_iter().map(|kind| (kind.name().to_owned(), json!(outcome.errors.of(kind)))).collect()
}

fn statuses(outcome: &Outcome) -> Value {
    outcome.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect()
}

fn latency(latency: &Latency) -> Value {
    json!({
        "p50": latency.percentile(50.0),
        "p90": latency.percentile(90.0),
        "p99": latency.percentile(99.0),
        "p99_9": latency.percentile(99.9),
        "p99_99": latency.percentile(99.99),
        "max": latency.max(),
        "mean": latency.mean(),
    })
}

fn setup(measured: &Measured) -> Value {
    let plan = &measured.plan;
    let rate = match plan.pacing {
        Pacing::Open { per_s, .. } => json!(per_s),
        Pacing::Closed | Pacing::Staged { .. } => Value::Null,
    };
    let arrival = plan.pacing.arrival().map(|arrival| match arrival {
        Arrival::Constant => "constant",
        Arrival::Poisson => "poisson",
    });
    json!({
        "url": measured.url,
        "remote": plan.remote.to_string(),
        "threads": plan.threads,
        "connections": plan.connections,
        "cpus": plan.cpus,
        "duration_s": plan.duration.as_secs_f64(),
        "requests_max": plan.requests_max,
        "warmup_s": plan.warmup.as_secs_f64(),
        "rate_per_s": rate,
        "arrival": arrival,
        "http2": plan.streams.is_some(),
        "streams": plan.streams,
        "tls": plan.tls.as_ref().map(security),
        "pipeline": plan.pipeline,
        "close": plan.close,
        "events": plan.subscribe.is_some(),
        "transport": plan.subscribe.map(transport),
        "sources": plan.sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "expect_status": plan.expect.status,
        "expect_body_bytes": plan.expect.body.as_ref().map(Vec::len),
        "connect_timeout_s": plan.connect_time_max.as_secs_f64(),
        "timeout_s": plan.answer_time_max.as_secs_f64(),
        "head_bytes": plan.head_bytes_max,
        "seed": plan.seed,
        "requests": plan.requests.iter().map(request).collect::<Vec<_>>(),
    })
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Events => "events",
        Transport::WebSocket => "websocket",
        Transport::LongPoll => "long_poll",
    }
}

fn request(request: &Request) -> Value {
    json!({
        "method": request.method,
        "path": request.path,
        "host": request.host,
        "headers": request.fields,
        "body_bytes": request.body.as_ref().map(Vec::len),
        "weight": request.weight,
    })
}
