//! Fields of a certificate as text for other programs, in the format of nginx's `$ssl_client_…` variables.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use x509_cert::der::Decode;

/// A property of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// The subject's distinguished name (RFC 4514).
    Subject,
    /// The issuer's distinguished name.
    Issuer,
    /// The serial number in hexadecimal.
    Serial,
    /// The SHA-1 fingerprint in hexadecimal.
    Fingerprint,
    /// The subject in the old form of OpenSSL, such as `/O=Example/CN=a`.
    LegacySubject,
    /// The issuer in that form.
    LegacyIssuer,
    /// The first moment of its validity, such as `Nov 27 20:56:00 2026 GMT`.
    ValidFrom,
    /// The last one.
    ValidUntil,
    /// The whole days that are left until then; 0 afterwards.
    DaysLeft,
}

/// The months as OpenSSL writes them.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Property {
    /// The property of a certificate (DER) in visible ASCII. `None` if the certificate is malformed.
    pub fn of(self, certificate: &[u8]) -> Option<String> {
        let parsed = || Some(x509_cert::Certificate::from_der(certificate).ok()?.tbs_certificate);
        Some(match self {
            Property::Subject => distinguished(&parsed()?.subject)?,
            Property::Issuer => distinguished(&parsed()?.issuer)?,
            Property::Serial => hexadecimal(parsed()?.serial_number.as_bytes()).to_ascii_uppercase(),
            Property::LegacySubject => legacy(&parsed()?.subject)?,
            Property::LegacyIssuer => legacy(&parsed()?.issuer)?,
            Property::ValidFrom => moment(&parsed()?.validity.not_before)?,
            Property::ValidUntil => moment(&parsed()?.validity.not_after)?,
            Property::DaysLeft => {
                let until = parsed()?.validity.not_after.to_unix_duration();
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                (until.saturating_sub(now).as_secs() / 86_400).to_string()
            }
            Property::Fingerprint => hexadecimal(digest(&SHA1_FOR_LEGACY_USE_ONLY, certificate).as_ref()),
        })
    }
}

/// A distinguished name.
fn distinguished(name: &x509_cert::name::Name) -> Option<String> {
    let mut plain = String::new();
    // Values that cannot be encoded are an error here; `to_string` would panic.
    write!(plain, "{name}").ok()?;
    Some(printable(&plain))
}

/// The same with its parts in their own order.
fn legacy(name: &x509_cert::name::Name) -> Option<String> {
    let mut plain = String::new();
    for part in &name.0 {
        write!(plain, "/{part}").ok()?;
    }
    Some(printable(&plain))
}

fn moment(time: &x509_cert::time::Time) -> Option<String> {
    let time = time.to_date_time();
    let month = MONTHS.get(usize::from(time.month()).checked_sub(1)?)?;
    let (day, hour, minute, second) = (time.day(), time.hour(), time.minutes(), time.seconds());
    Some(format!("{month} {day:2} {hour:02}:{minute:02}:{second:02} {} GMT", time.year()))
}

/// Bytes other than visible ASCII are escaped as `\c3`, as RFC 4514 allows.
fn printable(plain: &str) -> String {
    plain.bytes().fold(String::with_capacity(plain.len()), |mut text, byte| {
        match byte {
            b' '..=b'~' => text.push(char::from(byte)),
            _ => drop(write!(text, "\\{byte:02x}")),
        }
        text
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SerialNumber};

    use super::*;

    fn certificate(name: &str) -> Vec<u8> {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2026, 1, 2);
        params.not_after = rcgen::date_time_ymd(9999, 11, 27);
        params.serial_number = Some(SerialNumber::from_slice(&[0x1f, 0xab]));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn properties_are_printable_ascii() {
        let certificate = certificate("J\u{f6}rg\r\nX-Admin: 1");
        let subject = Property::Subject.of(&certificate).unwrap();
        assert_eq!(subject, "CN=J\\c3\\b6rg\\0d\\0aX-Admin: 1,O=Example\\, Inc.");
        assert_eq!(Property::Issuer.of(&certificate).as_deref(), Some(&*subject));
        assert_eq!(Property::Serial.of(&certificate).as_deref(), Some("1FAB"));
        let legacy = Property::LegacySubject.of(&certificate).unwrap();
        assert_eq!(legacy, "/O=Example\\, Inc./CN=J\\c3\\b6rg\\0d\\0aX-Admin: 1");
        assert_eq!(Property::LegacyIssuer.of(&certificate), Some(legacy));
        assert_eq!(Property::ValidFrom.of(&certificate).as_deref(), Some("Jan  2 00:00:00 2026 GMT"));
        assert_eq!(Property::ValidUntil.of(&certificate).as_deref(), Some("Nov 27 00:00:00 9999 GMT"));
        assert!(Property::DaysLeft.of(&certificate).is_some_and(|days| days.len() == 7));
        let fingerprint = Property::Fingerprint.of(&certificate).unwrap();
        assert!(fingerprint.len() == 40 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn malformed_certificates_yield_no_names() {
        let certificate = certificate("a");
        for end in 0..certificate.len() {
            let cut = certificate.get(..end).unwrap();
            assert_eq!(
                [Property::Subject, Property::Issuer, Property::Serial].map(|it| it.of(cut)),
                [None, None, None]
            );
        }
    }
}
