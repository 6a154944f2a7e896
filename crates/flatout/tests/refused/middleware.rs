//! A type that is not middleware.
use flatout::App;

struct Audit;

fn main() {
    App::new().with(Audit);
}
