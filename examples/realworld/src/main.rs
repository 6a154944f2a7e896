//! `realworld [--listen ADDR] [--workers N] [--database PLACE]`: the RealWorld backend.

use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::sync::Arc;

use flatout::engine::{Address, say};
use lexopt::{Arg, Parser, ValueExt};
use realworld::db::{Place, Source};
use realworld::token::Key;

const HELP: &str = "\
usage: realworld [--listen ADDR] [--workers N] [--database PLACE]

  --listen ADDR      where to listen; 127.0.0.1:8080
  --workers N        one for each CPU unless told otherwise
  --database PLACE   postgres://USER@HOST/NAME, a file for SQLite, or :memory:; conduit.db

JWT_SECRET in the environment, of at least 16 bytes, is what tokens are signed with. Without it they are valid until the program ends.
";

/// Fewest bytes of the signing secret: shorter ones can be guessed.
const SECRET_BYTES_MIN: usize = 16;

struct Options {
    listen: String,
    workers: Option<usize>,
    database: Place,
}

fn main() -> ExitCode {
    let options = match read(Parser::from_env()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            use std::io::Write;
            let _ = std::io::stdout().write_all(HELP.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&error.to_string(), 2),
    };
    let place = options.database;
    let source = match Source::new(&place) {
        Ok(source) => source,
        Err(error) => return fail(&format!("the database: {error}"), 2),
    };
    let app = realworld::app(Arc::new(source), key()).listen(&options.listen).plan(|plan| {
        plan.workers = options.workers;
    });
    flatout::exit(
        app.start().and_then(|server| server.run_announced(|addresses| announce(addresses, &place))),
    )
}

/// Prints what a first-time user needs to know.
fn announce(addresses: &[Address], place: &Place) {
    for address in addresses {
        say(format_args!("listening on {address}"));
    }
    say(format_args!("the data is in {place}; Ctrl-C ends it"));
    if secret().is_none() {
        say(format_args!(
            "tokens are valid until it ends; set JWT_SECRET, of at least {SECRET_BYTES_MIN} bytes, to keep them valid"
        ));
    }
    if let Some(address @ Address::Tcp(_)) = addresses.first() {
        say(format_args!("try: curl {address}/api/articles; docs/realworld.md goes on from there"));
    }
}

fn read(mut parser: Parser) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        listen: "127.0.0.1:8080".to_owned(),
        workers: None,
        database: Place::File("conduit.db".into()),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("listen") => {
                options.listen =
                    parser.value()?.parse_with(|text| text.parse::<Address>().map(|_| text.to_owned()))?;
            }
            Arg::Long("workers") => options.workers = Some(parser.value()?.parse()?),
            Arg::Long("database") => options.database = parser.value()?.parse_with(str::parse)?,
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// The secret that tokens are signed with.
fn secret() -> Option<String> {
    std::env::var("JWT_SECRET").ok().filter(|secret| secret.len() >= SECRET_BYTES_MIN)
}

fn key() -> Key {
    secret().map_or_else(random_key, |secret| Key::new(secret.as_bytes()))
}

/// The keys of eight hash maps: random, and not visible from outside.
fn random_key() -> Key {
    let bytes: Vec<u8> = (0..8).flat_map(|n: u64| RandomState::new().hash_one(n).to_ne_bytes()).collect();
    Key::new(&bytes)
}

fn fail(message: &str, status: u8) -> ExitCode {
    say(format_args!("{message}"));
    ExitCode::from(status)
}
