//! The tokens of channels: JSON Web Tokens (RFC 7519, HS256), made elsewhere, so that the simulator needs no cryptography for them.

/// What publishers send.
pub(crate) const PUBLISHER: &str = "publisher-token";

/// What signs the tokens of subscribers.
pub(crate) const SECRET: &str = "simulated-secret";

/// `{"channels":["channel-*"]}`, signed with [`SECRET`].
pub(crate) const RIGHT: &str =
    "eyJhbGciOiJIUzI1NiJ9.eyJjaGFubmVscyI6WyJjaGFubmVsLSoiXX0.1gVHj2Jn2O5nYGHq-AK0MrhnjU7eRcQkOJOS8Lz3kZI";

/// `{"channels":["other-*","channel"]}`, signed with [`SECRET`]: for no channel of a run.
pub(crate) const OTHER: &str = "eyJhbGciOiJIUzI1NiJ9.eyJjaGFubmVscyI6WyJvdGhlci0qIiwiY2hhbm5lbCJdfQ.rxm0eQYbo28FgR0-Cjp9ySOK-3rkro2CdX26W1p5wJU";

/// `{"channels":["*"]}`, signed with another secret.
pub(crate) const FORGED: &str =
    "eyJhbGciOiJIUzI1NiJ9.eyJjaGFubmVscyI6WyIqIl19.fMUOeZjsDfRbu-ndCIyqzlwzLCz80SirGWeqd-6k50M";
