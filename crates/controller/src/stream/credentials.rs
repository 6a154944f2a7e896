//! Who may have plans: data planes show a token, and controllers a certificate. Files are read for each connection, so that they can be
//! replaced at any time.

use std::fs;
use std::path::{Path, PathBuf};

use flatout_tls::{Identity, client_config, server_config};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::socket::TimedSocket;

/// Bytes of a token, at least and at most: a short one can be guessed.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// A connection at a controller.
pub(crate) type ControllerStream = StreamOwned<ServerConnection, TimedSocket>;

/// A connection at a data plane.
pub(crate) type DataPlaneStream = StreamOwned<ClientConnection, TimedSocket>;

/// What a controller shows and expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerCredentials {
    /// Its certificate and key.
    pub identity: Identity,
    /// The file with the token of data planes.
    pub token: PathBuf,
}

/// What a data plane shows and expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPlaneCredentials {
    /// The file with trusted CA certificates for the controller's; `None`: those of the system.
    pub authorities: Option<PathBuf>,
    /// The file with its token.
    pub token: PathBuf,
}

/// A token. It is never shown.
pub(crate) struct Token(String);

impl Token {
    /// Reads the token of a file, without spaces around it.
    ///
    /// # Errors
    /// There is none, or it is too short or too long.
    pub(crate) fn read(path: &Path) -> Result<Token, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("the token {}: cannot be read: {error}", path.display()))?;
        let token = text.trim();
        if !TOKEN_BYTES.contains(&token.len()) {
            let (min, max) = TOKEN_BYTES.into_inner();
            let length = token.len();
            return Err(format!("the token {}: {length} bytes; need {min} to {max}", path.display()));
        }
        Ok(Token(token.to_owned()))
    }

    /// Its text, for the message that shows it to a controller.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Whether both are the same. The time depends only on the length of the other one.
    pub(crate) fn is(&self, other: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), other.as_bytes());
        let differs =
            other.iter().enumerate().fold(0, |differs, (at, byte)| differs | (byte ^ own[at % own.len()]));
        differs == 0 && own.len() == other.len()
    }
}

impl ControllerCredentials {
    /// Reads all files.
    ///
    /// # Errors
    /// Which one has which problem.
    pub fn check(&self) -> Result<(), String> {
        server_config(&self.identity)?;
        Token::read(&self.token).map(drop)
    }

    /// The server's side of TLS over a connection. The handshake is part of the first read.
    pub(crate) fn accept(&self, socket: TimedSocket) -> Result<ControllerStream, String> {
        let session = ServerConnection::new(server_config(&self.identity)?);
        Ok(StreamOwned::new(session.map_err(|error| error.to_string())?, socket))
    }
}

impl DataPlaneCredentials {
    /// Reads all files.
    ///
    /// # Errors
    /// Which one has which problem.
    pub fn check(&self) -> Result<(), String> {
        client_config(self.authorities.as_deref())?;
        Token::read(&self.token).map(drop)
    }

    /// The client's side of TLS over a connection to a controller of this name.
    pub(crate) fn connect(&self, name: &str, socket: TimedSocket) -> Result<DataPlaneStream, String> {
        let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned())
            .map_err(|_| format!("got the name `{name}`, need a host name or an address"))?;
        let session = ClientConnection::new(client_config(self.authorities.as_deref())?, name);
        Ok(StreamOwned::new(session.map_err(|error| error.to_string())?, socket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_as_a_whole() {
        let token = Token("0123456789abcdef".to_owned());
        assert!(token.is("0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "0123456789abcdeF",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert!(!token.is(other), "{other}");
        }
    }

    #[test]
    fn short_and_missing_tokens_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::read(&path).is_err());
        fs::write(&path, " short\n").unwrap();
        assert!(Token::read(&path).is_err_and(|why| why.contains("5 bytes; need 16 to 4096")));
        fs::write(&path, "0123456789abcdef\n").unwrap();
        assert!(Token::read(&path).is_ok_and(|token| token.text() == "0123456789abcdef"));
    }
}
