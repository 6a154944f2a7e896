//! Session ticket keys in the state folder: clients resume their sessions after a restart, and on every machine that
//! shares the folder.

use std::time::SystemTime;

use flatout_tls::Tickets;

use crate::{Level, Say, State};

const NAME: &str = "tickets";
const LOCK: &str = "tickets.lock";

/// The ticket keys of a server, and those in the folder.
#[derive(Debug)]
pub struct KeptTickets {
    state: State,
    tickets: Tickets,
    say: Say,
    /// The last error: each is reported once.
    wrong: Option<String>,
}

impl KeptTickets {
    /// Loads the keys from the folder, and keeps them there.
    pub fn open(state: State, tickets: Tickets, say: Say) -> KeptTickets {
        let mut kept = KeptTickets { state, tickets, say, wrong: None };
        kept.look();
        kept
    }

    /// Rotates keys that are due, loads those that others have written, and stores our own. Call this every few
    /// seconds.
    pub fn look(&mut self) {
        let result = self.exchange(SystemTime::now());
        if let Err(wrong) = &result
            && self.wrong.as_ref() != Some(wrong)
        {
            (self.say)(Level::Warning, format_args!("session ticket keys are not stored: {wrong}"));
        }
        self.wrong = result.err();
    }

    fn exchange(&self, now: SystemTime) -> Result<(), String> {
        let found = self.state.read(NAME)?;
        if found.as_deref() == Some(&self.tickets.text()) && !self.tickets.is_due(now) {
            return Ok(());
        }
        // The holder of the lock is writing: the next call sees the result.
        let Some(_lock) = self.state.try_lock(LOCK)? else { return Ok(()) };
        let found = self.state.read(NAME)?;
        if let Some(text) = &found
            && let Err(why) = self.tickets.add(text, now)
        {
            let path = self.state.path(NAME);
            (self.say)(
                Level::Warning,
                format_args!(
                    "{}: {why}; it is replaced, and earlier sessions cannot be resumed",
                    path.display()
                ),
            );
        }
        // After loading the keys of others: otherwise each process would make a new one.
        self.tickets.turn(now);
        let text = self.tickets.text();
        if found.as_ref() != Some(&text) { self.state.write(NAME, &text) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn silent(_: crate::Level, _: std::fmt::Arguments<'_>) {}

    #[test]
    fn keys_outlive_their_process_and_are_shared() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        let one = Tickets::new().unwrap();
        let mut kept = KeptTickets::open(state.clone(), one.clone(), silent);
        let other = Tickets::new().unwrap();
        KeptTickets::open(state.clone(), other.clone(), silent);
        kept.look();
        assert_eq!(one.text(), other.text());
        assert_eq!(one.text().lines().count(), 3, "a title, and a key of each");
        let later = Tickets::new().unwrap();
        KeptTickets::open(state, later.clone(), silent);
        assert!(one.text().lines().skip(1).all(|key| later.text().contains(key)));
    }

    #[test]
    fn a_broken_file_is_replaced() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        state.write(NAME, "nonsense").unwrap();
        let tickets = Tickets::new().unwrap();
        KeptTickets::open(state.clone(), tickets.clone(), silent);
        assert_eq!(state.read(NAME).unwrap(), Some(tickets.text()));
    }
}
