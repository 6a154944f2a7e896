//! Early data (0-RTT): accepted early data, responses to it, and replays.

mod support;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use flatout_lane::socket::Moved;
use flatout_tls::{Acceptor, Channel, Selector, ServerPlan};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use support::{Folder, pair, server};

/// Bytes of early data that a ticket allows.
const EARLY_BYTES: usize = 16 << 10;

fn plan(folder: &Folder) -> ServerPlan {
    ServerPlan { early_data: true, ..server(vec![folder.sign("server", &["localhost"])]) }
}

/// A client that sends early data where a ticket allows it.
fn client(folder: &Folder) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.authority()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.enable_early_data = true;
    Arc::new(config)
}

/// Both ends of a connection whose client has sent its hello, and these bytes with it; and the client's bytes as they were sent.
struct Begun {
    server: Channel,
    client: ClientConnection,
    socket: UnixStream,
    sent: Vec<u8>,
}

fn begin(acceptor: &Acceptor, config: &Arc<ClientConfig>, early: &[u8]) -> Begun {
    let mut client = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
    if !early.is_empty() {
        client.early_data().expect("a ticket allows early data").write_all(early).unwrap();
    }
    let mut sent = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut sent).unwrap();
    }
    let (server, socket) = accepted(acceptor, &sent);
    Begun { server, client, socket, sent }
}

/// A server's end that has been sent these bytes.
fn accepted(acceptor: &Acceptor, sent: &[u8]) -> (Channel, UnixStream) {
    let (one, mut other) = pair();
    other.write_all(sent).unwrap();
    (acceptor.accept(OwnedFd::from(one), 0).unwrap(), other)
}

impl Begun {
    /// The data that the server receives now.
    fn received(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; 2 * EARLY_BYTES];
        match self.server.receive(&mut buffer) {
            Moved::Bytes(count) => buffer[..count].to_vec(),
            Moved::WouldBlock => Vec::new(),
            Moved::Broken => panic!("{:?}", self.server.fault()),
        }
    }

    /// The data that the client receives now, without sending.
    fn answered(&mut self) -> Vec<u8> {
        while self.client.read_tls(&mut self.socket).is_ok_and(|count| count > 0) {
            self.client.process_new_packets().unwrap();
        }
        let mut plain = Vec::new();
        let _ = self.client.reader().read_to_end(&mut plain);
        plain
    }

    fn send(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.socket).unwrap();
        }
    }
}

/// A first connection, whose tickets the client keeps.
fn meet(acceptor: &Acceptor, config: &Arc<ClientConfig>) {
    let mut begun = begin(acceptor, config, b"");
    for _ in 0..3 {
        assert_eq!(begun.received(), b"");
        begun.answered();
        begun.send();
    }
    assert!(begun.server.is_open() && !begun.server.is_early());
}

#[test]
fn early_data_is_served_during_the_handshake() {
    let folder = Folder::new();
    let (acceptor, config) = (Acceptor::open(plan(&folder)).unwrap(), client(&folder));
    meet(&acceptor, &config);
    let mut begun = begin(&acceptor, &config, b"early");
    assert_eq!(begun.received(), b"early");
    assert!(begun.server.is_open() && begun.server.is_early() && begun.server.has_opened());
    assert_eq!(begun.server.protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(begun.server.send(b"answer"), Moved::Bytes(6));
    assert_eq!(begun.answered(), b"answer", "without a further word of the client's");
    assert!(begun.client.is_early_data_accepted() && begun.server.is_early());
    begun.client.writer().write_all(b"late").unwrap();
    begun.send();
    assert_eq!(begun.received(), b"late");
    assert!(!begun.server.is_early(), "now the client is known to be there");
    assert_eq!(begun.server.send(b"more"), Moved::Bytes(4));
    assert_eq!(begun.answered(), b"more");
    assert_eq!(begun.server.bytes_kept(), 0);
    let counted = acceptor.counted();
    assert_eq!((counted.full, counted.resumed, counted.failed), (1, 1, 0));
}

#[test]
fn early_data_can_arrive_byte_by_byte() {
    let folder = Folder::new();
    let (acceptor, config) = (Acceptor::open(plan(&folder)).unwrap(), client(&folder));
    meet(&acceptor, &config);
    let mut client = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
    let mut sent = Vec::new();
    for part in [&b"ear"[..], b"ly"] {
        client.early_data().unwrap().write_all(part).unwrap();
        client.write_tls(&mut sent).unwrap();
    }
    while client.wants_write() {
        client.write_tls(&mut sent).unwrap();
    }
    let (server, socket) = accepted(&acceptor, b"");
    let mut begun = Begun { server, client, socket, sent };
    let mut received = Vec::new();
    for byte in begun.sent.clone() {
        begun.socket.write_all(&[byte]).unwrap();
        received.extend(begun.received());
    }
    assert_eq!(received, b"early");
    // Responses go between its parts, and the handshake ends all the same.
    assert_eq!(begun.server.send(b"answer"), Moved::Bytes(6));
    assert_eq!(begun.answered(), b"answer");
    begun.send();
    assert_eq!(begun.received(), b"");
    assert!(begun.server.is_open() && !begun.server.is_early());
}

#[test]
fn replayed_early_data_is_not_accepted() {
    let folder = Folder::new();
    let (acceptor, config) = (Acceptor::open(plan(&folder)).unwrap(), client(&folder));
    meet(&acceptor, &config);
    let mut begun = begin(&acceptor, &config, b"early");
    assert_eq!(begun.received(), b"early");
    for _ in 0..3 {
        let (mut server, _socket) = accepted(&acceptor, &begun.sent);
        assert_eq!(server.receive(&mut [0; 99]), Moved::WouldBlock, "the session is used up");
        assert!(!server.is_open());
    }
}

#[test]
fn early_data_must_be_enabled_and_is_limited() {
    let folder = Folder::new();
    let without = ServerPlan { early_data: false, ..plan(&folder) };
    let (acceptor, config) = (Acceptor::open(without.clone()).unwrap(), client(&folder));
    meet(&acceptor, &config);
    let mut next = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
    assert!(next.early_data().is_none(), "off unless it is asked for");
    let (acceptor, config) = (Acceptor::open(plan(&folder)).unwrap(), client(&folder));
    meet(&acceptor, &config);
    let most = vec![b'x'; EARLY_BYTES];
    let mut begun = begin(&acceptor, &config, &most);
    assert!(begun.client.early_data().is_none_or(|early| early.bytes_left() == 0));
    assert!(begun.received() == most);
    // After it was disabled, earlier tickets are not accepted for early data.
    meet(&acceptor, &config);
    acceptor.replace(acceptor.prepare(without, Selector::default()).unwrap());
    let mut begun = begin(&acceptor, &config, b"early");
    assert_eq!(begun.received(), b"");
    begun.answered();
    begun.send();
    assert_eq!(begun.received(), b"");
    assert!(begun.server.is_open() && !begun.client.is_early_data_accepted());
}

#[test]
fn sessions_survive_a_reload_unless_the_client_ca_changes() {
    let folder = Folder::new();
    let (acceptor, config) = (Acceptor::open(plan(&folder)).unwrap(), client(&folder));
    meet(&acceptor, &config);
    acceptor.replace(acceptor.prepare(plan(&folder), Selector::default()).unwrap());
    assert_eq!(begin(&acceptor, &config, b"early").received(), b"early");
    let clients = folder.clients(false);
    acceptor.replace(
        acceptor
            .prepare(ServerPlan { clients: Some(clients), ..plan(&folder) }, Selector::default())
            .unwrap(),
    );
    assert_eq!(begin(&acceptor, &config, b"early").received(), b"");
}
