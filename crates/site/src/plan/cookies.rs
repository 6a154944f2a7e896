//! Changes of what upstreams say about themselves.

use super::template::Template;

/// What is looked for in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matcher {
    /// This text.
    Text(Template),
    /// What this expression finds. Texts of its rule may use its groups.
    Pattern {
        /// A regular expression.
        pattern: String,
        /// Whether case does not matter.
        ignore_case: bool,
    },
}

/// A replacement in `Location` and `Refresh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationRule {
    /// What the value starts with, or an expression that finds it.
    pub from: Matcher,
    /// What replaces that start, or the whole value.
    pub to: Template,
}

/// A change of the cookies of upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CookieRule {
    /// The attribute `Domain`; an empty one is removed. The first rule that fits is used.
    Domain {
        /// The domain, without a dot at its start; case is ignored.
        from: Matcher,
        /// What replaces it.
        to: Template,
    },
    /// The attribute `Path`. The first rule that fits is used.
    Path {
        /// What it starts with, or an expression that finds it.
        from: Matcher,
        /// What replaces that start, or the whole path.
        to: Template,
    },
    /// Flags of the cookie of this name; `*` is all.
    Flags {
        /// The name.
        name: Matcher,
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
