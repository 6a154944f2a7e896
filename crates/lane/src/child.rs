//! Other programs: commands that run until they exit, and servers that are started and stopped. Each has its own
//! process group, so that its children end with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};

use crate::process::{Ending, signal_group, with_own_descriptor_limit};

/// The output of a command, and how it exited.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub status: ExitStatus,
    /// At most 4 MiB of its standard output.
    pub stdout: String,
    /// The same of its standard error.
    pub stderr: String,
}

/// Why a command did not finish. It was killed with its children.
#[derive(Debug)]
pub enum Unfinished {
    /// It could not be started.
    NotStarted(io::Error),
    /// `stop` was set.
    Stopped,
    /// It took too long.
    Late,
    /// The system reported an error.
    System(io::Error),
}

/// A process and its descendants that stayed in its group.
#[derive(Debug)]
pub struct ProcessGroup(Child);

/// Bytes that are kept of each output; the rest is discarded.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// How often to check a child that prints nothing.
const LOOK_TIME: Duration = Duration::from_millis(2);

/// Bytes of one read.
const PIECE_BYTES: usize = 16 << 10;

/// Reads of one output before other work: more than a pipe holds, so that nothing of an exited child is missed, but
/// limited for one that writes faster than we read.
const PIECES_MAX: usize = 8;

/// A shell command, with the original limit of open files.
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    with_own_descriptor_limit(&mut shell).args(["-c", command]);
    shell
}

/// Runs a command until it exits, passes it `input`, and collects its output. Background processes that it leaves are
/// not killed, and their output is not read.
///
/// # Errors
/// It could not be started, `stop` was set, or `time_max` has passed; then its whole group is killed.
pub fn run(
    command: &mut Command,
    input: &[u8],
    time_max: Duration,
    stop: Option<&AtomicBool>,
) -> Result<Ran, Unfinished> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = ProcessGroup::start(command).map_err(Unfinished::NotStarted)?;
    let result = Talk::with(&mut group.0, input)
        .map_err(Unfinished::System)
        .and_then(|talk| finish(&mut group, talk, Instant::now() + time_max, stop));
    if result.is_err() {
        group.kill();
    }
    result
}

fn finish(
    group: &mut ProcessGroup,
    mut talk: Talk<'_>,
    deadline: Instant,
    stop: Option<&AtomicBool>,
) -> Result<Ran, Unfinished> {
    loop {
        talk.turn(LOOK_TIME).map_err(Unfinished::System)?;
        if let Some(status) = group.0.try_wait().map_err(Unfinished::System)? {
            let [stdout, stderr] = talk.end();
            return Ok(Ran { status, stdout, stderr });
        }
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(Unfinished::Stopped);
        }
        if Instant::now() > deadline {
            return Err(Unfinished::Late);
        }
    }
}

impl ProcessGroup {
    /// Starts a command in its own process group.
    ///
    /// # Errors
    /// The system's.
    pub fn start(command: &mut Command) -> io::Result<ProcessGroup> {
        command.process_group(0).spawn().map(ProcessGroup)
    }

    /// The group's id, which is the id of its first process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Takes the reading end of its stderr, if it was started with a pipe.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// The exit status of its first process, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Terminates the group, waits for `patience`, and kills the rest.
    ///
    /// # Errors
    /// The system's; `NotFound` if nothing of it is left.
    pub fn end(&mut self, patience: Duration) -> io::Result<()> {
        signal_group(self.id(), Ending::Asked)?;
        let deadline = Instant::now() + patience;
        while self.0.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK_TIME);
        }
        let _ = signal_group(self.id(), Ending::Forced);
        self.0.wait()?;
        // Children that outlive their parent hold its port until they have exited too.
        let deadline = Instant::now() + patience;
        while signal_group(self.id(), Ending::Forced).is_ok() && Instant::now() < deadline {
            thread::sleep(LOOK_TIME);
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = signal_group(self.id(), Ending::Forced);
        let _ = self.0.wait();
    }
}

/// The pipes of a child. All are non-blocking.
struct Talk<'i> {
    input: &'i [u8],
    stdin: Option<OwnedFd>,
    outputs: [Output; 2],
}

/// What was read from one output.
struct Output {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl<'i> Talk<'i> {
    fn with(child: &mut Child, input: &'i [u8]) -> io::Result<Talk<'i>> {
        let pipes = [
            child.stdin.take().map(OwnedFd::from),
            child.stdout.take().map(OwnedFd::from),
            child.stderr.take().map(OwnedFd::from),
        ];
        for pipe in pipes.iter().flatten() {
            ioctl_fionbio(pipe, true)?;
        }
        let [stdin, stdout, stderr] = pipes;
        let outputs = [stdout, stderr].map(|pipe| Output { pipe, bytes: Vec::new() });
        Ok(Talk { input, stdin, outputs })
    }

    /// Waits until something can be read or written, for at most this long, and does it.
    fn turn(&mut self, time_max: Duration) -> io::Result<()> {
        let reading = self.outputs.iter().filter_map(|output| output.pipe.as_ref());
        let mut pipes: Vec<PollFd<'_>> = reading.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        pipes.extend(self.stdin.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time_max.subsec_nanos()) };
        match poll(&mut pipes, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.outputs.iter_mut().for_each(Output::take);
        self.hand_over();
        Ok(())
    }

    /// Writes as much of the input as the pipe accepts. A program may exit without reading it; its output says why.
    fn hand_over(&mut self) {
        while let Some(pipe) = &self.stdin {
            match write(pipe.as_fd(), self.input) {
                Ok(count) if count < self.input.len() => self.input = &self.input[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.stdin = None,
            }
        }
    }

    /// The output of a child that has exited: all of it is in the pipes, even if another process still holds them
    /// open.
    fn end(mut self) -> [String; 2] {
        self.outputs.iter_mut().for_each(Output::take);
        self.outputs.map(|output| String::from_utf8_lossy(&output.bytes).into_owned())
    }
}

impl Output {
    /// Reads what is available.
    fn take(&mut self) {
        let mut piece = [0; PIECE_BYTES];
        for _ in 0..PIECES_MAX {
            let Some(pipe) = &self.pipe else { return };
            match read(pipe.as_fd(), &mut piece) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(0) | Err(_) => self.pipe = None,
                Ok(count) => {
                    let room = OUTPUT_BYTES_MAX - self.bytes.len();
                    self.bytes.extend(&piece[..count.min(room)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn ran(command: &str, input: &[u8]) -> Ran {
        run(&mut shell(command), input, PATIENCE, None).unwrap()
    }

    #[test]
    fn both_outputs_and_the_status_are_collected() {
        let found = ran("echo out; echo err >&2; exit 3", b"");
        assert_eq!((found.status.code(), &*found.stdout, &*found.stderr), (Some(3), "out\n", "err\n"));
        let missing = run(&mut Command::new("/no/such/program"), b"", PATIENCE, None);
        assert!(
            matches!(missing, Err(Unfinished::NotStarted(error)) if error.kind() == io::ErrorKind::NotFound)
        );
    }

    /// More than the pipes hold, in both directions at once, and to a program that does not read its input.
    #[test]
    fn large_inputs_and_outputs_do_not_block() {
        let input = vec![b'x'; 300_000];
        let found = ran("cat; head -c 200000 /dev/zero >&2", &input);
        assert_eq!((found.stdout.len(), found.stderr.len()), (input.len(), 200_000));
        assert_eq!(ran("echo unread", &input).stdout, "unread\n");
        assert_eq!(ran("head -c 5000000 /dev/zero", b"").stdout.len(), OUTPUT_BYTES_MAX);
    }

    #[test]
    fn timeouts_and_stops_kill_all_children() {
        let begun = Instant::now();
        let late = run(&mut shell("sleep 60 & sleep 60"), b"", Duration::from_millis(50), None);
        assert!(matches!(late, Err(Unfinished::Late)), "{late:?}");
        let stopped = run(&mut shell("sleep 60"), b"", PATIENCE, Some(&AtomicBool::new(true)));
        assert!(matches!(stopped, Err(Unfinished::Stopped)), "{stopped:?}");
        assert!(begun.elapsed() < PATIENCE);
    }

    /// It holds the pipe open, but the command's own output is available.
    #[test]
    fn background_processes_do_not_block_the_caller() {
        let mut group_of = shell("sleep 20 & echo $$");
        let found = run(&mut group_of, b"", PATIENCE, None).unwrap();
        let group: u32 = found.stdout.trim().parse().unwrap();
        signal_group(group, Ending::Forced).unwrap();
    }

    #[test]
    fn a_group_with_unwilling_processes_is_killed() {
        let mut stubborn = shell("trap '' TERM; echo ready >&2; sleep 60 & wait");
        let mut group = ProcessGroup::start(stubborn.stderr(Stdio::piped())).unwrap();
        // The trap is set before any output, and survives the start of `sleep`.
        let mut said = [0; 6];
        io::Read::read_exact(&mut group.stderr().unwrap(), &mut said).unwrap();
        assert!(group.ended().is_none());
        group.end(Duration::from_millis(20)).unwrap();
        assert!(group.ended().is_some());
    }
}
