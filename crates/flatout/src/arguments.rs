//! The two flags of a small program.

use std::ffi::OsString;

use flatout_engine::Plan;
use lexopt::{Arg, Parser, ValueExt};

use crate::Error;

const USAGE: &str = "flags: --listen ADDR (repeatable; IP:PORT or unix:PATH), --workers N";

/// Reads `--listen ADDR` and `--workers N`.
pub(crate) fn read(arguments: impl IntoIterator<Item = OsString>, plan: &mut Plan) -> Result<(), Error> {
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
            other => return Err(usage(other.unexpected())),
        }
    }
    if !listen.is_empty() {
        plan.listen = listen;
    }
    Ok(())
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
}
