//! Parses tokens into directives.

use std::fmt;
use std::rc::Rc;

use flatout_config::{Mistake, Source};

use super::token::{Token, Tokens, Wrong};

/// Nested blocks. Real ones have five levels.
pub const BLOCKS_DEEP_MAX: usize = 64;

/// A directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub words: Vec<Word>,
    /// The content of its braces; `None` if it ends with a semicolon.
    pub block: Option<Vec<Directive>>,
    /// The comments before it, one per line.
    pub comments: Vec<String>,
    /// Its file.
    pub file: Rc<str>,
    /// The line, from 1.
    pub line: usize,
}

/// An argument of a directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Without quotes and escapes.
    pub text: String,
    /// Whether it was quoted.
    pub is_quoted: bool,
}

/// Parses the directives of one file, including `include`.
///
/// # Errors
/// The first syntax error.
pub fn parse(source: &Source, name: &str) -> Result<Vec<Directive>, Mistake> {
    let mut parser = Parser { source, tokens: Tokens::of(source.text()), file: name.into() };
    let directives = parser.block(0);
    directives.map_err(|(at, message)| source.mistake(at, message))
}

impl Directive {
    /// The text of the word at `index`, from 0; empty if there is none.
    pub fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", |word| word.text.as_str())
    }

    /// The texts of its words.
    pub fn texts(&self) -> Vec<&str> {
        self.words.iter().map(|word| word.text.as_str()).collect()
    }

    /// The content of its braces.
    pub fn inner(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// As one line of text, without the content of its braces.
impl fmt::Display for Directive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for word in &self.words {
            let needs_quotes = word.is_quoted || word.text.is_empty();
            let text: String =
                word.text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
            match needs_quotes {
                true => write!(f, " \"{}\"", text.replace('"', "\\\""))?,
                false => write!(f, " {text}")?,
            }
        }
        f.write_str(if self.block.is_some() { " { … }" } else { ";" })
    }
}

struct Parser<'p> {
    source: &'p Source,
    tokens: Tokens<'p>,
    file: Rc<str>,
}

impl Parser<'_> {
    /// Directives up to the end of the file, or of the block if `depth` is above 0.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, Wrong> {
        let mut directives = Vec::new();
        let mut comments = Vec::new();
        let opened = self.tokens.at();
        loop {
            let Some((token, at)) = self.tokens.next()? else {
                return match depth {
                    0 => Ok(directives),
                    _ => Err((opened.saturating_sub(1)..opened, "this brace is not closed".to_owned())),
                };
            };
            match token {
                Token::Comment(text) => comments.push(text),
                Token::Close if depth > 0 => return Ok(directives),
                Token::Close => return Err((at, "this closing brace has no opening brace".to_owned())),
                Token::End => return Err((at, "there is no directive before this `;`".to_owned())),
                Token::Open => return Err((at, "there is no directive before this `{`".to_owned())),
                Token::Word(name, _) => {
                    let line = self.source.line(at.start);
                    let comments = std::mem::take(&mut comments);
                    let (words, block) = self.rest(&name, at, depth)?;
                    let file = self.file.clone();
                    directives.push(Directive { name, words, block, comments, file, line });
                }
            }
        }
    }

    /// The rest of a directive, after its name.
    fn rest(
        &mut self,
        name: &str,
        named: std::ops::Range<usize>,
        depth: usize,
    ) -> Result<(Vec<Word>, Option<Vec<Directive>>), Wrong> {
        let mut words = Vec::new();
        loop {
            match self.tokens.next()? {
                Some((Token::Word(text, is_quoted), _)) => words.push(Word { text, is_quoted }),
                Some((Token::Comment(_), _)) => {}
                Some((Token::End, _)) => return Ok((words, None)),
                Some((Token::Open, _)) if name.ends_with("_by_lua_block") => {
                    self.tokens.skip_block()?;
                    return Ok((words, Some(Vec::new())));
                }
                Some((Token::Open, at)) if depth + 1 > BLOCKS_DEEP_MAX => {
                    return Err((at, format!("blocks are nested deeper than {BLOCKS_DEEP_MAX}")));
                }
                Some((Token::Open, _)) => return Ok((words, Some(self.block(depth + 1)?))),
                Some((Token::Close, at)) => return Err((at, format!("`{name}` is not ended by `;`"))),
                None => return Err((named, format!("`{name}` is not ended by `;`"))),
            }
        }
    }
}
