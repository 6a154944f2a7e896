//! Names for addresses: the kernel's from its own table, those of processes from their mapped files.

mod debug_file;
mod image;
mod kernel;
mod maps;
mod name;

use std::collections::HashMap;
use std::rc::Rc;

use crate::{Frame, Kind, process};
use image::Image;
pub(crate) use kernel::Kernel;
use maps::{Maps, Place};

/// The name of a user frame whose address is in no mapping: how stacks through code without frame pointers end.
const NOWHERE: &str = "[no frame pointers]";

/// All sources of names, kept while one profile is made.
pub(crate) struct Symbols {
    pub(crate) kernel: Kernel,
    maps: HashMap<u32, Maps>,
    process_names: HashMap<u32, String>,
    images: HashMap<String, Option<Rc<Image>>>,
    user: HashMap<(u32, u64), Vec<Frame>>,
}

impl Symbols {
    /// Reads the kernel's table; notes what is not available.
    pub(crate) fn read(notes: &mut Vec<String>) -> Symbols {
        let kernel = Kernel::read();
        if kernel.is_hidden() {
            notes.push(
                "kernel symbols are hidden (kernel.kptr_restrict; root or CAP_SYSLOG sees them): the kernel's areas \
                 and softirq work are missing"
                    .to_owned(),
            );
        }
        Symbols::with(kernel)
    }

    /// Frames of a process, the outermost first; inlined functions are separate frames. `in_call` means that the
    /// innermost function made a system call: its address is then a return address too.
    pub(crate) fn user_frames(&mut self, pid: u32, addresses: &[u64], in_call: bool) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(addresses.len());
        for (depth, &address) in addresses.iter().enumerate().rev() {
            // A return address belongs to the instruction after the call, which may be on another line.
            let is_return = in_call || depth > 0;
            let probe = if is_return { address.saturating_sub(1) } else { address };
            frames.extend_from_slice(self.user_frame(pid, probe));
        }
        frames
    }

    /// A process's name, as its frames' root.
    pub(crate) fn process_name(&mut self, pid: u32) -> String {
        let read = || process::name(pid).unwrap_or_else(|| format!("process {pid}"));
        self.process_names.entry(pid).or_insert_with(read).clone()
    }

    /// Limitations of the names, as text.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut files: Vec<&str> =
            self.images.iter().filter(|(_, image)| image.is_none()).map(|(file, _)| file.as_str()).collect();
        files.sort_unstable();
        files.iter().map(|file| format!("no symbols could be read from {file}")).collect()
    }

    fn user_frame(&mut self, pid: u32, address: u64) -> &[Frame] {
        if !self.user.contains_key(&(pid, address)) {
            let frames = self.look_up(pid, address);
            self.user.insert((pid, address), frames);
        }
        self.user.get(&(pid, address)).map_or(&[], Vec::as_slice)
    }

    fn look_up(&mut self, pid: u32, address: u64) -> Vec<Frame> {
        let maps = self.maps.entry(pid).or_insert_with(|| Maps::read(pid));
        let unnamed = |name: &str| vec![Frame::new(Kind::User, name)];
        match maps.place(address) {
            None => unnamed(NOWHERE),
            Some(Place::Special(name)) => unnamed(name),
            Some(Place::File { name, open, offset }) => {
                let image = self
                    .images
                    .entry(name.to_owned())
                    .or_insert_with(|| open.iter().find_map(|path| Image::read(path, name)).map(Rc::new));
                let frames = image.as_ref().map(|image| image.frames(offset)).unwrap_or_default();
                if frames.is_empty() {
                    let short = name.rsplit('/').next().unwrap_or(name);
                    return unnamed(&format!("[{short}]"));
                }
                frames
            }
        }
    }

    fn with(kernel: Kernel) -> Symbols {
        Symbols {
            kernel,
            maps: HashMap::new(),
            process_names: HashMap::new(),
            images: HashMap::new(),
            user: HashMap::new(),
        }
    }

    /// A kernel with these symbols, for tests.
    #[cfg(test)]
    pub(crate) fn scripted(symbols: &[(u64, &str)]) -> Symbols {
        let lines = symbols.iter().map(|(address, name)| format!("{address:x} T {name}\n"));
        Symbols::with(Kernel::parse(&lines.collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_of_this_test() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn our_own_functions_have_names() {
        let mut symbols = Symbols::scripted(&[]);
        let address = a_function_of_this_test as *const () as u64;
        let frames = symbols.user_frames(std::process::id(), &[address], false);
        assert!(frames.iter().any(|frame| frame.name.ends_with("a_function_of_this_test")), "{frames:?}");
        assert_eq!(symbols.notes(), [""; 0]);
        assert_eq!(a_function_of_this_test(), 7);
    }

    #[test]
    fn unknown_addresses_are_marked() {
        let mut symbols = Symbols::scripted(&[]);
        let frames = symbols.user_frames(std::process::id(), &[1, 0], true);
        assert!(frames.iter().all(|frame| frame.name == NOWHERE), "{frames:?}");
        assert_eq!(symbols.user_frames(u32::MAX, &[0x40_0000], false)[0].name, NOWHERE);
        assert_eq!(symbols.process_name(u32::MAX), format!("process {}", u32::MAX));
    }
}
