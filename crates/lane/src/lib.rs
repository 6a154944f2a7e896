//! One worker's talk with the kernel.
pub mod clock;
pub mod cpu;
pub mod listener;
pub mod poll;
pub mod process;
pub mod slab;
pub mod socket;
