//! nginx.conf: text → directives, as nginx itself reads it.
//!
//! Written by hand. Of the crates that parse it, `nginx-config` and `misc-conf` are no longer maintained and know a
//! closed list of directives, and `nginx-lint-parser` makes a syntax tree for a linter (rowan), from which quoting and
//! escapes would have to be read again. The grammar is one page: `ngx_conf_read_token` in nginx's `ngx_conf_file.c`.

mod files;
mod parse;
mod token;

pub use files::read;
pub use parse::{BLOCKS_DEEP_MAX, Directive, Word, parse};

use flatout_config::Bounds;

/// What one file of a configuration may be: the largest that are known have some thousand servers.
pub const FILE: Bounds = Bounds {
    name: "an nginx configuration",
    bytes_max: 16 << 20,
    // Nothing is parsed by calling itself here before `BLOCKS_DEEP_MAX` is looked at.
    openings_max: usize::MAX,
    lacks: "an nginx configuration needs directives",
};

#[cfg(test)]
mod tests;
