//! The two flags of a small program.

use std::ffi::OsString;

use flatout_engine::Plan;
use lexopt::{Arg, Parser, ValueExt};

use crate::Error;

const USAGE: &str = "flags: --listen ADDR (repeatable; IP:PORT or unix:PATH), --workers N, --help";

/// Whether to go on with the command line's settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arguments {
    Run,
    /// `--help` was given: this text is wanted, and nothing else.
    Help(String),
}

/// Reads `--listen ADDR`, `--workers N` and `--help`.
pub(crate) fn read(
    arguments: impl IntoIterator<Item = OsString>,
    plan: &mut Plan,
) -> Result<Arguments, Error> {
    let mut parser = Parser::from_iter(arguments);
    let mut listen = Vec::new();
    let usage = |error: lexopt::Error| Error::Usage(format!("{error}; {USAGE}"));
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("listen") => {
                listen.push(parser.value().and_then(|value| value.parse()).map_err(usage)?)
            }
            Arg::Long("workers") => {
                plan.workers = Some(parser.value().and_then(|value| value.parse()).map_err(usage)?);
            }
            Arg::Long("help") | Arg::Short('h') => {
                return Ok(Arguments::Help(help(parser.bin_name().unwrap_or("program"), plan)));
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    if !listen.is_empty() {
        plan.listen = listen;
    }
    Ok(Arguments::Run)
}

/// `program` is a path or a name.
fn help(program: &str, plan: &Plan) -> String {
    let program = program.rsplit('/').next().unwrap_or(program);
    let listen: Vec<String> = plan.listen.iter().map(|listen| listen.address.to_string()).collect();
    // As the flag takes them.
    let listen: Vec<&str> = listen.iter().map(|address| address.trim_start_matches("http://")).collect();
    let listen = if listen.is_empty() { String::new() } else { format!(" [{}]", listen.join(", ")) };
    let workers = plan.workers.map_or("one for each CPU".to_owned(), |count| count.to_string());
    format!(
        "usage: {program} [--listen ADDR]… [--workers N]

  --listen ADDR   where to listen, IP:PORT or unix:PATH; may be repeated{listen}
  --workers N     threads that serve [{workers}]
  -h, --help      print this
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(arguments: &[&str]) -> Result<Plan, Error> {
        let mut plan = Plan { listen: vec!["1.1.1.1:1".parse().unwrap()], ..Plan::default() };
        read(std::iter::once("program").chain(arguments.iter().copied()).map(OsString::from), &mut plan)?;
        Ok(plan)
    }

    #[test]
    fn flags_override_the_program() {
        let plan = read_all(&["--listen", "127.0.0.1:0", "--listen=unix:/a", "--workers", "2"]).unwrap();
        assert_eq!((plan.listen.len(), plan.workers), (2, Some(2)));
        assert_eq!(read_all(&[]).unwrap().listen.len(), 1);
    }

    #[test]
    fn mistakes_are_reported() {
        for arguments in
            [&["--listen"][..], &["--listen", "x"], &["--workers", "two"], &["--port", "1"], &["x"]]
        {
            let message = read_all(arguments).unwrap_err().to_string();
            assert!(message.contains("--listen ADDR"), "{message}");
        }
    }

    #[test]
    fn help_shows_the_flags_and_their_defaults() {
        for flag in ["--help", "-h"] {
            let mut plan = Plan { listen: vec!["1.1.1.1:1".parse().unwrap()], ..Plan::default() };
            let arguments = ["/usr/bin/shop", flag].map(OsString::from);
            let Ok(Arguments::Help(text)) = read(arguments, &mut plan) else { panic!("{flag}") };
            assert!(text.starts_with("usage: shop [--listen ADDR]"), "{text}");
            assert!(text.contains("[1.1.1.1:1]") && text.contains("[one for each CPU]"), "{text}");
        }
    }
}
