//! A type that is not a layer.
use flatout::App;

struct Audit;

fn main() {
    App::new().layer(Audit);
}
