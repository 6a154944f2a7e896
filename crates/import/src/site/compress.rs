//! `gzip` and `brotli`: compression of files and of upstream responses.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text, value};
use super::values::bytes;

/// Directives that affect compression.
const NAMES: [&str; 8] = [
    "gzip",
    "gzip_comp_level",
    "gzip_types",
    "gzip_min_length",
    "brotli",
    "brotli_comp_level",
    "brotli_types",
    "brotli_min_length",
];

impl<'d> Import<'d> {
    /// Writes the compression settings of a block, if it has any.
    pub(super) fn compression(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        if let Some(gunzip) = chain.find_in_route("gunzip") {
            self.fates.carried(gunzip);
            lines.setting(format!("decode {}", if gunzip.word(0) == "on" { "on" } else { "off" }));
        }
        let own: Vec<&Directive> = chain
            .of_route()
            .iter()
            .copied()
            .flatten()
            .filter(|directive| NAMES.contains(&directive.name.as_str()))
            .collect();
        if own.is_empty() {
            return;
        }
        own.iter().for_each(|directive| self.fates.carried(directive));
        let codings = codings(chain);
        let has_switch = own.iter().any(|directive| ["gzip", "brotli"].contains(&directive.name.as_str()));
        if codings.is_empty() {
            if has_switch {
                lines.setting("compress off".to_owned());
                lines.setting("encode off".to_owned());
            }
            return;
        }
        lines.setting("compress on".to_owned());
        lines.setting(format!("encode {}", codings.join(" ")));
        lines.setting(format!("encode-types {}", types(chain).join(" ")));
        lines.setting(format!("encode-min {}", bytes_min(chain)));
    }
}

/// The codings for responses, the better one first.
fn codings(chain: &Chain<'_>) -> Vec<String> {
    [("brotli", "brotli_comp_level", "br", "6"), ("gzip", "gzip_comp_level", "gzip", "1")]
        .into_iter()
        .filter(|(name, ..)| chain.is_on(name))
        .map(|(_, level, coding, default)| {
            let level = chain.find(level).map_or(default, |directive| directive.word(0));
            text(&format!("{coding}={level}"))
        })
        .collect()
}

/// The compressed types: HTML always is.
fn types(chain: &Chain<'_>) -> Vec<String> {
    let mut types = vec!["text/html"];
    for name in ["gzip_types", "brotli_types"] {
        for given in chain.find(name).map(Directive::texts).unwrap_or_default() {
            let given = if given == "*" { "*/*" } else { given };
            if !types.contains(&given) {
                types.push(given);
            }
        }
    }
    types.into_iter().map(value).collect()
}

/// The shortest body that is compressed.
fn bytes_min(chain: &Chain<'_>) -> String {
    let given = ["gzip_min_length", "brotli_min_length"].into_iter().find_map(|name| chain.find(name));
    let bytes = given.and_then(|directive| bytes(directive.word(0)));
    bytes.map_or_else(|| "20".to_owned(), |bytes| bytes.to_string())
}
