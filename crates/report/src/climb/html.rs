//! A climb as one page that needs no network: the waterfall, the worth of each rung, latencies, flame graphs, the
//! meaning, and the commands. Its only script is in the frame of the flame graphs.

use flatout_climb::{Estimate, Figures, How, Noise, Objective, Outcome, Profiles, Status, TriedRung};
use flatout_profile::compare;

use super::axis::{Axis, Drawing};
use super::fall::{Fall, Step};
use super::text::{cpu_of, figure, floors, gained, intervals, level, name, text, warnings};
use super::{Climb, Meaning};
use crate::html::{distribution, percentile_plot};
use crate::page::{cards, document, escape, section};
use crate::plot::{Kind, Line};
use crate::secret::MASK;
use crate::unit::{count, time};
use crate::{ResultOrigin, flame};

/// The command, and when it ended.
fn made(climb: &Climb) -> String {
    let command = climb.command.iter().map(|command| format!("<code>{}</code><br>", escape(command)));
    let date = climb.date.iter().map(|date| format!("{} · ", escape(date)));
    command.chain(date).collect()
}

/// A standalone page.
pub fn html(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let machine = &climb.machine;
    let load = outcome.load.as_ref().map_or(String::new(), |load| format!(", load: {load}"));
    let cpu = cpu_of(outcome).map_or(String::new(), |cpu| format!(", CPU time of {cpu}"));
    let about = format!(
        "optimized for {}{load}{cpu}, on {}, {} CPUs, Linux {}",
        name(climb.objective),
        machine.processor,
        machine.cpus,
        machine.kernel
    );
    let mut body =
        format!("<h1>{}</h1>\n<p class=sub>{}{}</p>\n", escape(&climb.url), made(climb), escape(&about));
    for warning in warnings(climb) {
        body.push_str(&format!("<p class=warning>{}</p>\n", escape(&warning)));
    }
    body.push_str(&summary(climb));
    body.push_str(&section("What helped", &waterfall(climb)));
    body.push_str(&worth(climb));
    body.push_str(&figures(climb));
    if let Some(before) = &outcome.before {
        body.push_str(&section("What it means", &meaning(climb, before)));
    }
    body.push_str(&latencies(climb));
    body.push_str(&section("What a request costs", &flames(climb)));
    if let Some(old) = &climb.old {
        let compared: String =
            old.compared(climb).iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence))).collect();
        body.push_str(&section("Since the earlier climb", &format!("<ul>\n{compared}</ul>")));
    }
    body.push_str(&section("Commands", &commands(climb)));
    let words = format!("<details><summary>as printed in the terminal</summary><pre>{}</pre></details>", {
        escape(&text(climb))
    });
    body.push_str(&section("As text", &words));
    document(&format!("flatout climb {}", climb.url), STYLE, &body)
}

/// Added to the common style. A status has a colour for its bar and its word.
const STYLE: &str = "
:root { --kept: #1a7f37; --none: #57606a; --worse: #c01c28; --unseen: #7a3fb5; --skipped: #8a6300; }
@media (prefers-color-scheme: dark) { :root { --kept: #4ac26b; --none: #9aa4af; --worse: #ff7b72; --unseen: #c69bff;
  --skipped: #dcb23c; } }
.kept { --tone: var(--kept); } .none { --tone: var(--none); } .worse { --tone: var(--worse); }
.not-measurable { --tone: var(--unseen); } .skipped { --tone: var(--skipped); } .all { --tone: var(--one); }
p.note { color: var(--dim); font-size: .9rem; margin: .3rem 0 .8rem; }
small { color: var(--dim); font-size: .85rem; }
.fall svg, td svg { display: block; width: 100%; height: 100%; overflow: hidden; }
.fall svg *, td svg * { vector-effect: non-scaling-stroke; }
.rung, .marks { display: grid; grid-template-columns: 10.5rem 1fr 13rem; column-gap: 1rem; }
.who, .says { padding: .45rem 0; overflow-wrap: anywhere; }
.says, td { font-variant-numeric: tabular-nums; } .says small { display: block; line-height: 1.35; }
.draw { grid-row: 1 / span 3; grid-column: 2; min-height: 2.8rem; } .who { grid-row: 1 / span 3; }
.why { grid-column: 3; padding-bottom: .45rem; overflow-wrap: anywhere; line-height: 1.35; }
.flag { white-space: nowrap; }
.how { grid-column: 3; font-size: .85rem; padding-bottom: .45rem; min-width: 0; } .how summary { color: var(--dim); }
.word { display: inline-block; color: var(--tone); border: 1px solid var(--tone); border-radius: .7rem; font-size: .75rem;
  line-height: 1.2; padding: .05rem .5rem; white-space: nowrap; }
.axis { position: relative; height: 1.4rem; grid-column: 2; }
.axis span { position: absolute; transform: translateX(-50%); font-size: .75rem; color: var(--dim); white-space: nowrap; }
.bar { fill: var(--tone); fill-opacity: .85; } .bar.none, .bar.worse { fill-opacity: .45; }
.zero { stroke: var(--dim); } .step { stroke: var(--ink); stroke-dasharray: 3 2; }
.whisker { stroke: var(--ink); stroke-width: 1.5; } .point { stroke: var(--tone); stroke-width: 4; }
.noise { fill: var(--dim); fill-opacity: .16; }
.key { display: inline-block; width: 1.2em; height: .8em; vertical-align: baseline; }
.key.noise { background: var(--dim); opacity: .3; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 600; font-size: .85rem; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; }
.worth { table-layout: fixed; }
td b, td small { display: block; } td .mini { height: 1.1rem; min-width: 5rem; margin-top: .2rem; }
iframe { width: 100%; height: 44rem; border: 1px solid var(--line); border-radius: .4rem; box-sizing: border-box; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .8rem; }
summary { cursor: pointer; }
@media (max-width: 44rem) {
  main { padding: 1rem; }
  .rung { grid-template-columns: 1fr auto; padding: .3rem 0; border-bottom: 1px solid var(--line); }
  .rung .draw { grid-column: 1 / 3; grid-row: 2; height: 2.2rem; min-height: 0; }
  .who { grid-row: 1; } .why { grid-column: 1 / 3; grid-row: 3; } .how { grid-column: 1 / 3; grid-row: 4; }
  .who { padding: .2rem 0; } .says { padding: .2rem 0; text-align: right; }
  .marks { display: block; }
  th, td { padding: .3rem .3rem; font-size: .9rem; }
  .worth, .worth tbody { display: block; }
  .worth tr { display: grid; grid-template-columns: repeat(3, 1fr); border-bottom: 1px solid var(--line); }
  .of2 tr { grid-template-columns: repeat(2, 1fr); }
  .worth th, .worth td { border: 0; } .worth small { font-size: .72rem; }
  .worth td:first-child { grid-row: 1; grid-column: 1 / -1; font-weight: 600; padding-bottom: 0; }
  .worth th:first-child { display: none; }
}
";

fn percent(gain: f64) -> String {
    format!("{:+.1} %", gain * 100.0)
}

fn range(estimate: &Estimate) -> String {
    format!("{:+.1} to {:+.1}", estimate.low * 100.0, estimate.high * 100.0)
}

fn summary(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let mut shown = Vec::new();
    if let Some(total) = outcome.total.as_ref().and_then(|total| total.on(climb.objective)) {
        shown.push((
            percent(total.gain),
            format!("{} together ({} %)", gained(climb.objective), range(&total)),
        ));
    }
    let sides = [("before", &outcome.before), ("after", &outcome.after)];
    for (side, figures) in sides.into_iter().filter_map(|(side, figures)| Some((side, figures.as_ref()?))) {
        let value = figure(figures, climb.objective).map(|value| level(value, 1.0, climb.objective));
        shown.extend(value.map(|value| (value, format!("{} {side}", name(climb.objective)))));
    }
    let kept = outcome.rungs.iter().filter(|rung| rung.found.status == Status::Kept).count();
    shown.push((format!("{kept} of {}", outcome.rungs.len()), "rungs kept".to_owned()));
    shown.push((floors(outcome), "measuring noise (A/A)".to_owned()));
    cards(&shown)
}

fn forward(climb: &Climb, rung: &TriedRung) -> Option<Estimate> {
    rung.found.forward.as_ref().and_then(|effect| effect.on(climb.objective))
}

/// The noise of the method by which a rung was measured.
fn noise_of<'o>(outcome: &'o Outcome, rung: &TriedRung) -> Option<&'o Noise> {
    let of_servers = outcome.noise_of_servers.as_ref().filter(|_| rung.found.how == How::SideBySide);
    of_servers.or(outcome.noise.as_ref())
}

/// One row per rung. Its bar starts where that of the rung kept before it ended; everything is relative to the
/// unchanged server, so the axis includes zero.
fn waterfall(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let fall = Fall::of(climb);
    let total = fall.total;
    let drawn: Vec<Estimate> = fall.steps.iter().filter_map(Step::bar).chain(total).collect();
    let axis = Axis::of_intervals(&drawn);
    let mut out = String::from("<div class=fall>\n");
    let mut drawing = Drawing::new(axis);
    drawing.steps(0.0, 0.0);
    out.push_str(&row("before", None, drawing, &strong(&fall.figure_at(1.0)), ""));
    for step in &fall.steps {
        let (rung, status) = (step.rung, step.rung.found.status);
        let mut drawing = Drawing::new(axis);
        if let Some(floor) = noise_of(outcome, rung).and_then(|noise| noise.floor) {
            drawing.band(step.begun / (1.0 + floor) - 1.0, step.begun * (1.0 + floor) - 1.0);
        }
        let bar = step.bar();
        match bar {
            Some(_) => drawing.steps(step.begun - 1.0, step.ended - 1.0),
            None => drawing.passes(step.begun - 1.0),
        }
        let mut says = String::new();
        if let (Some(bar), Some(gain)) = (&bar, step.gain) {
            drawing.bar(status.name(), step.begun - 1.0, bar.gain);
            drawing.interval(bar.low, bar.high);
            says = format!("{}<small>{} %</small>", strong(&percent(gain.gain)), range(&gain));
        }
        if step.is_kept() {
            says.push_str(&format!("<small>→ {}</small>", escape(&fall.figure_at(step.ended))));
        }
        out.push_str(&row(&rung.name, Some(status), drawing, &says, &below(rung)));
    }
    if let Some(total) = total {
        let mut drawing = Drawing::new(axis);
        drawing.bar("all", 0.0, total.gain);
        drawing.interval(total.low, total.high);
        let says = format!(
            "{}<small>{} %</small><small>→ {}</small>",
            strong(&percent(total.gain)),
            range(&total),
            escape(&fall.figure_after())
        );
        out.push_str(&row("everything kept", None, drawing, &says, ""));
    }
    let together = match total {
        Some(_) => {
            " “Everything kept” was measured once more against the unchanged server, so it can differ from the sum of the bars."
        }
        None => "",
    };
    out.push_str(&format!("<div class=marks><div class=axis>{}</div></div>\n</div>\n", axis.marks()));
    out.push_str(&format!(
        "<p class=note>Gain: {} than the unchanged server. Each bar starts where the last kept one ended. Lines are \
         {}. <span class=\"key noise\"></span> is the measuring noise: what two runs with nothing changed between them differed \
         by.{together}</p>",
        gained(climb.objective),
        intervals(outcome.rungs.iter().filter(|rung| rung.found.forward.is_some()).count())
    ));
    out
}

fn strong(text: &str) -> String {
    format!("<b>{}</b>", escape(text))
}

/// Longest flag that is not wrapped: longer ones do not fit beside a bar.
const FLAG_COLUMNS: usize = 20;

/// A sentence in which flags are not wrapped.
fn sentence(text: &str) -> String {
    let word = |word: &str| match word.starts_with("--") && word.len() <= FLAG_COLUMNS {
        true => format!("<span class=flag>{}</span>", escape(word)),
        false => escape(word),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The text below a rung's figures: the reason, and the commands that set and unset it.
fn below(rung: &TriedRung) -> String {
    let why = match rung.found.reason.as_str() {
        "" => String::new(),
        reason => format!("<small class=why>{}</small>", sentence(reason)),
    };
    let commands = named(&[("set by", &rung.apply), ("unset by", &rung.take_back)]);
    match commands.is_empty() {
        true => why,
        false => format!("{why}<details class=how><summary>commands</summary>{commands}</details>"),
    }
}

/// A row of the waterfall; `says` and `below` are markup.
fn row(name: &str, status: Option<Status>, drawing: Drawing, says: &str, below: &str) -> String {
    let word = status.map_or(String::new(), |status| {
        format!(" <span class=\"word {0}\">{1}</span>", status.name(), status.name().replace('-', " "))
    });
    format!(
        "<div class=rung><div class=who><b>{}</b>{word}</div><div class=draw>{}</div><div class=says>{says}</div>{below}\
         </div>\n",
        escape(name),
        drawing.svg()
    )
}

/// Leave-one-out next to forward, and the results of random orders.
fn worth(climb: &Climb) -> String {
    let rungs = || climb.outcome.rungs.iter().filter(|rung| forward(climb, rung).is_some());
    type Value = fn(&Climb, &TriedRung) -> Option<Estimate>;
    let asked: [(&str, Value); 3] = [
        ("on top of those before", forward),
        ("among everything kept", |_, rung| rung.found.leave_one_out),
        ("average over orders", |_, rung| rung.found.shapley),
    ];
    let mut columns = Vec::new();
    for (heading, value) in asked {
        let values: Vec<Option<Estimate>> = rungs().map(|rung| value(climb, rung)).collect();
        if values.iter().any(Option::is_some) {
            columns.push((heading, values));
        }
    }
    // A single column would repeat the waterfall.
    if columns.len() < 2 {
        return String::new();
    }
    let all: Vec<Estimate> =
        columns.iter().flat_map(|(_, values)| values).filter_map(|value| *value).collect();
    let axis = Axis::of_intervals(&all);
    let columns: Vec<Column> =
        columns.into_iter().map(|(heading, values)| Column { heading, axis, values }).collect();
    let note = "<p class=note>The worth of a change depends on the others. “Among everything kept” is measured by leaving \
                that one out. If it is smaller than “on top of those before”, another change has part of the same effect.</p>";
    let rows: Vec<&TriedRung> = rungs().collect();
    section("Worth of each change", &format!("{note}{}", estimates(&rows, &columns)))
}

/// Each rung's effect on every figure, if more than one is known.
fn figures(climb: &Climb) -> String {
    let rows: Vec<&TriedRung> =
        climb.outcome.rungs.iter().filter(|rung| rung.found.forward.is_some()).collect();
    let column = |objective: Objective| {
        let values: Vec<Option<Estimate>> =
            rows.iter().map(|rung| rung.found.forward.as_ref()?.on(objective)).collect();
        let known: Vec<Estimate> = values.iter().filter_map(|value| *value).collect();
        let axis = Axis::of_intervals(&known);
        (!known.is_empty()).then_some(Column { heading: name(objective), axis, values })
    };
    let columns: Vec<Column> = Objective::ALL.into_iter().filter_map(column).collect();
    if columns.len() < 2 {
        return String::new();
    }
    let note = "<p class=note>Higher is better in every column. For latency and CPU, the gain is before ÷ after − 1.</p>";
    section("Effect on every figure", &format!("{note}{}", estimates(&rows, &columns)))
}

/// A column of estimates over an axis.
struct Column {
    heading: &'static str,
    axis: Axis,
    values: Vec<Option<Estimate>>,
}

fn estimates(rungs: &[&TriedRung], columns: &[Column]) -> String {
    let headings: String = columns.iter().map(|column| format!("<th>{}</th>", column.heading)).collect();
    let mut out = format!(
        "<div class=scroll><table class=\"worth of{}\"><tr><th>rung</th>{headings}</tr>\n",
        columns.len()
    );
    for (at, rung) in rungs.iter().enumerate() {
        let status = rung.found.status.name();
        out.push_str(&format!("<tr><td>{}</td>", escape(&rung.name)));
        for column in columns {
            out.push_str(&match column.values.get(at).copied().flatten() {
                None => "<td><small>–</small></td>".to_owned(),
                Some(value) => {
                    let mut drawing = Drawing::new(column.axis);
                    drawing.estimate(status, &value);
                    format!(
                        "<td>{}<small>{}</small><div class=mini>{}</div></td>",
                        strong(&percent(value.gain)),
                        range(&value),
                        drawing.svg()
                    )
                }
            });
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>");
    out
}

/// Before and after, in machines and money.
fn meaning(climb: &Climb, before: &Figures) -> String {
    let after = climb.outcome.after.as_ref();
    type Shown = fn(&Figures, &Meaning) -> Option<String>;
    let lines: [(&str, Shown); 11] = [
        ("requests/s", |figures, _| Some(count(figures.requests_per_s as u64))),
        ("requests/s per core", |_, meaning| meaning.requests_per_cpu_s.map(|rate| count(rate as u64))),
        ("CPU per request", |figures, _| figures.cpu_us_per_request.map(|cost| time(cost * 1e3))),
        ("p50", |figures, _| figures.p50_ns.map(time)),
        ("p99 of a run", |figures, _| figures.p99_ns.map(time)),
        ("headroom over the peak rate", |_, meaning| meaning.headroom.map(|times| format!("{times:.2}"))),
        ("machines for the peak rate", |_, meaning| meaning.machines.map(count)),
        ("price per billion requests", |_, meaning| {
            meaning.price_per_1e9_requests.map(|price| format!("{price:.2}"))
        }),
        ("requests measured", |figures, _| Some(count(figures.requests))),
        ("errors", |figures, _| Some(count(figures.errors))),
        ("runs", |figures, _| Some(count(figures.runs as u64))),
    ];
    let rows = lines.iter().filter_map(|(name, shown)| {
        let of = |figures: &Figures| shown(figures, &climb.meaning(figures));
        Some((*name, of(before)?, after.and_then(of)))
    });
    let mut out = sides_table(rows, after.is_some());
    let today = &climb.today;
    let rate = today.rate_per_s.map(|rate| format!("a peak rate of {} requests/s", count(rate as u64)));
    let price = today.price_per_hour.map(|price| format!("{price} per machine and hour"));
    let given: Vec<String> = [rate, price].into_iter().flatten().collect();
    if !given.is_empty() {
        out.push_str(&format!("<p class=note>Given: {}.</p>", given.join(", ")));
    }
    out
}

/// A table of names with the values before and after.
fn sides_table<'n>(rows: impl Iterator<Item = (&'n str, String, Option<String>)>, has_after: bool) -> String {
    let heading = if has_after { "<th>after</th>" } else { "" };
    let mut out = format!("<div class=scroll><table><tr><th></th><th>before</th>{heading}</tr>\n");
    for (name, before, after) in rows {
        let after = if has_after { format!("<td>{}</td>", after.unwrap_or_default()) } else { String::new() };
        out.push_str(&format!("<tr><td>{name}</td><td>{before}</td>{after}</tr>\n"));
    }
    out.push_str("</table></div>");
    out
}

fn latencies(climb: &Climb) -> String {
    let of = |figures: &'_ Option<Figures>| figures.as_ref().and_then(|figures| figures.latency.clone());
    let Some(before) = of(&climb.outcome.before) else { return String::new() };
    let after = of(&climb.outcome.after);
    let mut lines =
        vec![Line { name: "before".into(), class: "two", kind: Kind::Line, points: distribution(&before) }];
    if let Some(after) = &after {
        lines.push(Line {
            name: "after".into(),
            class: "one",
            kind: Kind::Line,
            points: distribution(after),
        });
    }
    let percents = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("max", 100.0)];
    let rows = percents.into_iter().map(|(name, percent)| {
        let at = |latency: &flatout_load::Latency| time(latency.percentile(percent) as f64);
        (name, at(&before), after.as_ref().map(at))
    });
    let table = sides_table(rows, after.is_some());
    let note = "<p class=note>At 99 %, a line shows the time within which 99 of 100 requests were served. The time axis \
                is logarithmic.</p>";
    section("Latency by percentile", &format!("{note}{}\n{table}", percentile_plot(lines)))
}

/// The page of the flame graphs in a frame: it has its own style, and its script has no access to this page.
fn flames(climb: &Climb) -> String {
    let (page, note) = match &climb.outcome.profiles {
        Err(why) => return format!("<p class=note>There are no profiles: {}.</p>", escape(why)),
        Ok(Profiles { before, after: None }) => {
            (flame::page(before, &ResultOrigin::default()), "Nothing was kept: this is the unchanged server.")
        }
        Ok(Profiles { before, after: Some(after) }) => match compare(before, after) {
            Ok(comparison) => (
                flame::comparison_page(before, after, &comparison, &ResultOrigin::default()),
                "Before, after and the difference, on one scale: the width of a frame is its cost per request.",
            ),
            Err(error) => {
                return format!(
                    "<p class=note>The profiles cannot be compared: {}.</p>",
                    escape(&error.to_string())
                );
            }
        },
    };
    // In an attribute with single quotes only these two characters are special.
    let page = page.replace('&', "&amp;").replace('\'', "&#39;");
    format!(
        "<p class=note>{note}</p>\n<iframe title=\"flame graphs\" sandbox=allow-scripts srcdoc='{page}'></iframe>"
    )
}

/// Commands, each below its name.
fn named(commands: &[(&str, &Option<String>)]) -> String {
    let known = commands.iter().filter_map(|(name, command)| Some((name, command.as_ref()?)));
    known
        .map(|(name, command)| format!("<div>{name}</div><pre class=command>{}</pre>\n", escape(command)))
        .collect()
}

fn commands(climb: &Climb) -> String {
    let outcome = &climb.outcome;
    let diff = outcome.diff.clone().filter(|diff| !diff.is_empty());
    let shown = named(&[
        ("apply what helped", &outcome.apply),
        ("change in the server's configuration (patch -p1 -d /)", &diff),
        ("undo it", &outcome.take_back),
        ("repeat the climb", &climb.command),
    ]);
    let note = match () {
        () if shown.is_empty() => "<p class=note>There is nothing to apply.</p>",
        () if shown.contains(MASK) => "<p class=note>*** replaces values that may be secret.</p>",
        () => "",
    };
    format!("{shown}{note}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::climb::json::json;
    use crate::climb::{from_json, scripted};

    /// The value of the first attribute with this name, which ends with `=`.
    fn value(text: &str, attribute: &str) -> f64 {
        let rest = &text[text.find(attribute).unwrap() + attribute.len() + 1..];
        rest[..rest.find('"').unwrap()].parse().unwrap()
    }

    #[test]
    fn a_rung_of_each_status_is_drawn() {
        let page = html(&scripted::climb());
        for (status, words) in [
            ("kept", "kept"),
            ("none", "none"),
            ("worse", "worse"),
            ("not-measurable", "not measurable"),
            ("skipped", "skipped"),
        ] {
            assert!(page.contains(&format!("<span class=\"word {status}\">{words}</span>")), "{status}");
            assert!(STYLE.contains(&format!(".{status} {{ --tone")), "{status} has a colour");
        }
        assert_eq!(page.matches("<div class=rung>").count(), 7 + 2, "and before, and all together");
    }

    #[test]
    fn a_bar_begins_where_the_one_kept_before_it_ended() {
        let page = html(&scripted::climb());
        let bars: Vec<(f64, f64)> = page
            .split("<div class=rung>")
            .filter_map(|row| row.split_once("<rect class=\"bar ").map(|(_, bar)| bar))
            .map(|bar| (value(bar, "x="), value(bar, "x=") + value(bar, "width=")))
            .take(6)
            .collect();
        let [workers, conntrack, reno, worse, tap, all] = bars[..] else { panic!("{bars:?}") };
        assert!((workers.1 - conntrack.0).abs() < 0.3, "{bars:?}");
        assert!((conntrack.1 - reno.0).abs() < 0.3 && (conntrack.1 - tap.0).abs() < 0.3, "{bars:?}");
        assert!((conntrack.1 - worse.1).abs() < 0.3, "one that harms goes back from there: {bars:?}");
        assert_eq!(all.0, workers.0, "all together is against nothing: {bars:?}");
    }

    #[test]
    fn numbers_are_those_of_the_outcome() {
        let climb = scripted::climb();
        let page = html(&climb);
        for expected in [
            "<b>+82.0 %</b><small>+76.0 to +88.0 %</small>",
            "<b>-21.0 %</b>",
            "<b>+102.0 %</b>",
            "<b>1.5 %, of changes of the server 0.4 %</b><span>measuring noise (A/A)",
            "<b>2 of 7</b>",
            "→ 204,567/s",
            "<td>requests/s</td><td>101,234</td><td>204,567</td>",
            "<td>CPU per request</td><td>9.88µs</td><td>4.89µs</td>",
            "<td>headroom over the peak rate</td><td>0.67</td><td>1.36</td>",
            "<td>machines for the peak rate</td><td>2</td><td>1</td>",
            "<td>price per billion requests</td><td>0.99</td><td>0.49</td>",
            "a peak rate of 150,000 requests/s, 0.36 per machine and hour",
            "average over orders",
            "flatout tune undo conntrack &amp;&amp; server --workers 1",
        ] {
            assert!(page.contains(expected), "{expected}");
        }
        let latency = climb.outcome.after.unwrap().latency.unwrap();
        assert!(page.contains(&format!("<td>{}</td></tr>", time(latency.percentile(99.9) as f64))));
    }

    #[test]
    fn nothing_becomes_markup_and_nothing_is_fetched() {
        for climb in [scripted::climb(), scripted::bare()] {
            let page = html(&climb);
            for raw in ["gro<b>", "<i>harms", "?a=<b>", "CPU <9>", "'<x>'", "<died>"] {
                assert!(!page.contains(raw), "{raw}");
            }
            assert!(!page.contains("src=") && !page.contains("href=\"http") && !page.contains("url("));
            let (outside, frame) = page.split_once("srcdoc='").unwrap_or((&page, ""));
            assert!(!outside.contains("<script"));
            let (frame, rest) = frame.split_once('\'').unwrap_or_default();
            assert_eq!(frame.matches("</script>").count(), usize::from(!frame.is_empty()));
            assert!(!rest.contains("<script"));
        }
    }

    #[test]
    fn errors_are_reported() {
        let page = html(&scripted::bare());
        for expected in
            ["stopped early: the server &lt;died&gt;", "sysctl x", "There are no profiles", "not known"]
        {
            assert!(page.contains(expected), "{expected}");
        }
    }

    #[test]
    fn the_page_is_the_same_from_its_json() {
        for climb in [scripted::climb(), scripted::bare()] {
            let again = from_json(&json(&climb)).unwrap();
            assert!(html(&again) == html(&climb) && text(&again) == text(&climb));
        }
    }
}
