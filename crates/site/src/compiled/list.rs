//! The sites of a plan.

use std::ops::Deref;
use std::sync::Arc;
use std::thread;

use flatout_lane::cpu;

use super::CompiledSite;

/// To free as many sites takes so long that a worker leaves it to a thread.
const FREED_BY_THREAD_MIN: usize = 512;

/// The sites of a plan, in its order.
#[derive(Debug, Default)]
pub(crate) struct SiteList(Vec<Arc<CompiledSite>>);

impl Deref for SiteList {
    type Target = Vec<Arc<CompiledSite>>;

    #[inline]
    fn deref(&self) -> &Vec<Arc<CompiledSite>> {
        &self.0
    }
}

impl FromIterator<Arc<CompiledSite>> for SiteList {
    fn from_iter<I: IntoIterator<Item = Arc<CompiledSite>>>(sites: I) -> SiteList {
        SiteList(sites.into_iter().collect())
    }
}

impl Drop for SiteList {
    fn drop(&mut self) {
        free(self.0.len(), std::mem::take(&mut self.0));
    }
}

/// Drops what belongs to so many sites: a thread does it if it takes long.
pub(crate) fn free(sites: usize, former: impl Send + 'static) {
    if sites < FREED_BY_THREAD_MIN {
        return;
    }
    let free = move || {
        // It was started by a worker, which is pinned to a CPU.
        cpu::unpin();
        drop(former);
    };
    // Without a thread it is dropped here.
    let _ = thread::Builder::new().name("flatout-free".to_owned()).spawn(free);
}
