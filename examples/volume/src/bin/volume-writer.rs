//! `volume-writer --volume DIR [--listen ADDR] [--file-bytes N]`: takes uploads for a volume.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use flatout::engine::say;
use lexopt::{Arg, Parser, ValueExt};
use volume::store::Volume;
use volume::tus::Uploads;

/// How often parts and uploads that were given up are looked for.
const SWEEP_TIME: Duration = Duration::from_secs(3600);

const HELP: &str = "\
usage: volume-writer --volume DIR [--listen ADDR] [--file-bytes N]

  --volume DIR       the volume; its folders are made
  --listen ADDR      where to listen; 127.0.0.1:8081
  --file-bytes N     the largest file; 1073741824
";

struct Options {
    volume: Option<String>,
    listen: String,
    file_bytes_max: u64,
}

fn main() -> ExitCode {
    match read(Parser::from_env()) {
        Ok(Some(options)) => run(&options),
        Ok(None) => print(HELP),
        Err(error) => fail(&format!("{error}\n{HELP}")),
    }
}

fn run(options: &Options) -> ExitCode {
    let Some(root) = &options.volume else { return fail("--volume is missing") };
    let volume = match Volume::open(root) {
        Ok(volume) => volume,
        Err(error) => return fail(&format!("the volume `{root}`: {error}")),
    };
    let uploads = Uploads::new(volume);
    if let Err(error) = sweep(&uploads) {
        return fail(&format!("the volume `{root}`: {error}"));
    }
    let sweeping = uploads.clone();
    thread::spawn(move || {
        loop {
            thread::sleep(SWEEP_TIME);
            if let Err(error) = sweep(&sweeping) {
                say(format_args!("old uploads are not removed: {error}"));
            }
        }
    });
    flatout::exit(volume::writer::app(uploads, options.file_bytes_max).listen(&options.listen).run())
}

/// Removes what nobody will complete.
fn sweep(uploads: &Uploads) -> io::Result<()> {
    match uploads.volume().remove_old_parts()? {
        0 => {}
        count => say(format_args!("removed {count} parts of writers that are gone")),
    }
    match uploads.remove_old()? {
        0 => {}
        count => say(format_args!("removed {count} uploads to which nothing has come for a day")),
    }
    Ok(())
}

fn read(mut parser: Parser) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options { volume: None, listen: "127.0.0.1:8081".to_owned(), file_bytes_max: 1 << 30 };
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("volume") => options.volume = Some(parser.value()?.string()?),
            Arg::Long("listen") => options.listen = parser.value()?.string()?,
            Arg::Long("file-bytes") => options.file_bytes_max = parser.value()?.parse()?,
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Some(options))
}

fn fail(why: &str) -> ExitCode {
    say(format_args!("{why}"));
    ExitCode::from(2)
}

fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
