//! Listening TCP sockets: their queues, their backlogs, and the connections that they had no room for.

use rustix::io::Errno;

use super::{Attributes, DUMP, Fault, Message, Protocol, REQUEST, Request, cut, find, number};
use crate::host::Host;

/// A socket that listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListeningQueue {
    /// Connections that the server has not accepted yet.
    pub(crate) waiting: u64,
    /// How many may wait: what the server has asked for, at most `net.core.somaxconn` of then.
    pub(crate) backlog: u64,
    /// Connections that were dropped since it listens, most of them because the queue was full.
    pub(crate) drops: u64,
}

const BY_FAMILY: u16 = 20;
const FAMILIES: [u8; 2] = [2, 10];
const TCP: u8 = 6;
/// A bit for each state of TCP; the tenth is LISTEN.
const LISTEN: u32 = 1 << 10;

/// Memory and drops of a socket: a list of numbers of 4 bytes.
const MEMORY: u16 = 7;
const DROPS: std::ops::Range<usize> = 32..36;

/// Of a request: family, protocol, extensions, a zero, states, and the address of a socket, which is not used.
const ASK_BYTES: usize = 56;
/// Of a message: family, state, two more, the address, and five numbers.
const HEAD_BYTES: usize = 72;
const PORT: std::ops::Range<usize> = 4..6;
const WAITING: std::ops::Range<usize> = 56..60;
const BACKLOG: std::ops::Range<usize> = 60..64;

/// The sockets that listen on a TCP port.
pub(crate) fn listening(host: &Host, port: u16) -> Result<Vec<ListeningQueue>, Fault> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut head = [0; ASK_BYTES];
        head[..3].copy_from_slice(&[family, TCP, 1 << (MEMORY - 1)]);
        head[4..8].copy_from_slice(&LISTEN.to_ne_bytes());
        let request = Request::new(BY_FAMILY, REQUEST | DUMP, &head, &Attributes::new());
        match host.ask(Protocol::SocketDiagnosis, &request) {
            // A kernel without IPv6.
            Err(Fault::Refused(Errno::NOENT | Errno::AFNOSUPPORT)) if !found.is_empty() => {}
            messages => {
                for message in messages?.iter().filter(|it| it.kind == BY_FAMILY) {
                    found.extend(at_port(message, port)?);
                }
            }
        }
    }
    Ok(found)
}

fn at_port(message: &Message, port: u16) -> Result<Option<ListeningQueue>, Fault> {
    let (head, attributes) = message.split(HEAD_BYTES)?;
    if head.get(PORT) != Some(&port.to_be_bytes()) {
        return Ok(None);
    }
    let word = |range| head.get(range).and_then(number).ok_or_else(cut);
    let memory = find(&attributes, MEMORY);
    Ok(Some(ListeningQueue {
        waiting: word(WAITING)?,
        backlog: word(BACKLOG)?,
        drops: memory.and_then(|it| number(it.get(DROPS)?)).unwrap_or_default(),
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// The real kernel: it knows a socket's queue and drops.
    #[test]
    fn the_queue_of_a_listening_socket_is_read() {
        let host = Host::live();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let queue = || match listening(&host, port) {
            Ok(found) => Some(found),
            // A container may forbid it.
            Err(Fault::Refused(_)) => None,
            Err(fault) => panic!("{fault:?}"),
        };
        let Some(before) = queue() else { return };
        assert_eq!(before.len(), 1);
        assert_eq!((before[0].waiting, before[0].drops), (0, 0));
        assert!(before[0].backlog > 0);
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"x").unwrap();
        assert_eq!(queue().unwrap()[0].waiting, 1);
        drop(listener.accept().unwrap());
        assert_eq!(queue().unwrap()[0].waiting, 0);
        assert_eq!(listening(&host, 1), Ok(Vec::new()), "nobody listens there");
    }
}
