//! Shell commands of the user: run to their end or to ours, each in a process group of its own.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flatout_lane::process::{End, signal_group, with_own_descriptor_limit};

/// What a command printed, and how it ended.
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Output that is read of a command; the rest is read and forgotten.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;

/// How long output may stay open after its command has ended.
const LAST_WORDS_TIME: Duration = Duration::from_millis(100);

/// How often a command is looked at.
const LOOK_TIME: Duration = Duration::from_millis(2);

/// Runs a command to its end. It is ended with all its children when `stop` is set or its time is over.
///
/// # Errors
/// There is no shell, or the command was ended.
pub(crate) fn run(
    command: &str,
    environment: &[(&str, String)],
    time_max: Duration,
    stop: Option<&AtomicBool>,
) -> Result<Ran, String> {
    let mut shell = Command::new("/bin/sh");
    let mut child = with_own_descriptor_limit(&mut shell)
        .args(["-c", command])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start a shell for `{command}`: {error}"))?;
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + time_max;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Err(error) => return Err(format!("`{command}`: {error}")),
            Ok(None) => {}
        }
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            end(&mut child);
            return Err(format!("`{command}` was interrupted"));
        }
        if Instant::now() > deadline {
            end(&mut child);
            return Err(format!("`{command}` did not end within {time_max:?}"));
        }
        thread::sleep(LOOK_TIME);
    };
    Ok(Ran { status, stdout: said(stdout), stderr: said(stderr) })
}

/// Runs a command that has to succeed.
///
/// # Errors
/// It failed; with the last line that it said.
pub(crate) fn succeed(
    command: &str,
    environment: &[(&str, String)],
    time_max: Duration,
) -> Result<(), String> {
    let ran = run(command, environment, time_max, None)?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("`{command}` failed ({}){}", ran.status, ran.last_words())),
    }
}

impl Ran {
    /// The last line of what it complained, for a message.
    pub(crate) fn last_words(&self) -> String {
        let said = [&self.stderr, &self.stdout].into_iter().flat_map(|text| text.lines().rev());
        let line = said.map(str::trim).find(|line| !line.is_empty());
        line.map(|line| format!(": {line}")).unwrap_or_default()
    }
}

fn end(child: &mut Child) {
    let _ = signal_group(child.id(), End::Forced);
    let _ = child.wait();
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// What was said. A process that the command has left in the background, as a change may, holds its end open: it is not
/// waited for.
fn said(reader: JoinHandle<String>) -> String {
    let deadline = Instant::now() + LAST_WORDS_TIME;
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(LOOK_TIME);
    }
    if reader.is_finished() { reader.join().unwrap_or_default() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn commands_succeed_fail_and_are_ended() {
        let ran = run("echo $A; echo no >&2; exit 3", &[("A", "b".to_owned())], PATIENCE, None).unwrap();
        assert_eq!((ran.stdout.as_str(), ran.last_words().as_str()), ("b\n", ": no"));
        assert_eq!(succeed("true", &[], PATIENCE), Ok(()));
        let message = succeed("echo why; exit 3", &[], PATIENCE).unwrap_err();
        assert!(message.ends_with(": why") && message.contains("exit status: 3"), "{message}");
        let begun = Instant::now();
        let message = succeed("sleep 60", &[], Duration::from_millis(50)).unwrap_err();
        assert!(message.contains("did not end within 50ms") && begun.elapsed() < PATIENCE, "{message}");
        let stopped = run("sleep 60", &[], PATIENCE, Some(&AtomicBool::new(true)));
        assert!(stopped.is_err_and(|message| message.contains("interrupted")));
    }

    #[test]
    fn what_a_command_leaves_in_the_background_holds_nobody_up() {
        let begun = Instant::now();
        assert_eq!(succeed("sleep 3 & true", &[], PATIENCE), Ok(()));
        assert!(begun.elapsed() < Duration::from_secs(3));
    }
}
