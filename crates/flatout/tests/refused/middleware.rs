//! A type that is no middleware.
use flatout::App;

struct Audit;

fn main() {
    App::new().with(Audit);
}
