//! The functions of one ELF file: from its debug information, including inlined ones, or else from its symbol table.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;

use addr2line::{Context, demangle_auto};
use gimli::{Dwarf, EndianRcSlice, RunTimeEndian, SectionId};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::name;
use crate::{Frame, Kind};

/// The largest file that is read, in bytes: a browser with debug information. Larger ones get no names.
const FILE_BYTES_MAX: u64 = 1 << 30;

type Reader = EndianRcSlice<RunTimeEndian>;

/// A file's functions.
pub(crate) struct Image {
    segments: Vec<Segment>,
    symbols: Vec<Symbol>,
    lines: Option<Context<Reader>>,
}

/// A part of the file, and the address that it was linked for.
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

struct Symbol {
    address: u64,
    bytes: u64,
    name: String,
}

impl Image {
    /// Reads a file into memory: mapping it would kill this process if the file were truncated meanwhile.
    pub(crate) fn read(path: &str) -> Option<Image> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return None;
        }
        Image::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Image> {
        let file = object::File::parse(bytes).ok()?;
        Some(Image { segments: segments(&file), symbols: symbols(&file), lines: lines(&file) })
    }

    /// The functions at an offset of the file, the outermost first; empty if it is not known.
    pub(crate) fn frames(&self, offset: u64) -> Vec<Frame> {
        let Some(address) = self.address(offset) else { return Vec::new() };
        let mut frames = self.line_frames(address);
        let symbol = self.symbol(address).map(|symbol| Frame::new(Kind::User, name::short(&symbol.name)));
        match (frames.first_mut(), symbol) {
            // Debug information alone names a function without its path; the symbol table has the full name.
            (Some(outermost), Some(symbol)) => *outermost = symbol,
            (None, symbol) => frames.extend(symbol),
            (Some(_), None) => {}
        }
        frames
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let holds =
            |segment: &&Segment| offset.checked_sub(segment.offset).is_some_and(|at| at < segment.bytes);
        let segment = self.segments.iter().find(holds)?;
        segment.address.checked_add(offset - segment.offset)
    }

    fn symbol(&self, address: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        // Hand-written code often has no size.
        (symbol.bytes == 0 || address - symbol.address < symbol.bytes).then_some(symbol)
    }

    fn line_frames(&self, address: u64) -> Vec<Frame> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(mut found) = lines.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let Some(function) = frame.function else { continue };
            let Ok(name) = function.demangle() else { continue };
            let file = frame.location.and_then(|location| location.file).unwrap_or("");
            frames.push(Frame::new(Kind::Inlined, name::qualified(&name, file)));
        }
        frames.reverse();
        if let Some(outermost) = frames.first_mut() {
            outermost.kind = Kind::User;
        }
        frames
    }
}

fn segments(file: &object::File<'_>) -> Vec<Segment> {
    let segment = |segment: object::Segment<'_, '_>| {
        let (offset, bytes) = segment.file_range();
        Segment { offset, bytes, address: segment.address() }
    };
    file.segments().map(segment).collect()
}

fn symbols(file: &object::File<'_>) -> Vec<Symbol> {
    let function = |symbol: object::Symbol<'_, '_>| {
        let is_code = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        let name = symbol.name().ok().filter(|name| is_code && !name.is_empty())?;
        let name = demangle_auto(Cow::Borrowed(name), None).into_owned();
        Some(Symbol { address: symbol.address(), bytes: symbol.size(), name })
    };
    let mut symbols: Vec<Symbol> =
        file.symbols().chain(file.dynamic_symbols()).filter_map(function).collect();
    symbols.sort_by_key(|symbol| symbol.address);
    symbols.dedup_by_key(|symbol| symbol.address);
    symbols
}

fn lines(file: &object::File<'_>) -> Option<Context<Reader>> {
    file.section_by_name(".debug_info")?;
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: SectionId| -> Result<Reader, object::Error> {
        let data = match file.section_by_name(id.name()) {
            Some(section) => section.uncompressed_data()?,
            None => Cow::Borrowed(&[][..]),
        };
        Ok(Reader::new(data.as_ref().into(), endian))
    };
    Context::from_dwarf(Dwarf::load(section).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_other_than_elf_have_no_names() {
        assert!(Image::read("/no/such/file").is_none());
        assert!(Image::parse(b"").is_none() && Image::parse(b"\x7fELF and no more").is_none());
    }

    /// Truncated and corrupted files give fewer names and nothing worse.
    #[test]
    fn damaged_files_are_survived() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let head = &program[..program.len().min(1 << 20)];
        for keep in [64, 65, 1000, head.len() / 2] {
            if let Some(image) = Image::parse(&head[..keep]) {
                image.frames(keep as u64 / 2);
            }
        }
        for at in 0..256 {
            let mut damaged = head.to_vec();
            damaged[at] ^= 0xff;
            if let Some(image) = Image::parse(&damaged) {
                image.frames(0x1000);
            }
        }
    }
}
