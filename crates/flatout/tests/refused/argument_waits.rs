//! An argument that has to wait, of a handler that does not.
use flatout::{App, Context, ExtractAsync, Problem};

struct User;

impl ExtractAsync for User {
    fn extract_async(_: &mut Context<'_>) -> impl Future<Output = Result<User, Problem>> + use<> {
        std::future::ready(Ok(User))
    }
}

fn handler(_: User) -> &'static str {
    "never"
}

fn main() {
    App::new().get("/", handler);
}
