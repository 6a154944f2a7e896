//! Sampling by the kernel: `perf_event_open`, its ring buffer, and the call chains in it.
//!
//! ```text
//! one event for a CPU or a thread ── every so often ──> ring: [sample][sample][lost 3][sample] …
//!                                                              ^tail, ours            ^head, the kernel's
//! ```
//!
//! An event of a CPU sees everything that runs there, including interrupts; one of a thread follows only the thread.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::param::page_size;

/// Size of one ring's sample area, in bytes; a power of two. With its head page it is what the kernel lets any user
/// lock per CPU (`kernel.perf_event_mlock_kb`, 516), and holds a second of deep stacks at 1 000 Hz.
pub const RING_BYTES: usize = 512 << 10;

/// The sampling clock; each sample's weight is in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Cycles of the CPU's own counter: also counts code with interrupts off. Few virtual machines have one.
    Cycles,
    /// Nanoseconds of a kernel timer (`cpu-clock`), which every kernel has. Time with interrupts off is charged to
    /// the instruction that turned them on again.
    CpuTime,
}

/// What is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything that runs on a CPU.
    Cpu(usize),
    /// One thread, on any CPU; 0 is the calling one.
    Thread(u32),
}

/// An event to open.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The clock.
    pub clock: Clock,
    /// What is sampled.
    pub scope: Scope,
    /// Samples per second.
    pub rate_hz: u32,
    /// Whether kernel stacks are included.
    pub kernel: bool,
}

/// An open event and its ring. It samples from [`Ring::start`] until it is dropped.
pub struct Ring {
    event: OwnedFd,
    pages: NonNull<u8>,
    unread: Vec<u8>,
}

/// A record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'r> {
    /// A stack.
    Sample(Sample<'r>),
    /// The number of records that were lost because the ring was full.
    Lost(u64),
}

/// One stack, the innermost address first; all others are return addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'r> {
    /// The process; 0 is the idle task.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its weight, in the clock's unit.
    pub weight: u64,
    /// Addresses in the kernel; empty if user code was running.
    pub kernel: &'r [u64],
    /// Addresses in the process.
    pub user: &'r [u64],
}

/// Opens an event and maps its ring; it does not sample yet.
///
/// # Errors
/// `NotFound` or `Unsupported`: there is no such counter. `EACCES`, `EPERM`: `kernel.perf_event_paranoid`, a missing
/// `CAP_PERFMON`, or a process of another user. `ENOSYS`: a kernel or a seccomp filter without the call. `ESRCH`: no such
/// thread.
///
/// # Source
/// perf_event_open(2); Linux 2.6.32, `PERF_SAMPLE_CALLCHAIN` and the ring's protocol unchanged since.
pub fn open(event: Event) -> io::Result<Ring> {
    let attributes = Attributes::of(&event);
    let (pid, cpu) = match event.scope {
        Scope::Cpu(cpu) => (-1, cpu as libc::c_int),
        Scope::Thread(tid) => (tid as libc::pid_t, -1),
    };
    // SAFETY: the kernel reads `attributes.size` bytes of a live object of exactly that size.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            cpu,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened this descriptor, and nobody else knows it.
    let event = unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) };
    let length = page_size() + RING_BYTES;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let pages =
        unsafe { libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, event.as_raw_fd(), 0) };
    if pages == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let pages = NonNull::new(pages.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(Ring { event, pages, unread: Vec::new() })
}

impl Ring {
    /// Starts sampling.
    pub fn start(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_ENABLE)
    }

    /// Stops sampling; the content of the ring can still be read.
    pub fn stop(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_DISABLE)
    }

    /// Reads everything in the ring. Costs two copies of it and no system call.
    pub fn take(&mut self, mut each: impl FnMut(Record<'_>)) {
        self.copy_unread();
        let mut chain = Chain::default();
        let mut rest = self.unread.as_slice();
        while let Some((kind, body, after)) = split_record(rest) {
            rest = after;
            match kind {
                PERF_RECORD_SAMPLE => {
                    if let Some(sample) = read_sample(body, &mut chain) {
                        each(Record::Sample(sample));
                    }
                }
                // The event's own id comes first.
                PERF_RECORD_LOST => each(Record::Lost(word(body, 1).unwrap_or(0))),
                _ => {}
            }
        }
    }

    fn control(&self, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: the two requests take no pointer, and the descriptor is an open event.
        match unsafe { libc::ioctl(self.event.as_raw_fd(), request, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies the data between tail and head, which may wrap, and frees its room.
    fn copy_unread(&mut self) {
        let (head, tail) = (self.position(DATA_HEAD), self.position(DATA_TAIL));
        let end = head.load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        let length = end.wrapping_sub(begin).min(RING_BYTES as u64) as usize;
        let first = begin as usize % RING_BYTES;
        let before_wrap = length.min(RING_BYTES - first);
        let mut unread = std::mem::take(&mut self.unread);
        unread.clear();
        unread.extend_from_slice(self.data(first, before_wrap));
        unread.extend_from_slice(self.data(0, length - before_wrap));
        self.position(DATA_TAIL).store(end, Ordering::Release);
        self.unread = unread;
    }

    /// Bytes of the ring that the kernel has completed and will not touch before the tail moves.
    fn data(&self, first: usize, length: usize) -> &[u8] {
        assert!(first + length <= RING_BYTES, "the ring ends there");
        // SAFETY: the range lies in the mapping behind its head page, and between tail and head nobody writes.
        unsafe { std::slice::from_raw_parts(self.pages.add(page_size() + first).as_ptr(), length) }
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both positions are aligned words of the mapped head page, and all sides access them atomically.
        unsafe { AtomicU64::from_ptr(self.pages.add(offset).as_ptr().cast()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: it is the mapping that `open` made, of this length, and no reference into it outlives us.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), page_size() + RING_BYTES) };
    }
}

// SAFETY: the mapping belongs to this value alone, and nothing of it is tied to the thread that made it.
unsafe impl Send for Ring {}

const NO_GROUP: libc::c_int = -1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;
const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_CALLCHAIN: u64 = 1 << 5;
const PERF_SAMPLE_PERIOD: u64 = 1 << 8;
const ATTRIBUTE_DISABLED: u64 = 1 << 0;
const ATTRIBUTE_EXCLUDE_KERNEL: u64 = 1 << 5;
const ATTRIBUTE_EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ATTRIBUTE_FREQUENCY: u64 = 1 << 10;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// Offsets of the two positions in the head page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Values from here on are markers of the context of the following addresses.
const PERF_CONTEXT_MAX: u64 = -4095_i64 as u64;
const PERF_CONTEXT_KERNEL: u64 = -128_i64 as u64;
const PERF_CONTEXT_USER: u64 = -512_i64 as u64;

/// `struct perf_event_attr` as first published (`PERF_ATTR_SIZE_VER0`), which all kernels accept.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period_or_frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64 && RING_BYTES.is_power_of_two());

impl Attributes {
    fn of(event: &Event) -> Attributes {
        let rate_hz = u64::from(event.rate_hz.max(1));
        let (kind, config, period_or_frequency, frequency) = match event.clock {
            Clock::Cycles => (PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, rate_hz, ATTRIBUTE_FREQUENCY),
            Clock::CpuTime => (PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, 1_000_000_000 / rate_hz, 0),
        };
        let kernel = if event.kernel { 0 } else { ATTRIBUTE_EXCLUDE_KERNEL };
        Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            period_or_frequency,
            sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_PERIOD | PERF_SAMPLE_CALLCHAIN,
            read_format: 0,
            flags: ATTRIBUTE_DISABLED | ATTRIBUTE_EXCLUDE_HYPERVISOR | frequency | kernel,
            wakeup_events: 0,
            breakpoint_kind: 0,
            config1: 0,
        }
    }
}

/// The addresses of one sample, by context.
#[derive(Default)]
struct Chain {
    kernel: Vec<u64>,
    user: Vec<u64>,
}

/// The first record's kind and body, and the rest; `None` if there is no complete record.
fn split_record(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    const HEAD_BYTES: usize = 8;
    let head = word(bytes, 0)?.to_ne_bytes();
    let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    let length = usize::from(u16::from_ne_bytes([head[6], head[7]]));
    let body = bytes.get(HEAD_BYTES..length)?;
    Some((kind, body, &bytes[length..]))
}

/// pid and tid, the period, the number of addresses, the addresses: in the order of the `PERF_SAMPLE_` bits.
fn read_sample<'c>(body: &[u8], chain: &'c mut Chain) -> Option<Sample<'c>> {
    let ids = word(body, 0)?.to_ne_bytes();
    let weight = word(body, 1)?;
    let count = word(body, 2)? as usize;
    let addresses = body.get(24..)?.chunks_exact(8).take(count);
    chain.kernel.clear();
    chain.user.clear();
    let mut part = None;
    for address in addresses.map(|bytes| word(bytes, 0).unwrap_or(0)) {
        match address {
            PERF_CONTEXT_KERNEL => part = Some(&mut chain.kernel),
            PERF_CONTEXT_USER => part = Some(&mut chain.user),
            // Addresses of a guest or a hypervisor are not used.
            PERF_CONTEXT_MAX.. => part = None,
            _ => part.iter_mut().for_each(|part| part.push(address)),
        }
    }
    Some(Sample {
        pid: u32::from_ne_bytes([ids[0], ids[1], ids[2], ids[3]]),
        tid: u32::from_ne_bytes([ids[4], ids[5], ids[6], ids[7]]),
        weight,
        kernel: &chain.kernel,
        user: &chain.user,
    })
}

fn word(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(index * 8..index * 8 + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn head(kind: u32, words: u16) -> u64 {
        u64::from(kind) | u64::from(words * 8) << 48
    }

    #[test]
    fn call_chains_are_split_at_their_markers() {
        let ids = 7 | 8 << 32;
        let body = bytes(&[ids, 1000, 5, PERF_CONTEXT_KERNEL, 1, 2, PERF_CONTEXT_USER, 3, 4, 99]);
        let mut chain = Chain::default();
        let sample = read_sample(&body, &mut chain).unwrap();
        let expected = Sample { pid: 7, tid: 8, weight: 1000, kernel: &[1, 2], user: &[3] };
        assert_eq!(sample, expected);
    }

    #[test]
    fn truncated_and_invalid_records_end_the_reading() {
        let whole = bytes(&[head(PERF_RECORD_LOST, 3), 1, 42]);
        let (kind, body, rest) = split_record(&whole).unwrap();
        assert_eq!((kind, word(body, 1), rest.len()), (PERF_RECORD_LOST, Some(42), 0));
        assert!(split_record(&whole[..16]).is_none());
        assert!(split_record(&bytes(&[head(PERF_RECORD_LOST, 0), 0])).is_none());
        assert!(split_record(&[1, 2, 3]).is_none());
        assert!(read_sample(&bytes(&[1, 2]), &mut Chain::default()).is_none());
        let too_long = bytes(&[0, 0, u64::MAX, PERF_CONTEXT_USER, 5]);
        assert_eq!(read_sample(&too_long, &mut Chain::default()).unwrap().user, [5]);
    }

    #[test]
    fn a_busy_thread_is_sampled_or_the_refusal_reported() {
        let event = Event { clock: Clock::CpuTime, scope: Scope::Thread(0), rate_hz: 1000, kernel: false };
        let mut ring = match open(event) {
            Ok(ring) => ring,
            Err(error) => {
                assert!(
                    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)),
                    "{error}"
                );
                return;
            }
        };
        ring.start().unwrap();
        let (mut samples, mut weight, mut turns) = (0, 0, 0_u64);
        while samples < 20 {
            turns = std::hint::black_box(turns + 1);
            ring.take(|record| {
                if let Record::Sample(sample) = record {
                    assert_eq!(sample.pid, std::process::id());
                    assert!(sample.kernel.is_empty() && !sample.user.is_empty());
                    samples += 1;
                    weight += sample.weight;
                }
            });
        }
        ring.stop().unwrap();
        assert!(weight / samples >= 1_000_000, "a sample stands for {} ns", weight / samples);
    }

    #[test]
    fn a_missing_thread_is_an_error() {
        let scope = Scope::Thread(u32::MAX >> 1);
        assert!(open(Event { clock: Clock::CpuTime, scope, rate_hz: 1, kernel: false }).is_err());
    }
}
