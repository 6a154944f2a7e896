//! `flatout hash-password`: the hash of a password, for `basic-auth` and files of users.

use std::io::{BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::command::Command;
use crate::{Failure, print};

pub(crate) const COMMAND: Command = Command {
    name: "hash-password",
    about: "Hash a password for a site file",
    more: "The password is the first line of standard input, so that no other user of the machine sees it; on a terminal it is \
           not shown. The hash is bcrypt's, salted: it is another one each time.\nExit status: 0, or 2 for a password that \
           cannot be hashed.",
    examples: &[
        ("flatout hash-password", "type the password"),
        ("flatout hash-password < password.txt", "in a script"),
    ],
    arguments: |command| command,
    run: |_| {
        let password = read().map_err(|error| Failure::Run(format!("standard input: {error}")))?;
        let hash = flatout_site::hash_password(&password).map_err(Failure::Usage)?;
        print(&format!("{hash}\n"))
    },
};

fn read() -> std::io::Result<String> {
    let stdin = std::io::stdin();
    let hidden = stdin.is_terminal().then(|| tcgetattr(&stdin)).transpose()?;
    if let Some(shown) = &hidden {
        let mut quiet = shown.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Flush, &quiet)?;
        let _ = write!(std::io::stderr(), "password: ");
    }
    let mut line = String::new();
    let result = stdin.lock().read_line(&mut line);
    if let Some(shown) = &hidden {
        tcsetattr(&stdin, OptionalActions::Flush, shown)?;
        let _ = writeln!(std::io::stderr());
    }
    result?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
