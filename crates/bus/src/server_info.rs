//! Checks that a server sends the greeting of NATS before the library connects to it: the library reads lines
//! without a limit.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::session::shown;

/// Maximum size of a greeting; it also lists the servers of a cluster.
const GREETING_BYTES_MAX: usize = 64 << 10;

/// The start of every greeting.
const BEGINNING: &[u8] = b"INFO {";

/// # Errors
/// It cannot be reached, or is not a NATS server.
pub(super) async fn check(host: &str, port: u16) -> Result<(), String> {
    let mut stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    let mut received = Vec::new();
    loop {
        if let Some(at) = received.iter().position(|&byte| byte == b'\n') {
            let line: &[u8] = received.get(..at).unwrap_or_default();
            let info = line.strip_prefix(b"INFO ").map(serde_json::from_slice::<serde_json::Value>);
            return match info {
                Some(Ok(info)) if info.is_object() => Ok(()),
                _ => Err(no_server(line)),
            };
        }
        let is_like = received.iter().zip(BEGINNING).all(|(byte, expected)| byte == expected);
        if !is_like || received.len() >= GREETING_BYTES_MAX {
            return Err(no_server(&received));
        }
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(0) => return Err("it closed the connection without a greeting".to_owned()),
            Ok(count) => received.extend_from_slice(more.get(..count).unwrap_or_default()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn no_server(received: &[u8]) -> String {
    let begins = received.get(..40.min(received.len())).unwrap_or_default();
    format!("not a NATS server: it sent `{}`", shown(String::from_utf8_lossy(begins).trim()))
}
