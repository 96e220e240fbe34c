//! Programs and libraries: their unwind tables, their symbols, their source lines. Debug information in separate
//! files is used if it is installed, by build ID or by name.

use std::collections::HashMap;
use std::fs;
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::Loader;
use framehop::ExplicitModuleSectionInfo;
use object::{Object as _, ObjectSection, ObjectSegment};

use super::javascript::V8;
use super::python::Interpreter;
use crate::trace::Frame;

/// Directory of distributions for debug information.
const DEBUG: &str = "/usr/lib/debug";

/// The content of a section, shared by all processes that have it mapped.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes(Arc<[u8]>);

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A section: its addresses and its content.
type Section = (Range<u64>, Bytes);

/// One file.
pub(super) struct Object {
    path: PathBuf,
    /// Position in the file, length there, address.
    segments: Vec<(u64, u64, u64)>,
    text: Option<Section>,
    eh_frame: Option<Section>,
    eh_frame_hdr: Option<Section>,
    debug_frame: Option<Section>,
    got: Option<Range<u64>>,
    debug: Option<PathBuf>,
    pub(super) interpreter: Option<Interpreter>,
    pub(super) v8: Option<Arc<V8>>,
}

impl Object {
    fn read(path: &Path) -> Option<Object> {
        let data = fs::read(path).ok()?;
        let file = object::File::parse(data.as_slice()).ok()?;
        let range = |name: &str| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let section = |name: &str| -> Option<Section> {
            let content = file.section_by_name(name)?.uncompressed_data().ok()?;
            Some((range(name)?, Bytes(Arc::from(content.as_ref()))))
        };
        Some(Object {
            path: path.to_owned(),
            segments: file
                .segments()
                .map(|s| (s.file_range().0, s.file_range().1, s.address()))
                .collect(),
            text: section(".text"),
            eh_frame: section(".eh_frame"),
            eh_frame_hdr: section(".eh_frame_hdr"),
            debug_frame: section(".debug_frame"),
            got: range(".got"),
            debug: debug_file(path, &file),
            interpreter: Interpreter::in_file(&file),
            v8: V8::in_file(&file).map(Arc::new),
        })
    }

    /// The address of a position in the file, by the file's own count.
    pub(super) fn address_of(&self, position: u64) -> Option<u64> {
        // A mapping begins at a page: a little before its segment.
        let page = 4095;
        let found = self
            .segments
            .iter()
            .filter(|(at, len, _)| at & !page <= position && position < at + len)
            .max_by_key(|(at, _, _)| *at);
        let (at, _, address) = found?;
        Some(address.wrapping_add(position).wrapping_sub(*at))
    }

    /// The nine bytes of code before an address.
    pub(super) fn code_before(&self, address: u64) -> Option<[u8; 9]> {
        let (range, bytes) = self.text.as_ref()?;
        let end = usize::try_from(address.checked_sub(range.start)?).ok()?;
        bytes.get(end.checked_sub(9)?..end)?.try_into().ok()
    }

    /// Start of the function of an address, by the index of the unwind table.
    pub(super) fn function(&self, address: u64) -> Option<u64> {
        let (range, bytes) = self.eh_frame_hdr.as_ref()?;
        // The usual form: 4-byte values, entries relative to the section, sorted.
        let [1, _, 0x03, 0x3b, ..] = **bytes else {
            return None;
        };
        let entries = bytes.get(12..)?.as_chunks::<8>().0;
        let begin = |entry: &[u8; 8]| {
            let [a, b, c, d, ..] = *entry;
            range
                .start
                .wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])))
        };
        let after = entries.partition_point(|e| begin(e) <= address);
        entries.get(after.checked_sub(1)?).map(begin)
    }

    pub(super) fn sections(&self) -> ExplicitModuleSectionInfo<Bytes> {
        let range = |s: &Option<Section>| s.as_ref().map(|s| s.0.clone());
        let bytes = |s: &Option<Section>| s.as_ref().map(|s| s.1.clone());
        ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(&self.text),
            text: bytes(&self.text),
            eh_frame_svma: range(&self.eh_frame),
            eh_frame: bytes(&self.eh_frame),
            eh_frame_hdr_svma: range(&self.eh_frame_hdr),
            eh_frame_hdr: bytes(&self.eh_frame_hdr),
            debug_frame: bytes(&self.debug_frame),
            got_svma: self.got.clone(),
            ..Default::default()
        }
    }
}

/// The file with the debug information of another, if it is installed.
fn debug_file(path: &Path, file: &object::File<'_>) -> Option<PathBuf> {
    let by_id = file.build_id().ok().flatten().and_then(|id| {
        let (first, rest) = id.split_first()?;
        let hex: String = rest.iter().map(|b| format!("{b:02x}")).collect();
        Some(PathBuf::from(format!(
            "{DEBUG}/.build-id/{first:02x}/{hex}.debug"
        )))
    });
    let by_name = file.gnu_debuglink().ok().flatten().map(|(name, _)| {
        let name = Path::new(std::ffi::OsStr::from_bytes(name)).to_owned();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let installed = Path::new(DEBUG).join(dir.strip_prefix("/").unwrap_or(dir));
        [
            dir.join(&name),
            dir.join(".debug").join(&name),
            installed.join(&name),
        ]
    });
    let mut all = by_id.into_iter().chain(by_name.into_iter().flatten());
    all.find(|p| p != path && p.exists())
}

/// All files that were used so far.
#[derive(Default)]
pub(super) struct Objects {
    index: HashMap<PathBuf, Option<usize>>,
    all: Vec<Object>,
    /// Symbols and lines of each: of the file itself, and of its debug file.
    loaders: HashMap<usize, Vec<Loader>>,
    known: HashMap<(usize, u64), Vec<Frame>>,
}

impl Objects {
    pub(super) fn open(&mut self, path: &Path) -> Option<usize> {
        if let Some(known) = self.index.get(path) {
            return *known;
        }
        let read = Object::read(path).map(|object| {
            self.all.push(object);
            self.all.len() - 1
        });
        self.index.insert(path.to_owned(), read);
        read
    }

    pub(super) fn get(&self, index: usize) -> Option<&Object> {
        self.all.get(index)
    }

    /// The frames at an address: several if functions were inlined, the innermost first.
    pub(super) fn frames(&mut self, index: usize, address: u64) -> Vec<Frame> {
        if let Some(frames) = self.known.get(&(index, address)) {
            return frames.clone();
        }
        let Some(object) = self.all.get(index) else {
            return Vec::new();
        };
        let loaders = self.loaders.entry(index).or_insert_with(|| {
            let files = object.debug.iter().chain([&object.path]);
            files.filter_map(|p| Loader::new(p).ok()).collect()
        });
        let name = object.path.as_os_str().as_bytes();
        let plain = |function: Option<String>| Frame {
            object: name.to_vec(),
            address,
            function,
            line: None,
        };
        let mut frames = loaders
            .iter()
            .map(|loader| with_lines(loader, address, &plain))
            .find(|f| !f.is_empty())
            .unwrap_or_default();
        if frames.is_empty() {
            let symbol = loaders.iter().find_map(|l| l.find_symbol_info(address));
            frames.push(plain(symbol.map(|s| {
                let name = addr2line::demangle_auto(s.name().into(), None);
                format!("{name}+{:#x}", address.wrapping_sub(s.address()))
            })));
        }
        self.known.insert((index, address), frames.clone());
        frames
    }
}

fn with_lines(
    loader: &Loader,
    address: u64,
    plain: &dyn Fn(Option<String>) -> Frame,
) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Ok(mut inlined) = loader.find_frames(address) else {
        return frames;
    };
    while let Ok(Some(frame)) = inlined.next() {
        let function = frame
            .function
            .and_then(|f| f.demangle().ok().map(|name| name.into_owned()));
        let line = frame
            .location
            .and_then(|l| Some((l.file?.to_owned(), l.line?)));
        if line.is_some() {
            frames.push(Frame {
                line,
                ..plain(function)
            });
        }
    }
    frames
}
