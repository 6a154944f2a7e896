//! What one worker has served lately, without shared cache lines.
//!
//! ```text
//! head, byte for byte as before ── heads ──┐
//! key of the request ──────────────────────┴─> entries: lines encoded once a second, body ─> response
//! ```

pub(crate) mod entries;
pub(crate) mod heads;
