use argon2::{Algorithm, Argon2, Params, Version};

use super::logins::REMEMBERED_MAX;
use super::*;
use crate::fault::Place;
use crate::plan::User;

/// The password `secret`, hashed by `htpasswd -nbBC 4` and by the argon2 tool with little memory.
const BCRYPT: &str = "$2y$04$xH3fHShvmKmYO.6kPyBjeOZ5qAKMTU0pQdFFUQCJHWZjFKPnFPr0W";

fn user(name: &str, hash: &str) -> User {
    User { name: name.to_owned(), hash: hash.to_owned() }
}

pub(crate) fn bcrypt_of(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}

pub(crate) fn argon2_of(password: &str) -> String {
    use argon2::PasswordHasher;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::default(), Params::new(64, 1, 1, None).unwrap());
    argon2.hash_password_with_salt(password.as_bytes(), b"saltsalt").unwrap().to_string()
}

#[test]
fn both_kinds_of_hashes_are_checked() {
    let users = [user("ann", &bcrypt_of("secret")), user("bob", &argon2_of("secret"))];
    let users = Users::new(&users, Place::Plan).unwrap();
    for name in ["ann", "bob"] {
        assert!(users.is_right(name.as_bytes(), b"secret"), "{name}");
        assert!(!users.is_right(name.as_bytes(), b"Secret") && !users.is_right(name.as_bytes(), b""));
    }
    assert!(!users.is_right(b"eve", b"secret") && !users.is_right(b"", b""));
}

/// Hashes of `secret`, written by `openssl passwd`, and of RFC 2307.
const OLDER: [&str; 7] = [
    "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0",
    "$1$saltsalt$9xy1btjgzLYfb7hivXtC//",
    "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
    "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
    "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0",
    "{PLAIN}secret",
];

#[test]
fn older_hashes_are_checked() {
    for hash in OLDER {
        let users = Users::new(&[user("ann", hash)], Place::Plan).unwrap();
        assert!(users.is_right(b"ann", b"secret"), "{hash}");
        for wrong in ["", "s", "Secret", "secret ", "a much longer password than the others of this test"] {
            assert!(!users.is_right(b"ann", wrong.as_bytes()), "{hash} {wrong}");
        }
    }
}

#[test]
fn other_hashes_are_refused_with_a_reason() {
    let costly = BCRYPT.replace("$04$", "$17$");
    let greedy = argon2_of("a").replace("m=64", "m=999999");
    for (hash, expected) in [
        ("$apr1$abc$def", "malformed"),
        ("{SHA}abc", "malformed"),
        ("$6$abc", "malformed"),
        ("saK8NpLaeYLyo", "DES, which is refused"),
        ("$6$rounds=9000000$a$b", "2,000,000 rounds"),
        ("secret", "expected an argon2 hash"),
        ("$argon2id$x", "malformed"),
        (&greedy, "more than 256 MiB"),
        (&costly, "cost above 16"),
    ] {
        let fault = Users::new(&[user("ann", hash)], Place::Plan).unwrap_err();
        assert!(fault.reason.contains(expected), "{hash}: {fault}");
    }
    let twice = [user("ann", BCRYPT), user("ann", BCRYPT)];
    assert!(Users::new(&twice, Place::Plan).unwrap_err().reason.contains("twice"));
    assert!(Users::new(&[user("a:b", BCRYPT)], Place::Plan).is_err());
}

fn list(hash: &str) -> Arc<Users> {
    Arc::new(Users::new(&[user("ann", hash)], Place::Plan).unwrap())
}

fn login<'a>(users: &'a Arc<Users>, password: &'a str, address: u64) -> Login<'a> {
    let peer = Some(SocketAddr::from(([127, 0, 0, 1], 1000 + address as u16)));
    Login { users, name: b"ann", password: password.as_bytes(), address, peer }
}

#[test]
fn a_correct_password_is_remembered_for_its_list_only() {
    let (users, others) = (list(&bcrypt_of("secret")), list(&bcrypt_of("other")));
    let passwords = Passwords::start().unwrap();
    let right = login(&users, "secret", 1);
    assert!(!passwords.recalls(&right));
    assert!(!passwords.check(&login(&users, "wrong", 1)).unwrap().blocking_recv().unwrap());
    assert!(passwords.check(&right).unwrap().blocking_recv().unwrap());
    assert!(passwords.recalls(&right));
    assert!(passwords.recalls(&login(&users, "secret", 2)), "another connection and address");
    assert!(!passwords.recalls(&login(&users, "wrong", 1)));
    assert!(!passwords.recalls(&login(&others, "secret", 1)));
    // The border between name and password matters.
    assert!(!passwords.recalls(&Login { name: b"an", password: b"nsecret", ..right }));
}

#[test]
fn a_connection_is_remembered_longer_than_its_password() {
    let users = list(BCRYPT);
    let remembered = LoginCache::new();
    let now = Instant::now();
    let one = login(&users, "secret", 1);
    remembered.add(&one, None, now + REMEMBERED_TIME, now);
    remembered.add(&one, one.peer, now + CONNECTION_TIME, now);
    let later = now + REMEMBERED_TIME;
    assert!(remembered.has(&one, None, now) && !remembered.has(&one, None, later));
    assert!(remembered.has(&one, one.peer, later));
    assert!(!remembered.has(&one, login(&users, "secret", 2).peer, later), "another connection");
    assert!(!remembered.has(&one, one.peer, now + CONNECTION_TIME));
}

#[test]
fn the_table_of_remembered_logins_is_bounded() {
    let users = list(BCRYPT);
    let remembered = LoginCache::new();
    let now = Instant::now();
    let names: Vec<String> = (0..REMEMBERED_MAX + 10).map(|at| at.to_string()).collect();
    for name in &names {
        let login = Login { name: name.as_bytes(), ..login(&users, "secret", 1) };
        remembered.add(&login, None, now + REMEMBERED_TIME, now);
    }
    assert_eq!(remembered.lock().len(), REMEMBERED_MAX);
    let later = now + REMEMBERED_TIME;
    remembered.add(&login(&users, "secret", 1), None, later + REMEMBERED_TIME, later);
    assert_eq!(remembered.lock().len(), 1, "expired entries make room");
}

/// A state whose checks no thread runs.
fn unserved() -> Passwords {
    let remembered = LoginCache::new();
    Passwords(Arc::new(Shared { pending: Mutex::default(), changed: Condvar::new(), remembered }))
}

#[test]
fn two_checks_of_an_address_are_pending_at_most() {
    let users = list(BCRYPT);
    let passwords = unserved();
    let mut waiting: Vec<_> =
        ["a", "b"].iter().map(|password| passwords.check(&login(&users, password, 1)).unwrap()).collect();
    assert_eq!(passwords.check(&login(&users, "c", 1)).unwrap_err(), Busy);
    // The same password waits with the first.
    waiting.push(passwords.check(&login(&users, "a", 1)).unwrap());
    assert_eq!(passwords.0.lock().checks.len(), 2);
    for address in 2..=(PENDING_MAX - 1) as u64 {
        waiting.push(passwords.check(&login(&users, "a", address)).unwrap());
    }
    assert_eq!(passwords.check(&login(&users, "a", 1000)).unwrap_err(), Busy, "the limit for all");
    // Whose client has disconnected is not checked.
    waiting.clear();
    assert!(passwords.check(&login(&users, "c", 1)).is_ok());
    assert_eq!(passwords.0.lock().checks.len(), 1);
}

#[test]
fn requests_that_wait_for_the_same_check_are_bounded() {
    let users = list(BCRYPT);
    let passwords = unserved();
    let check = || passwords.check(&login(&users, "a", 1));
    let waiting: Vec<_> = (0..WAITING_PER_CHECK_MAX).map(|_| check().unwrap()).collect();
    assert_eq!(check().unwrap_err(), Busy);
    drop(waiting);
}

#[test]
fn an_address_has_one_thread_and_waits_after_failures() {
    let users = list(BCRYPT);
    let passwords = unserved();
    let _waiting: Vec<_> = [("a", 1), ("b", 1), ("a", 2)]
        .iter()
        .map(|&(password, address)| passwords.check(&login(&users, password, address)).unwrap())
        .collect();
    let next = || passwords.0.next().unwrap().id;
    assert_eq!((next(), next()), (0, 2), "the second check of the first address waits");
    assert!(passwords.0.lock().ready_at(Instant::now()).is_none());
    passwords.0.finish(0, false);
    let now = Instant::now();
    let (id, at) = passwords.0.lock().ready_at(now).unwrap();
    assert!(id == 1 && at > now.checked_sub(FAILURE_DELAY).unwrap() && at <= now + FAILURE_DELAY);
    assert_eq!(next(), 1, "it waits for its time");
    let mut pending = passwords.0.lock();
    for (count, delay_ms) in [(2, 200), (3, 400), (4, 800), (5, 1000), (6, 1000)] {
        pending.failed(1, now);
        let failures = pending.failures[&1];
        assert_eq!((failures.count, failures.over_at() - now), (count, Duration::from_millis(delay_ms)));
    }
    pending.failed(1, now + FAILURES_TIME);
    assert_eq!(pending.failures[&1].count, 1, "old failures are forgotten");
    for address in 0..2 * ADDRESSES_MAX as u64 {
        pending.failed(address, now);
    }
    assert_eq!(pending.failures.len(), ADDRESSES_MAX);
}
