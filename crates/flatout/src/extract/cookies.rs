//! Cookies: plain, signed, encrypted.

use std::sync::Arc;

use cookie::{Cookie, CookieJar, Key, SameSite};
use flatout_engine::{Response, say};
use flatout_wire::Status;

use super::Extract;
use crate::{Context, Problem, Respond};

/// Cookies of one request that are read; browsers send a few dozen at the most.
const COOKIES_MAX: usize = 200;

/// The cookies that came with the request, and those that go with the response: an argument, and the first of a pair that
/// is returned. Values are percent-encoded on their way.
///
/// Of several cookies of one name the first counts. What the client sent may be anything: see [`SignedCookies`] for values
/// that must be yours.
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
#[derive(Debug, Clone, Default)]
pub struct Cookies(CookieJar);

impl Cookies {
    /// The cookie of this name.
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

    /// Has the client forget a cookie; its path and domain must be those it was set with.
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
            /// The value of the cookie of this name, if it is one that this application has set under this name.
            pub fn get(&self, name: &str) -> Option<String> {
                let cookie = self.cookies.0.$jar(&self.key).get(name)?;
                cookie.value().strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
            }

            /// Sets a cookie. Unless it says otherwise itself, scripts cannot read it, it is not sent with requests of
            /// other sites, and it holds for the whole site.
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
                // With its name, so that it is worth nothing under another.
                let value = format!("{}={}", cookie.name(), cookie.value());
                cookie.set_value(value);
                self.cookies.0.$jar_mut(&self.key).add(cookie);
                self
            }

            /// Has the client forget a cookie.
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
    /// Cookies that clients can read but not make: signed by the [`Key`](cookie::Key) that [`App::state`](crate::App::state)
    /// was given. A cookie that was set once stays good for as long as its key: what must end earlier has its time in the
    /// value.
    SignedCookies signed signed_mut
}

keyed! {
    /// Cookies that clients can neither read nor make: encrypted and signed by the [`Key`](cookie::Key) that
    /// [`App::state`](crate::App::state) was given.
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

/// The second, with the cookies that were set.
impl<T: Respond> Respond for (Cookies, T) {
    fn respond(self, response: &mut Response) {
        self.1.respond(response);
        self.0.write(response);
    }
}
