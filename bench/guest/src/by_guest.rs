//! A service that queries its upstream through guests: connections in the worker's own lane, without a future or a
//! task.
//!
//! ```text
//! request ── call: park, send the question on an idle link ──▶ upstream
//! response ◀── ready: receive, answer by the exchange's key ── upstream
//! ```

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use flatout_engine::{
    ExchangeKey, GuestEvent, GuestKey, Guests, Lane, Moved, Reply, Request, Response, Service, Worker,
};
use flatout_wire::Status;

use crate::{LINE_BYTES_MAX, LINKS_MAX, QUESTION};

struct ByGuest(Rc<Pool>);

/// Connections to the upstream. A guest's tag is the index of its link.
struct Pool {
    lane: Lane,
    upstream: SocketAddr,
    links: RefCell<Vec<Option<Link>>>,
    idle: RefCell<Vec<usize>>,
}

struct Link {
    guest: GuestKey,
    /// The request that waits for the response.
    exchange: Option<ExchangeKey>,
    /// The response so far.
    response: Response,
}

pub(crate) fn service(worker: Worker, upstream: SocketAddr) -> Box<dyn Service> {
    let pool = Pool { lane: worker.lane, upstream, links: RefCell::default(), idle: RefCell::default() };
    Box::new(ByGuest(Rc::new(pool)))
}

impl Service for ByGuest {
    fn call(&self, request: Request<'_>, response: &mut Response) -> Reply {
        let idle = self.0.idle.borrow_mut().pop();
        let index = match idle.map_or_else(|| self.0.connect(), Ok) {
            Ok(index) => index,
            Err(error) => {
                let is_full = error.kind() == io::ErrorKind::QuotaExceeded;
                response.set_status(if is_full { Status::SERVICE_UNAVAILABLE } else { Status::BAD_GATEWAY });
                return Reply::Now;
            }
        };
        self.0.ask(index, request.park());
        Reply::Parked
    }
}

impl Guests for Pool {
    fn ready(&self, guest: GuestKey, tag: u64, event: GuestEvent) {
        let index = tag as usize;
        let GuestEvent::Socket(ready) = event else { return };
        if !ready.readable() && !ready.hung_up() {
            return;
        }
        let mut buffer = self.lane.buffer();
        let goes_on = match self.lane.receive(guest, &mut buffer) {
            Moved::Bytes(count @ 1..) => self.received(index, &buffer[..count]),
            Moved::WouldBlock => true,
            Moved::Bytes(0) | Moved::Broken => false,
        };
        // EOF after the bytes of a response is not reported a second time.
        if !goes_on || ready.read_closed() {
            self.close(index);
        }
    }
}

impl Pool {
    /// Connects while the worker waits: acceptable for a near upstream, and only until all links exist.
    fn connect(self: &Rc<Self>) -> io::Result<usize> {
        let mut links = self.links.borrow_mut();
        let index = links.iter().position(Option::is_none).unwrap_or(links.len());
        if index == LINKS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let stream = TcpStream::connect(self.upstream)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let guest = self.lane.register(stream.into(), self.clone(), index as u64)?;
        let link = Some(Link { guest, exchange: None, response: Response::new() });
        if index == links.len() {
            links.push(link);
        } else {
            links[index] = link;
        }
        Ok(index)
    }

    fn ask(&self, index: usize, exchange: ExchangeKey) {
        let mut links = self.links.borrow_mut();
        let Some(Some(link)) = links.get_mut(index) else { return };
        link.exchange = Some(exchange);
        let sent = self.lane.send(link.guest, QUESTION);
        drop(links);
        if sent != Moved::Bytes(QUESTION.len()) {
            self.close(index);
        }
    }

    /// Whether the link can continue.
    fn received(&self, index: usize, bytes: &[u8]) -> bool {
        let mut links = self.links.borrow_mut();
        let Some(Some(link)) = links.get_mut(index) else { return false };
        let line = link.response.buffer();
        line.extend_from_slice(bytes);
        if !line.ends_with(b"\n") {
            return line.len() <= LINE_BYTES_MAX;
        }
        // Without a request this is not a response, and the next one would be confused with another's.
        let Some(exchange) = link.exchange.take() else { return false };
        let mut response = std::mem::replace(&mut link.response, Response::new());
        response.header("Content-Type", "text/plain");
        // If the client has disconnected meanwhile, the link is reusable.
        self.lane.answer(exchange, response);
        self.idle.borrow_mut().push(index);
        true
    }

    fn close(&self, index: usize) {
        self.idle.borrow_mut().retain(|idle| *idle != index);
        let Some(link) = self.links.borrow_mut().get_mut(index).and_then(Option::take) else { return };
        self.lane.remove(link.guest);
        if let Some(exchange) = link.exchange {
            self.lane.answer(exchange, Response::with_status(Status::BAD_GATEWAY));
        }
    }
}
