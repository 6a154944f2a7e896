//! Certificates for tests, and TLS clients.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use flatout_engine::tls::{Acceptor, Identity, MinVersion, ServerPlan};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use tempfile::TempDir;

/// A self-signed certificate in a folder that is removed with its test.
pub(crate) struct Certified {
    folder: TempDir,
    der: CertificateDer<'static>,
}

impl Certified {
    pub(crate) fn new() -> Certified {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(path.join("cert.pem"), made.cert.pem()).unwrap();
        fs::write(path.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(path.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
        Certified { der: made.cert.der().clone(), folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn acceptor(&self) -> Acceptor {
        self.accepting(false)
    }

    /// The same; `early_data` may come, if it is asked for.
    pub(crate) fn accepting(&self, early_data: bool) -> Acceptor {
        let identity = Identity::new(self.path().join("cert.pem"), self.path().join("key.pem"));
        Acceptor::open(ServerPlan {
            identities: vec![identity],
            min_version: MinVersion::Tls12,
            clients: None,
            early_data,
            ..ServerPlan::default()
        })
        .unwrap()
    }

    pub(crate) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// A TLS client over this connection.
pub(crate) fn secured(
    stream: TcpStream,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = "localhost".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

/// Accepts plain connections and relays them over TLS, for tests without TLS.
pub(crate) fn encrypting(to: SocketAddr, config: Arc<ClientConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for plain in listener.incoming() {
            let (Ok(plain), Ok(secure)) = (plain, TcpStream::connect(to)) else { return };
            let name = "localhost".try_into().unwrap();
            let session = ClientConnection::new(config.clone(), name).unwrap();
            let joined =
                Arc::new(Joined { session: Mutex::new(session), sending: Mutex::new(()), plain, secure });
            joined.secure.set_nodelay(true).unwrap();
            joined.plain.set_nodelay(true).unwrap();
            let other = joined.clone();
            std::thread::spawn(move || other.there());
            std::thread::spawn(move || joined.back());
        }
    });
    address
}

struct Joined {
    session: Mutex<ClientConnection>,
    /// Keeps the session's records in order.
    sending: Mutex<()>,
    plain: TcpStream,
    secure: TcpStream,
}

impl Joined {
    /// Calls `act` on the session, and sends its output. Returns whether that succeeded.
    fn with(&self, act: impl FnOnce(&mut ClientConnection)) -> bool {
        let mut session = self.session.lock().unwrap();
        act(&mut session);
        let mut records = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut records).unwrap();
        }
        if records.is_empty() {
            // Do not wait here for a server that waits to be read.
            return true;
        }
        let sending = self.sending.lock().unwrap();
        drop(session);
        let sent = (&self.secure).write_all(&records).is_ok();
        drop(sending);
        sent
    }

    fn there(&self) {
        let mut buffer = [0; 16 << 10];
        self.with(|_| ());
        while self.session.lock().unwrap().is_handshaking() {
            std::thread::yield_now();
        }
        loop {
            match (&self.plain).read(&mut buffer) {
                Ok(0) => {
                    self.with(|session| session.send_close_notify());
                    drop(self.secure.shutdown(Shutdown::Write));
                    return;
                }
                Ok(count) if self.with(|session| session.writer().write_all(&buffer[..count]).unwrap()) => {}
                _ => {
                    drop(self.secure.shutdown(Shutdown::Both));
                    return;
                }
            }
        }
    }

    fn back(&self) {
        let mut buffer = [0; 16 << 10];
        loop {
            let count = (&self.secure).read(&mut buffer).unwrap_or(0);
            let mut plain = Vec::new();
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                self.with(|session| {
                    session.read_tls(&mut rest).unwrap();
                    let _ = session.process_new_packets();
                    let _ = session.reader().read_to_end(&mut plain);
                });
            }
            if (&self.plain).write_all(&plain).is_err() {
                drop(self.secure.shutdown(Shutdown::Both));
                return;
            }
            if count == 0 {
                drop(self.plain.shutdown(Shutdown::Write));
                return;
            }
        }
    }
}
