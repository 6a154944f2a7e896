//! The result: folded stacks with names, and how they were sampled.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::Clock;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Not code, but the root of a stack: a process, or softirq work in another process's time.
    Root,
    /// A function of the process.
    User,
    /// A function of the process that the compiler has inlined.
    Inlined,
    /// A function of the kernel.
    Kernel,
}

/// One function in a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// Its demangled name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
}

impl Frame {
    /// A frame.
    pub fn new(kind: Kind, name: impl Into<String>) -> Frame {
        Frame { name: name.into(), kind }
    }
}

/// A stack with all its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack<'s> {
    /// The outermost frame first.
    pub frames: Vec<&'s Frame>,
    /// The total weight of its samples, in the clock's unit.
    pub weight: u64,
}

/// Folded stacks: equal ones are merged. Each frame is stored once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stacks {
    frames: Vec<Frame>,
    indices: HashMap<Frame, u32>,
    stacks: BTreeMap<Vec<u32>, u64>,
}

/// Where a server's time went, sampled for a while.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// What was sampled, as text: `nginx (4 processes)`.
    pub what: String,
    /// The unit of all weights.
    pub clock: Clock,
    /// Samples per second of each CPU.
    pub rate_hz: u32,
    /// The sampled time.
    pub time: Duration,
    /// Sampled CPUs.
    pub cpu_count: usize,
    /// The number of samples in the stacks.
    pub sample_count: u64,
    /// Samples that were lost because the ring was full.
    pub lost_count: u64,
    /// Idle time of the CPUs, not part of the stacks; 0 if only threads could be sampled.
    pub idle_weight: u64,
    /// Requests served meanwhile, if known.
    pub request_count: Option<f64>,
    /// Limitations of this profile, as text.
    pub notes: Vec<String>,
    /// The stacks.
    pub stacks: Stacks,
}

impl Profile {
    /// Adds another profile of the same server and clock, taken at another time.
    pub fn merge(&mut self, other: &Profile) {
        self.time += other.time;
        self.sample_count += other.sample_count;
        self.lost_count += other.lost_count;
        self.idle_weight = self.idle_weight.saturating_add(other.idle_weight);
        self.request_count = self.request_count.zip(other.request_count).map(|(one, next)| one + next);
        for stack in other.stacks.iter() {
            self.stacks.add(stack.frames.into_iter().cloned(), stack.weight);
        }
        let new: Vec<String> =
            other.notes.iter().filter(|note| !self.notes.contains(note)).cloned().collect();
        self.notes.extend(new);
    }

    /// A weight per request, in the clock's unit; `None` if requests were not counted.
    pub fn per_request(&self, weight: u64) -> Option<f64> {
        self.request_count.filter(|&count| count > 0.0).map(|count| weight as f64 / count)
    }
}

impl Stacks {
    /// Adds a stack, the outermost frame first. A stack without frames is ignored.
    pub fn add(&mut self, frames: impl IntoIterator<Item = Frame>, weight: u64) {
        let stack: Vec<u32> = frames.into_iter().map(|frame| self.index(frame)).collect();
        if !stack.is_empty() {
            let sum = self.stacks.entry(stack).or_default();
            *sum = sum.saturating_add(weight);
        }
    }

    /// All stacks, always in the same order.
    pub fn iter(&self) -> impl Iterator<Item = Stack<'_>> {
        self.indexed().map(|(stack, weight)| Stack {
            frames: stack.iter().map(|&index| &self.frames[index as usize]).collect(),
            weight,
        })
    }

    /// All stacks as indices into [`Stacks::frames`].
    pub fn indexed(&self) -> impl Iterator<Item = (&[u32], u64)> {
        self.stacks.iter().map(|(stack, weight)| (stack.as_slice(), *weight))
    }

    /// All frames.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The weight of all stacks.
    pub fn weight(&self) -> u64 {
        self.stacks.values().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    fn index(&mut self, frame: Frame) -> u32 {
        if let Some(index) = self.indices.get(&frame) {
            return *index;
        }
        let index = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.indices.insert(frame, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<Frame> {
        names.iter().map(|name| Frame::new(Kind::User, *name)).collect()
    }

    #[test]
    fn equal_stacks_are_one() {
        let mut stacks = Stacks::default();
        stacks.add(stack(&["main", "work"]), 3);
        stacks.add(stack(&["main"]), 1);
        stacks.add(stack(&["main", "work"]), 4);
        stacks.add(stack(&[]), 100);
        let folded: Vec<(usize, u64)> =
            stacks.iter().map(|stack| (stack.frames.len(), stack.weight)).collect();
        assert_eq!(folded, [(1, 1), (2, 7)]);
        assert_eq!((stacks.weight(), stacks.frames().len()), (8, 2));
    }

    #[test]
    fn two_profiles_become_one() {
        let profile = |name: &str, weight: u64| {
            let mut stacks = Stacks::default();
            stacks.add(stack(&["main", name]), weight);
            Profile {
                what: "x".to_owned(),
                clock: Clock::CpuTime,
                rate_hz: 99,
                time: Duration::from_secs(1),
                cpu_count: 2,
                sample_count: 5,
                lost_count: 1,
                idle_weight: 7,
                request_count: Some(100.0),
                notes: vec![name.to_owned()],
                stacks,
            }
        };
        let mut all = profile("a", 3);
        all.merge(&profile("a", 4));
        all.merge(&profile("b", 1));
        assert_eq!((all.stacks.weight(), all.stacks.iter().count(), all.per_request(300)), (8, 2, Some(1.0)));
        assert_eq!((all.sample_count, all.lost_count, all.idle_weight, all.notes.len()), (15, 3, 21, 2));
        all.merge(&Profile { request_count: None, ..profile("a", 1) });
        assert_eq!(all.request_count, None, "what is not counted once is not known");
    }

    #[test]
    fn a_frame_of_the_kernel_is_not_the_processs_of_the_same_name() {
        let mut stacks = Stacks::default();
        stacks.add([Frame::new(Kind::User, "read")], 1);
        stacks.add([Frame::new(Kind::Kernel, "read")], 1);
        assert_eq!(stacks.iter().count(), 2);
    }

    #[test]
    fn weights_end_at_the_largest_number() {
        let mut stacks = Stacks::default();
        stacks.add(stack(&["a"]), u64::MAX);
        stacks.add(stack(&["a"]), 1);
        stacks.add(stack(&["b"]), 1);
        assert_eq!(stacks.weight(), u64::MAX);
    }
}
