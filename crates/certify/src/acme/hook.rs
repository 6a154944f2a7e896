//! The program that sets DNS records: `PROGRAM set|clear NAME VALUE`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::fault::Fault;

/// Time limit: the program returns when the record is visible.
const HOOK_TIME_MAX: Duration = Duration::from_secs(300);

/// What to do with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Set,
    Clear,
}

/// A TXT record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) value: String,
}

/// Runs the program and waits until it exits.
pub(super) async fn run(program: &Path, verb: Verb, record: &Record) -> Result<(), Fault> {
    let failed = |why: String| Fault::Here(format!("{}: {why}", program.display()));
    let word = if verb == Verb::Set { "set" } else { "clear" };
    let mut command = Command::new(program);
    command.args([word, &record.name, &record.value]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| failed(error.to_string()))?;
    match timeout(HOOK_TIME_MAX, child.wait()).await {
        Err(_) => Err(failed(format!("it did not finish within {} s", HOOK_TIME_MAX.as_secs()))),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(format!("it failed: {status}"))),
    }
}
