//! Generates the reference page of site files from the table.

use super::blocks::{BLOCKS, SCOPES};
use super::grammar::scopes_of;
use super::setting::Key;
use super::settings::GROUPS;

/// All words of a site file as Markdown.
pub(super) fn text() -> String {
    let mut text = "### Blocks and actions\n\n| word | context | description |\n|---|---|---|\n".to_owned();
    for block in BLOCKS {
        let within: Vec<&str> = block.within.iter().map(|scope| SCOPES[*scope].0).collect();
        let braces = if block.braces.is_some() { " { … }" } else { "" };
        row(&mut text, block.name, block.value, braces, &within.join(", "), block.help, "", block.keys);
    }
    for (heading, settings) in GROUPS {
        text.push_str(&format!("\n### {heading}\n\n| setting | context | description |\n|---|---|---|\n"));
        for setting in *settings {
            let within: Vec<&str> = scopes_of(setting).iter().map(|scope| SCOPES[*scope].0).collect();
            row(
                &mut text,
                setting.name,
                setting.value,
                "",
                &within.join(", "),
                &format!("{}{}", setting.help, setting.change.text()),
                setting.default,
                setting.keys,
            );
        }
    }
    text
}

#[expect(clippy::too_many_arguments, reason = "the cells of a row")]
fn row(
    text: &mut String,
    name: &str,
    value: &str,
    braces: &str,
    within: &str,
    help: &str,
    default: &str,
    keys: &[Key],
) {
    let word = format!("{name} {value}{braces}");
    let mut told = format!("{help}{}", default_note(default));
    for key in keys {
        told.push_str(&format!("<br>`{}={}` {}{}", key.name, key.value, key.help, default_note(key.default)));
    }
    let cell = |text: &str| text.trim().replace('|', "\\|");
    text.push_str(&format!("| `{}` | {within} | {} |\n", cell(&word), cell(&told)));
}

fn default_note(default: &str) -> String {
    if default.is_empty() { String::new() } else { format!(" (default: {default})") }
}
