//! What `/proc/PID/stat` says of a process, read in one place.
//!
//! ```text
//! 4242 (any name) S 1 4242 … 31 12 0 0 … 98765 …
//!                 │ │ │       │  │ └┬┘   └ started, ticks since boot
//!                 │ │ group   │  │ children that have ended: user, kernel
//!                 │ parent    user, kernel
//!                 state
//! ```

use std::io;

use crate::proc::Proc;

/// The fields that are used here. Times are in clock ticks of 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it does, such as `S`.
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// CPU time in its own code.
    pub user_ticks: u64,
    /// CPU time in the kernel.
    pub kernel_ticks: u64,
    /// Both, of its children that have ended and were waited for.
    pub children_ticks: u64,
    /// When it started, counted from boot.
    pub started_ticks: u64,
}

/// Clock ticks of a second as the kernel reports them to programs, on every architecture that we run on.
pub const TICKS_PER_S: u64 = 100;

impl Stat {
    /// Reads that of a process.
    ///
    /// # Errors
    /// There is no such process, or the file is not what the kernel writes.
    pub fn read(proc: &dyn Proc, pid: u32) -> io::Result<Stat> {
        let path = format!("/proc/{pid}/stat");
        let text = proc.read(&path)?;
        let stat = Stat::parse(&String::from_utf8_lossy(&text));
        stat.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("cannot parse {path}")))
    }

    /// Takes the text apart.
    pub fn parse(text: &str) -> Option<Stat> {
        // The name in parentheses may hold anything, spaces and parentheses too: the fields follow its last one.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number(1)?).ok()?,
            group: u32::try_from(number(2)?).ok()?,
            user_ticks: number(11)?,
            kernel_ticks: number(12)?,
            children_ticks: number(13)?.saturating_add(number(14)?),
            started_ticks: number(19)?,
        })
    }

    /// Whether it has ended and only waits for its parent to notice. It holds nothing any more.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Here;

    #[test]
    fn any_name_may_stand_before_the_fields() {
        let text = "7 (a) b) c) S 1 8 7 0 -1 4194560 100 0 0 0 31 42 5 6 20 0 1 0 500 1 1\n";
        let expected = Stat {
            state: 'S',
            parent: 1,
            group: 8,
            user_ticks: 31,
            kernel_ticks: 42,
            children_ticks: 11,
            started_ticks: 500,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        for broken in
            ["", "7 (a", "7 (a) S", "7 (a) S 1 8 7", &text.replace("31", "x"), &text.replace(" 500 ", " -1 ")]
        {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn our_own_is_read() {
        let us = Stat::read(&Here, std::process::id()).unwrap();
        assert!(!us.is_dead() && us.started_ticks > 0, "{us:?}");
        assert_eq!(Stat::read(&Here, u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
