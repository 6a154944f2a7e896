//! Pending ACME challenges. They are stored in the state folder, so that all processes that share it give the same
//! responses: the CA may connect to any of them.

use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use flatout_tls::Proof;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};

use super::Publish;
use crate::State;

const FOLDER: &str = "acme/challenges";

/// Pending challenges of all processes together.
const ASKED_MAX: usize = 64;

/// Characters of a token or a key authorization (RFC 8555 wants 128 bits of randomness, which are 22 characters).
const TOKEN_BYTES_MAX: usize = 128;
const AUTHORIZATION_BYTES_MAX: usize = 256;

/// Age at which a challenge left behind by a process that was killed is removed.
const LEFT_TIME: Duration = Duration::from_secs(3600);

/// A challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingChallenge {
    /// The domain being validated.
    pub domain: String,
    /// The challenge's token.
    pub token: String,
    /// The key authorization (RFC 8555, section 8.1).
    pub authorization: String,
}

/// The challenges that are pending now.
pub(super) struct Challenges {
    state: State,
    publish: Publish,
    /// The list that was published last.
    published: Mutex<Vec<PendingChallenge>>,
}

/// A challenge that stays published until this is dropped.
pub(super) struct Published {
    challenges: Arc<Challenges>,
    name: String,
}

impl PendingChallenge {
    /// The certificate for the validation handshake of `tls-alpn-01` (RFC 8737, section 3).
    ///
    /// # Errors
    /// The domain is not a valid certificate name.
    pub fn proof(&self) -> Result<Proof, String> {
        let made = || {
            let mut params = CertificateParams::new([self.domain.clone()])?;
            params.distinguished_name = DistinguishedName::new();
            let expected = digest(&SHA256, self.authorization.as_bytes());
            params.custom_extensions = vec![CustomExtension::new_acme_identifier(expected.as_ref())];
            let key = KeyPair::generate()?;
            let certificate = params.self_signed(&key)?;
            Ok(Proof {
                name: self.domain.clone(),
                certificate: certificate.der().to_vec(),
                key: key.serialize_der(),
            })
        };
        made().map_err(|error: rcgen::Error| format!("cannot make a proof for {}: {error}", self.domain))
    }

    fn text(&self) -> String {
        format!("{}\n{}\n", self.domain, self.authorization)
    }

    fn parse(token: &str, text: &str) -> Option<PendingChallenge> {
        let mut lines = text.lines();
        let domain = super::domain::parse(lines.next()?).ok()?;
        let authorization = lines.next()?;
        let is_whole = is_token(token) && is_authorization(token, authorization) && lines.next().is_none();
        is_whole.then(|| PendingChallenge {
            domain,
            token: token.to_owned(),
            authorization: authorization.to_owned(),
        })
    }
}

impl Challenges {
    pub(super) fn new(state: State, publish: Publish) -> Challenges {
        Challenges { state, publish, published: Mutex::default() }
    }

    /// Publishes a challenge until the returned value is dropped.
    ///
    /// # Errors
    /// An invalid token, or a folder that cannot be written to.
    pub(super) fn add(self: &Arc<Self>, asked: &PendingChallenge) -> Result<Published, String> {
        // The token becomes a file name.
        if !is_token(&asked.token) || !is_authorization(&asked.token, &asked.authorization) {
            return Err("the CA sent an invalid token".to_owned());
        }
        let name = format!("{FOLDER}/{}", asked.token);
        self.state.write(&name, &asked.text())?;
        let published = Published { challenges: self.clone(), name };
        self.exchange()?;
        Ok(published)
    }

    /// Publishes the challenges in the folder if they have changed.
    pub(super) fn look(&self) {
        // The next call tries again; callers of `add` get the error.
        let _ = self.exchange();
    }

    fn exchange(&self) -> Result<(), String> {
        let now = self.all();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if *published != now {
            (self.publish)(&now)?;
            *published = now;
        }
        Ok(())
    }

    fn all(&self) -> Vec<PendingChallenge> {
        let Ok(entries) = fs::read_dir(self.state.path(FOLDER)) else { return Vec::new() };
        let mut all = Vec::new();
        for entry in entries.flatten().take(ASKED_MAX) {
            let Ok(token) = entry.file_name().into_string() else { continue };
            let name = format!("{FOLDER}/{token}");
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            let age = written.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > LEFT_TIME) {
                self.state.remove(&name);
                continue;
            }
            let text = self.state.read(&name).ok().flatten();
            all.extend(text.and_then(|text| PendingChallenge::parse(&token, &text)));
        }
        all.sort_by(|one, other| one.token.cmp(&other.token));
        all
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.challenges.state.remove(&self.name);
        self.challenges.look();
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Published").field(&self.name).finish()
    }
}

/// Characters of base64url.
fn is_token(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

/// The token, a dot, and the thumbprint of the account's key.
fn is_authorization(token: &str, text: &str) -> bool {
    let key = text.strip_prefix(token).and_then(|rest| rest.strip_prefix('.'));
    text.len() <= AUTHORIZATION_BYTES_MAX && key.is_some_and(is_token)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn challenge(token: &str) -> PendingChallenge {
        PendingChallenge {
            domain: "a.test".to_owned(),
            token: token.to_owned(),
            authorization: format!("{token}.key"),
        }
    }

    #[test]
    fn every_process_serves_challenges_of_the_others() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = State::at(folder.path());
        let seen: Arc<Mutex<Vec<PendingChallenge>>> = Arc::default();
        let see = seen.clone();
        let publish: Publish = Arc::new(move |asked: &[PendingChallenge]| {
            *see.lock().unwrap() = asked.to_vec();
            Ok(())
        });
        let one = Arc::new(Challenges::new(state.clone(), Arc::new(|_| Ok(()))));
        let other = Challenges::new(state.clone(), publish);
        let published = one.add(&challenge("abc")).unwrap();
        other.look();
        assert_eq!(*seen.lock().unwrap(), [challenge("abc")]);
        state.write(&format!("{FOLDER}/junk"), "junk").unwrap();
        drop(published);
        other.look();
        assert!(seen.lock().unwrap().is_empty());
    }

    #[test]
    fn tokens_cannot_be_paths() {
        let folder = tempfile::TempDir::new().unwrap();
        let challenges = Arc::new(Challenges::new(State::at(folder.path()), Arc::new(|_| Ok(()))));
        for token in ["", "../x", "a/b", "a b", "a\nb", "a.b", &"a".repeat(129)] {
            assert!(challenges.add(&challenge(token)).is_err(), "{token}");
        }
        let strange = PendingChallenge { authorization: "other.key".to_owned(), ..challenge("abc") };
        assert!(challenges.add(&strange).is_err());
    }

    #[test]
    fn proofs_are_certificates() {
        let proof = challenge("abc").proof().unwrap();
        assert_eq!(proof.name, "a.test");
        flatout_tls::Proofs::default().set(&[proof]).unwrap();
    }
}
