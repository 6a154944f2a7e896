//! `flatout upgrade`: replaces a running server by a new process, possibly of a new version.

use rustix::process::Signal;

use super::reload;
use crate::command::Command;

pub(crate) const COMMAND: Command = Command {
    name: "upgrade",
    about: "Replace a running server by a new version of the program",
    more: "The server starts the program again, at the path and with the arguments with which it was started itself, and hands its \
           listeners and its push subscribers over. No connection is refused, and subscribers do not notice. If the new process fails \
           before it has everything, the old one goes on. If the server has an admin listener, it is asked there and reports the \
           result; otherwise the process that listens on the file's addresses gets SIGUSR2 and logs the result.\nExit status: 0 \
           upgraded (or the signal was sent), 1 not upgraded, 2 a mistake in the file.",
    examples: &[
        ("flatout upgrade -c site.kdl", "the server that runs with this file"),
        ("flatout upgrade --admin unix:/run/flatout.sock", "the server with this admin listener"),
    ],
    arguments: reload::arguments,
    run: |matches| reload::ask(matches, "/upgrade", Signal::USR2, "upgrade"),
};
