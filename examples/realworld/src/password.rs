//! Passwords: Argon2id, on threads of their own. One hash takes about 20 ms and 19 MiB, on a worker all of its connections would
//! wait for it.

use argon2::Argon2;
use argon2::password_hash::rand_core::OsRng;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use flatout::{Problem, Status};
use tokio::sync::Semaphore;

/// Hashes at a time, in the whole process: each has its memory.
const AT_A_TIME_MAX: usize = 4;

/// Requests that wait for that; further ones are answered 503.
const WAITING_MAX: usize = 64;

/// The longest password: hashing is not to be had for free.
pub const PASSWORD_BYTES_MAX: usize = 256;

static PLACES: Semaphore = Semaphore::const_new(WAITING_MAX);
static THREADS: Semaphore = Semaphore::const_new(AT_A_TIME_MAX);

/// What is stored of a password.
///
/// # Errors
/// 503 where too many wait.
pub async fn hash(password: String) -> Result<String, Problem> {
    let hash = off_the_worker(move || {
        let salt = SaltString::generate(&mut OsRng);
        Argon2::default().hash_password(password.as_bytes(), &salt).map(|hash| hash.to_string())
    });
    hash.await?.map_err(|_| Problem::new(Status::INTERNAL_SERVER_ERROR))
}

/// Whether the password is the one that was stored. Without a stored one, a hash is made all the same: how long it takes says
/// nothing of who has an account.
///
/// # Errors
/// 503 where too many wait.
pub async fn is_right(password: String, stored: Option<String>) -> Result<bool, Problem> {
    off_the_worker(move || {
        let unknown =
            "$argon2id$v=19$m=19456,t=2,p=1$c29tZXRoaW5nc2FsdHk$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let stored = stored.as_deref().unwrap_or(unknown);
        PasswordHash::new(stored)
            .is_ok_and(|stored| Argon2::default().verify_password(password.as_bytes(), &stored).is_ok())
    })
    .await
}

async fn off_the_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let unavailable = || Problem::new(Status::SERVICE_UNAVAILABLE).header("Retry-After", "1");
    let _place = PLACES.try_acquire().map_err(|_| unavailable())?;
    let thread = THREADS.acquire().await.map_err(|_| unavailable())?;
    let run = move || {
        // Until the work has ended, whether anybody waits for it or not.
        let _thread = thread;
        work()
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
    }
}
