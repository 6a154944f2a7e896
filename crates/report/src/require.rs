//! Requirements on a measurement, such as `p99<20ms`: parsed, checked, and reported to a CI system.

use std::fmt::Write;

use flatout_load::{ErrorKind, Errors, Outcome};

use crate::page::escape;
use crate::{Measured, stages, unit};

/// A limit for one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    /// As it was given.
    pub text: String,
    figure: Figure,
    is_upper: bool,
    /// Whether the limit itself is permitted.
    is_inclusive: bool,
    /// Nanoseconds, a share, a count, or requests per second.
    limit: f64,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    /// Latency at this percentage of the requests, in nanoseconds.
    Percentile(f64),
    /// Mean latency, in nanoseconds.
    Mean,
    /// Errors.
    Errors,
    /// Errors as a share of the requests.
    ErrorShare,
    /// Responses per second.
    Rate,
}

/// A checked requirement.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// The requirement, as it was given.
    pub requirement: String,
    /// The measured figure, with its unit; `no response` without one.
    pub measured: String,
    /// Whether the requirement is met.
    pub is_met: bool,
}

/// Units of time, in nanoseconds.
const TIMES: [(&str, f64); 5] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

impl Requirement {
    /// Parses `p99<20ms`, `max<=1s`, `mean<5ms`, `errors<0.1%`, `errors<=5` or `rps>1000`.
    ///
    /// # Errors
    /// The text, and the expected form.
    pub fn parse(text: &str) -> Result<Requirement, String> {
        let wrong = || {
            format!(
                "got `{text}`, need a limit such as p99<20ms, mean<5ms, max<1s, errors<0.1%, errors<=5 or rps>1000"
            )
        };
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, rest) = (text[..at].trim(), &text[at + 1..]);
        let is_upper = text.as_bytes()[at] == b'<';
        let (is_inclusive, value) = rest.strip_prefix('=').map_or((false, rest), |value| (true, value));
        let (figure, limit) = figure(name, value.trim()).ok_or_else(wrong)?;
        Ok(Requirement { text: text.to_owned(), figure, is_upper, is_inclusive, limit })
    }

    /// That a run has at most so many errors, and a response.
    pub fn errors_at_most(errors: u64) -> Requirement {
        let text = format!("errors<={errors}");
        Requirement { text, figure: Figure::Errors, is_upper: true, is_inclusive: true, limit: errors as f64 }
    }

    /// Whether it limits errors, so that no other limit of them is needed.
    pub fn is_on_errors(&self) -> bool {
        matches!(self.figure, Figure::Errors | Figure::ErrorShare)
    }

    /// Checks it. Without a response and an error, nothing meets a limit.
    pub fn check(&self, outcome: &Outcome) -> Check {
        let measured = self.figure.of(outcome);
        let is_met = measured.is_some_and(|got| match (self.is_upper, self.is_inclusive) {
            (true, true) => got <= self.limit,
            (true, false) => got < self.limit,
            (false, true) => got >= self.limit,
            (false, false) => got > self.limit,
        });
        let mut measured = measured.map_or_else(|| "no response".to_owned(), |got| self.figure.shown(got));
        if self.is_on_errors() && outcome.errors.sum() > 0 {
            measured = format!("{measured}: {}", kinds(&outcome.errors));
        }
        Check { requirement: self.text.clone(), measured, is_met }
    }
}

/// The figure of this name, and its limit from this text.
fn figure(name: &str, value: &str) -> Option<(Figure, f64)> {
    let number =
        |text: &str| text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    let time = || {
        // `20ms` also ends with `s`: the number decides.
        TIMES.into_iter().find_map(|(unit, ns)| Some(number(value.strip_suffix(unit)?)? * ns))
    };
    match name {
        "mean" => Some((Figure::Mean, time()?)),
        "max" => Some((Figure::Percentile(100.0), time()?)),
        "rps" => Some((Figure::Rate, number(value)?)),
        "errors" => match value.strip_suffix('%') {
            Some(percent) => Some((Figure::ErrorShare, number(percent)? / 100.0)),
            None => Some((Figure::Errors, number(value)?)),
        },
        name => {
            let percent =
                number(name.strip_prefix('p')?).filter(|percent| (0.0..=100.0).contains(percent))?;
            (percent > 0.0).then_some((Figure::Percentile(percent), time()?))
        }
    }
}

impl Figure {
    fn of(self, outcome: &Outcome) -> Option<f64> {
        let latency = Some(&outcome.latency).filter(|latency| latency.count() > 0);
        let errors = outcome.errors.sum();
        match self {
            Figure::Percentile(percent) => latency.map(|latency| latency.percentile(percent) as f64),
            Figure::Mean => latency.map(|latency| latency.mean()),
            Figure::Errors => (outcome.requests + errors > 0).then_some(errors as f64),
            Figure::ErrorShare => {
                let of = |kind| outcome.errors.of(kind);
                // Wrong responses are errors and responses; all other errors are requests without one.
                let wrong = of(ErrorKind::BadStatus) + of(ErrorKind::UnexpectedBody);
                let all = outcome.requests + errors.saturating_sub(wrong);
                (all > 0).then(|| errors as f64 / all as f64)
            }
            Figure::Rate => (outcome.requests > 0).then(|| outcome.requests_per_s()),
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Figure::Percentile(_) | Figure::Mean => unit::time(value),
            Figure::Errors => format!("{value:.0}"),
            Figure::ErrorShare => format!("{:.3} %", value * 100.0),
            Figure::Rate => format!("{value:.1}"),
        }
    }
}

/// How many errors there are of each kind.
pub(crate) fn kinds(errors: &Errors) -> String {
    let kinds = ErrorKind::ALL.into_iter().filter(|kind| errors.of(*kind) > 0);
    let kinds: Vec<String> =
        kinds.map(|kind| format!("{} {}", kind.name(), unit::count(errors.of(kind)))).collect();
    kinds.join(", ")
}

/// The checks as a JUnit report: a test case for each requirement.
pub fn junit(measured: &Measured, checks: &[Check]) -> String {
    let seconds = measured.outcome.elapsed.as_secs_f64();
    let failures = checks.iter().filter(|check| !check.is_met).count();
    let (url, count) = (escape(&measured.url), checks.len());
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"flatout bench\" tests=\"{count}\" \
         failures=\"{failures}\" errors=\"0\" time=\"{seconds:.3}\">\n"
    );
    for Check { requirement, measured, is_met } in checks {
        let requirement = escape(requirement);
        let _ = write!(text, "  <testcase classname=\"{url}\" name=\"{requirement}\" time=\"{seconds:.3}\"");
        let _ = match is_met {
            true => writeln!(text, "/>"),
            false => {
                writeln!(text, ">\n    <failure message=\"measured {}\"/>\n  </testcase>", escape(measured))
            }
        };
    }
    text + "</testsuite>\n"
}

/// The figures and the checks as Markdown, for the summary of a CI job.
pub fn markdown(measured: &Measured, checks: &[Check]) -> String {
    let outcome = &measured.outcome;
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut text =
        format!("### flatout bench {}\n\n| figure | measured |\n|---|---:|\n", cell(&measured.url));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("requests", unit::count(outcome.requests));
    row("requests/s", format!("{:.1}", outcome.requests_per_s()));
    for (name, percent) in [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0)] {
        if outcome.latency.count() > 0 {
            row(name, unit::time(outcome.latency.percentile(percent) as f64));
        }
    }
    row("errors", unit::count(outcome.errors.sum()));
    if !outcome.stages.is_empty() {
        let _ =
            writeln!(text, "\n| {} |\n|{}", stages::HEADS.join(" | "), "---:|".repeat(stages::HEADS.len()));
    }
    for row in stages::rows(&outcome.stages) {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    if !checks.is_empty() {
        text.push_str("\n| requirement | measured | |\n|---|---:|---|\n");
    }
    for Check { requirement, measured, is_met } in checks {
        let verdict = if *is_met { "met" } else { "**not met**" };
        let _ = writeln!(text, "| `{}` | {measured} | {verdict} |", cell(requirement));
    }
    for warning in measured.warnings() {
        let _ = writeln!(text, "\n> {}", cell(&warning));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write as _};
    use std::sync::atomic::AtomicBool;

    use flatout_load::{Plan, Request, Target, run};

    use super::*;
    use crate::Machine;

    /// 40 requests to a server that responds to every tenth with 404.
    pub(crate) fn measured() -> Measured {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut served = 0;
                while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {
                    served += 1;
                    let status = if served % 10 == 0 { "404 Not Found" } else { "200 OK" };
                    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                }
            }
        });
        let target = Target::parse(&url).unwrap();
        let request = Request::get(&target.host, "/a");
        let plan = Plan {
            connections: 1,
            requests_max: Some(40),
            ..Plan::new(target.remote.clone(), vec![request])
        };
        let outcome = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(outcome.requests, 40);
        let machine = Machine::here();
        let origin = crate::ResultOrigin::default();
        Measured {
            plan,
            url,
            outcome,
            trials: Vec::new(),
            steps: Vec::new(),
            objective: None,
            comparison: None,
            machine,
            origin,
        }
    }

    #[test]
    fn limits_are_parsed_with_their_units() {
        let parsed = |text: &str| {
            let one = Requirement::parse(text).unwrap();
            (one.figure, one.is_upper, one.is_inclusive, one.limit)
        };
        assert_eq!(parsed("p99<20ms"), (Figure::Percentile(99.0), true, false, 2e7));
        assert_eq!(parsed("p99.9 <= 1.5s"), (Figure::Percentile(99.9), true, true, 1.5e9));
        assert_eq!(parsed("mean<500us"), (Figure::Mean, true, false, 5e5));
        assert_eq!(parsed("max<1s"), (Figure::Percentile(100.0), true, false, 1e9));
        assert_eq!(parsed("errors<0.1%"), (Figure::ErrorShare, true, false, 0.001));
        assert_eq!(parsed("errors<=5"), (Figure::Errors, true, true, 5.0));
        assert_eq!(parsed("rps>1000"), (Figure::Rate, false, false, 1000.0));
        for text in [
            "",
            "p99",
            "p99<",
            "p99<20",
            "p0<1s",
            "p101<1s",
            "pNaN<1s",
            "rps>-1",
            "errors<x%",
            "p99=1s",
            "µ<µ",
        ] {
            let error = Requirement::parse(text).unwrap_err();
            assert!(error.starts_with(&format!("got `{text}`, need a limit")), "{error}");
        }
    }

    #[test]
    fn a_requirement_is_checked_against_the_figure() {
        let mut outcome = measured().outcome;
        let p99 = outcome.latency.percentile(99.0);
        let is_met =
            |text: String, outcome: &Outcome| Requirement::parse(&text).unwrap().check(outcome).is_met;
        assert!(is_met(format!("p99<={p99}ns"), &outcome) && !is_met(format!("p99<{p99}ns"), &outcome));
        for (text, expected) in
            [("errors<=4", true), ("errors<4", false), ("errors<=10%", true), ("errors<9.9%", false)]
        {
            assert_eq!(is_met(text.to_owned(), &outcome), expected, "4 of 40: {text}");
        }
        let rate = outcome.requests_per_s().floor();
        assert!(is_met(format!("rps>={rate}"), &outcome) && !is_met(format!("rps>{}", rate + 1.0), &outcome));
        outcome.latency = flatout_load::Latency::new();
        let check = Requirement::parse("p99<1s").unwrap().check(&outcome);
        assert_eq!((check.is_met, check.measured.as_str()), (false, "no response"));
    }

    #[test]
    fn reports_name_each_requirement() {
        let measured = measured();
        let checks = ["p99<1ns", "errors<=1000000000"]
            .map(|text| Requirement::parse(text).unwrap().check(&measured.outcome));
        let xml = junit(&measured, &checks);
        assert!(xml.contains("tests=\"2\" failures=\"1\"") && xml.contains("name=\"p99&lt;1ns\""), "{xml}");
        assert_eq!(xml.matches("<failure message=\"measured ").count(), 1, "{xml}");
        let summary = markdown(&measured, &checks);
        assert!(summary.contains("| `p99<1ns` |") && summary.contains("| **not met** |"), "{summary}");
        assert!(summary.contains("| `errors<=1000000000` |") && summary.contains("| met |"), "{summary}");
    }
}
