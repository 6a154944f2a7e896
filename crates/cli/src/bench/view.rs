//! Draws the screen of a measurement, without access to the terminal.

use flatout_load::{ErrorKind, Latency};
use flatout_report::histogram::rows;
use flatout_report::text::bar;
use flatout_report::unit::{count, round_time, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Sparkline};

use super::progress::RunProgress;

/// Rows of the head, of the figures, and the minimum for the plots.
const HEAD_ROWS: u16 = 3;
const FIGURE_ROWS: u16 = 8;
const PLOT_ROWS_MIN: u16 = 6;

/// Rows for status codes and errors, without borders.
const COUNT_ROWS: u16 = 2;

/// Columns of a histogram row besides its bar.
const HISTOGRAM_COLUMNS: u16 = 17;

const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// Draws the screen. What does not fit is left out from the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, progress: &RunProgress) {
    let [head, figures, plots, counts] = Layout::vertical([
        Constraint::Length(HEAD_ROWS),
        Constraint::Length(FIGURE_ROWS),
        Constraint::Min(PLOT_ROWS_MIN),
        Constraint::Length(COUNT_ROWS + 2),
    ])
    .areas(frame.area());
    let halves = |area: Rect| -> [Rect; 2] {
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(area)
    };
    draw_head(frame, head, progress);
    let [left, right] = halves(figures);
    draw_rate(frame, left, progress);
    draw_latency(frame, right, progress);
    let [left, right] = halves(plots);
    draw_course(frame, left, progress);
    draw_histogram(frame, right, progress);
    let [left, right] = halves(counts);
    draw_statuses(frame, left, progress);
    draw_errors(frame, right, progress);
}

fn framed(title: &str) -> Block<'_> {
    Block::bordered().title(Line::from(format!(" {title} ")).bold()).border_style(Style::new().dim())
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let [title, setup, bar] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let stop = Line::from("q stops ").right_aligned().dim();
    frame.render_widget(
        Line::from(vec![" flatout bench ".dim(), Span::from(progress.url.clone()).bold()]),
        title,
    );
    frame.render_widget(stop, title);
    let run = if progress.run > 1 { format!("  run {} ", progress.run) } else { String::new() };
    frame.render_widget(Line::from(format!(" {}{run}", progress.setup)), setup);
    let label = match progress.elapsed {
        None => "warming up".to_owned(),
        Some(elapsed) => format!("{} s, {} s left", elapsed.as_secs(), progress.left().as_secs_f64().ceil()),
    };
    let gauge = Gauge::default().gauge_style(Style::new().fg(Color::Green)).use_unicode(true);
    let gauge = gauge.ratio(progress.share()).label(label);
    let [_, bar, _] =
        Layout::horizontal([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(bar);
    frame.render_widget(gauge, bar);
}

fn draw_rate(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let block = framed("Requests/s");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [figures, plot] = Layout::vertical([Constraint::Length(3), Constraint::Min(1)]).areas(inner);
    let now = progress.seconds.last().map_or_else(|| progress.mean_per_s(), |second| second.requests_per_s);
    let open = progress.detail.as_ref().map_or(0, |detail| detail.open);
    let oldest = progress.detail.as_ref().map(|detail| detail.oldest_wait).filter(|_| open > 0);
    let oldest = oldest.map_or_else(String::new, |wait| format!("  oldest {}", time(wait.as_nanos() as f64)));
    let oldest = Span::from(oldest).dim();
    let lines = vec![
        Line::from(vec![" last second ".into(), right(&count(now as u64), 14).bold().fg(Color::Green)]),
        Line::from(vec![" mean        ".into(), right(&count(progress.mean_per_s() as u64), 14)]),
        Line::from(vec![" open        ".into(), right(&count(open), 14), oldest]),
    ];
    frame.render_widget(Paragraph::new(lines), figures);
    let from = progress.seconds.len().saturating_sub(usize::from(plot.width));
    let values: Vec<u64> =
        progress.seconds[from..].iter().map(|second| second.requests_per_s as u64).collect();
    frame.render_widget(Sparkline::default().data(values).style(Style::new().fg(Color::Green)), plot);
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let block = framed("Latency");
    let Some(latency) = progress.detail.as_ref().map(|detail| &detail.latency).filter(|all| all.count() > 0)
    else {
        return frame.render_widget(Paragraph::new(" no response yet".dim()).block(block), area);
    };
    let line = |name: String, value: f64| {
        Line::from(vec![Span::from(format!(" {name:<6}")), right(&time(value), 12)])
    };
    let mut lines: Vec<Line<'_>> = PERCENTILES
        .iter()
        .map(|percent| line(format!("p{percent}"), latency.percentile(*percent) as f64))
        .collect();
    lines.push(line("max".to_owned(), latency.max() as f64));
    lines.push(line("mean".to_owned(), latency.mean()));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_course(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let from = progress.seconds.len().saturating_sub(usize::from(area.width).max(2));
    let shown = &progress.seconds[from..];
    // Logarithmic, in microseconds: p99 may be a hundred times the median.
    let scale = |ns: u64| (ns.max(1_000) as f64).log10();
    let points = |of: fn(&super::progress::Second) -> u64| -> Vec<(f64, f64)> {
        shown.iter().enumerate().map(|(at, second)| (at as f64, scale(of(second)))).collect()
    };
    let (p50, p99) = (points(|second| second.p50_ns), points(|second| second.p99_ns));
    let all = || p50.iter().chain(&p99).map(|(_, y)| *y);
    let low = all().fold(f64::INFINITY, f64::min).min(9.0).floor();
    let high = all().fold(low, f64::max).ceil().max(low + 1.0);
    let set = |name, points, colour| {
        let set = Dataset::default().name(name).marker(Marker::Braille).graph_type(GraphType::Line);
        set.style(Style::new().fg(colour)).data(points)
    };
    let sets = vec![set("p99", &p99, Color::Yellow), set("p50", &p50, Color::Cyan)];
    let marks: Vec<String> = [low, (low + high) / 2.0, high].iter().map(|y| round(10f64.powf(*y))).collect();
    let last = (shown.len().max(2) - 1) as f64;
    let legend = Line::from(vec![" p99 ".fg(Color::Yellow), "p50 ".fg(Color::Cyan)]);
    let chart = Chart::new(sets)
        .legend_position(None)
        .block(framed("Latency by second").title_top(legend.right_aligned()))
        .x_axis(Axis::default().bounds([0.0, last]))
        .y_axis(Axis::default().bounds([low, high]).labels(marks).style(Style::new().dim()));
    frame.render_widget(chart, area);
}

fn draw_histogram(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let block = framed("Latency histogram");
    let inner = block.inner(area);
    let empty = Latency::new();
    let latency = progress.detail.as_ref().map_or(&empty, |detail| &detail.latency);
    let rows = rows(latency, usize::from(inner.height));
    let most = rows.iter().map(|row| row.count).max().unwrap_or(1).max(1) as f64;
    let room = f64::from(inner.width.saturating_sub(HISTOGRAM_COLUMNS));
    let lines: Vec<Line<'_>> = rows
        .iter()
        .map(|row| {
            let share = 100.0 * row.count as f64 / latency.count().max(1) as f64;
            let text = format!("≤{:>6}{share:>7.2} % ", round_time(row.to_ns as f64));
            let bar = bar(room * row.count as f64 / most);
            Line::from(vec![text.into(), Span::from(bar).fg(Color::Cyan)])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_statuses(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let statuses = progress.detail.iter().flat_map(|detail| detail.statuses.iter());
    let lines: Vec<Line<'_>> = statuses
        .map(|(status, times)| {
            let colour = match status {
                ..400 => Color::Green,
                400..500 => Color::Yellow,
                _ => Color::Red,
            };
            Line::from(vec![Span::from(format!(" {status} ")).fg(colour), right(&count(times), 14)])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(framed("Status codes")), area);
}

fn draw_errors(frame: &mut Frame<'_>, area: Rect, progress: &RunProgress) {
    let errors = progress.detail.as_ref().map(|detail| detail.errors).unwrap_or_default();
    let kinds = ErrorKind::ALL.into_iter().filter(|kind| errors.of(*kind) > 0);
    let mut lines: Vec<Line<'_>> = kinds
        .map(|kind| {
            let name = kind.name().replace('_', " ");
            Line::from(vec![
                Span::from(format!(" {name:<16}")).fg(Color::Red),
                right(&count(errors.of(kind)), 12),
            ])
        })
        .collect();
    if lines.is_empty() {
        lines.push(Line::from(" none".dim()));
    }
    frame.render_widget(Paragraph::new(lines).block(framed("Errors")), area);
}

/// A mark of the axis: a power of ten, or half way to the next one.
fn round(ns: f64) -> String {
    round_time(10f64.powf(ns.log10().floor()) * if ns.log10().fract() > 0.4 { 3.0 } else { 1.0 })
}

fn right(text: &str, columns: usize) -> Span<'static> {
    Span::from(format!("{text:>columns$}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use flatout_load::{Plan, Request, Target, run};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// The screen at this size, as text.
    fn drawn(progress: &RunProgress, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, progress)).unwrap();
        terminal.backend().to_string()
    }

    /// A server that sends a different status in each response.
    fn served() -> Plan {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let mut stream = stream;
                    while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {
                        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
                    }
                });
            }
        });
        let target = Target::parse(&url).unwrap();
        let request = Request::get(&target.host, "/");
        Plan {
            live: true,
            duration: std::time::Duration::from_millis(1600),
            ..Plan::new(target.remote, vec![request])
        }
    }

    #[test]
    fn a_running_measurement_is_shown() {
        let plan = served();
        let mut progress = RunProgress::new("http://a/", &plan);
        assert!(drawn(&progress, 80, 24).contains("warming up"));
        run(&plan, &AtomicBool::new(false), &mut |live| progress.take(live)).unwrap();
        let text = drawn(&progress, 80, 24);
        for expected in [
            "flatout bench http://a/",
            "s left",
            " open ",
            "p99.9",
            "Latency histogram",
            "404",
            "bad status",
            "≤",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(progress.seconds.len(), 1, "{text}");
        assert!(progress.seconds[0].p50_ns > 0 && progress.share() > 0.6);
        for (width, height) in [(1, 1), (20, 5), (40, 10), (300, 90)] {
            drawn(&progress, width, height);
        }
    }
}
