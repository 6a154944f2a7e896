//! The progress of a measurement on a terminal: the screen and its keys. The terminal is always restored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout_load::{Live, Plan};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use signal_hook::consts::SIGINT;

use super::progress::RunProgress;
use super::view::draw;

/// How often it is drawn.
const DRAW_TIME: Duration = Duration::from_millis(200);

/// The screen, if there is one.
pub(crate) struct BenchScreen {
    terminal: Option<DefaultTerminal>,
    progress: RunProgress,
    stop: Arc<AtomicBool>,
    drawn: Option<Instant>,
}

impl BenchScreen {
    /// A screen for a measurement of `url` by `plan`. Keys that end it set `stop`.
    pub(crate) fn new(is_on: bool, url: &str, plan: &Plan, stop: Arc<AtomicBool>) -> BenchScreen {
        // A terminal that cannot be drawn on is no reason not to measure. A panic restores it too.
        let terminal = is_on.then(|| ratatui::try_init().ok()).flatten();
        let mut screen = BenchScreen { terminal, progress: RunProgress::new(url, plan), stop, drawn: None };
        screen.draw();
        screen
    }

    /// Updates the screen.
    pub(crate) fn show(&mut self, live: &Live<'_>) {
        if self.terminal.is_none() {
            return;
        }
        self.progress.take(live);
        self.keys();
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_TIME) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        let progress = &self.progress;
        let is_drawn = terminal.draw(|frame| draw(frame, progress));
        self.drawn = Some(Instant::now());
        if is_drawn.is_err() {
            self.end();
        }
    }

    /// Handles pressed keys: in raw mode, Ctrl-C is one of them.
    fn keys(&mut self) {
        while let Ok(true) = poll(Duration::ZERO) {
            let Ok(Event::Key(key)) = read() else { continue };
            let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
            let is_end = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
            if key.kind == KeyEventKind::Release || !(is_interrupt || is_end) {
                continue;
            }
            if self.stop.swap(true, Ordering::Relaxed) && is_interrupt {
                // The second Ctrl-C ends it at once, as without a screen.
                self.end();
                let _ = signal_hook::low_level::raise(SIGINT);
            }
        }
    }

    /// Restores the terminal.
    pub(crate) fn end(&mut self) {
        if self.terminal.take().is_some() {
            ratatui::restore();
        }
    }
}

impl Drop for BenchScreen {
    fn drop(&mut self) {
        self.end();
    }
}
