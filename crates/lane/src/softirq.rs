//! A clock of the kernel's network softirqs: in whose time they run, to the nanosecond.
//!
//! A softirq runs on top of whatever was interrupted, or within a system call that sends. The kernel charges its time to that
//! process, to nobody if the CPU was idle, and with `CONFIG_IRQ_TIME_ACCOUNTING` to no process at all. Two BPF programs, at the
//! begin and at the end of each softirq, add up its time by the group of the process. TCP also sends in softirqs of tasklets (what
//! waited for room in the queue) and of timers (what is paced). Few others use these two, so they count as the network's:
//!
//! ```text
//! softirq_entry ──> begun[CPU] = now            groups[process] ──┐
//! softirq_exit  ──> spent[CPU][group] += now − begun[CPU]   <─────┘  group 0 if it has none
//! ```
//!
//! # Source
//! bpf(2), `include/uapi/linux/bpf.h`, the kernel's documentation of the instruction set; raw tracepoints are as old as Linux
//! 4.17. `PROC_PID_INIT_INO` in `include/linux/proc_ns.h`.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Groups of processes; those without a group are in the first one.
pub const GROUPS: usize = 4;

/// Processes that can have a group: more than any server has. Beyond that, those without softirqs of late, such as processes that
/// have ended, lose theirs.
pub const PROCESSES_MAX: u32 = 16_384;

/// No kernel is built for more CPUs (`NR_CPUS`).
const CPUS_MAX: usize = 8192;

/// The PID namespace that the kernel starts with.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The clock runs until it is dropped.
#[derive(Debug)]
pub struct SoftirqClock {
    groups: OwnedFd,
    spent: OwnedFd,
    _others: [OwnedFd; 5],
}

/// The time of network softirqs so far, by the group of the process in whose time they ran.
pub type ByGroup = [Duration; GROUPS];

impl SoftirqClock {
    /// Starts the clock for all CPUs. It costs about a tenth of a microsecond for each softirq.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), and before Linux 5.11 even for root if
    /// `RLIMIT_MEMLOCK` is too small for the tables, which need 2 MiB; `ENOSYS` or `EINVAL` on a kernel without BPF; `Unsupported` in
    /// a PID namespace of a container: BPF programs see the ids that processes have outside of it.
    pub fn start() -> io::Result<SoftirqClock> {
        if !is_first_pid_namespace(&fs::read_link("/proc/self/ns/pid")?) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a clock of softirqs needs the host's process ids (docker run --pid=host)",
            ));
        }
        let begun = new_map(MapKind::ArrayPerCpu, 8, 1)?;
        let spent = new_map(MapKind::ArrayPerCpu, 8, GROUPS as u32)?;
        let groups = new_map(MapKind::HashOfRecent, 4, PROCESSES_MAX)?;
        let entry = load(&at_entry(&begun))?;
        let exit = load(&at_exit(&begun, &groups, &spent))?;
        let at_exit = attach(&exit, c"softirq_exit")?;
        let at_entry = attach(&entry, c"softirq_entry")?;
        Ok(SoftirqClock { groups, spent, _others: [begun, entry, exit, at_entry, at_exit] })
    }

    /// Puts a process into a group; a number that is too large is the last one.
    ///
    /// # Errors
    /// The system's. A full table is not an error.
    pub fn assign(&self, pid: u32, group: usize) -> io::Result<()> {
        let group = group.min(GROUPS - 1) as u32;
        let element = Element::new(&self.groups, &raw const pid, (&raw const group).cast_mut().cast());
        // SAFETY: the kernel reads four bytes each of the key and of the value, which are alive, and writes neither.
        unsafe { bpf(MAP_UPDATE, &element) }.map(drop)
    }

    /// The time so far. One system call for each group.
    ///
    /// # Errors
    /// The system's.
    pub fn now(&self) -> io::Result<ByGroup> {
        let mut all = ByGroup::default();
        let mut of_cpus = vec![0_u64; CPUS_MAX];
        for (group, time) in (0_u32..).zip(&mut all) {
            let element = Element::new(&self.spent, &raw const group, of_cpus.as_mut_ptr());
            // SAFETY: the kernel writes eight bytes for each possible CPU, and the buffer has them for all that it can be built for.
            unsafe { bpf(MAP_LOOKUP, &element) }?;
            *time = Duration::from_nanos(of_cpus.iter().sum());
        }
        Ok(all)
    }
}

/// Whether ids of processes are those of the kernel. `NSpid` in `/proc/self/status` does not show it: a container's own `/proc`
/// begins with the container's namespace.
fn is_first_pid_namespace(link: &Path) -> bool {
    link == Path::new(FIRST_PID_NAMESPACE)
}

/// A table of the kernel.
enum MapKind {
    ArrayPerCpu = 6,
    /// A full one deletes an entry that was not read of late.
    HashOfRecent = 9,
}

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

const RAW_TRACEPOINT_PROGRAM: u32 = 17;

/// The kernel lets only programs with such a licence read its clock.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

#[repr(C)]
struct NewMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    padding: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct NewProgram {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct Attachment {
    name: u64,
    program: u32,
    padding: u32,
}

impl Element {
    fn new(map: &OwnedFd, key: *const u32, value: *mut u64) -> Element {
        let (key, value) = (key.expose_provenance() as u64, value.expose_provenance() as u64);
        Element { map: map.as_raw_fd() as u32, padding: 0, key, value, flags: 0 }
    }
}

/// Performs a command; the result is a descriptor or 0.
///
/// # Safety
/// Pointers in the attributes lead to as many bytes as the command reads or writes there.
unsafe fn bpf<A>(command: libc::c_int, attributes: &A) -> io::Result<libc::c_int> {
    let attributes: *const A = attributes;
    // SAFETY: the kernel reads the given number of bytes of a live object of that size; the caller answers for pointers in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

fn owned(descriptor: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// A table with keys of four bytes.
fn new_map(kind: MapKind, value_bytes: u32, entries_max: u32) -> io::Result<OwnedFd> {
    let map = NewMap { kind: kind as u32, key_bytes: 4, value_bytes, entries_max, flags: 0, padding: 0 };
    // SAFETY: the attributes have no pointer.
    unsafe { bpf(MAP_CREATE, &map) }.map(owned)
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let bytes: Vec<u64> = program.iter().map(Instruction::encoded).collect();
    let new = NewProgram {
        kind: RAW_TRACEPOINT_PROGRAM,
        instruction_count: bytes.len() as u32,
        instructions: bytes.as_ptr().expose_provenance() as u64,
        license: LICENSE.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: the instructions are as many as their count says, and the licence ends with a zero; both are alive.
    unsafe { bpf(PROGRAM_LOAD, &new) }.map(owned)
}

fn attach(program: &OwnedFd, tracepoint: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let name = tracepoint.as_ptr().expose_provenance() as u64;
    let attachment = Attachment { name, program: program.as_raw_fd() as u32, padding: 0 };
    // SAFETY: the name ends with a zero and is alive.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &attachment) }.map(owned)
}

/// An instruction of the kernel's virtual machine.
#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u8,
    target: u8,
    source: u8,
    offset: i16,
    value: i32,
}

/// Registers: of results, of arguments, those that calls keep, and of the stack's end.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const STACK: u8 = 10;

/// Functions of the kernel.
const LOOKUP: i32 = 1;
const CLOCK: i32 = 5;
const CURRENT_PROCESS: i32 = 14;

/// Numbers of the softirqs that count: NET_TX, NET_RX, TASKLET and HRTIMER.
const NETWORK: [i32; 4] = [2, 3, 6, 8];

impl Instruction {
    const fn new(code: u8, target: u8, source: u8, offset: i16, value: i32) -> Instruction {
        Instruction { code, target, source, offset, value }
    }

    /// In memory: the code, two registers of four bits, the offset, the value.
    fn encoded(&self) -> u64 {
        let [low, high] = self.offset.to_ne_bytes();
        let registers = if cfg!(target_endian = "little") {
            self.target | self.source << 4
        } else {
            self.target << 4 | self.source
        };
        let [a, b, c, d] = self.value.to_ne_bytes();
        u64::from_ne_bytes([self.code, registers, low, high, a, b, c, d])
    }
}

/// `target = *(u64 *)(source + offset)`.
const fn read(target: u8, source: u8, offset: i16) -> Instruction {
    Instruction::new(0x79, target, source, offset, 0)
}

/// The same of four bytes.
const fn read_short(target: u8, source: u8, offset: i16) -> Instruction {
    Instruction::new(0x61, target, source, offset, 0)
}

/// `*(u64 *)(target + offset) = source`.
const fn write(target: u8, offset: i16, source: u8) -> Instruction {
    Instruction::new(0x7b, target, source, offset, 0)
}

/// The same of four bytes.
const fn write_short(target: u8, offset: i16, source: u8) -> Instruction {
    Instruction::new(0x63, target, source, offset, 0)
}

const fn copy(target: u8, source: u8) -> Instruction {
    Instruction::new(0xbf, target, source, 0, 0)
}

const fn set(target: u8, value: i32) -> Instruction {
    Instruction::new(0xb7, target, 0, 0, value)
}

const fn add(target: u8, source: u8) -> Instruction {
    Instruction::new(0x0f, target, source, 0, 0)
}

const fn subtract(target: u8, source: u8) -> Instruction {
    Instruction::new(0x1f, target, source, 0, 0)
}

const fn shift_right(target: u8, bits: i32) -> Instruction {
    Instruction::new(0x77, target, 0, 0, bits)
}

/// Goes on after so many instructions if a register has this value.
const fn if_equal(register: u8, value: i32, skipped: i16) -> Instruction {
    Instruction::new(0x15, register, 0, skipped, value)
}

const fn if_different(register: u8, value: i32, skipped: i16) -> Instruction {
    Instruction::new(0x55, register, 0, skipped, value)
}

const fn call(function: i32) -> Instruction {
    Instruction::new(0x85, 0, 0, 0, function)
}

const END: Instruction = Instruction::new(0x95, 0, 0, 0, 0);

/// Looks up the key that is on the stack at this offset. The result is the value's address, or 0.
fn look_up(map: &OwnedFd, offset: i16) -> [Instruction; 5] {
    const MAP_DESCRIPTOR: u8 = 1;
    [
        Instruction::new(0x18, R1, MAP_DESCRIPTOR, 0, map.as_raw_fd()),
        // The second half of the instruction before.
        Instruction::new(0, 0, 0, 0, 0),
        copy(R2, STACK),
        Instruction::new(0x07, R2, 0, 0, i32::from(offset)),
        call(LOOKUP),
    ]
}

/// Ends the program, or skips these two instructions.
const RETURN: [Instruction; 2] = [set(R0, 0), END];

/// Ends it unless the softirq is one of the network.
const ONLY_NETWORK: [Instruction; 7] = [
    read(R1, R1, 0),
    if_equal(R1, NETWORK[0], 5),
    if_equal(R1, NETWORK[1], 4),
    if_equal(R1, NETWORK[2], 3),
    if_equal(R1, NETWORK[3], 2),
    RETURN[0],
    RETURN[1],
];

fn at_entry(begun: &OwnedFd) -> Vec<Instruction> {
    let mut program = ONLY_NETWORK.to_vec();
    program.extend([call(CLOCK), copy(R7, R0), set(R1, 0), write_short(STACK, -4, R1)]);
    program.extend(look_up(begun, -4));
    program.extend([if_equal(R0, 0, 1), write(R0, 0, R7)]);
    program.extend(RETURN);
    program
}

fn at_exit(begun: &OwnedFd, groups: &OwnedFd, spent: &OwnedFd) -> Vec<Instruction> {
    let mut program = ONLY_NETWORK.to_vec();
    // Since when, in R7; one that began before the programs were there does not count.
    program.extend([set(R1, 0), write_short(STACK, -4, R1)]);
    program.extend(look_up(begun, -4));
    program.extend([if_different(R0, 0, 2), RETURN[0], RETURN[1]]);
    program.extend([read(R7, R0, 0), set(R1, 0), write(R0, 0, R1)]);
    program.extend([if_different(R7, 0, 2), RETURN[0], RETURN[1]]);
    // The time, in R6.
    program.extend([call(CLOCK), subtract(R0, R7), copy(R6, R0)]);
    // The group of the process, in R8.
    program.extend([call(CURRENT_PROCESS), shift_right(R0, 32), write_short(STACK, -4, R0)]);
    program.extend(look_up(groups, -4));
    program.extend([set(R8, 0), if_equal(R0, 0, 1), read_short(R8, R0, 0), write_short(STACK, -8, R8)]);
    program.extend(look_up(spent, -8));
    program.extend([if_different(R0, 0, 2), RETURN[0], RETURN[1]]);
    program.extend([read(R1, R0, 0), add(R1, R6), write(R0, 0, R1)]);
    program.extend(RETURN);
    program
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Bytes that go to ourselves over loopback are received within our own sends. Needs CAP_BPF, and is skipped without.
    #[test]
    fn softirqs_of_our_sends_are_in_our_time() {
        let Ok(clock) = SoftirqClock::start() else { return };
        let us = 1;
        clock.assign(std::process::id(), us).unwrap();
        let before = clock.now().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..500 {
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
        let (elapsed, now) = (begun.elapsed(), clock.now().unwrap());
        let spent = now[us].saturating_sub(before[us]);
        assert!(spent > Duration::from_micros(100), "500 packets were received in {spent:?}");
        // Other tests of this process run on other CPUs.
        let most = (elapsed + Duration::from_millis(50)) * crate::cpu::online().len() as u32;
        assert!(spent < most, "{spent:?} of {elapsed:?}");
        assert!(now.iter().zip(&before).all(|(now, before)| now >= before));
    }

    /// A climb starts more processes than the table has room for. Needs CAP_BPF, and is skipped without.
    #[test]
    fn a_new_process_gets_a_group_in_a_full_table() {
        let Ok(clock) = SoftirqClock::start() else { return };
        for pid in 0..PROCESSES_MAX + 1000 {
            clock.assign(u32::MAX - pid, 1).unwrap();
        }
    }

    /// A process in a PID namespace of its own, with its own `/proc`. Needs root and unshare(1), and is skipped without.
    #[test]
    fn a_container_has_no_clock() {
        const IN_CONTAINER: &str = "FLATOUT_TEST_IN_CONTAINER";
        if std::env::var_os(IN_CONTAINER).is_some() {
            let error = SoftirqClock::start().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
            return;
        }
        let test = std::env::current_exe().unwrap();
        let container = ["--pid", "--fork", "--mount-proc"];
        let is_permitted = std::process::Command::new("unshare").args(container).arg("true").output();
        if !is_permitted.is_ok_and(|output| output.status.success()) {
            return;
        }
        let output = std::process::Command::new("unshare")
            .args(container)
            .arg(test)
            .args(["--exact", "softirq::tests::a_container_has_no_clock"])
            .env(IN_CONTAINER, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn the_first_pid_namespace_is_recognized() {
        assert!(is_first_pid_namespace(Path::new("pid:[4026531836]")));
        assert!(!is_first_pid_namespace(Path::new("pid:[4026532201]")));
    }

    #[test]
    fn only_softirqs_that_send_or_receive_count() {
        let counts = |number: i32| {
            // After the first instruction, which reads the number.
            let mut at = 1;
            while let Some(instruction) = ONLY_NETWORK.get(at) {
                if instruction.code != if_equal(R1, 0, 0).code {
                    return false;
                }
                let skipped = if instruction.value == number { instruction.offset as usize } else { 0 };
                at += 1 + skipped;
            }
            at == ONLY_NETWORK.len()
        };
        let counted: Vec<i32> = (0..10).filter(|number| counts(*number)).collect();
        assert_eq!(counted, [2, 3, 6, 8]);
    }

    #[test]
    fn instructions_have_their_bytes() {
        let bytes = read(R7, R1, -8).encoded().to_ne_bytes();
        let registers = if cfg!(target_endian = "little") { 0x17 } else { 0x71 };
        let [low, high] = (-8_i16).to_ne_bytes();
        assert_eq!(bytes, [0x79, registers, low, high, 0, 0, 0, 0]);
    }
}
