//! Which network namespaces still exist.
//!
//! One exists as long as a thread is in it, or a mount (`ip netns`) or a descriptor holds it.

use flatout_owner::Stat;

use crate::host::Host;

/// Processes that are checked, the oldest first. If there are more, no namespace is reported as gone.
const PROCESSES_MAX: usize = 65_536;

/// Threads and descriptors of one process that are checked.
const ENTRIES_MAX: usize = 4096;

/// Whether a network namespace, such as `net:[4026531840]`, is certainly gone: everything could be checked, and
/// nothing holds it.
pub(crate) fn is_gone(host: &Host, namespace: &str) -> bool {
    !namespace.is_empty() && is_held(host, namespace) == Some(false)
}

/// Whether something holds it; `None` if not everything can be checked.
fn is_held(host: &Host, namespace: &str) -> Option<bool> {
    // A mount shows it as the root of an nsfs.
    if host.text("/proc/self/mountinfo").ok()?.contains(namespace) {
        return Some(true);
    }
    let names = host.list("/proc").ok()?;
    let processes: Vec<&String> = names.iter().filter(|name| name.parse::<u32>().is_ok()).collect();
    if processes.len() > PROCESSES_MAX {
        return None;
    }
    let mut is_whole = true;
    for process in processes {
        let folder = format!("/proc/{process}");
        if host.link(&format!("{folder}/ns/net")).is_none() && host.has(&format!("{folder}/stat")) {
            // A zombie holds nothing.
            let stat = process.parse().ok().and_then(|pid| Stat::read(host, pid).ok());
            is_whole &= stat.is_some_and(|stat| stat.is_dead());
            continue;
        }
        let is_it = |path: String| host.link(&path).is_some_and(|target| target == namespace);
        let entries = |name: &str| host.list(&format!("{folder}/{name}")).unwrap_or_default();
        let mut threads = entries("task").into_iter().take(ENTRIES_MAX);
        let mut descriptors = entries("fd").into_iter().take(ENTRIES_MAX);
        if is_it(format!("{folder}/ns/net"))
            || threads.any(|thread| is_it(format!("{folder}/task/{thread}/ns/net")))
            || descriptors.any(|descriptor| is_it(format!("{folder}/fd/{descriptor}")))
        {
            return Some(true);
        }
    }
    is_whole.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_namespace_lives_as_long_as_something_holds_it() {
        let fake =
            Fake::with(&[("/proc/self/mountinfo", "1 0 0:4 net:[5] /run/netns/x rw - nsfs nsfs rw\n")]);
        fake.link("/proc/1/ns/net", "net:[1]");
        fake.link("/proc/1/task/9/ns/net", "net:[2]");
        fake.link("/proc/1/fd/4", "net:[3]");
        let stat = |start: &str| format!("{start} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 500");
        fake.file("/proc/1/stat", stat("1 (init) S 0"));
        let is_gone = |namespace: &str| is_gone(&fake.host(), namespace);
        for held in ["net:[1]", "net:[2]", "net:[3]", "net:[5]"] {
            assert!(!is_gone(held), "{held}");
        }
        assert!(is_gone("net:[4]") && !is_gone(""));
        fake.file("/proc/7/stat", stat("7 (dead) Z 1"));
        assert!(is_gone("net:[4]"));
        fake.file("/proc/8/stat", stat("8 (hidden) S 1"));
        assert!(!is_gone("net:[4]"), "not everything could be seen");
    }
}
