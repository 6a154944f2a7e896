//! Positions in a file, for mistakes that only the whole plan shows.

use std::ops::Range;

use crate::mistake::Mistake;
use crate::source::Source;

/// A parsed file, and the positions of its settings and rungs.
#[derive(Debug, Clone)]
pub struct Places {
    source: Source,
    settings: Vec<(String, Range<usize>)>,
    rungs: Vec<(String, Range<usize>)>,
}

impl Places {
    pub(crate) fn new(
        source: Source,
        settings: Vec<(String, Range<usize>)>,
        rungs: Vec<(String, Range<usize>)>,
    ) -> Places {
        Places { source, settings, rungs }
    }

    /// A mistake in the value of a setting, at its first occurrence; `None` if the file does not contain it.
    pub fn setting(&self, word: &str, message: &str) -> Option<Mistake> {
        self.mistake(&self.settings, word, message)
    }

    /// A mistake in a rung, at its name; `None` if the file has no such rung.
    pub fn rung(&self, name: &str, message: &str) -> Option<Mistake> {
        self.mistake(&self.rungs, name, message)
    }

    /// A mistake of the file as a whole, shown at its start.
    pub fn whole(&self, message: &str) -> Mistake {
        self.source.mistake(0..0, message.to_owned())
    }

    /// Forgets a setting that was overridden.
    pub fn forget_setting(&mut self, word: &str) {
        self.settings.retain(|(known, _)| known != word);
    }

    /// Forgets all rungs, if others replace them.
    pub fn forget_rungs(&mut self) {
        self.rungs.clear();
    }

    fn mistake(&self, known: &[(String, Range<usize>)], name: &str, message: &str) -> Option<Mistake> {
        let (_, at) = known.iter().find(|(known, _)| known == name)?;
        Some(self.source.mistake(at.clone(), message.to_owned()))
    }
}
