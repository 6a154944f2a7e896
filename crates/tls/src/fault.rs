//! Why a connection has failed, in words for the server's operator.

use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Why a connection cannot continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// One side has violated the protocol, or does not trust the other.
    Protocol(Error),
    /// The peer has closed the connection without close_notify.
    Truncated,
    /// The peer has sent too much data without contents.
    Flood,
    /// A message of the handshake is too large.
    TooLarge,
    /// The socket has failed.
    Broken,
}

impl Fault {
    /// Whether the peer's certificate is not trusted, or does not have the requested name.
    pub fn is_certificate(&self) -> bool {
        matches!(self, Fault::Protocol(Error::InvalidCertificate(_)))
    }

    /// Whether the peer supports none of the offered protocols (ALPN).
    pub fn is_no_protocol(&self) -> bool {
        matches!(self, Fault::Protocol(Error::AlertReceived(AlertDescription::NoApplicationProtocol)))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Protocol(error) => protocol(error, f),
            Fault::Truncated => f.write_str("the connection was closed without close_notify"),
            Fault::Flood => f.write_str("the peer sends too many empty records"),
            Fault::TooLarge => f.write_str("a message of the handshake is too large"),
            Fault::Broken => f.write_str("the connection was reset"),
        }
    }
}

impl std::error::Error for Fault {}

fn protocol(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::InvalidCertificate(error) => certificate(error, f),
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion) => {
            f.write_str("the peer refused the handshake: no common version or cipher suite")
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            f.write_str("the peer requires a client certificate")
        }
        Error::AlertReceived(alert) => write!(f, "the peer refused with the alert {alert:?}"),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            f.write_str("the peer does not speak TLS")
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => f.write_str("the peer supports no allowed TLS version"),
        Error::NoCertificatesPresented => f.write_str("the peer sent no certificate"),
        error => write!(f, "{error}"),
    }
}

fn certificate(error: &CertificateError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            f.write_str("its certificate has expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            f.write_str("its certificate is not valid yet; check the clocks")
        }
        CertificateError::UnknownIssuer => f.write_str("its certificate was not issued by a trusted CA"),
        CertificateError::NotValidForName => f.write_str("its certificate is for another name"),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            write!(f, "its certificate is for another name: got {names}; need {}", expected.to_str())
        }
        CertificateError::Revoked => f.write_str("its certificate was revoked"),
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            f.write_str("its certificate is that of a CA (self-signed); it needs one issued by the CA")
        }
        error => write!(f, "its certificate cannot be used: {error}"),
    }
}

/// The name in what rustls prints as `DnsName("example.org")`.
fn bare(shown: &str) -> &str {
    shown.strip_prefix("DnsName(\"").and_then(|rest| rest.strip_suffix("\")")).unwrap_or(shown)
}
