use flatout::{App, Error};
use note_shop::database::Database;

fn main() -> std::process::ExitCode {
    flatout::exit(run())
}

fn run() -> flatout::Result<()> {
    // First, so that `--help` opens no database.
    let server = App::new().listen("127.0.0.1:8080").arguments();
    let path = std::env::var("DATABASE").unwrap_or_else(|_| "note-shop.db".to_owned());
    let database =
        Database::open(&path).map_err(|error| Error::Start(format!("{path}: {error}")))?;
    server.merge(note_shop::app(database)).run()
}
