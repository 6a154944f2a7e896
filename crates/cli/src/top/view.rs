//! Draws the screen of a running server, without access to the terminal.

use flatout_admin::{Bus, Frame as Second, Push, Upstream};
use flatout_report::unit::{bytes, count};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

use super::history::{History, latency};

/// Rows of the head and of each row of boxes.
const HEAD_ROWS: u16 = 2;
const BOX_ROWS: u16 = 7;

/// Rows that the workers' table keeps next to the upstreams' table.
const WORKERS_ROWS_MIN: usize = 4;

/// The states of connections, in the order of a frame's states.
const STATES: [(&str, Color); 6] = [
    ("idle", Color::DarkGray),
    ("reading", Color::Yellow),
    ("serving", Color::Blue),
    ("sending", Color::Green),
    ("closing", Color::Red),
    ("taken", Color::Magenta),
];

const CLASSES: [(&str, Color); 5] = [
    ("1xx", Color::DarkGray),
    ("2xx", Color::Green),
    ("3xx", Color::Blue),
    ("4xx", Color::Yellow),
    ("5xx", Color::Red),
];

/// Draws the screen. What does not fit is left out from the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, history: &History) {
    let push = history.last().and_then(|last| last.push.as_ref());
    let rows = [
        Constraint::Length(HEAD_ROWS + u16::from(push.is_some())),
        Constraint::Length(BOX_ROWS),
        Constraint::Length(BOX_ROWS),
        Constraint::Min(4),
    ];
    let [head, first, second, rest] = Layout::vertical(rows).areas(frame.area());
    draw_head(frame, head, history);
    let Some(last) = history.last() else {
        return frame.render_widget(Line::from(" waiting for the first second").dim(), first);
    };
    let thirds = |area: Rect| -> [Rect; 3] { Layout::horizontal([Constraint::Fill(1); 3]).areas(area) };
    let [rate, times, errors] = thirds(first);
    draw_plot(frame, rate, "Requests/s", Color::Green, rate_lines(last), history, |second| {
        second.requests_per_s
    });
    draw_plot(frame, times, "Latency", Color::Yellow, latency_lines(last), history, |second| {
        second.p99_us.unwrap_or(0.0)
    });
    draw_plot(frame, errors, "Errors/s (5xx)", Color::Red, error_lines(last), history, |second| {
        second.errors_per_s
    });
    let [cost, connections, statuses] = thirds(second);
    draw_plot(frame, cost, "CPU", Color::Cyan, cpu_lines(last), history, |second| second.cpus * 1e3);
    draw_counts(frame, connections, "Connections", STATES.iter().zip(last.states.map(|count| count as f64)));
    draw_counts(frame, statuses, "Responses/s", CLASSES.iter().zip(last.statuses_per_s));
    let rows_of = |upstream: &Upstream| upstream.servers.len() + usize::from(upstream.problem.is_some());
    let servers: usize = last.upstreams.iter().map(rows_of).sum();
    let upstream_rows = match servers {
        0 => 0,
        // A heading and borders around them. The workers keep some room.
        _ => (servers + 3).min(usize::from(rest.height).saturating_sub(WORKERS_ROWS_MIN)) as u16,
    };
    let [upstreams, workers] =
        Layout::vertical([Constraint::Length(upstream_rows), Constraint::Min(0)]).areas(rest);
    if upstream_rows > 0 {
        draw_upstreams(frame, upstreams, last);
    }
    draw_workers(frame, workers, last);
}

fn framed(title: &str) -> Block<'_> {
    Block::bordered().title(Line::from(format!(" {title} ")).bold()).border_style(Style::new().dim())
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, history: &History) {
    let [title, facts, online] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
    let state = history.last().map_or("connecting", |last| last.state.as_str());
    let colour = if state == "serving" { Color::Green } else { Color::Yellow };
    let line = vec![
        " flatout top ".dim(),
        Span::from(history.about.listen.join(" ")).bold(),
        Span::from(format!(" {state}")).fg(colour),
    ];
    let bus = history.last().and_then(|last| last.bus.as_ref()).map(bus_span);
    frame.render_widget(Line::from_iter(line.into_iter().chain(bus)), title);
    frame.render_widget(Line::from("q ends ").right_aligned().dim(), title);
    let Some(last) = history.last() else { return };
    let facts_of = format!(
        " {} · up {} · {} in memory · {} of {} descriptors · {}",
        history.about.version,
        uptime(last.at.saturating_sub(history.about.started_at)),
        bytes(last.memory_bytes as f64),
        count(last.descriptors),
        count(last.descriptors_max),
        history.address,
    );
    frame.render_widget(Line::from(facts_of).dim(), facts);
    if let Some(push) = &last.push {
        frame.render_widget(push_line(push), online);
    }
}

fn bus_span(bus: &Bus) -> Span<'static> {
    let text = format!(" · bus {}, {} queued, {} dropped", bus.state, count(bus.queued), count(bus.dropped));
    if bus.state == "joined" { text.dim() } else { text.red() }
}

fn push_line(push: &Push) -> Line<'static> {
    let [events, websockets, polls] = push.subscribers.map(count);
    Line::from(vec![
        Span::from(format!(" {} online", count(push.subscribers.iter().sum()))).bold(),
        Span::from(format!(
            " · {} published/s · {} delivered/s · lag {} ms · {} dropped · events {events}, WebSocket {websockets}, long \
             poll {polls}",
            count(push.published_per_s as u64),
            count(push.delivered_per_s as u64),
            push.lag_ms,
            count(push.dropped),
        ))
        .dim(),
    ])
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn figure(name: &str, value: String, colour: Color) -> Line<'static> {
    Line::from(vec![Span::from(format!(" {name:<9}")), Span::from(format!("{value:>12}")).bold().fg(colour)])
}

fn rate_lines(last: &Second) -> Vec<Line<'static>> {
    vec![
        figure("now", count(last.requests_per_s as u64), Color::Green),
        figure("total", count(last.requests), Color::Reset),
    ]
}

fn latency_lines(last: &Second) -> Vec<Line<'static>> {
    vec![figure("p50", latency(last.p50_us), Color::Cyan), figure("p99", latency(last.p99_us), Color::Yellow)]
}

fn error_lines(last: &Second) -> Vec<Line<'static>> {
    let colour = if last.errors_per_s > 0.0 { Color::Red } else { Color::Reset };
    vec![
        figure("now", count(last.errors_per_s.ceil() as u64), colour),
        figure("total", count(last.errors), Color::Reset),
    ]
}

fn cpu_lines(last: &Second) -> Vec<Line<'static>> {
    vec![
        figure("per request", latency(last.cpu_us_per_request), Color::Cyan),
        figure("CPUs", format!("{:.2}", last.cpus), Color::Reset),
    ]
}

/// Figures over a plot of the last seconds.
fn draw_plot(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    colour: Color,
    lines: Vec<Line<'static>>,
    history: &History,
    of: fn(&Second) -> f64,
) {
    let block = framed(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [figures, plot] =
        Layout::vertical([Constraint::Length(lines.len() as u16), Constraint::Min(1)]).areas(inner);
    frame.render_widget(Paragraph::new(lines), figures);
    // In tenths, so that less than one per second is visible too.
    let values: Vec<u64> =
        history.latest(usize::from(plot.width)).map(|second| (10.0 * of(second)) as u64).collect();
    frame.render_widget(Sparkline::default().data(values).style(Style::new().fg(colour)), plot);
}

fn draw_counts<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    counts: impl Iterator<Item = (&'a (&'static str, Color), f64)>,
) {
    let lines: Vec<Line<'_>> = counts
        .filter(|(_, value)| *value > 0.0)
        .map(|((name, colour), value)| {
            Line::from(vec![
                Span::from(format!(" {name:<9}")).fg(*colour),
                Span::from(format!("{:>12}", count(value.ceil() as u64))),
            ])
        })
        .collect();
    let lines = if lines.is_empty() { vec![Line::from(" none".dim())] } else { lines };
    frame.render_widget(Paragraph::new(lines).block(framed(title)), area);
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, last: &Second) {
    let rows = last.workers.iter().enumerate().map(|(index, worker)| {
        Row::new([
            index.to_string(),
            format!("{:.0} %", 100.0 * worker.cpus),
            count(worker.requests_per_s as u64),
            count(worker.connections),
        ])
    });
    let head = Row::new(["worker", "CPU", "requests/s", "connections"]).dim();
    let table = Table::new(
        rows,
        [Constraint::Length(7), Constraint::Length(7), Constraint::Length(12), Constraint::Length(12)],
    );
    frame.render_widget(table.header(head).block(framed("Workers")), area);
}

fn draw_upstreams(frame: &mut Frame<'_>, area: Rect, last: &Second) {
    let rows = last.upstreams.iter().flat_map(|upstream| {
        let problem = upstream.problem.iter().map(|why| {
            Row::new([Cell::from(format!("{}: {why}", upstream.name)).style(Style::new().fg(Color::Red))])
        });
        let servers = upstream.servers.iter().enumerate().map(move |(at, server)| {
            let colour = match server.state.as_str() {
                "up" => Color::Green,
                "not used yet" => Color::Reset,
                "slow start" => Color::Yellow,
                _ => Color::Red,
            };
            // Figures of the upstream are shown with its first server.
            let queued = if at == 0 { count(upstream.queued) } else { String::new() };
            Row::new([
                Cell::from(match &server.why {
                    Some(why) => format!("{} {}: {why}", upstream.name, server.address),
                    None => format!("{} {}", upstream.name, server.address),
                }),
                Cell::from(server.state.clone()).style(Style::new().fg(colour)),
                Cell::from(count(server.requests_per_s as u64)),
                Cell::from(latency(server.p99_us)),
                Cell::from(count(server.active)),
                Cell::from(count(server.idle)),
                Cell::from(queued),
                Cell::from(count(server.failures)),
                Cell::from(count(server.retries)),
            ])
        });
        problem.chain(servers)
    });
    let head = ["upstream", "state", "requests/s", "p99", "active", "idle", "queued", "failures", "retries"];
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(7),
    ];
    let table = Table::new(rows, widths).header(Row::new(head).dim());
    frame.render_widget(table.block(framed("Upstreams")), area);
}

#[cfg(test)]
mod tests {
    use flatout_admin::{About, Event, Start, UpstreamServer, Worker};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// The screen at this size, as text.
    fn drawn(history: &History, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, history)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_server_is_shown() {
        let mut history = History::new("unix:/run/a.sock");
        assert!(drawn(&history, 100, 30).contains("waiting for the first second"));
        let about = About {
            version: "1.2.3".to_owned(),
            started_at: 1000,
            listen: vec!["http://127.0.0.1:80".to_owned()],
            ..About::default()
        };
        let server = |port: u16, state: &str| UpstreamServer {
            address: format!("127.0.0.1:{port}"),
            state: state.to_owned(),
            requests_per_s: 1234.0,
            p99_us: Some(4321.0),
            failures: 17,
            ..UpstreamServer::default()
        };
        let upstream = Upstream {
            name: "api".to_owned(),
            queued: 55,
            servers: vec![server(3000, "up"), server(3001, "down")],
            ..Upstream::default()
        };
        let second = Second {
            at: 1000 + 3600 * 5 + 120,
            state: "serving".to_owned(),
            requests_per_s: 123_456.0,
            errors_per_s: 0.4,
            p50_us: Some(210.0),
            p99_us: Some(3400.0),
            statuses_per_s: [0.0, 123_000.0, 0.0, 456.0, 0.0],
            states: [60, 0, 4, 0, 0, 0],
            cpu_us_per_request: Some(4.1),
            workers: vec![Worker { cpus: 0.97, requests_per_s: 61_728.0, connections: 32 }; 2],
            upstreams: vec![upstream],
            bus: Some(Bus { state: "away".to_owned(), queued: 1234, ..Bus::default() }),
            push: Some(Push {
                subscribers: [9000, 1000, 345],
                delivered_per_s: 51_725.0,
                lag_ms: 12,
                ..Push::default()
            }),
            ..Second::default()
        };
        history.take(Event::Start(Box::new(Start { about, frames: vec![second; 50], ..Start::default() })));
        let text = drawn(&history, 100, 30);
        for expected in [
            "http://127.0.0.1:80 serving · bus away, 1,234 queued, 0 dropped",
            "1.2.3 · up 5 h 2 min",
            "123,456",
            "p99",
            "Connections",
            "idle",
            "4xx",
            "97 %",
            "api 127.0.0.1:3000 up",
            "api 127.0.0.1:3001 down",
            "1,234",
            " 55 ",
            "10,345 online · 0 published/s · 51,725 delivered/s · lag 12 ms · 0 dropped",
        ] {
            // The columns' width depends on the screen.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(expected.trim()), "{expected}: {text}");
        }
        assert!(!text.contains("reading"), "states without connections are left out: {text}");
        for (width, height) in [(1, 1), (20, 5), (40, 10), (300, 90)] {
            drawn(&history, width, height);
        }
    }
}
