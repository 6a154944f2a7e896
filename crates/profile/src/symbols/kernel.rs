//! The kernel's symbols, from `/proc/kallsyms`.

use crate::{Frame, Kind};

/// The name of a frame without a symbol.
const UNNAMED: &str = "[kernel]";

/// Functions of the kernel by address.
pub(crate) struct Kernel {
    symbols: Vec<(u64, Box<str>)>,
}

impl Kernel {
    /// Reads the running kernel's symbols: 10 MB of text, a tenth of a second.
    pub(crate) fn read() -> Kernel {
        let text = std::fs::read("/proc/kallsyms").unwrap_or_default();
        Kernel::parse(&String::from_utf8_lossy(&text))
    }

    /// `ffffffff81000000 T _stext`, followed by ` [module]` for a module's function. If addresses are hidden, all are
    /// 0, and none is kept.
    pub(crate) fn parse(text: &str) -> Kernel {
        let mut symbols: Vec<(u64, Box<str>)> = text.lines().filter_map(function).collect();
        symbols.sort_by_key(|(address, _)| *address);
        // If an address has several names, the oldest comes first; one is enough.
        symbols.dedup_by_key(|(address, _)| *address);
        Kernel { symbols }
    }

    /// Whether the kernel hides its addresses from us.
    pub(crate) fn is_hidden(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Frames for a chain with the innermost address first; returned with the outermost first.
    pub(crate) fn frames(&self, addresses: &[u64]) -> Vec<Frame> {
        let innermost_last = addresses.iter().enumerate().rev();
        let names = innermost_last.map(|(depth, &address)| self.name(address, depth > 0));
        names.map(|name| Frame::new(Kind::Kernel, name)).collect()
    }

    /// Where in a stack, outermost first, the work of a network softirq starts.
    pub(crate) fn network_softirq(frames: &[Frame]) -> Option<usize> {
        const BEGIN: [&str; 4] = ["handle_softirqs", "__do_softirq", "run_ksoftirqd", "napi_threaded_poll"];
        const NETWORK: [&str; 4] =
            ["net_rx_action", "net_tx_action", "napi_threaded_poll", "napi_threaded_poll_loop"];
        let is_network = frames.iter().any(|frame| NETWORK.contains(&frame.name.as_str()));
        let begin = frames.iter().position(|frame| BEGIN.contains(&frame.name.as_str()));
        begin.filter(|_| is_network)
    }

    /// Whether a stack, outermost first, entered the kernel by a system call, not by an interrupt or a fault.
    pub(crate) fn is_system_call(frames: &[Frame]) -> bool {
        const ENTRIES: [&str; 3] = ["entry_SYSCALL", "do_syscall_64", "el0_svc"];
        // The processor's entry stub may come first.
        let mut outermost = frames.iter().take(3);
        outermost.any(|frame| ENTRIES.iter().any(|entry| frame.name.starts_with(entry)))
    }

    fn name(&self, address: u64, is_return: bool) -> &str {
        let probe = if is_return { address.saturating_sub(1) } else { address };
        let after = self.symbols.partition_point(|(begin, _)| *begin <= probe);
        after.checked_sub(1).map_or(UNNAMED, |index| &self.symbols[index].1)
    }
}

/// The address and name of a line with a function: `t`, `T`, or weak.
fn function(line: &str) -> Option<(u64, Box<str>)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok().filter(|&address| address != 0)?;
    let is_code = matches!(fields.next()?, "t" | "T" | "w" | "W");
    is_code.then_some(())?;
    Some((address, fields.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ffffffff81000100 T read\nffffffff81000000 T entry\nffffffff81000100 W alias\n\
                         ffffffff81000200 d data\nffffffffc0000000 t hook\t[nf_tables]\nbroken\n\nzz T x\n";

    fn names(addresses: &[u64]) -> Vec<String> {
        Kernel::parse(TABLE).frames(addresses).into_iter().map(|frame| frame.name).collect()
    }

    #[test]
    fn addresses_find_the_function_they_lie_in() {
        assert_eq!(names(&[0xffff_ffff_c000_0010, 0xffff_ffff_8100_0150]), ["read", "hook"]);
        assert_eq!(names(&[0xffff_ffff_8100_0100]), ["read"]);
        assert_eq!(names(&[1]), [UNNAMED]);
    }

    /// A call that is the last instruction of a function returns to the start of the next one.
    #[test]
    fn return_addresses_belong_to_the_caller() {
        assert_eq!(names(&[0xffff_ffff_8100_0100, 0xffff_ffff_8100_0100]), ["entry", "read"]);
    }

    #[test]
    fn hidden_symbols_are_noticed() {
        let hidden = Kernel::parse("0000000000000000 T entry\n0000000000000000 T read\n");
        assert!(hidden.is_hidden());
        assert_eq!(hidden.frames(&[5])[0].name, UNNAMED);
    }

    #[test]
    fn system_calls_are_distinguished_from_interrupts() {
        let stack = |name| [Frame::new(Kind::Kernel, name), Frame::new(Kind::Kernel, "tcp_sendmsg")];
        assert!(Kernel::is_system_call(&stack("entry_SYSCALL_64_after_hwframe")));
        assert!(
            !Kernel::is_system_call(&stack("asm_sysvec_apic_timer_interrupt"))
                && !Kernel::is_system_call(&[])
        );
    }

    #[test]
    fn softirq_work_begins_where_it_is_handled() {
        let stack = |names: &[&str]| -> Vec<Frame> {
            names.iter().map(|name| Frame::new(Kind::Kernel, *name)).collect()
        };
        let sent = stack(&["tcp_sendmsg", "handle_softirqs", "net_rx_action", "tcp_v4_rcv"]);
        assert_eq!(Kernel::network_softirq(&sent), Some(1));
        let timer = stack(&["do_idle", "handle_softirqs", "run_timer_softirq"]);
        assert_eq!(Kernel::network_softirq(&timer), None);
        let thread = stack(&["kthread", "napi_threaded_poll", "__napi_poll"]);
        assert_eq!(Kernel::network_softirq(&thread), Some(1));
    }
}
