//! The PROXY protocol as HAProxy sends it, in front of `flatout serve`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;

use flatout_tests::peers::{Peer, free_port};
use flatout_tests::{Folder, PATIENCE, Server, answers, program, read_to_close, until};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// The response's body for a client with its own address.
fn asked(address: SocketAddr) -> String {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 77], 0))).unwrap();
    connect(&socket, &address).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The client's own field is not trusted.
    let request = "GET / HTTP/1.1\r\nHost: t\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    answers(&read_to_close(&mut stream), false)[0].text()
}

#[test]
fn haproxys_headers_name_the_client() {
    let folder = Folder::new();
    let file = "listen \"127.0.0.1:0\" proxy-protocol=on\ntrusted-proxies \"127.0.0.0/30\"\nrespond 200 \"[$remote_addr]\"\n";
    folder.write("site.kdl", file);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let server = Server::start(command);
    let options = [
        "send-proxy",
        "send-proxy-v2",
        // TLVs, including the checksum; and health checks, which HAProxy sends with LOCAL.
        "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority check check-send-proxy inter 100ms",
    ];
    let ports = options.map(|option| (SocketAddr::from(([127, 0, 0, 1], free_port())), option));
    let listens = ports.iter().enumerate().map(|(at, (port, option))| {
        format!(
            "listen l{at}\n  bind {port}\n  unique-id-format %[uuid()]\n  server s {} {option}\n",
            server.address
        )
    });
    let config = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n{}",
        listens.collect::<String>()
    );
    let Some(_haproxy) = Peer::haproxy(&folder, &config, ports[0].0.port()) else { return };
    for (port, option) in ports {
        until("haproxy listens", || TcpStream::connect(port).is_ok());
        assert_eq!(asked(port), "[127.0.0.77]", "{option}");
    }
    // Without a header there is no response, and from another peer it is not trusted.
    let mut stream = server.connect();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said, b"");
    until("it is told", || {
        server.said().iter().any(|line| line.contains("does not begin with a PROXY header"))
    });
}

/// The response to a request after this PROXY header.
fn after_header(address: SocketAddr, header: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("{header}GET / HTTP/1.1\r\nHost: t\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    answers(&read_to_close(&mut stream), false)[0].text()
}

#[test]
fn proxy_header_variables_agree_with_the_header() {
    let variables = "$remote_addr $realip_remote_addr \
        $proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port";
    let header = "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";
    let said = "192.0.2.7:4711 198.51.100.1:443";
    for (mode, expected) in [
        ("untrusted", format!("127.0.0.1 127.0.0.1 {said} ")),
        ("on", format!("192.0.2.7 127.0.0.1 {said} 4711")),
    ] {
        let folder = Folder::new();
        let file = format!(
            "listen \"127.0.0.1:0\" proxy-protocol={mode}\ntrusted-proxies \"127.0.0.0/8\"\n\
             set port \"\"\nwhen \"remote == ip('192.0.2.7')\" {{ set port \"$remote_port\"; }}\n\
             respond 200 \"{variables} $port\"\n"
        );
        folder.write("site.kdl", file);
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
        let server = Server::start(command);
        assert_eq!(after_header(server.address, header, ""), expected, "{mode}");
        let unknown = after_header(server.address, "PROXY UNKNOWN\r\n", "");
        assert_eq!(unknown, "127.0.0.1 127.0.0.1 : : ", "{mode}");
    }
}

/// The header names the client: whoever may send headers must not choose the peer too.
#[test]
fn peer_of_a_unix_listener_has_no_address() {
    let folder = Folder::new();
    let socket = folder.0.join("http");
    let file = format!(
        "listen \"127.0.0.1:0\"\nlisten \"unix:{}\" proxy-protocol=on\ntrusted-proxies unix\n\
         set place outside\nwhen \"peer in ['192.0.2.0/24']\" {{ set place inside; }}\n\
         respond 200 \"$remote_addr [$realip_remote_addr:$realip_remote_port] $place\"\n",
        socket.display()
    );
    folder.write("site.kdl", file);
    let mut command = Command::new(program("flatout"));
    command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
    let _server = Server::start(command);
    for (header, expected) in [
        ("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", "192.0.2.7 [unix::] outside"),
        ("PROXY UNKNOWN\r\n", "unix: [unix::] outside"),
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{header}GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(answers(&said, false)[0].text(), expected, "{header}");
    }
}

/// A route that trusts other proxies than its site: fields, PROXY headers of listeners that trust nobody, and of those that do.
#[test]
fn routes_have_clients_of_their_own() {
    let routes = "route \"/field\" { trusted-proxies \"127.0.0.0/8\"; client-address \"X-Client\"; deny \"192.0.2.66\"; respond 200 \"$remote_addr\"; }\n\
        route \"/header\" { trusted-proxies \"127.0.0.0/8\"; client-address proxy-protocol; deny \"198.51.100.7\"; \
        respond 200 \"$remote_addr $remote_port\"; }\n\
        route \"/nobody\" { trusted-proxies \"10.0.0.1\"; client-address proxy-protocol; respond 200 \"$remote_addr\"; }\n\
        respond 200 \"$remote_addr\"\n";
    for (mode, of_site) in [("untrusted", "127.0.0.1"), ("on", "203.0.113.5")] {
        let folder = Folder::new();
        let trusted = if mode == "on" { "trusted-proxies \"127.0.0.0/8\"\n" } else { "" };
        folder.write("site.kdl", format!("listen \"127.0.0.1:0\" proxy-protocol={mode}\n{trusted}{routes}"));
        let mut command = Command::new(program("flatout"));
        command.arg("serve").arg("-c").arg(folder.0.join("site.kdl"));
        let server = Server::start(command);
        let got = |path: &str, source: &str, field: &str| {
            let mut stream = server.connect();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let header = format!("PROXY TCP4 {source} 198.51.100.1 4711 443\r\n");
            let request = format!(
                "{header}GET {path} HTTP/1.1\r\nHost: t\r\nX-Client: {field}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).unwrap();
            let answer = answers(&read_to_close(&mut stream), false).remove(0);
            (answer.status, answer.text())
        };
        let text = |path: &str| got(path, "203.0.113.5", "192.0.2.7").1;
        assert_eq!(text("/"), of_site, "{mode}");
        assert_eq!(text("/field"), "192.0.2.7", "{mode}");
        assert_eq!(text("/header"), "203.0.113.5 4711", "{mode}");
        assert_eq!(text("/nobody"), "127.0.0.1", "{mode}");
        // The rules of the route are about its clients.
        assert_eq!(got("/field", "203.0.113.5", "192.0.2.66").0, 403, "{mode}");
        assert_eq!(got("/header", "198.51.100.7", "192.0.2.7").0, 403, "{mode}");
        assert_eq!(got("/header", "203.0.113.5", "198.51.100.7").0, 200, "{mode}");
    }
}
