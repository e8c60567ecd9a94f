//! Finds the names of addresses in the ELF symbol tables of klad and of every library that is mapped into it.
//!
//! ```text
//!   /proc/self/maps: address ─▶ file, offset ─program headers─▶ address in the file ─symbol table─▶ name ─▶ demangled
//! ```
//!
//! Only the functions of the symbol tables are read; no debug information is needed. The tables are read at first use
//! and kept, because users often take several profiles. For klad with RocksDB, the tables take 4 MB, and reading them
//! takes some 100 ms. Names are demangled on demand. Called by the admin listener of `klad-server`, on a thread that
//! may wait for a disk.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use object::read::ReadCache;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use procfs::process::{MMPermissions, MMapPath};

use crate::heap;
use crate::readable::readable;
use crate::{Address, Error, Name, Profile, Sample};
use klad_base::sync::Mutex;

/// The symbol tables that were read. A file is identified by device and inode, because the upgrade of a package puts
/// another file at the same path while klad runs.
static KNOWN: Mutex<Vec<(FileId, Arc<Table>)>> = Mutex::new(Vec::new());

type FileId = (i32, i32, u64);

/// The mappings of the process, with the symbols of each file.
#[derive(Debug)]
pub struct Symbols {
    /// Sorted by `start`, without overlaps.
    mappings: Vec<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// The offset in the file at which the mapping begins.
    offset: u64,
    /// The name for addresses that no symbol covers.
    file: Name,
    table: Option<Arc<Table>>,
}

/// The functions of a file.
#[derive(Debug, Default)]
struct Table {
    /// For each loaded segment: its offset in the file, its size in the file, and its address in the numbering of the
    /// file's symbols.
    segments: Vec<(u64, u64, u64)>,
    /// Sorted by `start`, one for each address.
    functions: Vec<Function>,
    /// All names as in the symbol table, concatenated.
    names: String,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    /// The size. If the table says 0, the function extends to the next one.
    size: u32,
    name_start: u32,
    name_len: u32,
}

impl Symbols {
    /// Returns the symbols of this process in its current state.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no `/proc`. An unreadable library is not an error: its functions get the name
    /// of the file.
    pub fn of_this_process() -> Result<Symbols, Error> {
        let refused = |error: procfs::ProcError| Error::Refused(format!("reading /proc/self/maps: {error}"));
        let own = procfs::process::Process::myself().map_err(refused)?;
        let executable = own.exe().ok();
        let mut known = KNOWN.lock();
        let mut mappings = Vec::new();
        for map in own.maps().map_err(refused)? {
            if !map.perms.contains(MMPermissions::EXECUTE) {
                continue;
            }
            let (label, table) = match &map.pathname {
                MMapPath::Path(path) => {
                    let id = (map.dev.0, map.dev.1, map.inode);
                    // The program's own file can be read even if another file has taken its path.
                    let own = executable.as_ref() == Some(path);
                    let at = if own { Path::new("/proc/self/exe") } else { path };
                    (file_name(path), Some(table_of(&mut known, id, at)))
                }
                MMapPath::Vdso => ("[vdso]".to_owned(), None),
                MMapPath::Vsyscall => ("[vsyscall]".to_owned(), None),
                _ => ("[anonymous]".to_owned(), None),
            };
            let (start, end) = map.address;
            mappings.push(Mapping { start, end, offset: map.offset, file: label.into(), table });
        }
        mappings.sort_by_key(|mapping| mapping.start);
        Ok(Symbols { mappings })
    }

    /// Names all frames, and sums the samples of a thread whose stacks then have the same names: two addresses can have
    /// the same name. Frames of the profiler at the leaf are removed: the signal handler's, or, in allocation profiles,
    /// the allocator's.
    #[must_use]
    pub fn name(&self, profile: Profile<Address>) -> Profile<Name> {
        let mut names = HashMap::new();
        let mut one =
            |address: Address| -> Name { names.entry(address).or_insert_with(|| self.function(address)).clone() };
        let allocations = profile.values.iter().any(|value| value.kind.starts_with("alloc_"));
        let samples = profile.samples.into_iter().map(|sample| {
            let mut frames: Vec<Name> = sample.frames.into_iter().map(&mut one).collect();
            let own = if allocations { heap::allocator_frames(&frames) } else { signal_frames(&frames) };
            frames.drain(..own);
            Sample { thread: sample.thread, frames, values: sample.values }
        });
        Profile {
            samples: merge(samples),
            title: profile.title,
            values: profile.values,
            shown: profile.shown,
            period: profile.period,
            began_unix_ns: profile.began_unix_ns,
            duration: profile.duration,
            facts: profile.facts,
        }
    }

    /// Returns the readable name of the function at `address`. If no symbol covers it, returns the file's name in
    /// brackets, `[kernel]`, `[vdso]`, `[vsyscall]`, `[anonymous]` or `[unknown]`.
    #[must_use]
    pub fn function(&self, address: Address) -> Name {
        // On all 64-bit machines, Linux occupies the upper half of the address space.
        if address >> 63 == 1 {
            return "[kernel]".into();
        }
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        let Some(mapping) = after.checked_sub(1).map(|at| &self.mappings[at]).filter(|found| address < found.end)
        else {
            return "[unknown]".into();
        };
        let offset = address - mapping.start + mapping.offset;
        let found = mapping.table.as_ref().and_then(|table| table.find(offset));
        found.map_or_else(|| mapping.file.clone(), |name| readable(name).into())
    }
}

/// Sums the samples with equal threads and stacks.
fn merge(samples: impl Iterator<Item = Sample<Name>>) -> Vec<Sample<Name>> {
    let mut merged: Vec<Sample<Name>> = Vec::new();
    let mut places: HashMap<(String, Vec<Name>), usize> = HashMap::new();
    for sample in samples {
        if let Some(place) = places.get(&(sample.thread.clone(), sample.frames.clone())) {
            for (sum, more) in merged[*place].values.iter_mut().zip(sample.values) {
                *sum = sum.saturating_add(more);
            }
        } else {
            places.insert((sample.thread.clone(), sample.frames.clone()), merged.len());
            merged.push(sample);
        }
    }
    merged
}

/// Returns how many frames at the leaf belong to a signal handler: all up to the frame to which the handler returns.
fn signal_frames(frames: &[Name]) -> usize {
    /// The most frames that a signal adds: the handler, the functions that it calls, and the frame that the kernel has
    /// made.
    const MAX: usize = 8;
    frames
        .iter()
        .take(MAX)
        .position(|name| &**name == "__restore_rt" || &**name == "__kernel_rt_sigreturn")
        .map_or(0, |at| at + 1)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    format!("[{}]", name.trim_end_matches(" (deleted)"))
}

fn table_of(known: &mut Vec<(FileId, Arc<Table>)>, id: FileId, path: &Path) -> Arc<Table> {
    if let Some((_, table)) = known.iter().find(|(file, _)| *file == id) {
        return table.clone();
    }
    let table = Arc::new(Table::read(path).unwrap_or_else(|why| {
        tracing::debug!(%why, path = %path.display(), "cannot read symbols; profiles show the file name");
        Table::default()
    }));
    known.push((id, table.clone()));
    table
}

impl Table {
    fn read(path: &Path) -> Result<Table, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        // This reads only the needed parts. The whole file would take some 25 MB of memory for a moment.
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).map_err(|error| error.to_string())?;
        let mut table = Table::default();
        for segment in elf.segments() {
            let (offset, size) = segment.file_range();
            table.segments.push((offset, size, segment.address()));
        }
        let mut found: Vec<(u64, u64, bool, &str)> = Vec::new();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let (Ok(name), SymbolKind::Text) = (symbol.name(), symbol.kind()) else { continue };
            if symbol.is_definition() && !name.is_empty() {
                found.push((symbol.address(), symbol.size(), symbol.is_global(), name));
            }
        }
        found.sort_by(|one, other| one.0.cmp(&other.0).then_with(|| preference(one).cmp(&preference(other))));
        found.dedup_by_key(|symbol| symbol.0);
        table.names = String::with_capacity(found.iter().map(|symbol| symbol.3.len()).sum());
        table.functions = Vec::with_capacity(found.len());
        for (at, (start, size, _, name)) in found.iter().enumerate() {
            let next = found.get(at + 1).map_or(start.saturating_add(1 << 12), |next| next.0);
            let size = if *size == 0 { next - start } else { *size };
            let (Ok(name_start), Ok(name_len)) = (u32::try_from(table.names.len()), u32::try_from(name.len())) else {
                return Err("more than 4 GiB of names".to_owned());
            };
            table.names.push_str(name);
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            table.functions.push(Function { start: *start, size, name_start, name_len });
        }
        Ok(table)
    }

    /// Returns the name of the function at `offset` in the file.
    fn find(&self, offset: u64) -> Option<&str> {
        let inside = |(start, size, _): &&(u64, u64, u64)| offset >= *start && offset - start < *size;
        let (start, _, address) = self.segments.iter().find(inside)?;
        let address = offset - start + address;
        let after = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions[after.checked_sub(1)?];
        let name = function.name_start as usize..(function.name_start + function.name_len) as usize;
        (address - function.start < u64::from(function.size)).then(|| &self.names[name])
    }
}

/// Orders the names of one address; the smallest is used: `write` rather than `__write`, a global name rather than a
/// local one.
fn preference<'n>(symbol: &(u64, u64, bool, &'n str)) -> (bool, usize, bool, usize, &'n str) {
    let (_, size, global, name) = symbol;
    // Mangled names begin with `_Z` or `_R`.
    let mangled = name.starts_with("_Z") || name.starts_with("_R");
    let underscores = if mangled { 0 } else { name.len() - name.trim_start_matches('_').len() };
    (*size == 0, underscores, !global, name.len(), name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ValueType;

    #[inline(never)]
    fn planted_here() -> u64 {
        std::hint::black_box(std::process::id().into())
    }

    fn of(samples: Vec<Sample<Address>>, kind: &str) -> Profile<Address> {
        Profile {
            title: "test".to_owned(),
            values: vec![ValueType::new(kind, "count")],
            shown: 0,
            samples,
            period: None,
            began_unix_ns: 0,
            duration: Duration::ZERO,
            facts: Vec::new(),
        }
    }

    #[test]
    fn functions_of_klad_and_of_libraries_have_names() {
        planted_here();
        let symbols = Symbols::of_this_process().expect("there is /proc");
        let name = |address: usize| symbols.function(address as u64).to_string();
        let ours = name(planted_here as fn() -> u64 as usize + 1);
        assert!(ours.ends_with("symbols::tests::planted_here"), "{ours}");
        assert_eq!(name(libc::getaddrinfo as *const () as usize), "getaddrinfo");
        assert_eq!(&*symbols.function(1), "[unknown]");
        assert_eq!(&*symbols.function(u64::MAX - 5), "[kernel]");
        assert_eq!(&*symbols.function(std::ptr::from_ref(&symbols) as u64), "[unknown]", "a stack is not executable");
        let files = |mapping: &&Mapping| mapping.table.is_some();
        assert!(symbols.mappings.iter().filter(files).count() >= 2);
        let vdso = symbols.mappings.iter().find(|mapping| &*mapping.file == "[vdso]").expect("Linux has one");
        assert_eq!(&*symbols.function(vdso.start + 1), "[vdso]");
    }

    #[test]
    fn addresses_between_functions_have_the_name_of_their_file() {
        let function = |start, size| Function { start, size, name_start: 0, name_len: 1 };
        let functions = vec![function(100, 10), function(200, 5)];
        let table = Table { segments: vec![(0, 1_000, 0)], functions, names: "f".to_owned() };
        for (offset, expected) in [(99, None), (100, Some("f")), (109, Some("f")), (110, None), (204, Some("f"))] {
            assert_eq!(table.find(offset), expected, "{offset}");
        }
        assert_eq!(table.find(205), None);
        assert_eq!(table.find(2_000), None, "no segment is loaded there");
        let file: Name = "[libx.so]".into();
        let mapping = Mapping { start: 0x1000, end: 0x2000, offset: 0, file, table: Some(Arc::new(table)) };
        let symbols = Symbols { mappings: vec![mapping] };
        assert_eq!(&*symbols.function(0x1000 + 100), "f");
        assert_eq!(&*symbols.function(0x1000 + 150), "[libx.so]");
    }

    #[test]
    fn two_addresses_of_one_function_are_one_stack() {
        planted_here();
        let at = planted_here as fn() -> u64 as usize as u64;
        let sample = |address, value| Sample { thread: "t".to_owned(), frames: vec![address], values: vec![value] };
        let symbols = Symbols::of_this_process().expect("there is /proc");
        let named = symbols.name(of(vec![sample(at, 3), sample(at + 1, 4), sample(2, 1)], "samples"));
        assert_eq!(named.samples.len(), 2);
        assert_eq!((named.samples[0].values[0], named.samples[1].values[0]), (7, 1));
    }

    #[test]
    fn the_preferred_name_of_an_address_is_used() {
        let best = |names: &[(u64, bool, &'static str)]| {
            let symbols = names.iter().map(|(size, global, name)| (1, *size, *global, *name));
            symbols.min_by(|one, other| preference(one).cmp(&preference(other))).expect("some").3
        };
        assert_eq!(best(&[(9, true, "__libc_write"), (9, true, "write"), (9, true, "__write")]), "write");
        assert_eq!(best(&[(9, false, "aa"), (9, true, "bbb")]), "bbb");
        assert_eq!(best(&[(0, true, "mark"), (9, false, "_ZN1a1bEv")]), "_ZN1a1bEv");
    }

    #[test]
    fn frames_of_a_signal_handler_are_removed() {
        let names = |names: &[&str]| names.iter().map(|name| Name::from(*name)).collect::<Vec<_>>();
        assert_eq!(signal_frames(&names(&["handler", "__restore_rt", "f"])), 2);
        assert_eq!(signal_frames(&names(&["f", "g"])), 0);
    }
}
