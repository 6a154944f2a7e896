//! Both ends of a connection, over real sockets.

mod support;

use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::OwnedFd;

use flatout_lane::pipe::Pipe;
use flatout_lane::socket::Moved;
use flatout_tls::{Channel, Connector, Fault, Shake};
use support::{Folder, ends, pair, shaken};

/// Bytes that are not all alike.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn open(folder: &Folder) -> (Channel, Channel) {
    let connector = Connector::open(&folder.trusting(), "localhost").unwrap();
    let (server, client) = shaken(&folder.acceptor(), &connector);
    assert!(server.is_open() && client.is_open(), "{:?} {:?}", server.fault(), client.fault());
    (server, client)
}

/// Receives all available data, in pieces of `piece` bytes.
fn receive_all(channel: &mut Channel, piece: usize, into: &mut Vec<u8>) -> Moved {
    let mut buffer = vec![0; piece];
    loop {
        match channel.receive(&mut buffer) {
            Moved::Bytes(count @ 1..) => into.extend_from_slice(&buffer[..count]),
            other => return other,
        }
    }
}

#[test]
fn handshakes_agree_on_common_parameters() {
    let folder = Folder::new();
    let (server, client) = open(&folder);
    for channel in [&server, &client] {
        assert_eq!(channel.protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(channel.cipher().unwrap().0, "TLSv1.3");
        assert!(!channel.is_resumed());
        assert_eq!(channel.bytes_kept(), 0, "an idle connection owns no buffer");
    }
    assert!(client.peer_certificate().is_some() && server.peer_certificate().is_none());
}

#[test]
fn a_second_connection_goes_on_from_the_first() {
    let folder = Folder::new();
    let (acceptor, connector) =
        (folder.acceptor(), Connector::open(&folder.trusting(), "localhost").unwrap());
    let (_server, mut client) = shaken(&acceptor, &connector);
    assert_eq!(client.receive(&mut [0; 9]), Moved::WouldBlock, "the tickets are taken in");
    let (server, client) = shaken(&acceptor, &connector);
    assert!(server.is_resumed() && client.is_resumed());
    let counted = acceptor.counted();
    assert_eq!((counted.full, counted.resumed, counted.failed), (1, 1, 0));
}

#[test]
fn bytes_of_any_size_arrive_unchanged() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    for count in [1, 1369, 1370, 1371, 5480, 5481, 16 << 10, (16 << 10) + 1, 300_000] {
        for piece in [1 << 16, 4096, 1000] {
            let sent = bytes(count);
            let mut at = 0;
            let mut received = Vec::new();
            while received.len() < count {
                if at < count {
                    match server.send(&sent[at..]) {
                        Moved::Bytes(moved) => at += moved,
                        Moved::WouldBlock => assert!(server.wants_room()),
                        Moved::Broken => panic!("{:?}", server.fault()),
                    }
                }
                assert_eq!(receive_all(&mut client, piece, &mut received), Moved::WouldBlock);
            }
            assert!(at == count && received == sent, "{count} bytes in pieces of {piece}");
            assert_eq!((server.bytes_kept(), client.bytes_kept()), (0, 0));
        }
    }
}

#[test]
fn a_short_receive_has_emptied_the_socket() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    for piece in [100, 1000, 20_000] {
        for _ in 0..3 {
            assert_eq!(server.send(&bytes(piece)), Moved::Bytes(piece));
        }
        let mut received = 0;
        let mut buffer = [0; 4096];
        loop {
            match client.receive(&mut buffer) {
                Moved::Bytes(count) => received += count,
                other => panic!("{other:?}: no event would report the rest"),
            }
            if received == 3 * piece {
                break;
            }
        }
    }
}

#[test]
fn a_full_socket_takes_the_rest_later() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    let sent = bytes(4 << 20);
    let mut at = 0;
    let mut stops = 0;
    let mut received = Vec::new();
    while at < sent.len() {
        // A smaller offer than before, as from a queue with other limits.
        let offer = (sent.len() - at).min(if stops % 2 == 0 { 1 << 20 } else { 1000 });
        match server.send(&sent[at..at + offer]) {
            Moved::Bytes(count) => {
                at += count;
                if count < offer {
                    assert!(server.wants_room(), "a partial send means that the socket is full");
                }
            }
            Moved::WouldBlock => {
                stops += 1;
                assert!(server.wants_room());
                assert_eq!(receive_all(&mut client, 10_000, &mut received), Moved::WouldBlock);
            }
            Moved::Broken => panic!("{:?}", server.fault()),
        }
    }
    receive_all(&mut client, 10_000, &mut received);
    assert!(stops > 3 && received == sent);
}

#[test]
fn slices_files_and_pipes_are_sent_as_well() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    let mut received = Vec::new();
    let (one, two) = (bytes(700), bytes(90_000));
    let slices = [IoSlice::new(&one), IoSlice::new(&[]), IoSlice::new(&two)];
    assert_eq!(server.send_slices(&slices, true), Moved::Bytes(90_700));
    receive_all(&mut client, 4096, &mut received);
    assert!(received == [one, two].concat());

    let contents = bytes(100_000);
    let mut file = std::fs::File::create_new(folder.path().join("file")).unwrap();
    file.write_all(&contents).unwrap();
    let mut file = std::fs::File::open(folder.path().join("file")).unwrap();
    file.rewind().unwrap();
    received.clear();
    assert_eq!(server.send_file(&file, 10, 90_000), Moved::Bytes(90_000));
    receive_all(&mut client, 4096, &mut received);
    assert!(received == contents[10..90_010]);
    assert_eq!(server.send_file(&file, 100_000, 1), Moved::Bytes(0), "the file ends there");

    let (mut from, to) = std::os::unix::net::UnixStream::pair().unwrap();
    from.write_all(&contents[..50_000]).unwrap();
    let mut pipe = Pipe::new().unwrap();
    let filled = pipe.fill(std::os::fd::AsFd::as_fd(&to), 50_000);
    let Moved::Bytes(filled) = filled else { panic!("{filled:?}") };
    received.clear();
    assert_eq!(server.send_pipe(&mut pipe, usize::MAX, false), Moved::Bytes(filled));
    assert_eq!(pipe.bytes(), 0);
    receive_all(&mut client, 4096, &mut received);
    assert!(received == contents[..filled]);
}

#[test]
fn an_announced_end_is_no_truncation() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    assert_eq!(server.send(b"all"), Moved::Bytes(3));
    server.shut_down();
    let mut buffer = [0; 99];
    assert_eq!(client.receive(&mut buffer), Moved::Bytes(3));
    assert!(client.holds_end(), "no event reports it");
    assert_eq!(client.receive(&mut buffer), Moved::Bytes(0));
    assert_eq!(client.send(b"still"), Moved::Bytes(5), "one side has ended, not both");
    assert_eq!(server.receive(&mut buffer), Moved::Bytes(5));
    assert_eq!(server.send(b"more"), Moved::Broken);
}

#[test]
fn an_end_that_is_not_announced_is_one() {
    let folder = Folder::new();
    let (mut server, mut client) = open(&folder);
    assert_eq!(server.send(b"part"), Moved::Bytes(4));
    drop(server);
    let mut received = Vec::new();
    assert_eq!(receive_all(&mut client, 99, &mut received), Moved::Broken);
    assert_eq!((&received[..], client.fault()), (&b"part"[..], Some(&Fault::Truncated)));
}

/// Sends bytes as a foreign client. Returns the channel and the response.
fn exchange(folder: &Folder, sent: &[u8]) -> (Channel, Vec<u8>) {
    let (one, mut other) = pair();
    let mut server = folder.acceptor().accept(OwnedFd::from(one), 0).unwrap();
    let mut at = 0;
    while at < sent.len() {
        at += other.write(&sent[at..]).unwrap_or(0);
        if server.shake() == Shake::Failed {
            break;
        }
    }
    server.shake();
    let mut back = vec![0; 1 << 16];
    let count = other.read(&mut back).unwrap_or(0);
    back.truncate(count);
    (server, back)
}

#[test]
fn connections_without_tls_get_an_alert() {
    let folder = Folder::new();
    for sent in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 100], &[22, 3, 1, 255, 255, 1, 2, 3]] {
        let (server, back) = exchange(&folder, sent);
        assert!(server.fault().is_some(), "{sent:?}");
        assert_eq!((back.first(), back.len()), (Some(&21), 7), "an alert");
    }
}

#[test]
fn a_hello_that_does_not_end_is_kept_within_a_limit() {
    let folder = Folder::new();
    // Records of 1 KiB with parts of a handshake message that claims to be 60 KB.
    let mut sent = vec![22, 3, 1, 4, 0, 1, 0, 0xea, 0x60];
    sent.extend_from_slice(&[0; 1020]);
    for _ in 0..30 {
        sent.extend_from_slice(&[22, 3, 1, 4, 0]);
        sent.extend_from_slice(&[0; 1024]);
    }
    let (server, _) = exchange(&folder, &sent);
    assert!(server.fault().is_some() && server.bytes_kept() < 20 << 10, "{:?}", server.fault());
}

#[test]
fn a_handshake_goes_on_from_any_byte() {
    let folder = Folder::new();
    let acceptor = folder.acceptor();
    let connector = Connector::open(&folder.trusting(), "localhost").unwrap();
    let (one, other) = pair();
    let mut client = connector.connect(OwnedFd::from(one)).unwrap();
    client.shake();
    let mut hello = vec![0; 1 << 16];
    let count = (&other).read(&mut hello).unwrap();
    hello.truncate(count);
    let whole = hello.len();
    for cut in 0..whole {
        let (one, mut far) = pair();
        let mut server = acceptor.accept(OwnedFd::from(one), 0).unwrap();
        far.write_all(&hello[..cut]).unwrap();
        assert_eq!(server.shake(), Shake::GoesOn);
        assert!(server.bytes_kept() <= cut);
        far.write_all(&hello[cut..]).unwrap();
        assert_eq!(server.shake(), Shake::GoesOn);
        let mut back = [0; 9];
        assert_eq!(far.read(&mut back).unwrap(), 9, "the server's hello, cut at {cut}");
        assert_eq!(back[0], 22);
        // Gone in the middle.
        drop(far);
        assert_eq!(server.shake(), Shake::Failed);
    }
    assert_eq!(acceptor.counted().failed, whole as u64);
}

#[test]
fn records_that_are_changed_are_refused() {
    let folder = Folder::new();
    let connector = Connector::open(&folder.trusting(), "localhost").unwrap();
    let (mut server, mut client) = ends(&folder.acceptor(), &connector);
    for _ in 0..6 {
        client.shake();
        server.shake();
    }
    // An attacker on the path.
    rustix_write(
        &client,
        &[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
    );
    assert_eq!(server.receive(&mut [0; 99]), Moved::Broken);
    assert!(matches!(server.fault(), Some(Fault::Protocol(_))));
    assert_eq!(server.send(b"x"), Moved::Broken);
}

fn rustix_write(channel: &Channel, bytes: &[u8]) {
    assert_eq!(flatout_lane::socket::send(channel.socket(), bytes), Moved::Bytes(bytes.len()));
}
