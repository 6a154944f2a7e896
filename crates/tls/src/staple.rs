//! OCSP stapling, for certificates that require it (must-staple, RFC 7633).
//!
//! The large CAs have ended OCSP, and clients accept certificates that do not require stapling without a
//! response. So no response is sent for other certificates, and none is fetched: the operator puts the
//! response into a file beside the certificate.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::serial_number::SerialNumber;
use x509_ocsp::{BasicOcspResponse, CertStatus, OcspResponse, OcspResponseStatus};

/// The TLS feature extension of a certificate (RFC 7633).
const TLS_FEATURE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.24");

/// The TLS feature of OCSP stapling (RFC 6066, `status_request`).
const STATUS_REQUEST: u16 = 5;

/// Maximum size of a response, as it is sent in each full handshake.
const RESPONSE_BYTES_MAX: u64 = 16 << 10;

/// The OCSP response of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staple {
    /// The certificate does not require one, and none is sent.
    NotAsked,
    /// It is sent, and valid until this time; `None` if it has no `nextUpdate`.
    Until(Option<SystemTime>),
    /// The certificate requires one, but there is no valid one: the reason, and what to do.
    Missing(String),
}

/// The path of the OCSP response of the certificate in this file.
pub(crate) fn path(certificate: &Path) -> PathBuf {
    let mut path = certificate.as_os_str().to_owned();
    path.push(".ocsp");
    path.into()
}

/// Loads the response for the certificate in this file, if it requires one.
pub(crate) fn load(file: &Path, der: &CertificateDer<'_>) -> (Staple, Option<Vec<u8>>) {
    let Some(serial) = asking(der) else { return (Staple::NotAsked, None) };
    let path = path(file);
    let read = super::certificate::read_at_most(&path, "OCSP response", RESPONSE_BYTES_MAX);
    let checked = read.and_then(|bytes| match check(&bytes, &serial) {
        Ok(until) => Ok((until, bytes)),
        Err(why) => Err(format!("OCSP response {}: {why}", path.display())),
    });
    match checked {
        Ok((until, bytes)) => (Staple::Until(until), Some(bytes)),
        Err(why) => {
            (Staple::Missing(format!("{why}; get one from the CA: openssl ocsp -respout FILE")), None)
        }
    }
}

/// The serial number of a certificate that requires stapling; otherwise `None`.
fn asking(der: &CertificateDer<'_>) -> Option<SerialNumber> {
    let certificate = Certificate::from_der(der).ok()?.tbs_certificate;
    let extensions = certificate.extensions.as_deref().unwrap_or_default();
    let features = extensions.iter().find(|extension| extension.extn_id == TLS_FEATURE)?;
    let features = Vec::<u16>::from_der(features.extn_value.as_bytes()).ok()?;
    features.contains(&STATUS_REQUEST).then_some(certificate.serial_number)
}

/// Checks that a response is valid and says that this certificate is good. Returns its expiry. Its signature
/// is not checked: clients do that.
fn check(bytes: &[u8], serial: &SerialNumber) -> Result<Option<SystemTime>, String> {
    let malformed = |_| "malformed; need DER".to_owned();
    let response = OcspResponse::from_der(bytes).map_err(malformed)?;
    let content = match (response.response_status, response.response_bytes) {
        (OcspResponseStatus::Successful, Some(content)) => content,
        (status, _) => return Err(format!("the CA returned the status {status:?}")),
    };
    let basic = BasicOcspResponse::from_der(content.response.as_bytes()).map_err(malformed)?;
    let mut single = basic.tbs_response_data.responses.iter();
    let single = single.find(|single| single.cert_id.serial_number == *serial);
    let single = single.ok_or("it is for another certificate")?;
    match single.cert_status {
        CertStatus::Good(_) => {}
        CertStatus::Revoked(_) => return Err("the certificate was revoked".to_owned()),
        CertStatus::Unknown(_) => return Err("the CA does not know the certificate".to_owned()),
    }
    let until = single.next_update.as_ref();
    let until = until.and_then(|next| SystemTime::UNIX_EPOCH.checked_add(next.0.to_unix_duration()));
    match until {
        Some(until) if until <= SystemTime::now() => Err("it has expired".to_owned()),
        until => Ok(until),
    }
}
