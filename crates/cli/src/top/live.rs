//! A running server on a terminal: the screen and its keys. The terminal is always restored.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use flatout_admin::Event as AdminEvent;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};

use super::history::History;
use super::view::draw;
use crate::Failure;

/// How long to wait for keys before checking for new events.
const KEY_TIME: Duration = Duration::from_millis(100);

/// The screen.
pub(super) struct TopScreen {
    terminal: DefaultTerminal,
    history: History,
    stop: Arc<AtomicBool>,
}

impl TopScreen {
    pub(super) fn new(address: &str, stop: Arc<AtomicBool>) -> Result<TopScreen, Failure> {
        // A panic restores the terminal too.
        let terminal = ratatui::try_init()
            .map_err(|error| Failure::Run(format!("cannot draw on this terminal: {error}")))?;
        Ok(TopScreen { terminal, history: History::new(address), stop })
    }

    /// Shows events until the user quits or the server ends.
    pub(super) fn run(&mut self, events: &Receiver<io::Result<AdminEvent>>) -> io::Result<()> {
        let mut is_new = true;
        loop {
            match events.try_recv() {
                Ok(event) => {
                    self.history.take(event?);
                    is_new = true;
                    continue;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            if is_new {
                let history = &self.history;
                self.terminal.draw(|frame| draw(frame, history))?;
                is_new = false;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if poll(KEY_TIME)? {
                match read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let is_interrupt =
                            key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
                        if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                            return Ok(());
                        }
                    }
                    Event::Resize(..) => is_new = true,
                    _ => {}
                }
            }
        }
    }
}

impl Drop for TopScreen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
