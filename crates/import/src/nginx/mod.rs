//! nginx.conf: text → directives, parsed as nginx does.
//!
//! Written by hand. Of the crates for it, `nginx-config` and `misc-conf` are no longer maintained and know a closed
//! list of directives; `nginx-lint-parser` builds a syntax tree for a linter (rowan), from which quotes and escapes
//! would have to be parsed again. The grammar is one page: `ngx_conf_read_token` in nginx's `ngx_conf_file.c`.

mod files;
mod parse;
mod token;

pub use files::read;
pub use parse::{BLOCKS_DEEP_MAX, Directive, Word, parse};

use flatout_config::Bounds;

/// Limits of one file: the largest known ones have a few thousand servers.
pub const FILE: Bounds = Bounds {
    name: "an nginx configuration",
    bytes_max: 16 << 20,
    chunk_bytes_max: usize::MAX,
    // Nothing recurses here before `BLOCKS_DEEP_MAX` is checked.
    openings_max: usize::MAX,
    lacks: "an nginx configuration needs directives",
};

#[cfg(test)]
mod tests;
