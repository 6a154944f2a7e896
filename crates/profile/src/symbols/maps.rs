//! The mapped files of a process, from `/proc/PID/maps`.

/// The executable mappings of a process, by address.
pub(crate) struct Maps {
    mappings: Vec<Mapping>,
}

/// The location of an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place<'m> {
    /// In a file, at this offset.
    File {
        /// Its path as seen by the process.
        name: &'m str,
        /// Paths by which we may open it, the most reliable first.
        open: [&'m str; 2],
        /// The offset in it.
        offset: u64,
    },
    /// In memory without a file: `[vdso]`, or code generated at run time.
    Special(&'m str),
}

struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    name: String,
    /// The kernel's link to exactly this file, even if it was replaced or deleted since; only root may follow it.
    link: String,
    /// The path relative to the process's root folder: it may run in a container.
    path: String,
}

impl Maps {
    /// The current mappings of a process; none if it has exited or belongs to another user.
    pub(crate) fn read(pid: u32) -> Maps {
        Maps::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
    }

    fn parse(pid: u32, text: &str) -> Maps {
        Maps { mappings: text.lines().filter_map(|line| mapping(pid, line)).collect() }
    }

    /// The location of an address; `None` if no code is mapped there.
    pub(crate) fn place(&self, address: u64) -> Option<Place<'_>> {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        if address >= mapping.end {
            return None;
        }
        if !mapping.name.starts_with('/') {
            return Some(Place::Special(if mapping.name.is_empty() { "[anonymous]" } else { &mapping.name }));
        }
        Some(Place::File {
            name: &mapping.name,
            open: [&mapping.link, &mapping.path],
            offset: (address - mapping.begin).saturating_add(mapping.offset),
        })
    }
}

/// `55d0c000-55d0e000 r-xp 00002000 fe:00 1234    /usr/bin/program`; only code is kept.
fn mapping(pid: u32, line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let range = fields.next()?;
    let (begin, end) = range.split_once('-')?;
    fields.next()?.contains('x').then_some(())?;
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let name = fields.nth(2).unwrap_or("").trim_start();
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    Some(Mapping {
        begin: u64::from_str_radix(begin, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset,
        name: name.to_owned(),
        link: format!("/proc/{pid}/map_files/{range}"),
        path: format!("/proc/{pid}/root{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 7                          /usr/bin/a b
2000-4000 r-xp 00001000 fe:00 7                          /usr/bin/a b (deleted)
5000-6000 rwxp 00000000 00:00 0
7000-8000 r-xp 00000000 00:00 0                          [vdso]
nonsense
zz-9000 r-xp 00000000 00:00 0
";

    #[test]
    fn addresses_are_placed_in_files() {
        let maps = Maps::parse(9, MAPS);
        let expected = Place::File {
            name: "/usr/bin/a b",
            open: ["/proc/9/map_files/2000-4000", "/proc/9/root/usr/bin/a b"],
            offset: 0x1010,
        };
        assert_eq!(maps.place(0x2010), Some(expected));
        assert_eq!(maps.place(0x5000), Some(Place::Special("[anonymous]")));
        assert_eq!(maps.place(0x7fff), Some(Place::Special("[vdso]")));
        for data_or_nothing in [0, 0x1010, 0x4000, 0x6000, u64::MAX] {
            assert_eq!(maps.place(data_or_nothing), None, "{data_or_nothing:x}");
        }
    }
}
