//! Validates UTF-8 in pieces: an error is found at the byte that causes it.

/// The bytes are no UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotUtf8;

/// Validates a text piece by piece. Between characters it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Utf8 {
    /// The start of a character at the end of the last piece.
    begun: [u8; 3],
    begun_bytes: u8,
}

impl Utf8 {
    /// Validates the next piece.
    ///
    /// # Errors
    /// The input so far is not the start of a valid text.
    pub fn check(&mut self, mut piece: &[u8]) -> Result<(), NotUtf8> {
        while self.begun_bytes > 0 {
            let Some((&next, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.continue_with(next)?;
        }
        match std::str::from_utf8(piece) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_some() => Err(NotUtf8),
            Err(error) => {
                let begun = piece.get(error.valid_up_to()..).unwrap_or_default();
                for (to, from) in self.begun.iter_mut().zip(begun) {
                    *to = *from;
                }
                // An incomplete character of four bytes lacks at least one.
                self.begun_bytes = begun.len().min(3) as u8;
                Ok(())
            }
        }
    }

    /// Adds a byte to the incomplete character.
    fn continue_with(&mut self, next: u8) -> Result<(), NotUtf8> {
        let mut character = [0; 4];
        let count = usize::from(self.begun_bytes);
        for (to, from) in character.iter_mut().zip(self.begun) {
            *to = from;
        }
        if let Some(place) = character.get_mut(count) {
            *place = next;
        }
        match std::str::from_utf8(character.get(..=count).unwrap_or_default()) {
            Ok(_) => self.begun_bytes = 0,
            Err(error) if error.error_len().is_some() => return Err(NotUtf8),
            Err(_) => {
                if let Some(place) = self.begun.get_mut(count) {
                    *place = next;
                }
                self.begun_bytes += 1;
            }
        }
        Ok(())
    }

    /// Ends the text.
    ///
    /// # Errors
    /// Its last character is incomplete.
    pub fn finish(&mut self) -> Result<(), NotUtf8> {
        match std::mem::take(&mut self.begun_bytes) {
            0 => Ok(()),
            _ => Err(NotUtf8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn in_pieces(bytes: &[u8], piece: usize) -> Result<(), NotUtf8> {
        let mut check = Utf8::default();
        bytes.chunks(piece).try_for_each(|piece| check.check(piece))?;
        check.finish()
    }

    proptest! {
        #[test]
        fn pieces_are_judged_as_the_whole(text in ".{0,20}", noise in prop::collection::vec(any::<u8>(), 0..6), piece in 1usize..9) {
            let bytes = [text.as_bytes(), &noise].concat();
            prop_assert_eq!(in_pieces(&bytes, piece).is_ok(), std::str::from_utf8(&bytes).is_ok());
        }
    }

    #[test]
    fn a_mistake_is_found_with_its_byte() {
        // A surrogate is invalid at its second byte, and so is a code point above the last one.
        for bytes in [&[0xed, 0xa0][..], &[0xf4, 0x90], &[0xc0], &[0xf5], &[0xe0, 0x80]] {
            let mut check = Utf8::default();
            let (last, first) = bytes.split_last().unwrap();
            assert_eq!(first.iter().try_for_each(|byte| check.check(&[*byte])), Ok(()), "{bytes:?}");
            assert_eq!(check.check(&[*last]), Err(NotUtf8), "{bytes:?}");
        }
    }
}
