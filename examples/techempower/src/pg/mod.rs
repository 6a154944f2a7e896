//! A connection to PostgreSQL for one thread: the statements of all requests of a turn are sent with one
//! `send`, and their responses are received with one `recv`.
//!
//! ```text
//! handlers ── ask ──> out ──┐                 ┌──> socket
//!                           ├── drive, a task ┤
//! handlers <── wake ── queue <┘               └──< socket
//! ```
//!
//! Responses come in the order of the statements, so a queue of waiting handlers is enough to assign them. A
//! handler that sends several statements at once is woken once. Nothing is shared between threads, and
//! nothing is allocated per row.

mod handshake;
mod messages;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub use messages::{Rows, Statements};

/// Statements whose responses have not come; further ones are refused.
const WAITING_MAX: usize = 1 << 16;

/// Size of the receive buffer.
const READ_BYTES: usize = 64 << 10;

/// The way to the database of one thread.
pub struct Connection(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// Not sent yet.
    out: BytesMut,
    /// The waiting handlers, in the order of the statements.
    queue: VecDeque<Rc<RefCell<Waiting>>>,
    statements_waiting: usize,
    /// Of the task that sends and receives.
    driver: Option<Waker>,
    is_closed: bool,
}

/// One `ask`: several statements.
#[derive(Default)]
struct Waiting {
    statements_left: usize,
    rows: Vec<u8>,
    fault: Option<String>,
    waker: Option<Waker>,
}

impl Connection {
    /// Connects and prepares these statements, named by their places.
    ///
    /// # Errors
    /// It cannot be reached, or refuses.
    pub async fn open(config: &tokio_postgres::Config, statements: &[&str]) -> io::Result<Connection> {
        let stream = handshake::connect(config, statements).await?;
        let state = Rc::new(RefCell::new(State::default()));
        tokio::task::spawn_local(drive(state.clone(), stream));
        Ok(Connection(state))
    }

    /// Whether it has broken.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().is_closed
    }

    /// Sends the statements that `write` adds, and returns their rows when all have arrived.
    ///
    /// # Errors
    /// The connection has broken, a statement was refused, or too many wait.
    pub async fn ask(&self, write: impl FnOnce(&mut Statements<'_>)) -> io::Result<Rows> {
        let waiting = self.0.borrow_mut().ask(write)?;
        std::future::poll_fn(move |context| waiting.borrow_mut().poll(context)).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.borrow_mut().close("the connection was given up");
    }
}

impl State {
    fn ask(&mut self, write: impl FnOnce(&mut Statements<'_>)) -> io::Result<Rc<RefCell<Waiting>>> {
        if self.is_closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if self.statements_waiting >= WAITING_MAX {
            return Err(io::Error::other("too many statements wait"));
        }
        let was_empty = self.out.is_empty();
        let mut statements = Statements::new(&mut self.out);
        write(&mut statements);
        let count = statements.count();
        self.statements_waiting += count;
        let waiting = Rc::new(RefCell::new(Waiting { statements_left: count, ..Waiting::default() }));
        if count > 0 {
            self.queue.push_back(waiting.clone());
        }
        if was_empty && let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
        Ok(waiting)
    }

    /// Takes one message. Only those that a prepared statement brings are looked at.
    fn take(&mut self, tag: u8, body: &[u8]) -> io::Result<()> {
        if !matches!(tag, b'D' | b'E' | b'Z') {
            return Ok(());
        }
        let Some(waiting) = self.queue.front() else {
            // The server sends the reason before it closes.
            return Err(io::Error::other(messages::fault(body)));
        };
        let mut first = waiting.borrow_mut();
        match tag {
            b'D' => first.rows.extend_from_slice(body),
            b'E' => first.fault = Some(messages::fault(body)),
            _ => {
                first.statements_left -= 1;
                self.statements_waiting -= 1;
                if first.statements_left == 0 {
                    first.wake();
                    drop(first);
                    self.queue.pop_front();
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, why: &str) {
        self.is_closed = true;
        for waiting in self.queue.drain(..) {
            let mut waiting = waiting.borrow_mut();
            waiting.statements_left = 0;
            waiting.fault = Some(why.to_owned());
            waiting.wake();
        }
        self.driver.take().into_iter().for_each(Waker::wake);
    }
}

impl Waiting {
    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<io::Result<Rows>> {
        if self.statements_left > 0 {
            self.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(match self.fault.take() {
            Some(fault) => Err(io::Error::other(fault)),
            None => Ok(Rows::new(std::mem::take(&mut self.rows))),
        })
    }
}

/// Received data that was not consumed yet.
struct Input {
    bytes: Vec<u8>,
    filled: usize,
}

/// Sends and receives until the connection has ended.
async fn drive(state: Rc<RefCell<State>>, mut stream: TcpStream) {
    let mut input = Input { bytes: vec![0; READ_BYTES], filled: 0 };
    let ended: io::Error = std::future::poll_fn(|context| {
        let mut state = state.borrow_mut();
        if state.is_closed {
            return Poll::Ready(io::ErrorKind::NotConnected.into());
        }
        let mut turn = || {
            let _ = state.send(&mut stream, context)?;
            state.receive(&mut stream, &mut input, context)
        };
        match turn() {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => return Poll::Ready(io::ErrorKind::ConnectionReset.into()),
            Err(error) => return Poll::Ready(error),
        }
        if !state.driver.as_ref().is_some_and(|driver| driver.will_wake(context.waker())) {
            state.driver = Some(context.waker().clone());
        }
        Poll::Pending
    })
    .await;
    state.borrow_mut().close(&ended.to_string());
}

impl State {
    /// Ready when all of it was sent.
    fn send(&mut self, stream: &mut TcpStream, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        while !self.out.is_empty() {
            match Pin::new(&mut *stream).poll_write(context, &self.out)? {
                Poll::Ready(sent) => self.out.advance(sent),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Ready when the server has closed.
    fn receive(
        &mut self,
        stream: &mut TcpStream,
        input: &mut Input,
        context: &mut Context<'_>,
    ) -> io::Result<Poll<()>> {
        loop {
            let mut room = ReadBuf::new(&mut input.bytes[input.filled..]);
            match Pin::new(&mut *stream).poll_read(context, &mut room)? {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(()) if room.filled().is_empty() => return Ok(Poll::Ready(())),
                Poll::Ready(()) => input.filled += room.filled().len(),
            }
            let mut taken = 0;
            while let Some((tag, body)) = messages::first(&input.bytes[taken..input.filled])? {
                self.take(tag, body)?;
                taken += messages::HEAD_BYTES + body.len();
            }
            input.bytes.copy_within(taken..input.filled, 0);
            input.filled -= taken;
            if input.filled == input.bytes.len() {
                // One message is larger: `first` has a limit for those.
                input.bytes.resize(input.filled * 2, 0);
            }
        }
    }
}
