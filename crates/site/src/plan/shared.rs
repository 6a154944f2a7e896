//! Sites that several plans share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Site;

/// A site of a plan. Copies of a plan share it; one that is changed becomes a site of its own. Of the thousands of sites of a controller,
/// most are the same in the next plan, which is found without looking into them.
#[derive(Debug, Clone, Default)]
pub struct SharedSite(Arc<Site>);

impl SharedSite {
    /// Whether both are one site in memory.
    pub fn is(&self, other: &SharedSite) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What all copies have in common, as long as one of them exists.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl From<Site> for SharedSite {
    fn from(site: Site) -> SharedSite {
        SharedSite(Arc::new(site))
    }
}

impl Deref for SharedSite {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

/// Copies the site, if others share it.
impl DerefMut for SharedSite {
    fn deref_mut(&mut self) -> &mut Site {
        Arc::make_mut(&mut self.0)
    }
}

impl PartialEq for SharedSite {
    fn eq(&self, other: &SharedSite) -> bool {
        self.is(other) || self.0 == other.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_is_changed_is_no_longer_shared() {
        let site: SharedSite = Site { name: "a".to_owned(), ..Site::default() }.into();
        let mut other = site.clone();
        assert!(other.is(&site) && other == site);
        other.name = "b".to_owned();
        assert!(!other.is(&site) && other != site);
        assert_eq!(site.name, "a");
        let same: SharedSite = Site::clone(&site).into();
        assert!(!same.is(&site) && same == site);
    }
}
