//! A type that is no layer.
use flatout::App;

struct Audit;

fn main() {
    App::new().layer(Audit);
}
