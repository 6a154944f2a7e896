//! Why there is no certificate, and how soon to try again.

use std::fmt;
use std::time::Duration;

use instant_acme::{Error, Problem};

/// Characters of a CA's error message that are shown.
const SAID_CHARS_MAX: usize = 300;

/// Why an order failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The CA cannot be reached, or does not respond.
    Unreachable(String),
    /// It refuses the certificate, or its response is invalid.
    Refused(String),
    /// A rate limit of the CA.
    Limited(String),
    /// The CA no longer knows the account.
    Stranger(String),
    /// It does not accept this certificate as a replacement of the previous one.
    NotReplaced(String),
    /// A local problem: a file, a program.
    Here(String),
}

impl Fault {
    /// How long to wait after the first failure of this kind.
    pub(super) fn pause(&self) -> Duration {
        let seconds = match self {
            Fault::Unreachable(_) => 5,
            // Let's Encrypt allows five failed validations an hour per name.
            Fault::Refused(_) | Fault::Here(_) => 60,
            Fault::Limited(_) => 3600,
            // The next attempt leaves out what failed: the account, or the replacement.
            Fault::Stranger(_) | Fault::NotReplaced(_) => 5,
        };
        Duration::from_secs(seconds)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unreachable(why) => write!(f, "the CA cannot be reached: {why}"),
            Fault::Refused(why) => write!(f, "refused by the CA: {why}"),
            Fault::Limited(why) => write!(f, "CA rate limit: {why}"),
            Fault::Stranger(why) => write!(f, "the CA does not know the account: {why}"),
            Fault::NotReplaced(why) => write!(f, "the CA does not replace the certificate: {why}"),
            Fault::Here(why) => f.write_str(why),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error {
            Error::Api(problem) => Fault::from(problem),
            Error::Timeout(_) => Fault::Unreachable("no result in time".to_owned()),
            Error::Other(error) => Fault::Unreachable(message(&error.to_string())),
            Error::Json(_) | Error::InvalidUri(_) | Error::Http(_) | Error::Str(_) => {
                Fault::Refused(format!("invalid response: {}", message(&error.to_string())))
            }
            // The CA has no ARI, but the order was to replace a certificate.
            Error::Unsupported(what) => Fault::NotReplaced(what.to_owned()),
            error => Fault::Refused(message(&error.to_string())),
        }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Fault {
        let kind = problem.r#type.as_deref().unwrap_or_default();
        let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind).to_owned();
        let mut detail = problem.detail.clone().unwrap_or_default();
        for sub in &problem.subproblems {
            detail.push_str("; ");
            detail.push_str(sub.detail.as_deref().unwrap_or_default());
        }
        let why = message(&format!("{kind}: {detail}"));
        match kind.as_str() {
            "rateLimited" => Fault::Limited(why),
            "accountDoesNotExist" => Fault::Stranger(why),
            "alreadyReplaced" => Fault::NotReplaced(why),
            // Both are temporary.
            "serverInternal" | "badNonce" => Fault::Unreachable(why),
            _ => Fault::Refused(why),
        }
    }
}

/// A message from the CA, fit for one line of a log.
fn message(text: &str) -> String {
    let clean = |char: char| if char.is_control() { ' ' } else { char };
    let mut shown: String = text.chars().take(SAID_CHARS_MAX).map(clean).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn problem(kind: &str, detail: &str) -> Fault {
        let text =
            format!(r#"{{"type":"urn:ietf:params:acme:error:{kind}","detail":"{detail}","status":400}}"#);
        Fault::from(Error::Api(serde_json::from_str(&text).unwrap()))
    }

    #[test]
    fn faults_are_classified() {
        assert_eq!(problem("rateLimited", "later"), Fault::Limited("rateLimited: later".to_owned()));
        assert!(matches!(problem("accountDoesNotExist", ""), Fault::Stranger(_)));
        assert!(matches!(problem("unauthorized", ""), Fault::Refused(_)));
        assert!(matches!(Fault::from(Error::Str("x")), Fault::Refused(_)));
        assert!(matches!(Fault::from(Error::Other("x".into())), Fault::Unreachable(_)));
    }

    #[test]
    fn messages_of_a_ca_are_shortened_to_one_line() {
        let long = problem("malformed", &format!("a\\nb\\u001b[31m{}", "x".repeat(1000))).to_string();
        assert!(!long.contains(['\n', '\u{1b}']) && long.len() < 400, "{long}");
    }
}
