//! What logs and metrics learn of a request from here.

/// Which site and route a request had: the low half of the number that the engine hands back when the request has ended
/// ([`flatout_engine::Ended::note`]). The high half is the forwarder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Note {
    /// The index of the site in the plan; `None` where no host fitted.
    pub site: Option<u16>,
    /// The index of the route in its site; `None` where no route was taken.
    pub route: Option<u16>,
}

impl Note {
    /// The low half of a note, with a high half of zeros.
    pub fn to_u64(self) -> u64 {
        let half = |index: Option<u16>| index.map_or(0, |index| u64::from(index.saturating_add(1)));
        half(self.site) | half(self.route) << 16
    }

    /// What is in the low half of a note.
    pub fn from_u64(note: u64) -> Note {
        let index = |half: u64| (half as u16).checked_sub(1);
        Note { site: index(note), route: index(note >> 16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back() {
        for note in [
            Note::default(),
            Note { site: Some(0), route: None },
            Note { site: Some(0), route: Some(0) },
            Note { site: Some(4095), route: Some(7) },
        ] {
            assert_eq!(Note::from_u64(note.to_u64() | 5 << 32), note);
        }
    }
}
