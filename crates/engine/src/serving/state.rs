//! The state of a connection, as reported by the server's figures.

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for a request.
    Idle,
    /// Its client is sending a request.
    Reading,
    /// Its request is being served.
    Serving,
    /// Its client is reading a response.
    Sending,
    /// Its last response has ended.
    Closing,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [State; 5] = [State::Idle, State::Reading, State::Serving, State::Sending, State::Closing];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Reading => "reading",
            State::Serving => "serving",
            State::Sending => "sending",
            State::Closing => "closing",
        }
    }
}
