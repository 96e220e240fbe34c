//! Frames of Python in a process that runs CPython 3.11, 3.12 or 3.13: read from the interpreter's own structures, at
//! the offsets of its headers. The threads of an interpreter form a list; the caller's entry has its number. Nothing
//! runs in the program.
//!
//! The memory may hold anything: each pointer is followed a bounded number of times, and unreadable parts are left
//! out.

use super::memory::Memory;
use crate::trace::Frame;
use object::{Object as _, ObjectSection, ObjectSymbol};

/// Maximum number of threads that are examined.
const THREADS_MAX: usize = 1024;
/// Maximum number of frames that are read.
const FRAMES_MAX: usize = 32;
/// Longest name, in characters.
const NAME_MAX: u64 = 4096;
/// Longest table of lines, in bytes.
const TABLE_MAX: u64 = 1 << 20;
/// Frames that belong to C: 3 and above.
const OWNED_BY_C: u8 = 3;

/// Offsets of fields, in bytes.
#[derive(Debug)]
struct Layout {
    /// `_PyRuntime`: the first interpreter.
    interpreters: u64,
    /// `PyInterpreterState`: its first thread.
    threads: u64,
    /// `PyThreadState`: the next one, the number from the kernel, its frame.
    next: u64,
    native_id: u64,
    frame: u64,
    /// The frame is one pointer further: at this offset of the structure that is there.
    through: Option<u64>,
    /// `_PyInterpreterFrame`.
    code: u64,
    previous: u64,
    instruction: u64,
    owner: u64,
    /// `PyCodeObject`.
    first_line: u64,
    filename: u64,
    name: u64,
    lines: u64,
    instructions: u64,
    /// Sizes of `PyASCIIObject` and `PyCompactUnicodeObject`.
    ascii: u64,
    unicode: u64,
}

const PYTHON_3_11: Layout = Layout {
    interpreters: 40,
    threads: 16,
    next: 8,
    native_id: 160,
    frame: 56,
    through: Some(8),
    code: 32,
    previous: 48,
    instruction: 56,
    owner: 69,
    first_line: 72,
    filename: 112,
    name: 128,
    lines: 136,
    instructions: 184,
    ascii: 48,
    unicode: 72,
};

const PYTHON_3_12: Layout = Layout {
    threads: 72,
    native_id: 144,
    through: Some(0),
    code: 0,
    previous: 8,
    owner: 70,
    first_line: 68,
    instructions: 192,
    ascii: 40,
    unicode: 56,
    ..PYTHON_3_11
};

/// The first two are read: `_PyRuntime` begins with a table of them.
const PYTHON_3_13: Layout = Layout {
    interpreters: 0,
    threads: 0,
    native_id: 160,
    frame: 72,
    through: None,
    instructions: 200,
    ..PYTHON_3_12
};

/// Words of that table: without a global lock offsets are different; the first interpreter; its first thread.
const TABLE: [u64; 3] = [16, 40, 72];

/// Fields that `PyBytesObject` and Unicode objects share in all versions.
const LENGTH: u64 = 16;
const BYTES: u64 = 32;
const STATE: u64 = 32;

/// Addresses in a file that is an interpreter, by the file's own count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interpreter {
    runtime: u64,
    minor: u8,
}

impl Interpreter {
    /// In a program or library, if it is CPython of a known version.
    pub(super) fn in_file(file: &object::File<'_>) -> Option<Interpreter> {
        let symbol = |name: &str| {
            let mut all = file.dynamic_symbols();
            all.find(|s| s.is_definition() && s.name() == Ok(name))
                .map(|s| s.address())
        };
        let (runtime, version) = (symbol("_PyRuntime")?, symbol("Py_Version")?);
        let mut sections = file.sections();
        let bytes = sections.find_map(|s| s.data_range(version, 8).ok().flatten())?;
        let version = u64::from_le_bytes(bytes.try_into().ok()?);
        // 0xMMmmpprr
        let minor = match version >> 16 {
            0x030b => 11,
            0x030c => 12,
            0x030d => 13,
            _ => return None,
        };
        Some(Interpreter { runtime, minor })
    }

    /// In memory, where the file begins at `bias`.
    pub(super) fn at(self, bias: u64) -> Python {
        Python {
            runtime: self.runtime.wrapping_add(bias),
            layout: match self.minor {
                11 => &PYTHON_3_11,
                12 => &PYTHON_3_12,
                _ => &PYTHON_3_13,
            },
            has_table: self.minor >= 13,
        }
    }
}

/// An interpreter in a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Python {
    runtime: u64,
    layout: &'static Layout,
    has_table: bool,
}

/// Address of the state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadState(u64);

/// A frame as it is found, with the input of its line. Equal ones are one place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Found {
    code: u64,
    instruction: u64,
    first_line: u32,
    filename: u64,
    name: u64,
    lines: u64,
}

impl Python {
    /// The frames of a thread, the innermost first; none if it runs no Python.
    pub(super) fn frames(&self, memory: Memory, state: ThreadState) -> Vec<Found> {
        let mut found = Vec::new();
        let mut at = self.innermost(memory, state).unwrap_or(0);
        let layout = self.layout;
        // C has frames between those of Python.
        for _ in 0..FRAMES_MAX * 2 {
            if at == 0 || found.len() >= FRAMES_MAX {
                break;
            }
            let mut frame = [0; 80];
            if memory.read_exact(at, &mut frame).is_none() {
                break;
            }
            let word = |place: u64| {
                let bytes = frame.get(place as usize..place as usize + 8);
                bytes
                    .and_then(|b| b.try_into().ok())
                    .map_or(0, u64::from_le_bytes)
            };
            let owner = frame.get(layout.owner as usize).copied();
            if owner.is_some_and(|o| o < OWNED_BY_C) {
                let code = word(layout.code);
                found.extend(self.found(memory, code, word(layout.instruction)));
            }
            at = word(layout.previous);
        }
        found
    }

    fn found(&self, memory: Memory, code: u64, instruction: u64) -> Option<Found> {
        let layout = self.layout;
        let mut object = [0; 144];
        memory.read_exact(code, &mut object)?;
        let bytes = |place: u64| -> Option<[u8; 8]> {
            let place = usize::try_from(place).ok()?;
            object.get(place..place + 8)?.try_into().ok()
        };
        let [a, b, c, d, ..] = bytes(layout.first_line)?;
        Some(Found {
            code,
            instruction,
            first_line: u32::from_le_bytes([a, b, c, d]),
            filename: u64::from_le_bytes(bytes(layout.filename)?),
            name: u64::from_le_bytes(bytes(layout.name)?),
            lines: u64::from_le_bytes(bytes(layout.lines)?),
        })
    }

    /// The innermost frame of a thread.
    fn innermost(&self, memory: Memory, state: ThreadState) -> Option<u64> {
        let frame = memory.word(state.0.wrapping_add(self.layout.frame))?;
        match self.layout.through {
            Some(place) => memory.word(frame.wrapping_add(place)),
            None => Some(frame),
        }
    }

    /// Whether a thread's state is still there.
    pub(super) fn is_of(&self, memory: Memory, state: ThreadState, thread: u32) -> bool {
        let native = memory.word(state.0.wrapping_add(self.layout.native_id));
        native == Some(u64::from(thread))
    }

    /// The state of a thread, if it runs Python. `leads`: it is the first of its process.
    pub(super) fn state(&self, memory: Memory, thread: u32, leads: bool) -> Option<ThreadState> {
        let layout = self.layout;
        let (mut interpreters, mut threads) = (layout.interpreters, layout.threads);
        if self.has_table {
            let [unlocked, first, second] = TABLE;
            if memory.word(self.runtime + unlocked)? != 0 {
                return None;
            }
            interpreters = memory.word(self.runtime + first)?;
            threads = memory.word(self.runtime + second)?;
        }
        let interpreter = memory.word(self.runtime.wrapping_add(interpreters))?;
        let first = memory.word(interpreter.wrapping_add(threads))?;
        let mut state = first;
        for _ in 0..THREADS_MAX {
            if state == 0 {
                break;
            }
            let next = memory.word(state.wrapping_add(layout.next))?;
            // A child that was forked may still have the number of its parent: then it is alone.
            let alone = leads && state == first && next == 0;
            if alone || self.is_of(memory, ThreadState(state), thread) {
                return Some(ThreadState(state));
            }
            state = next;
        }
        None
    }

    /// A frame for reports.
    pub(super) fn told(&self, memory: Memory, found: &Found) -> Option<Frame> {
        let file = self.text(memory, found.filename)?;
        let begin = found.code.wrapping_add(self.layout.instructions);
        let offset = found.instruction.wrapping_sub(begin);
        let len = memory.word(found.lines.wrapping_add(LENGTH))?;
        let mut table = vec![0; usize::try_from(len.min(TABLE_MAX)).ok()?];
        memory.read_exact(found.lines.wrapping_add(BYTES), &mut table)?;
        let line = line(&table, found.first_line, offset).unwrap_or(found.first_line);
        Some(Frame {
            object: file.clone().into_bytes(),
            address: 0,
            function: self.text(memory, found.name),
            line: Some((file, line)),
        })
    }

    /// A string object.
    fn text(&self, memory: Memory, at: u64) -> Option<String> {
        let len = memory.word(at.wrapping_add(LENGTH))?.min(NAME_MAX);
        let state = memory.half(at.wrapping_add(STATE))?;
        let (kind, compact, ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
        if compact == 0 || !matches!(kind, 1 | 2 | 4) {
            return None;
        }
        let begin = if ascii == 1 {
            self.layout.ascii
        } else {
            self.layout.unicode
        };
        let mut bytes = vec![0; usize::try_from(len * u64::from(kind)).ok()?];
        memory.read_exact(at.wrapping_add(begin), &mut bytes)?;
        let chars = bytes.chunks_exact(kind as usize).map(|chunk| {
            let number = chunk.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        Some(chars.collect())
    }
}

/// The line of an instruction by the table of a code object: entries for a number of units of two bytes each, with
/// the difference to the line of the entry before.
fn line(table: &[u8], first: u32, offset: u64) -> Option<u32> {
    let mut bytes = table.iter().copied();
    let mut line = i64::from(first);
    let mut at = 0;
    while let Some(head) = bytes.next() {
        let (code, units) = (head >> 3 & 15, u64::from(head & 7) + 1);
        let mut number = || -> Option<u64> {
            let (mut value, mut shift) = (0u64, 0);
            loop {
                let byte = bytes.next()?;
                value |= u64::from(byte & 63).checked_shl(shift)?;
                shift += 6;
                if byte & 64 == 0 {
                    return Some(value);
                }
            }
        };
        let signed = |value: u64| {
            let half = (value >> 1) as i64;
            if value & 1 == 1 { -half } else { half }
        };
        match code {
            // The same line, with columns.
            0..=9 => {
                bytes.next()?;
            }
            10..=12 => {
                line += i64::from(code) - 10;
                bytes.next()?;
                bytes.next()?;
            }
            13 => line += signed(number()?),
            14 => {
                line += signed(number()?);
                for _ in 0..3 {
                    number()?;
                }
            }
            _ => {}
        }
        at += units * 2;
        if offset < at {
            return (code != 15).then(|| u32::try_from(line).ok()).flatten();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_line_of_an_instruction_is_that_of_its_entry() {
        // One unit without a line; two units of the next line but one, in long form; one of the same; one of the line before.
        let entry = |code: u8, units: u8| 0x80 | code << 3 | (units - 1);
        let table = [
            entry(15, 1),
            entry(14, 2),
            2 << 1,
            0,
            1,
            5,
            entry(3, 1),
            0x11,
            entry(13, 1),
            1 << 1 | 1,
            entry(11, 1),
            4,
            9,
        ];
        let at = |offset| line(&table, 10, offset);
        assert_eq!(at(0), None);
        assert_eq!((at(2), at(4)), (Some(12), Some(12)));
        assert_eq!(at(6), Some(12));
        assert_eq!(at(8), Some(11));
        assert_eq!(at(10), Some(12));
        assert_eq!(at(12), None);
        assert_eq!(line(&[], 10, 0), None);
        // A table that ends inside of an entry.
        assert_eq!(line(&table[..4], 10, 2), None);
    }
}
