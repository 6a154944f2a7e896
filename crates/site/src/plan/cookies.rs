//! Changes of what upstreams say about themselves.

/// A replacement at the start of `Location` and `Refresh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationRule {
    /// What the value starts with.
    pub from: String,
    /// What replaces it.
    pub to: String,
}

/// A change of the cookies of upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CookieRule {
    /// The attribute `Domain`; an empty one is removed.
    Domain {
        /// The domain, without a dot at its start; case is ignored.
        from: String,
        /// What replaces it.
        to: String,
    },
    /// The start of the attribute `Path`.
    Path {
        /// What it starts with.
        from: String,
        /// What replaces that.
        to: String,
    },
    /// Flags of the cookie of this name; `*` is all.
    Flags {
        /// The name.
        name: String,
        /// The flags.
        flags: Vec<CookieFlag>,
    },
}

/// A flag of a cookie, and whether it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CookieFlag {
    /// `Secure`
    Secure(bool),
    /// `HttpOnly`
    HttpOnly(bool),
    /// `SameSite`; `None` removes it.
    SameSite(Option<SameSite>),
}

/// When browsers send a cookie from other sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameSite {
    /// Never.
    Strict,
    /// When a user follows a link.
    Lax,
    /// Always.
    None,
}

impl SameSite {
    /// The attribute.
    pub(crate) fn text(self) -> &'static str {
        match self {
            SameSite::Strict => "SameSite=Strict",
            SameSite::Lax => "SameSite=Lax",
            SameSite::None => "SameSite=None",
        }
    }
}
