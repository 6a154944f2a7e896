//! The tests of `import` once more, with a check of each site file that they write: none is refused.

#[path = "../../import/src/site/condition_tests.rs"]
mod condition_tests;
#[path = "../../import/src/site/fastcgi_tests.rs"]
mod fastcgi_tests;
#[path = "../../import/src/site/inherited_tests.rs"]
mod inherited_tests;
#[path = "../../import/src/site/target_tests.rs"]
mod target_tests;
#[path = "../../import/src/site/tests.rs"]
mod tests;
#[path = "../../import/src/site/upstream_tests.rs"]
mod upstream_tests;
#[path = "../../import/src/site/written.rs"]
mod written;

use flatout_import::{Imported, nginx, site_file};

fn check_written(text: &str) {
    assert_eq!(crate::serve::source::mistake("site.kdl", text), None, "{text}");
}
