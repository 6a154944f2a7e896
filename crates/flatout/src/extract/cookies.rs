//! Cookies: plain, signed, encrypted.

use std::sync::Arc;

use cookie::{Cookie, CookieJar, Key, SameSite};
use flatout_engine::{Response, say};
use flatout_wire::Status;

use super::Extract;
use crate::{Context, Problem, Respond};

/// Cookies that are read of one request; browsers send a few dozen at most.
const COOKIES_MAX: usize = 200;

/// The cookies of the request, and those to set with the response: an argument, and the first element of a returned pair.
/// Values are percent-encoded for transport.
///
/// Of several cookies with the same name, the first is used. Clients can send any value: use [`SignedCookies`] for values
/// that only the application may set.
///
/// ```
/// use flatout::{App, Cookies, cookie::Cookie, test::Client};
///
/// let app = App::new().get("/", |cookies: Cookies| {
///     let count = cookies.get("count").and_then(|count| count.value().parse().ok()).unwrap_or(0) + 1;
///     (cookies.add(Cookie::new("count", count.to_string())), format!("visit {count}"))
/// });
/// let answer = Client::new(app)?.get("/").header("Cookie", "count=6").send();
/// assert_eq!(answer.text(), "visit 7");
/// assert_eq!(answer.header("Set-Cookie"), Some("count=7"));
/// # Ok::<(), flatout::Error>(())
/// ```
///
/// Deletes one cookie, and counts all:
///
/// ```
/// use flatout::{App, Cookies, cookie::Cookie, test::Client};
///
/// let app = App::new().post("/reset", |cookies: Cookies| {
///     let count = cookies.iter().count();
///     (cookies.remove(Cookie::from("theme")), format!("{count} cookies"))
/// });
/// let answer = Client::new(app)?.post("/reset").header("Cookie", "theme=dark; lang=en").send();
/// assert_eq!(answer.text(), "2 cookies");
/// assert!(answer.header("Set-Cookie").is_some_and(|set| set.starts_with("theme=; Max-Age=0")));
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Cookies(CookieJar);

impl Cookies {
    /// The cookie with this name.
    pub fn get(&self, name: &str) -> Option<&Cookie<'static>> {
        self.0.get(name)
    }

    /// All cookies.
    pub fn iter(&self) -> impl Iterator<Item = &Cookie<'static>> {
        self.0.iter()
    }

    /// Sets a cookie.
    #[allow(clippy::should_implement_trait, reason = "axum's name for it")]
    pub fn add(mut self, cookie: Cookie<'static>) -> Self {
        self.0.add(cookie);
        self
    }

    /// Deletes a cookie at the client; its path and domain must be the same as when it was set.
    pub fn remove(mut self, cookie: Cookie<'static>) -> Self {
        self.0.remove(cookie);
        self
    }

    fn of(context: &Context<'_>) -> Cookies {
        let mut jar = CookieJar::new();
        let texts = context.head().field_all("cookie").filter_map(|value| std::str::from_utf8(value).ok());
        let sent = texts.flat_map(Cookie::split_parse_encoded).take(COOKIES_MAX).flatten();
        for cookie in sent {
            if jar.get(cookie.name()).is_none() {
                jar.add_original(cookie.into_owned());
            }
        }
        Cookies(jar)
    }

    fn write(&self, response: &mut Response) {
        for cookie in self.0.delta() {
            response.header("Set-Cookie", cookie.encoded().to_string());
        }
    }
}

impl Extract for Cookies {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        Ok(Cookies::of(context))
    }
}

macro_rules! keyed {
    ($(#[$doc:meta])* $name:ident $jar:ident $jar_mut:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            cookies: Cookies,
            key: Arc<Key>,
        }

        impl $name {
            /// The value of the cookie with this name, if this application has set it.
            pub fn get(&self, name: &str) -> Option<String> {
                let cookie = self.cookies.0.$jar(&self.key).get(name)?;
                cookie.value().strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
            }

            /// Sets a cookie. By default, scripts cannot read it (`HttpOnly`), it is not sent with cross-site requests
            /// (`SameSite`), and it is valid for the whole site.
            #[allow(clippy::should_implement_trait, reason = "axum's name for it")]
            pub fn add(mut self, mut cookie: Cookie<'static>) -> Self {
                if cookie.http_only().is_none() {
                    cookie.set_http_only(true);
                }
                if cookie.same_site().is_none() {
                    cookie.set_same_site(SameSite::Lax);
                }
                if cookie.path().is_none() {
                    cookie.set_path("/");
                }
                // Includes the name, so that the value is invalid under another name.
                let value = format!("{}={}", cookie.name(), cookie.value());
                cookie.set_value(value);
                self.cookies.0.$jar_mut(&self.key).add(cookie);
                self
            }

            /// Deletes a cookie at the client.
            pub fn remove(mut self, mut cookie: Cookie<'static>) -> Self {
                if cookie.path().is_none() {
                    cookie.set_path("/");
                }
                self.cookies.0.remove(cookie);
                self
            }
        }

        impl Extract for $name {
            fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
                let Some(key) = context.state::<Key>() else {
                    say(format_args!(
                        "a handler needs `{}`, which needs a `cookie::Key` in App::state",
                        stringify!($name)
                    ));
                    return Err(Problem::new(Status::INTERNAL_SERVER_ERROR));
                };
                Ok($name { cookies: Cookies::of(context), key })
            }
        }

        impl<T: Respond> Respond for ($name, T) {
            fn respond(self, response: &mut Response) {
                self.1.respond(response);
                self.0.cookies.write(response);
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

keyed! {
    /// Cookies that clients can read but not forge: signed with the [`Key`](cookie::Key) given to
    /// [`App::state`](crate::App::state). A cookie stays valid as long as its key. If it has to expire earlier, put a
    /// time into its value.
    ///
    /// ```
    /// use flatout::{App, SignedCookies, Status, cookie::{Cookie, Key}, test::Client};
    ///
    /// let app = App::new()
    ///     .state(Key::generate())
    ///     .post("/login", |cookies: SignedCookies| (cookies.add(Cookie::new("user", "ada")), "welcome"))
    ///     .get("/me", |cookies: SignedCookies| cookies.get("user"))
    ///     .post("/logout", |cookies: SignedCookies| (cookies.remove(Cookie::from("user")), "goodbye"));
    /// let client = Client::new(app)?.keep_cookies();
    /// client.post("/login").send();
    /// assert_eq!(client.get("/me").send().text(), "ada");
    /// client.post("/logout").send();
    /// assert_eq!(client.get("/me").header("Cookie", "user=forged").send().status(), Status::NOT_FOUND);
    /// # Ok::<(), flatout::Error>(())
    /// ```
    SignedCookies signed signed_mut
}

keyed! {
    /// Cookies that clients can neither read nor forge: encrypted and signed with the [`Key`](cookie::Key) given to
    /// [`App::state`](crate::App::state).
    ///
    /// ```
    /// use flatout::{App, PrivateCookies, cookie::{Cookie, Key}, test::Client};
    ///
    /// let app = App::new()
    ///     .state(Key::generate())
    ///     .post("/login", |cookies: PrivateCookies| (cookies.add(Cookie::new("user", "ada")), "welcome"))
    ///     .get("/me", |cookies: PrivateCookies| cookies.get("user"));
    /// let client = Client::new(app)?;
    /// let welcome = client.post("/login").send();
    /// let (cookie, _) = welcome.header("Set-Cookie").and_then(|set| set.split_once(';')).unwrap_or_default();
    /// assert_eq!(client.get("/me").header("Cookie", cookie).send().text(), "ada");
    /// # Ok::<(), flatout::Error>(())
    /// ```
    PrivateCookies private private_mut
}

/// The second element, with the cookies that were set.
impl<T: Respond> Respond for (Cookies, T) {
    fn respond(self, response: &mut Response) {
        self.1.respond(response);
        self.0.write(response);
    }
}
