//! A configuration with all included files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flatout_config::Source;

use super::FILE;
use super::parse::{Directive, parse};

/// Nested includes; nginx itself continues until it runs out of descriptors.
const INCLUDES_DEEP_MAX: usize = 16;

/// Files of one configuration.
const FILES_MAX: usize = 4096;

/// Reads the configuration at `path` with everything it includes, each in the place of its `include`. Names are
/// relative to the folder of `path`, as in nginx.
///
/// # Errors
/// A file that cannot be read, or the first syntax error.
pub fn read(path: &Path) -> Result<Vec<Directive>, String> {
    // A name alone is a file of the current folder.
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let mut files = Files { folder, count: 0 };
    files.file(path, 0)
}

struct Files {
    folder: PathBuf,
    count: usize,
}

impl Files {
    fn file(&mut self, path: &Path, depth: usize) -> Result<Vec<Directive>, String> {
        self.count += 1;
        let name = path.display().to_string();
        if self.count > FILES_MAX {
            return Err(format!("there are more than {FILES_MAX} files"));
        }
        let mut bytes = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(FILE.bytes_max as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("cannot read `{name}`: {error}"))?;
        // Including an empty file is valid.
        if depth > 0 && bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Vec::new());
        }
        let told = |mistake: flatout_config::Mistake| mistake.to_string();
        let source = Source::new(&name, bytes, &FILE).map_err(told)?;
        let directives = parse(&source, &name).map_err(told)?;
        self.expand(directives, depth)
    }

    /// Replaces each `include` by its files, in blocks too.
    fn expand(&mut self, directives: Vec<Directive>, depth: usize) -> Result<Vec<Directive>, String> {
        let mut all = Vec::with_capacity(directives.len());
        for mut directive in directives {
            if directive.name == "include" && directive.block.is_none() {
                all.extend(self.included(&directive, depth)?);
                continue;
            }
            let block = directive.block.take().map(|block| self.expand(block, depth));
            directive.block = block.transpose()?;
            all.push(directive);
        }
        Ok(all)
    }

    fn included(&mut self, include: &Directive, depth: usize) -> Result<Vec<Directive>, String> {
        let at = |message: String| format!("{}:{}: {message}", include.file, include.line);
        let [pattern] = include.texts()[..] else {
            return Err(at("`include` takes one file".to_owned()));
        };
        if depth + 1 > INCLUDES_DEEP_MAX {
            return Err(at(format!("includes are nested deeper than {INCLUDES_DEEP_MAX}")));
        }
        let path = self.folder.join(pattern);
        // As in nginx: a pattern may match nothing, but a plain name must exist.
        if !pattern.contains(['*', '?', '[']) {
            return self.file(&path, depth + 1).map_err(at);
        }
        let folder = glob::Pattern::escape(&self.folder.to_string_lossy());
        let pattern =
            if pattern.starts_with('/') { pattern.to_owned() } else { format!("{folder}/{pattern}") };
        // As in the shell, a wildcard finds no hidden files.
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
        let paths =
            glob::glob_with(&pattern, options).map_err(|error| at(format!("`{pattern}`: {error}")))?;
        let mut all = Vec::new();
        for path in paths {
            let path = path.map_err(|error| at(error.to_string()))?;
            all.extend(self.file(&path, depth + 1).map_err(at)?);
        }
        Ok(all)
    }
}
