//! Shell commands of the user.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use flatout_lane::child::{self, Ran, Unfinished, shell};

/// Runs a command until it exits. It is killed with all its children when `stop` is set or its time is over.
///
/// # Errors
/// There is no shell, or the command was killed.
pub(crate) fn run(
    command: &str,
    environment: &[(&str, String)],
    time_max: Duration,
    stop: Option<&AtomicBool>,
) -> Result<Ran, String> {
    let variables = environment.iter().map(|(name, value)| (name, value));
    child::run(shell(command).envs(variables), b"", time_max, stop).map_err(|why| match why {
        Unfinished::NotStarted(error) => format!("cannot start a shell for `{command}`: {error}"),
        Unfinished::Stopped => format!("`{command}` was interrupted"),
        Unfinished::Late => format!("`{command}` did not end within {time_max:?}"),
        Unfinished::System(error) => format!("`{command}`: {error}"),
    })
}

/// Runs a command that has to succeed.
///
/// # Errors
/// The command failed; with the last line of its output.
pub(crate) fn succeed(
    command: &str,
    environment: &[(&str, String)],
    time_max: Duration,
) -> Result<(), String> {
    let ran = run(command, environment, time_max, None)?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("`{command}` failed ({}){}", ran.status, last_words(&ran))),
    }
}

/// The last line of a command's output, from stderr if there is any, as the end of a message.
pub(crate) fn last_words(ran: &Ran) -> String {
    let said = [&ran.stderr, &ran.stdout].into_iter().flat_map(|text| text.lines().rev());
    let line = said.map(str::trim).find(|line| !line.is_empty());
    line.map(|line| format!(": {line}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn commands_succeed_fail_and_time_out() {
        let ran = run("echo $A; echo no >&2; exit 3", &[("A", "b".to_owned())], PATIENCE, None).unwrap();
        assert_eq!((ran.stdout.as_str(), last_words(&ran).as_str()), ("b\n", ": no"));
        assert_eq!(succeed("true", &[], PATIENCE), Ok(()));
        let message = succeed("echo why; exit 3", &[], PATIENCE).unwrap_err();
        assert!(message.ends_with(": why") && message.contains("exit status: 3"), "{message}");
        let begun = Instant::now();
        let message = succeed("sleep 60", &[], Duration::from_millis(50)).unwrap_err();
        assert!(message.contains("did not end within 50ms") && begun.elapsed() < PATIENCE, "{message}");
        let stopped = run("sleep 60", &[], PATIENCE, Some(&AtomicBool::new(true)));
        assert!(stopped.is_err_and(|message| message.contains("interrupted")));
    }
}
