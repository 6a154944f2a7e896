//! Parses `/proc/PID/stat`, for all users.
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
    /// Its state, such as `S`.
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// CPU time in user mode.
    pub user_ticks: u64,
    /// CPU time in kernel mode.
    pub kernel_ticks: u64,
    /// Both, of its children that have exited and were waited for.
    pub children_ticks: u64,
    /// When it started, counted from boot.
    pub started_ticks: u64,
}

/// Clock ticks per second as the kernel reports them to programs, the same on all supported architectures.
pub const TICKS_PER_S: u64 = 100;

impl Stat {
    /// Reads the stat of a process.
    ///
    /// # Errors
    /// There is no such process, or the file has an unexpected format.
    pub fn read(proc: &dyn Proc, pid: u32) -> io::Result<Stat> {
        let path = format!("/proc/{pid}/stat");
        let text = proc.read(&path)?;
        let stat = Stat::parse(&String::from_utf8_lossy(&text));
        stat.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("cannot parse {path}")))
    }

    /// Parses the text.
    pub fn parse(text: &str) -> Option<Stat> {
        // The name in parentheses may contain anything, including spaces and parentheses: fields follow the last one.
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

    /// Whether it has exited and only waits for its parent. It no longer holds anything.
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
