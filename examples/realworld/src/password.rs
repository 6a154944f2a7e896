//! Passwords: Argon2id, on separate threads. A hash takes about 20 ms and 19 MiB; on a worker it would block
//! all connections.

use std::sync::{Mutex, PoisonError};

use argon2::password_hash::rand_core::OsRng;
use argon2::password_hash::{Error, Output, ParamsString, PasswordHash, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use flatout::{Problem, Status};
use tokio::sync::Semaphore;

/// Hashes at a time, in the whole process: each has its memory.
const AT_A_TIME_MAX: usize = 4;

/// Maximum number of waiting requests; further ones get 503.
const WAITING_MAX: usize = 64;

/// The longest password: hashing is not to be had for free. It holds 64 characters of any kind.
pub const PASSWORD_BYTES_MAX: usize = 256;

/// The shortest new password, as NIST SP 800-63B and the tests of the specification have it.
pub const PASSWORD_CHARS_MIN: usize = 8;

static PLACES: Semaphore = Semaphore::const_new(WAITING_MAX);
static THREADS: Semaphore = Semaphore::const_new(AT_A_TIME_MAX);

/// As many as there were hashes at a time: never more than [`AT_A_TIME_MAX`].
static MEMORY: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

/// The hash of a password, to be stored.
///
/// # Errors
/// 503 where too many wait.
pub async fn hash(password: String) -> Result<String, Problem> {
    let made = off_the_worker(move |memory| {
        let salt = SaltString::generate(&mut OsRng);
        let argon2 = Argon2::default();
        let stored = PasswordHash {
            algorithm: Algorithm::Argon2id.ident(),
            version: Some(Version::V0x13.into()),
            params: ParamsString::try_from(argon2.params())?,
            salt: Some(salt.as_salt()),
            hash: None,
        };
        let hash = Some(output(&argon2, &password, &stored, memory)?);
        Ok::<_, Error>(PasswordHash { hash, ..stored }.to_string())
    });
    made.await?.map_err(|_| Problem::new(Status::INTERNAL_SERVER_ERROR))
}

/// Whether the password matches the stored hash. Without a stored hash it still computes one, so that the
/// duration does not reveal which accounts exist.
///
/// # Errors
/// 503 where too many wait.
pub async fn is_right(password: String, stored: Option<String>) -> Result<bool, Problem> {
    off_the_worker(move |memory| {
        let unknown =
            "$argon2id$v=19$m=19456,t=2,p=1$c29tZXRoaW5nc2FsdHk$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        is_of(&password, stored.as_deref().unwrap_or(unknown), memory).unwrap_or(false)
    })
    .await
}

fn is_of(password: &str, stored: &str, memory: &mut Vec<Block>) -> Result<bool, Error> {
    let stored = PasswordHash::new(stored)?;
    let params = Params::try_from(&stored)?;
    let argon2 = Argon2::new(stored.algorithm.try_into()?, Version::V0x13, params);
    // Compared in constant time.
    Ok(stored.hash == Some(output(&argon2, password, &stored, memory)?))
}

/// The hash of a password with the salt of `of`.
fn output(
    argon2: &Argon2<'_>,
    password: &str,
    of: &PasswordHash<'_>,
    memory: &mut Vec<Block>,
) -> Result<Output, Error> {
    let mut salt = [0; 64];
    let salt = of.salt.ok_or(Error::Password)?.decode_b64(&mut salt)?;
    let blocks = argon2.params().block_count();
    memory.resize(memory.len().max(blocks), Block::default());
    let mut hash = [0; Params::DEFAULT_OUTPUT_LEN];
    argon2.hash_password_into_with_memory(password.as_bytes(), salt, &mut hash, &mut memory[..blocks])?;
    Output::new(&hash)
}

/// Runs work that needs the memory of a hash. That is kept: allocators would keep it too, for each thread anew.
async fn off_the_worker<T: Send + 'static>(
    work: impl FnOnce(&mut Vec<Block>) -> T + Send + 'static,
) -> Result<T, Problem> {
    let unavailable = || Problem::new(Status::SERVICE_UNAVAILABLE).header("Retry-After", "1");
    let _place = PLACES.try_acquire().map_err(|_| unavailable())?;
    let thread = THREADS.acquire().await.map_err(|_| unavailable())?;
    let run = move || {
        // Until the work has ended, whether anybody waits for it or not.
        let _thread = thread;
        let kept = || MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = kept().pop().unwrap_or_default();
        let done = work(&mut memory);
        kept().push(memory);
        done
    };
    tokio::task::spawn_blocking(run).await.map_err(|_| Problem::new(Status::INTERNAL_SERVER_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_right_or_wrong() {
        let stored = hash("correct horse".to_owned()).await.unwrap();
        assert!(stored.starts_with("$argon2id$") && !stored.contains("horse"));
        assert!(is_right("correct horse".to_owned(), Some(stored.clone())).await.unwrap());
        assert!(!is_right("battery".to_owned(), Some(stored)).await.unwrap());
        assert!(!is_right("battery".to_owned(), None).await.unwrap());
        assert!(!is_right("battery".to_owned(), Some("nonsense".to_owned())).await.unwrap());
        // As the crate's own functions make and read them.
        use argon2::password_hash::{PasswordHasher, PasswordVerifier};
        let salt = SaltString::generate(&mut OsRng);
        let theirs = Argon2::default().hash_password(b"theirs", &salt).unwrap().to_string();
        assert!(is_right("theirs".to_owned(), Some(theirs)).await.unwrap());
        let ours = hash("ours".to_owned()).await.unwrap();
        let ours = PasswordHash::new(&ours).unwrap();
        assert!(Argon2::default().verify_password(b"ours", &ours).is_ok());
    }
}
