//! Where in a file things stand, for what is found wrong only when all of it is known.

use std::ops::Range;

use crate::mistake::Mistake;
use crate::source::Source;

/// A file that was read, and where its settings and rungs stand.
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

    /// A mistake in the value of a setting, shown at the first of them in the file; none where it has none.
    pub fn setting(&self, word: &str, message: &str) -> Option<Mistake> {
        self.mistake(&self.settings, word, message)
    }

    /// A mistake in a rung, shown at its name; none where the file has no such rung.
    pub fn rung(&self, name: &str, message: &str) -> Option<Mistake> {
        self.mistake(&self.rungs, name, message)
    }

    /// A mistake of the file as a whole, shown at its begin.
    pub fn whole(&self, message: &str) -> Mistake {
        self.source.mistake(0..0, message.to_owned())
    }

    /// Forgets a setting that something else than the file has given.
    pub fn forget_setting(&mut self, word: &str) {
        self.settings.retain(|(known, _)| known != word);
    }

    /// Forgets all rungs, where others take their place.
    pub fn forget_rungs(&mut self) {
        self.rungs.clear();
    }

    fn mistake(&self, known: &[(String, Range<usize>)], name: &str, message: &str) -> Option<Mistake> {
        let (_, at) = known.iter().find(|(known, _)| known == name)?;
        Some(self.source.mistake(at.clone(), message.to_owned()))
    }
}
