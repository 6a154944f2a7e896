//! A program on a pseudoterminal: reads its output and sends it keys.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::until;

/// A pseudoterminal with a program on it.
pub struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Terminal {
    /// Starts a program on a terminal of 100 columns and 30 rows.
    ///
    /// # Panics
    /// There is no terminal or no program.
    pub fn start(mut command: Command) -> Terminal {
        let ours: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("its rights");
        unlockpt(&ours).expect("its lock");
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).expect("its size");
        let name = ptsname(&ours, Vec::new()).expect("its name").into_string().expect("a path");
        let theirs =
            || Stdio::from(File::options().read(true).write(true).open(&name).expect("its other side"));
        command.stdin(theirs()).stdout(theirs()).stderr(theirs());
        let child = command.spawn().expect("the program starts");
        // Descriptors held by the command would prevent EOF on the terminal.
        drop(command);
        let keys = File::from(ours);
        let mut screen = keys.try_clone().expect("a second handle");
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let seen = shown.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // After its last user, a terminal ends with an error.
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                seen.lock().expect("the screen").extend_from_slice(&bytes[..count]);
            }
        });
        Terminal { child, keys, shown, reader: Some(reader) }
    }

    /// All that was written so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("the screen")).into_owned()
    }

    /// Waits until this was written.
    pub fn wait_for(&self, text: &str) {
        until(text, || self.shown().contains(text));
    }

    /// Presses keys.
    ///
    /// # Panics
    /// The terminal is gone.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end: returns its status, and all its output.
    ///
    /// # Panics
    /// It does not end.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        until("the program's end", || {
            status = self.child.try_wait().expect("a status");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        (status.expect("a status"), self.shown())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
