//! Compresses a streamed body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flatout_engine::{BoxError, Filter};

use super::encoder::Encoder;
use super::rules::Level;

/// Bodies of one route compressed at the same time, by all workers; further ones are sent uncompressed.
const UNDER_WAY_MAX: usize = 512;

/// Counts bodies that are being compressed.
#[derive(Debug, Default)]
pub(super) struct UnderWay(AtomicUsize);

/// Counts one such body until it is dropped.
pub(super) struct EncodePermit(Arc<UnderWay>);

impl UnderWay {
    /// `None` if there are too many.
    pub(super) fn begin(self: &Arc<UnderWay>) -> Option<EncodePermit> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let permit = EncodePermit(self.clone());
        (before < UNDER_WAY_MAX).then_some(permit)
    }
}

impl Drop for EncodePermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Compresses a pushed body.
pub(super) struct Filtered {
    /// `None` after the end.
    encoder: Option<Encoder>,
    _permit: EncodePermit,
}

impl Filtered {
    pub(super) fn new(level: Level, permit: EncodePermit) -> Option<Filtered> {
        Some(Filtered { encoder: Some(Encoder::new(level)?), _permit: permit })
    }
}

impl Filter for Filtered {
    fn piece(&mut self, bytes: Bytes) -> Result<Bytes, BoxError> {
        match &mut self.encoder {
            Some(encoder) => Ok(encoder.piece(&bytes)?.into()),
            None => Ok(Bytes::new()),
        }
    }

    fn end(&mut self) -> Result<Bytes, BoxError> {
        match self.encoder.take() {
            Some(encoder) => Ok(encoder.end(b"")?.into()),
            None => Ok(Bytes::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_compressions_are_limited() {
        let under_way = Arc::new(UnderWay::default());
        let mut permits: Vec<Option<EncodePermit>> =
            (0..UNDER_WAY_MAX + 2).map(|_| under_way.begin()).collect();
        assert_eq!(permits.iter().filter(|permit| permit.is_some()).count(), UNDER_WAY_MAX);
        permits.remove(0);
        assert!(under_way.begin().is_some());
        drop(permits);
        assert_eq!(under_way.0.load(Ordering::Relaxed), 0);
    }
}
