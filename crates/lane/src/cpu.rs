//! tmp
use std::io;
pub fn allowed() -> Vec<usize> {
    let s = rustix::thread::sched_getaffinity(None).unwrap();
    (0..1024).filter(|c| s.is_set(*c)).collect()
}
pub fn worker_count_default() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut s = rustix::thread::CpuSet::new();
    s.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &s)?)
}
pub fn worker_cpus(n: usize) -> Vec<Option<usize>> {
    let a = allowed();
    (0..n).map(|i| a.get(i % a.len()).copied()).collect()
}
