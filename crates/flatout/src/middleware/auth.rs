//! Access by the `Authorization` field.

use std::hint::black_box;

use flatout_engine::{Reply, Response};
use flatout_wire::Status;

use super::{Inner, Middleware};
use crate::{Context, Problem, Respond};

type CheckPassword = Box<dyn Fn(&str, &str) -> bool + Send + Sync>;
type CheckToken = Box<dyn Fn(&str, &mut Context<'_>) -> Result<(), Problem> + Send + Sync>;

/// Requires a user name and a password (RFC 7617); other requests get 401. Handlers get the name as
/// `Extension<BasicUser>`. The check runs on the worker: use an async [`around`](crate::App::around) with
/// `spawn_blocking` for slow password hashes.
///
/// ```
/// use flatout::middleware::{BasicAuth, BasicUser};
/// use flatout::{App, Extension, test::Client};
///
/// let app = App::new()
///     .with(BasicAuth::users("the office", [("ada", "lovelace")]))
///     .get("/me", |Extension(BasicUser(name)): Extension<BasicUser>| name);
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/me").send().status().code(), 401);
/// let answer = client.get("/me").header("Authorization", "Basic YWRhOmxvdmVsYWNl").send();
/// assert_eq!(answer.text(), "ada");
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct BasicAuth {
    realm: String,
    check: CheckPassword,
}

/// The user name that [`BasicAuth`] has accepted.
///
/// ```
/// use flatout::middleware::{BasicAuth, BasicUser};
/// use flatout::{App, Extension};
///
/// fn greet(Extension(BasicUser(name)): Extension<BasicUser>) -> String {
///     format!("hello, {name}")
/// }
///
/// App::new().with(BasicAuth::new("the office", |name, password| name == "ada" && password == "lovelace")).get("/", greet);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicUser(pub String);

/// Requires a token (RFC 6750); other requests get 401.
///
/// ```
/// use flatout::middleware::BearerAuth;
/// use flatout::{App, test::Client};
///
/// let client = Client::new(App::new().with(BearerAuth::tokens(["s3cret"])).get("/", || "in"))?;
/// assert_eq!(client.get("/").header("Authorization", "Bearer s3cret").send().text(), "in");
/// assert_eq!(client.get("/").header("Authorization", "Bearer secret").send().status().code(), 401);
/// # Ok::<(), flatout::Error>(())
/// ```
pub struct BearerAuth {
    check: CheckToken,
}

impl BasicAuth {
    /// Accepts names and passwords for which `check` returns true.
    pub fn new(
        realm: impl Into<String>,
        check: impl Fn(&str, &str) -> bool + Send + Sync + 'static,
    ) -> BasicAuth {
        BasicAuth { realm: realm.into(), check: Box::new(check) }
    }

    /// Accepts these names and passwords. All are compared, each in constant time.
    pub fn users<N: Into<String>, P: Into<String>>(
        realm: impl Into<String>,
        users: impl IntoIterator<Item = (N, P)>,
    ) -> BasicAuth {
        let known: Vec<(String, String)> =
            users.into_iter().map(|(name, password)| (name.into(), password.into())).collect();
        BasicAuth::new(realm, move |name, password| {
            known.iter().fold(false, |found, (known_name, known_password)| {
                let is_same = same(known_name, name) & same(known_password, password);
                found | is_same
            })
        })
    }

    fn user(&self, context: &Context<'_>) -> Option<String> {
        let credentials = String::from_utf8(decode(credentials(context, "basic")?)?).ok()?;
        let (name, password) = credentials.split_once(':')?;
        (self.check)(name, password).then(|| name.to_owned())
    }
}

impl BearerAuth {
    /// Accepts tokens that pass `check`, which may store values for handlers in the context's extensions.
    pub fn new(
        check: impl Fn(&str, &mut Context<'_>) -> Result<(), Problem> + Send + Sync + 'static,
    ) -> BearerAuth {
        BearerAuth { check: Box::new(check) }
    }

    /// Accepts these tokens. All are compared, each in constant time.
    pub fn tokens<T: Into<String>>(tokens: impl IntoIterator<Item = T>) -> BearerAuth {
        let known: Vec<String> = tokens.into_iter().map(Into::into).collect();
        BearerAuth::new(move |token, _| {
            let is_known = known.iter().fold(false, |found, known| found | same(known, token));
            if is_known { Ok(()) } else { Err(Problem::new(Status::UNAUTHORIZED)) }
        })
    }
}

impl Middleware for BasicAuth {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let Some(name) = self.user(context) else {
            let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.realm);
            Problem::new(Status::UNAUTHORIZED).header("WWW-Authenticate", challenge).respond(response);
            return Reply::Now;
        };
        context.extensions_mut().insert(BasicUser(name));
        inner.call(context, response)
    }

    fn check(&self) -> Result<(), String> {
        let is_realm = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
        if self.realm.bytes().all(is_realm) {
            Ok(())
        } else {
            Err(format!("realm: got `{}`, wanted ASCII without quotes and backslashes", self.realm))
        }
    }
}

impl Middleware for BearerAuth {
    fn call<'a>(&self, inner: Inner<'a>, context: &mut Context<'a>, response: &mut Response) -> Reply {
        let token = credentials(context, "bearer")
            .filter(|token| !token.is_empty())
            .and_then(|token| String::from_utf8(token.to_vec()).ok());
        let Some(token) = token else {
            Problem::new(Status::UNAUTHORIZED).header("WWW-Authenticate", "Bearer").respond(response);
            return Reply::Now;
        };
        match (self.check)(&token, context) {
            Ok(()) => inner.call(context, response),
            Err(problem) => {
                let is_refused = problem.status() == Status::UNAUTHORIZED;
                problem.respond(response);
                if is_refused && response.field("www-authenticate").is_none() {
                    response.header("WWW-Authenticate", "Bearer error=\"invalid_token\"");
                }
                Reply::Now
            }
        }
    }
}

/// The part after the scheme.
fn credentials<'c>(context: &'c Context<'_>, scheme: &str) -> Option<&'c [u8]> {
    let value = context.header("authorization")?;
    let (sent, rest) = value.split_at(value.iter().position(|&byte| byte == b' ')?);
    sent.eq_ignore_ascii_case(scheme.as_bytes()).then(|| rest.trim_ascii())
}

/// Compares in a time that depends only on the lengths.
fn same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| black_box(differ | (a ^ b)));
    (one.len() == other.len()) & (differ == 0)
}

/// Base64 (RFC 4648 section 4), with or without padding, of whole bytes only.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let bare = match text {
        [bare @ .., b'=', b'='] | [bare @ .., b'='] if text.len().is_multiple_of(4) => bare,
        bare => bare,
    };
    let mut out = Vec::with_capacity(bare.len() / 4 * 3 + 2);
    for group in bare.chunks(4) {
        let mut bits = 0u32;
        for &byte in group {
            bits = bits << 6 | u32::from(sextet(byte)?);
        }
        bits <<= 6 * (4 - group.len());
        let [_, bytes @ ..] = bits.to_be_bytes();
        let (whole, spare) = bytes.split_at(group.len() - 1);
        if group.len() == 1 || spare.iter().any(|&byte| byte != 0) {
            return None;
        }
        out.extend_from_slice(whole);
    }
    Some(out)
}

fn sextet(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_strictly() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zg", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in
            ["Z", "Zm9vY", "Zh==", "Zm9=", "Z===", "====", "Zm 9v", "Zm9v\n", "-_-_", "Zg=", "Zg==Zg=="]
        {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn texts_are_compared_whole() {
        assert!(same("", "") && same("abc", "abc"));
        for (one, other) in [("abc", "abd"), ("abc", "ab"), ("", "a"), ("abc", "abcd")] {
            assert!(!same(one, other));
        }
    }
}
