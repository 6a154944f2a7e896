//! Keys of session tickets, kept in the state folder: clients go on with their sessions after a restart, and on every machine that
//! shares the folder.

use std::time::SystemTime;

use flatout_tls::Tickets;

use crate::{Say, State};

const NAME: &str = "tickets";
const LOCK: &str = "tickets.lock";

/// The keys of a server, and those in the folder.
#[derive(Debug)]
pub struct KeptTickets {
    state: State,
    tickets: Tickets,
    say: Say,
    /// What was last found to be wrong: it is said once.
    wrong: Option<String>,
}

impl KeptTickets {
    /// Takes on the keys of the folder, and has them kept there.
    pub fn open(state: State, tickets: Tickets, say: Say) -> KeptTickets {
        let mut kept = KeptTickets { state, tickets, say, wrong: None };
        kept.look();
        kept
    }

    /// Replaces keys whose time is over, takes on what others have written, and writes what they do not have. To be called every
    /// few seconds.
    pub fn look(&mut self) {
        let result = self.exchange(SystemTime::now());
        if let Err(wrong) = &result
            && self.wrong.as_ref() != Some(wrong)
        {
            (self.say)(format_args!("keys of session tickets are not kept: {wrong}"));
        }
        self.wrong = result.err();
    }

    fn exchange(&self, now: SystemTime) -> Result<(), String> {
        let found = self.state.read(NAME)?;
        if found.as_deref() == Some(&self.tickets.text()) && !self.tickets.is_due(now) {
            return Ok(());
        }
        // Whoever has it is writing: the next look sees what.
        let Some(_lock) = self.state.try_lock(LOCK)? else { return Ok(()) };
        let found = self.state.read(NAME)?;
        if let Some(text) = &found
            && let Err(why) = self.tickets.add(text, now)
        {
            let path = self.state.path(NAME);
            (self.say)(format_args!("{}: {why}; it is replaced, sessions begin anew", path.display()));
        }
        // Behind what others have made: then there is one new key for all.
        self.tickets.turn(now);
        let text = self.tickets.text();
        if found.as_ref() != Some(&text) { self.state.write(NAME, &text) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn silent(_: std::fmt::Arguments<'_>) {}

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
