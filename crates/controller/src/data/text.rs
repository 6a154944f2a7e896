//! Texts with variables.

use flatout_site::plan::{Piece, Template, VARIABLES, Variable};
use serde::{Deserialize, Serialize};

/// A piece of a text; variables have the names of site files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PieceData {
    Text(String),
    Variable(String),
}

/// A template's pieces, if all of its variables have names.
pub(super) fn pieces(template: &Template) -> Option<Vec<PieceData>> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => Some(PieceData::Text(text.clone())),
        Piece::Variable(variable) => variable_name(variable).map(PieceData::Variable),
    };
    template.0.iter().map(piece).collect()
}

pub(super) fn template(pieces: &[PieceData]) -> Result<Template, String> {
    let piece = |piece: &PieceData| match piece {
        PieceData::Text(text) => Ok(Piece::Text(text.clone())),
        PieceData::Variable(name) => match Template::parse(&format!("${{{name}}}"), |_| None) {
            Ok(Template(mut found)) if found.len() == 1 => Ok(found.remove(0)),
            _ => Err(format!("unknown variable `{}`", name.escape_debug())),
        },
    };
    pieces.iter().map(piece).collect::<Result<_, _>>().map(Template)
}

/// The name of a variable in site files.
fn variable_name(variable: &Variable) -> Option<String> {
    let fixed = || VARIABLES.iter().find(|(_, it)| it == variable).map(|(name, _)| (*name).to_owned());
    match variable {
        Variable::Capture(number) => Some(number.to_string()),
        Variable::Header(name) => Some(format!("http_{}", name.replace('-', "_"))),
        Variable::Argument(name) => Some(format!("arg_{name}")),
        Variable::Cookie(name) => Some(format!("cookie_{name}")),
        _ => fixed(),
    }
}
