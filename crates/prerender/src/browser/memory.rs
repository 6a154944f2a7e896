//! Memory of the processes of a browser. Each page has a process of its own, which is killed if it grows too large: the browser goes
//! on, and reports that the page has crashed.

use std::fs;

use flatout_lane::process::{Ending, signal_process};

/// Processes that are examined.
const PROCESSES_MAX: usize = 65_536;

/// A process of a browser.
struct PageProcess {
    id: u32,
    resident_bytes: u64,
}

/// Kills the processes of pages in a process group that use more memory than this. Returns the memory of all its processes of pages in
/// bytes, and how many were killed.
pub(crate) fn limit_pages(group: u32, bytes_max: u64) -> (u64, u64) {
    let (mut sum, mut killed) = (0, 0);
    for process in page_processes(group) {
        sum += process.resident_bytes;
        if process.resident_bytes > bytes_max && signal_process(process.id, Ending::Forced).is_ok() {
            killed += 1;
        }
    }
    (sum, killed)
}

fn page_processes(group: u32) -> impl Iterator<Item = PageProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().take(PROCESSES_MAX);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(move |id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        if group_of(&stat)? != group {
            return None;
        }
        let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        if !is_renderer(&command) {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        Some(PageProcess { id, resident_bytes: anonymous_bytes(&status)? })
    })
}

/// The process group in `/proc/ID/stat`: the third field after the name, which is in parentheses and may contain any byte.
fn group_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Chromium writes its arguments into one text with spaces, or leaves them apart.
fn is_renderer(command: &[u8]) -> bool {
    command.split(|byte| matches!(byte, 0 | b' ')).any(|argument| argument == b"--type=renderer")
}

/// The memory that belongs to the process alone; what it shares with other processes of the browser counts once, there.
fn anonymous_bytes(status: &str) -> Option<u64> {
    let value = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    Some((value("RssAnon:")? + value("RssShmem:").unwrap_or_default()) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_read_as_the_kernel_writes_them() {
        assert_eq!(group_of("12 (a) b (c) S 1 77 77 0 -1 4194560"), Some(77));
        assert_eq!(group_of("12 chromium"), None);
        assert!(is_renderer(b"/usr/lib/chromium/chromium\0--type=renderer\0--x"));
        assert!(is_renderer(b"/usr/lib/chromium/chromium --type=renderer --x"));
        assert!(!is_renderer(b"/usr/lib/chromium/chromium\0--type=gpu-process"));
        let status = "Name:\tx\nRssAnon:\t    2048 kB\nRssFile:\t 9999 kB\nRssShmem:\t 1024 kB\n";
        assert_eq!(anonymous_bytes(status), Some(3 << 20));
        assert_eq!(anonymous_bytes("Name:\tx\n"), None, "a kernel thread has none");
    }
}
