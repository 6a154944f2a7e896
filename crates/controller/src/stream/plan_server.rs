//! Where data planes connect: who they are is checked, and each gets a session.

use std::fmt::Arguments;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flatout_engine::{Severity, report, say};

use super::acknowledge::Board;
use super::credentials::{ControllerCredentials, ControllerStream, Token};
use super::plane_session::{LOOK, PlaneSession};
use super::socket::TimedSocket;
use super::{
    HELLO_TIME_MAX, Hello, Message, PLAN_BYTES_MAX, REPLY_BYTES_MAX, connection_fault, receive, send, shown,
};
use crate::data::FORMAT;
use crate::leader::{Leader, LeaderTerm};

/// Connections that have not shown a token yet; more are closed.
const UNKNOWN_MAX: usize = 64;

/// The time between two lines about connections that were refused.
const COMPLAINT_TIME: Duration = Duration::from_secs(1);

/// Where and to whom plans are given.
pub struct PlanListener {
    /// Where data planes connect.
    pub address: SocketAddr,
    /// Who may.
    pub credentials: ControllerCredentials,
    /// Whether this controller is the one that data planes follow.
    pub leader: Arc<Leader>,
}

/// Accepts data planes.
pub(super) struct PlanServer {
    pub(super) board: Arc<Board>,
    pub(super) listener: PlanListener,
    /// Connections that have not shown a token yet.
    unknown: AtomicUsize,
    complained: Mutex<Option<Instant>>,
}

impl PlanServer {
    pub(super) fn new(board: Arc<Board>, listener: PlanListener) -> PlanServer {
        PlanServer { board, listener, unknown: AtomicUsize::new(0), complained: Mutex::default() }
    }

    /// Accepts data planes for as long as the process lives.
    pub(super) fn run(self: &Arc<Self>, socket: &TcpListener) {
        loop {
            let (connection, peer) = match socket.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.complain(format_args!("data planes are not accepted for now: {error}"));
                    thread::sleep(LOOK);
                    continue;
                }
            };
            if self.unknown.fetch_add(1, Ordering::Relaxed) >= UNKNOWN_MAX {
                self.unknown.fetch_sub(1, Ordering::Relaxed);
                self.complain(format_args!(
                    "{peer}: refused: {UNKNOWN_MAX} connections have not shown a token"
                ));
                continue;
            }
            let server = self.clone();
            let spawned = thread::Builder::new()
                .name("flatout-plane".to_owned())
                .spawn(move || server.serve(connection, peer));
            if let Err(error) = spawned {
                self.unknown.fetch_sub(1, Ordering::Relaxed);
                self.complain(format_args!("{peer}: refused: there is no thread: {error}"));
            }
        }
    }

    /// Serves a connection until it ends.
    fn serve(&self, connection: TcpStream, peer: SocketAddr) {
        let greeted = self.greet(connection);
        self.unknown.fetch_sub(1, Ordering::Relaxed);
        let (mut stream, name, term) = match greeted {
            Ok(greeted) => greeted,
            Err(why) => return self.complain(format_args!("{peer}: no data plane: {why}")),
        };
        let Some(id) = self.board.join(&name, peer) else {
            let why = "this controller has as many data planes as it can have".to_owned();
            return refuse(&mut stream, why);
        };
        say(format_args!("data plane {name} ({peer}): connected"));
        let why = PlaneSession::new(stream, id, self, term).run().err().unwrap_or_default();
        self.board.leave(id);
        say(format_args!("data plane {name} ({peer}): {why}; it goes on with the plan that it has"));
    }

    /// Reads the first message, and checks who sends it.
    fn greet(&self, connection: TcpStream) -> Result<(ControllerStream, String, Option<LeaderTerm>), String> {
        let credentials = &self.listener.credentials;
        let mut stream = credentials.accept(TimedSocket::new(connection, HELLO_TIME_MAX))?;
        let hello: Hello = receive(&mut stream, REPLY_BYTES_MAX).map_err(|error| connection_fault(&error))?;
        let fault = if !Token::read(&credentials.token)?.is(&hello.token) {
            "the token is wrong".to_owned()
        } else if !hello.formats.contains(&FORMAT) {
            format!(
                "it knows plans of the formats {:?}; this controller makes those of the format {FORMAT}",
                hello.formats.iter().take(16).collect::<Vec<_>>()
            )
        } else {
            return match self.listener.leader.term() {
                Ok(term) => Ok((stream, shown(&hello.name), term)),
                Err(_) => {
                    // Each data plane tries all controllers: that is no fault.
                    refuse(&mut stream, "another controller leads".to_owned());
                    Err("this controller does not lead".to_owned())
                }
            };
        };
        refuse(&mut stream, fault.clone());
        Err(fault)
    }

    /// Logs a line, unless there was one just before.
    fn complain(&self, message: Arguments<'_>) {
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if complained.is_none_or(|at| at.elapsed() > COMPLAINT_TIME) {
            *complained = Some(Instant::now());
            report(Severity::Warning, message);
        }
    }
}

/// Ends a connection, with the reason.
pub(super) fn refuse(stream: &mut ControllerStream, reason: String) {
    stream.sock.allow(HELLO_TIME_MAX);
    // Whoever has left already does not need it.
    let _ = send(stream, &Message::Goodbye { reason }, PLAN_BYTES_MAX);
    stream.conn.send_close_notify();
    let _ = stream.flush();
}
