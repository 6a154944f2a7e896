//! Lists of users with the hashes of their passwords.

use std::collections::HashMap;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordVerifier, Version};
use sha2::{Digest, Sha256};

use super::older::OlderHash;
use crate::fault::{Fault, Place};
use crate::plan::User;

/// The memory limit for one check.
const ARGON2_KIB_MAX: u32 = 256 << 10;

/// The highest bcrypt cost, which takes some seconds.
const BCRYPT_COST_MAX: u32 = 16;

/// The hash of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hash {
    Argon2(String),
    Bcrypt(String),
    Older(OlderHash),
}

/// A list of users.
#[derive(Debug)]
pub(crate) struct Users {
    hashes: HashMap<Vec<u8>, Hash>,
    /// Checked for unknown names, so that the time does not reveal which names exist.
    decoy: Option<Hash>,
    /// The hash of the list. What was correct in one list says nothing about another: after a reload with other users or
    /// passwords, nothing is remembered.
    pub(super) id: [u8; 32],
}

impl Users {
    /// # Errors
    /// A duplicate name, a name with a colon, or an unsupported hash.
    pub(crate) fn new(users: &[User], place: Place) -> Result<Users, Fault> {
        let mut hashes = HashMap::new();
        let mut sorted: Vec<&User> = users.iter().collect();
        sorted.sort_by(|one, other| one.name.cmp(&other.name));
        let mut id = Sha256::new();
        for user in sorted {
            for part in [&user.name, &user.hash] {
                id.update((part.len() as u64).to_le_bytes());
                id.update(part);
            }
            let fault = |what: &str| Err(place.fault(format!("the user `{}`: {what}", user.name)));
            if user.name.contains(':') {
                return fault("the name must not contain a colon");
            }
            let hash = match Hash::new(&user.hash) {
                Ok(hash) => hash,
                Err(what) => return fault(what),
            };
            if hashes.insert(user.name.clone().into_bytes(), hash).is_some() {
                return fault("occurs twice");
            }
        }
        let decoy = hashes.values().next().cloned();
        Ok(Users { hashes, decoy, id: id.finalize().into() })
    }

    pub(super) fn is_right(&self, name: &[u8], password: &[u8]) -> bool {
        match self.hashes.get(name) {
            Some(hash) => hash.is_of(password),
            None => {
                let _ = self.decoy.as_ref().map(|decoy| decoy.is_of(password));
                false
            }
        }
    }
}

/// Checks the text of a hash.
///
/// # Errors
/// Why it is not supported.
pub(crate) fn check(hash: &str) -> Result<(), &'static str> {
    Hash::new(hash).map(drop)
}

impl Hash {
    fn new(text: &str) -> Result<Hash, &'static str> {
        if text.starts_with("$argon2") {
            let parsed = PasswordHash::new(text).map_err(|_| "its argon2 hash is malformed")?;
            let params = Params::try_from(&parsed).map_err(|_| "its argon2 hash has invalid parameters")?;
            if params.m_cost() > ARGON2_KIB_MAX {
                return Err("its argon2 hash needs more than 256 MiB of memory");
            }
            return Ok(Hash::Argon2(text.to_owned()));
        }
        if let Some(older) = OlderHash::new(text) {
            return older.map(Hash::Older);
        }
        let parts: bcrypt::HashParts = text
            .parse()
            .map_err(|_| "expected an argon2 hash ($argon2id$…) or a bcrypt hash ($2b$…, $2y$…; written by `flatout hash-password` or `htpasswd -B`)")?;
        if parts.get_cost() > BCRYPT_COST_MAX {
            return Err("its bcrypt hash has a cost above 16");
        }
        Ok(Hash::Bcrypt(text.to_owned()))
    }

    fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Argon2(text) => PasswordHash::new(text).is_ok_and(|hash| {
                let argon2 = Argon2::new(Algorithm::default(), Version::default(), Params::default());
                argon2.verify_password(password, &hash).is_ok()
            }),
            Hash::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            Hash::Older(hash) => hash.is_of(password),
        }
    }
}
