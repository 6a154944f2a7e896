//! Connections with TLS that are passed on, as they are or what is inside: from the decision of the sites to the log line.

use std::net::SocketAddr;
use std::rc::Rc;

use flatout_engine::{Begun, Ended, Outcome, TlsRoute};
use flatout_lane::clock;
use flatout_observe::observed::{Notes, Observer, RequestLogs};
use flatout_proxy::{Passthrough, PassthroughEnd, PassthroughEnding, ProxyWorker};
use flatout_wire::Status;

/// A connection that is passed on to this upstream, and how it is logged.
pub(crate) struct PassedConnection {
    pub(crate) proxy_worker: Rc<ProxyWorker>,
    /// `None`: it is closed.
    pub(crate) upstream: Option<usize>,
    pub(crate) site: u16,
    pub(crate) logs: RequestLogs,
}

impl PassedConnection {
    /// Passes the connection on as soon as it is taken. Its line in the logs, and what it adds to the metrics of its site, follow when
    /// it has ended.
    pub(crate) fn route(
        self,
        name: Option<&str>,
        peer: Option<SocketAddr>,
        observer: Option<Rc<Observer>>,
    ) -> TlsRoute {
        let name = name.unwrap_or("-").to_owned();
        let ending = self.begin(&name, peer, observer);
        let PassedConnection { proxy_worker, upstream, .. } = self;
        let Some(upstream) = upstream else {
            ending.refuse_unresolved();
            return TlsRoute::Refuse;
        };
        TlsRoute::Take(Box::new(move |client| {
            proxy_worker.carry(upstream, &name, Passthrough { client, ending });
            Box::pin(std::future::ready(()))
        }))
    }

    /// The same with what is inside its TLS, which ends here. It begins after the handshake: one that fails is no connection.
    pub(crate) fn route_inside(
        self,
        name: Option<&str>,
        peer: Option<SocketAddr>,
        observer: Option<Rc<Observer>>,
    ) -> TlsRoute {
        let Some(upstream) = self.upstream else { return self.route(name, peer, observer) };
        let name = name.unwrap_or("-").to_owned();
        TlsRoute::TakeInside(Box::new(move |client| {
            let ending = self.begin(&name, peer, observer);
            self.proxy_worker.carry(upstream, &name, Passthrough { client, ending });
            Box::pin(std::future::ready(()))
        }))
    }

    /// Begins the line of the connection, which its end completes.
    fn begin(
        &self,
        name: &str,
        peer: Option<SocketAddr>,
        observer: Option<Rc<Observer>>,
    ) -> PassthroughEnding {
        let began_ns = clock::nanoseconds();
        let observed = observer.map(|observer| (begun(name, peer, &observer), observer));
        let of = (self.site, self.logs);
        PassthroughEnding::new(move |end| {
            if let Some((mark, observer)) = observed {
                observer.ended(&ended(end, (began_ns, mark), of));
            }
        })
    }
}

/// Notes a connection that is passed on to nobody: no site has its name, or one denies its client.
pub(crate) fn note_refused(
    name: Option<&str>,
    peer: Option<SocketAddr>,
    observer: &Observer,
    of: (u16, RequestLogs),
) {
    let began_ns = clock::nanoseconds();
    let mark = begun(name.unwrap_or("-"), peer, observer);
    let end = PassthroughEnd {
        status: Status::FORBIDDEN,
        outcome: Outcome::Refused,
        received_bytes: 0,
        sent_bytes: 0,
        note: 0,
    };
    observer.ended(&ended(end, (began_ns, mark), of));
}

/// Begins the line of a connection. Returns its mark.
fn begun(name: &str, peer: Option<SocketAddr>, observer: &Observer) -> u64 {
    let line = format!("TLS {name}");
    observer
        .begun(&Begun { head: None, refused: line.as_bytes(), peer, tls: None, listener: 0, number: 0 }, 0)
}

fn ended(end: PassthroughEnd, (began_ns, mark): (u64, u64), (site, logs): (u16, RequestLogs)) -> Ended {
    let now = clock::now();
    let ended_ns = clock::nanoseconds();
    Ended {
        status: Some(end.status),
        received_bytes: end.received_bytes,
        sent_bytes: end.sent_bytes,
        sent_head_bytes: 0,
        began_ns,
        first_byte_ns: None,
        ended_ns,
        unix_ns: ended_ns + now.unix_offset_ns,
        outcome: end.outcome,
        mark,
        note: Notes::routed(end.note, site, logs, 0),
    }
}
