//! Post-handshake messages in pieces, which no usual client sends.

mod support;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use flatout_lane::socket::Moved;
use flatout_tls::Channel;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CipherSuite, ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore};
use support::{Folder, pair};

/// A client that encrypts records itself.
struct Sealer {
    stream: UnixStream,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Sealer {
    /// Sends one record.
    fn send(&mut self, content_type: u8, contents: &[u8]) {
        let mut inner = [contents, &[content_type]].concat();
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        self.sequence += 1;
        let length = (inner.len() + 16) as u16;
        let head = [23, 3, 3, (length >> 8) as u8, length as u8];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(head), &mut inner).unwrap();
        self.stream.write_all(&[&head[..], &inner].concat()).unwrap();
    }
}

/// A server, and its client after the handshake.
fn open(folder: &Folder) -> (Channel, Sealer) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.authority()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.enable_secret_extraction = true;
    let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let (one, mut stream) = pair();
    let mut server = folder.acceptor().accept(OwnedFd::from(one), 0).unwrap();
    while !server.is_open() {
        while client.wants_write() {
            client.write_tls(&mut stream).unwrap();
        }
        server.shake();
        if client.read_tls(&mut stream).is_ok() {
            client.process_new_packets().unwrap();
        }
    }
    assert_eq!(client.negotiated_cipher_suite().unwrap().suite(), CipherSuite::TLS13_AES_256_GCM_SHA384);
    let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
    let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("another cipher") };
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).unwrap());
    (server, Sealer { stream, key, iv: iv.as_ref().try_into().unwrap(), sequence })
}

const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A key update that requests a reply (RFC 8446 section 4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn a_response_can_be_sent_between_the_pieces_of_a_message() {
    let folder = Folder::new();
    for cut in 1..KEY_UPDATE.len() {
        let (mut server, mut client) = open(&folder);
        let mut buffer = [0; 99];
        client.send(DATA, b"GET");
        client.send(HANDSHAKE, &KEY_UPDATE[..cut]);
        assert_eq!(server.receive(&mut buffer), Moved::Bytes(3));
        assert_eq!(server.send(b"200"), Moved::Bytes(3), "cut at {cut}");
        client.send(HANDSHAKE, &KEY_UPDATE[cut..]);
        assert_eq!(server.receive(&mut buffer), Moved::WouldBlock, "{:?}", server.fault());
        assert_eq!(server.send(b"200"), Moved::Bytes(3));
        assert_eq!(server.bytes_kept(), 0);
        let mut back = [0; 999];
        assert!(client.stream.read(&mut back).unwrap() > 3 * 22);
        server.end();
    }
}

#[test]
fn a_message_that_is_not_ended_is_a_fault_and_not_the_end_of_the_program() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    client.send(HANDSHAKE, &KEY_UPDATE[..2]);
    client.send(DATA, b"GET");
    assert_eq!(server.receive(&mut [0; 99]), Moved::Broken);
    assert!(server.fault().is_some());
    server.end();
    server.shut_down();
    assert_eq!(server.receive(&mut [0; 99]), Moved::Broken);
}

#[test]
fn records_without_contents_end_the_connection() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    for _ in 0..40 {
        client.send(DATA, b"");
    }
    assert_eq!(server.receive(&mut [0; 99]), Moved::Broken);
    let (mut server, mut client) = open(&folder);
    for _ in 0..40 {
        client.send(HANDSHAKE, &KEY_UPDATE);
        // Every update changes the client's keys too, which it does not know: the second record cannot be decrypted.
    }
    assert_eq!(server.receive(&mut [0; 99]), Moved::Broken);
    assert!(server.bytes_kept() < 1000);
}

#[test]
fn any_changed_byte_is_a_fault() {
    let folder = Folder::new();
    for at in (0..60).step_by(7) {
        let (mut server, mut client) = open(&folder);
        client.send(DATA, b"GET");
        client.send(HANDSHAKE, &KEY_UPDATE[..2]);
        let (one, _other) = pair();
        let mut bytes = [0; 60];
        let stream = std::mem::replace(&mut client.stream, one);
        drop(stream.try_clone().unwrap().read(&mut [0; 1 << 16]));
        bytes[at] ^= 1;
        (&stream).write_all(&bytes).unwrap();
        for _ in 0..3 {
            server.receive(&mut [0; 99]);
            server.send(b"200");
        }
        assert!(server.fault().is_some());
    }
}
