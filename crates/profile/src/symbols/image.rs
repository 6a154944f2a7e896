//! The functions of one ELF file: from its debug information, including inlined ones, or else from its symbol table.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use addr2line::{Context, demangle_auto};
use gimli::{Dwarf, EndianRcSlice, RunTimeEndian, SectionId};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::{debug_file, name};
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
    /// Reads the file at `path`, which is installed as `name`; names come from its debug file if it has none itself.
    pub(crate) fn read(path: &str, name: &str) -> Option<Image> {
        Image::parse(&bytes_of(Path::new(path))?, Path::new(name))
    }

    fn parse(bytes: &[u8], name: &Path) -> Option<Image> {
        let file = object::File::parse(bytes).ok()?;
        let mut image = Image { segments: segments(&file), symbols: symbols(&file), lines: lines(&file) };
        if image.lines.is_none() {
            image.complete_from_debug_file(&file, name);
        }
        Some(image)
    }

    /// Debug files have the program's addresses, but not its bytes: the segments stay the program's.
    fn complete_from_debug_file(&mut self, program: &object::File<'_>, name: &Path) {
        for bytes in debug_file::places(program, name).iter().filter_map(|place| bytes_of(place)) {
            let Ok(debug) = object::File::parse(&*bytes) else { continue };
            if debug_file::belongs_to(&debug, program) {
                self.symbols = symbols(&debug);
                self.lines = lines(&debug);
                return;
            }
        }
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

/// A whole file, in memory: mapping it would kill this process if the file were truncated meanwhile.
fn bytes_of(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= FILE_BYTES_MAX).then_some(bytes)
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
    use std::process::Command;

    use super::*;

    fn parse(bytes: &[u8]) -> Option<Image> {
        Image::parse(bytes, Path::new("/no/such/program"))
    }

    /// A stripped program and its debug file, as packages have them.
    #[test]
    fn names_come_from_a_debug_file() {
        let folder = std::env::temp_dir().join(format!("flatout-debug-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        std::fs::write(
            at("source.c"),
            "int a_stripped_function(void) { return 7; }\nint main(void) { return a_stripped_function(); }\n",
        )
        .unwrap();
        let run = |command: &str, arguments: &[&str]| {
            let status = Command::new(command).args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        let (program, debug) = (at("program"), at("program.debug"));
        let has_tools = run("cc", &["-g", "-O0", "-Wl,--build-id=sha1", "-o", &program, &at("source.c")])
            && run("objcopy", &["--only-keep-debug", &program, &debug]);
        if has_tools {
            let unstripped = Image::read(&program, &program).unwrap();
            let function =
                unstripped.symbols.iter().find(|symbol| symbol.name == "a_stripped_function").unwrap();
            let segment = unstripped
                .segments
                .iter()
                .find(|s| function.address >= s.address && function.address - s.address < s.bytes)
                .unwrap();
            let offset = function.address - segment.address + segment.offset;
            assert!(run("objcopy", &["--strip-all", &format!("--add-gnu-debuglink={debug}"), &program]));
            let named = |image: &Image| image.frames(offset).first().map(|frame| frame.name.clone());
            assert_eq!(
                named(&Image::read(&program, &program).unwrap()).as_deref(),
                Some("a_stripped_function")
            );
            // The debug file of another program names nothing.
            assert!(run("cc", &["-g", "-O1", "-DX=1", "-Wl,--build-id=sha1", "-o", &debug, &at("source.c")]));
            assert_eq!(named(&Image::read(&program, &program).unwrap()), None);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_other_than_elf_have_no_names() {
        assert!(Image::read("/no/such/file", "/no/such/file").is_none());
        assert!(parse(b"").is_none() && parse(b"\x7fELF and no more").is_none());
    }

    /// Truncated and corrupted files give fewer names and nothing worse.
    #[test]
    fn damaged_files_are_survived() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        let head = &program[..program.len().min(1 << 20)];
        for keep in [64, 65, 1000, head.len() / 2] {
            if let Some(image) = parse(&head[..keep]) {
                image.frames(keep as u64 / 2);
            }
        }
        for at in 0..256 {
            let mut damaged = head.to_vec();
            damaged[at] ^= 0xff;
            if let Some(image) = parse(&damaged) {
                image.frames(0x1000);
            }
        }
    }
}
