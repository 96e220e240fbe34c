//! Frames of JavaScript in a process that runs V8 as Node has it: read from its heap. Each frame of V8 has its function at
//! a fixed distance from its frame pointer; the function leads to its script and to its place there. The distances are
//! those that V8 gives to debuggers, in symbols of the program (`v8dbg_…`); only the order within a scope, and the place of
//! the table of positions, are known here (V8 10.2 to 13.6, which Node 18 to 24 have). Nothing runs in the program, and it
//! needs no options.
//!
//! The place is that of the call if V8 interprets the function and has a table of its positions; else it is the beginning
//! of the function. A function that V8 has put into its caller has no frame.
//!
//! What is read may be anything: each pointer is followed a bounded number of times, and what cannot be is left out. The caller
//! sleeps, so nothing in its heap moves.

use super::memory::Memory;
use crate::trace::Frame;
use object::{Object as _, ObjectSection, ObjectSymbol};
use std::collections::HashMap;

/// Most frames that are read.
const FRAMES_MAX: usize = 32;
/// Longest name, in characters.
const NAME_MAX: u64 = 4096;
/// Longest table of positions, in bytes.
const TABLE_MAX: u64 = 1 << 20;
/// Where in its source a function may begin, at most.
const SOURCE_MAX: u64 = 64 << 20;
/// Most strings that lead to one another.
const HOPS_MAX: usize = 4;
/// Names of more variables than this are in a table of their own.
const INLINE_NAMES_MAX: u64 = 75;
/// What V8's programs and libraries are called, and what only they call.
const OBJECTS: [&[u8]; 3] = [b"node", b"libnode", b"libuv"];
/// Instance types of strings: how the characters are kept, and their size.
const REPRESENTATION: u16 = 7;
const ONE_BYTE: u16 = 8;
const NO_STRING: u16 = !127;

/// Places of fields and numbers of types.
#[derive(Debug)]
pub(super) struct V8 {
    /// From a frame pointer.
    context: i64,
    function: i64,
    bytecodes: i64,
    bytecode_offset: i64,
    /// In the objects.
    instance_type: u64,
    shared: u64,
    scope: u64,
    script: u64,
    script_name: u64,
    script_source: u64,
    length: u64,
    one_byte: u64,
    two_byte: u64,
    cons_first: u64,
    cons_second: u64,
    thin: u64,
    sliced_parent: u64,
    sliced_offset: u64,
    external: u64,
    bytecode_data: u64,
    positions: u64,
    /// Instance types.
    shared_type: u16,
    scope_type: u16,
    script_type: u16,
    bytecodes_type: u16,
}

/// A frame as it is found. Equal ones are one place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Found {
    file: String,
    function: Option<String>,
    position: u32,
}

/// Where a script is in the heap, as long as its thread sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script(u64);

/// Characters one after the other in memory.
struct Flat {
    at: u64,
    len: u64,
    one_byte: bool,
}

/// A small number, which stands in place of a pointer.
fn smi(word: u64) -> Option<u32> {
    (word & 0xffff_ffff == 0).then_some((word >> 32) as u32)
}

/// Where an object begins, if this is a pointer to one.
fn object(word: u64) -> Option<u64> {
    (word & 3 == 1).then(|| word - 1)
}

/// Whether frames of this file say less than those of JavaScript.
pub(super) fn is_of_engine(object: &[u8]) -> bool {
    let name = object.rsplit(|&b| b == b'/').next().unwrap_or_default();
    OBJECTS.iter().any(|o| name.starts_with(o))
}

impl V8 {
    /// In a program or library, if it is V8 with what debuggers need.
    pub(super) fn in_file(file: &object::File<'_>) -> Option<V8> {
        let mut places = HashMap::new();
        for symbol in file.dynamic_symbols() {
            if let Ok(name) = symbol.name()
                && let Some(name) = name.strip_prefix("v8dbg_")
                && symbol.is_definition()
            {
                places.insert(name, symbol.address());
            }
        }
        if places.is_empty() {
            return None;
        }
        let value = |address: u64| -> Option<i32> {
            let mut sections = file.sections();
            let bytes = sections.find_map(|s| s.data_range(address, 4).ok().flatten())?;
            Some(i32::from_le_bytes(bytes.try_into().ok()?))
        };
        let named = |name: &str| value(*places.get(name)?);
        // The name of a field ends with its type, whose form differs by version.
        let field = |name: &str| -> Option<u64> {
            let all = places.iter().filter(|(n, _)| n.starts_with(name));
            let address = all.map(|(_, address)| *address).min()?;
            u64::try_from(value(address)?).ok()
        };
        let kind = |name: &str| u16::try_from(named(name)?).ok();
        let distance = |name: &str| named(name).map(i64::from);
        // Words of eight bytes, numbers in their upper half.
        if (named("TaggedSize")?, named("SmiShiftSize")?) != (8, 31) {
            return None;
        }
        let has_wrapper = field("class_BytecodeArray__wrapper__").is_some();
        Some(V8 {
            context: distance("off_fp_context")?,
            function: distance("off_fp_function")?,
            bytecodes: distance("off_fp_bytecode_array")?,
            bytecode_offset: distance("off_fp_bytecode_offset")?,
            instance_type: field("class_Map__instance_type__")?,
            shared: field("class_JSFunction__shared__")?,
            scope: field("class_SharedFunctionInfo__name_or_scope_info__")?,
            script: field("class_SharedFunctionInfo__script_or_debug_info__")
                .or_else(|| field("class_SharedFunctionInfo__script__"))?,
            script_name: field("class_Script__name__")?,
            script_source: field("class_Script__source__")?,
            length: field("class_String__length__")?,
            one_byte: field("class_SeqOneByteString__chars__")?,
            two_byte: field("class_SeqTwoByteString__chars__")?,
            cons_first: field("class_ConsString__first__")?,
            cons_second: field("class_ConsString__second__")?,
            thin: field("class_ThinString__actual__")?,
            sliced_parent: field("class_SlicedString__parent__")?,
            sliced_offset: field("class_SlicedString__offset__")?,
            external: field("class_ExternalString__resource__")?,
            bytecode_data: field("class_BytecodeArray__data__")?,
            positions: if has_wrapper { 24 } else { 32 },
            shared_type: kind("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")?,
            scope_type: kind("type_ScopeInfo__SCOPE_INFO_TYPE")?,
            script_type: kind("type_Script__SCRIPT_TYPE")?,
            bytecodes_type: kind("type_BytecodeArray__BYTECODE_ARRAY_TYPE")?,
        })
    }

    /// The frames at these frame pointers, the innermost first; none where other code runs.
    pub(super) fn frames(&self, memory: Memory, bases: &[u64]) -> Vec<(Found, Script)> {
        let all = bases.iter().filter_map(|base| self.frame(memory, *base));
        all.take(FRAMES_MAX).collect()
    }

    fn frame(&self, memory: Memory, base: u64) -> Option<(Found, Script)> {
        let of_frame = |distance: i64| memory.word(base.wrapping_add_signed(distance));
        object(of_frame(self.context)?)?;
        let function = object(of_frame(self.function)?)?;
        let shared = self.field(memory, function, self.shared, self.shared_type)?;
        let script = self.field(memory, shared, self.script, self.script_type)?;
        let name = object(memory.word(script + self.script_name)?)?;
        let file = self.text(memory, name).filter(|f| !f.is_empty())?;
        let scope = self.field(memory, shared, self.scope, self.scope_type);
        let (function, begin) = scope.map_or((None, None), |scope| self.scope(memory, scope));
        let found = Found {
            file: match file.strip_prefix("file://") {
                Some(path) => decoded(path),
                None => file,
            },
            function,
            position: self.called(memory, base).or(begin).unwrap_or(0),
        };
        Some((found, Script(script)))
    }

    /// A field that leads to an object of this type.
    fn field(&self, memory: Memory, at: u64, place: u64, kind: u16) -> Option<u64> {
        let to = object(memory.word(at.wrapping_add(place))?)?;
        (self.kind(memory, to)? == kind).then_some(to)
    }

    /// The type of an object.
    fn kind(&self, memory: Memory, at: u64) -> Option<u16> {
        let map = object(memory.word(at)?)?;
        let mut bytes = [0; 2];
        memory.read_exact(map.wrapping_add(self.instance_type), &mut bytes)?;
        Some(u16::from_le_bytes(bytes))
    }

    /// The name of a function, and where it begins.
    fn scope(&self, memory: Memory, at: u64) -> (Option<String>, Option<u32>) {
        let word = |index: u64| memory.word(at.wrapping_add(8 * index));
        let number = |index: u64| word(index).and_then(smi);
        // Flags, number of parameters, number of variables; then positions, or names and what else the flags say.
        let (Some(flags), Some(variables)) = (word(1), number(3)) else {
            return (None, None);
        };
        let flags = smi(flags).unwrap_or(flags as u32);
        let range = |index: u64| -> Option<u32> {
            let (begin, end) = (number(index)?, number(index + 1)?);
            (begin <= end).then_some(begin)
        };
        let first = range(4);
        let mut index = if first.is_some() { 6 } else { 4 };
        let variables = u64::from(variables);
        let names = if variables < INLINE_NAMES_MAX {
            variables
        } else {
            1
        };
        index += names + variables + u64::from(flags >> 10 & 1);
        let mut name = None;
        let mut named = |index: u64| {
            let text = word(index)
                .and_then(object)
                .and_then(|at| self.text(memory, at));
            name = name.take().or(text.filter(|t| !t.is_empty()));
        };
        if flags >> 12 & 3 != 0 {
            named(index);
            index += 2;
        }
        if flags >> 14 & 1 != 0 {
            named(index);
            index += 1;
        }
        (name, first.or_else(|| range(index)))
    }

    /// The position of the call in a frame of the interpreter, if there is a table of positions.
    fn called(&self, memory: Memory, base: u64) -> Option<u32> {
        let of_frame = |distance: i64| memory.word(base.wrapping_add_signed(distance));
        let bytecodes = object(of_frame(self.bytecodes)?)?;
        let offset = smi(of_frame(self.bytecode_offset)?)?;
        if self.kind(memory, bytecodes)? != self.bytecodes_type {
            return None;
        }
        // It is counted from the pointer, which is one more than where the object begins.
        let offset = u64::from(offset).checked_sub(self.bytecode_data - 1)?;
        let table = object(memory.word(bytecodes + self.positions)?)?;
        let len = u64::from(smi(memory.word(table + 8)?)?);
        if len > TABLE_MAX {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        memory.read_exact(table + 16, &mut bytes)?;
        position(&bytes, i64::try_from(offset).ok()?)
    }

    /// A frame for reports.
    pub(super) fn told(&self, memory: Memory, found: &Found, script: Script) -> Frame {
        let line = self.line(memory, script, found.position);
        Frame {
            object: found.file.clone().into_bytes(),
            address: 0,
            function: found.function.clone(),
            line: line.map(|line| (found.file.clone(), line)),
        }
    }

    /// The line of a position in a script.
    fn line(&self, memory: Memory, script: Script, position: u32) -> Option<u32> {
        if position == 0 {
            return Some(1);
        }
        let source = object(memory.word(script.0.wrapping_add(self.script_source))?)?;
        let source = self.flat(memory, source, HOPS_MAX)?;
        let len = source.len.min(u64::from(position)).min(SOURCE_MAX);
        let width = if source.one_byte { 1 } else { 2 };
        let mut bytes = vec![0; usize::try_from(len * width).ok()?];
        memory.read_exact(source.at, &mut bytes)?;
        let lines = match source.one_byte {
            true => bytes.iter().filter(|&&b| b == b'\n').count(),
            false => {
                let units = bytes.as_chunks::<2>().0.iter();
                units.filter(|&&unit| unit == [b'\n', 0]).count()
            }
        };
        u32::try_from(lines + 1).ok()
    }

    /// A string.
    fn text(&self, memory: Memory, at: u64) -> Option<String> {
        let flat = self.flat(memory, at, HOPS_MAX)?;
        let len = usize::try_from(flat.len.min(NAME_MAX)).ok()?;
        if flat.one_byte {
            let mut bytes = vec![0; len];
            memory.read_exact(flat.at, &mut bytes)?;
            return Some(bytes.into_iter().map(char::from).collect());
        }
        let mut bytes = vec![0; len * 2];
        memory.read_exact(flat.at, &mut bytes)?;
        let units = bytes.as_chunks::<2>().0.iter();
        let units: Vec<u16> = units.map(|unit| u16::from_le_bytes(*unit)).collect();
        Some(String::from_utf16_lossy(&units))
    }

    /// Where the characters of a string are. One that is made of two others has none of its own.
    fn flat(&self, memory: Memory, at: u64, hops: usize) -> Option<Flat> {
        let kind = self.kind(memory, at)?;
        if kind & NO_STRING != 0 || hops == 0 {
            return None;
        }
        let len = u64::from(memory.half(at.wrapping_add(self.length))?);
        let one_byte = kind & ONE_BYTE != 0;
        let next = |place: u64| -> Option<Flat> {
            let to = object(memory.word(at.wrapping_add(place))?)?;
            self.flat(memory, to, hops - 1)
        };
        match kind & REPRESENTATION {
            // One after the other.
            0 => Some(Flat {
                at: at
                    + if one_byte {
                        self.one_byte
                    } else {
                        self.two_byte
                    },
                len,
                one_byte,
            }),
            // Two parts: flattened, if the second is empty.
            1 => next(self.cons_second)
                .filter(|second| second.len == 0)
                .and_then(|_| next(self.cons_first)),
            // Outside of the heap; behind the pointer to what holds them is one to them.
            2 => Some(Flat {
                at: memory.word(at.wrapping_add(self.external + 8))?,
                len,
                one_byte,
            }),
            // A part of another.
            3 => {
                let parent = next(self.sliced_parent)?;
                let from = memory.word(at.wrapping_add(self.sliced_offset))?;
                let from = u64::from(smi(from)?);
                let width = if parent.one_byte { 1 } else { 2 };
                Some(Flat {
                    at: parent.at.wrapping_add(from * width),
                    len: parent.len.checked_sub(from)?.min(len),
                    one_byte: parent.one_byte,
                })
            }
            // Another.
            5 => next(self.thin),
            _ => None,
        }
    }
}

/// A path in a URL.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The position of a bytecode by a table: differences of offset and position from one entry to the next. Each is a number
/// whose bits come seven by seven, the lowest first, and whose lowest bit is its sign; a negative offset is that of an
/// expression.
fn position(table: &[u8], offset: i64) -> Option<u32> {
    let mut bytes = table.iter().copied();
    let (mut code, mut place, mut last) = (-1i64, 0i64, None);
    loop {
        let mut number = || -> Option<i64> {
            let (mut value, mut shift) = (0u64, 0);
            loop {
                let byte = bytes.next()?;
                value |= u64::from(byte & 127).checked_shl(shift)?;
                shift += 7;
                if byte & 128 == 0 {
                    return Some((value >> 1) as i64 ^ -((value & 1) as i64));
                }
            }
        };
        let (Some(of_code), Some(of_place)) = (number(), number()) else {
            return last;
        };
        code = code.wrapping_add(if of_code < 0 { !of_code } else { of_code });
        place = place.wrapping_add(of_place);
        if code > offset {
            return last;
        }
        // The lowest bit says that it is elsewhere; the next thirty are one more than the position.
        let at = place >> 1 & 0x3fff_ffff;
        last = u32::try_from(at - 1).ok().filter(|_| place & 1 == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::{decoded, object, position, smi};

    #[test]
    fn the_position_of_a_call_is_that_of_the_last_entry_before_it() {
        // Offsets 0, 5 and 5 + 200, the second of an expression; positions 10, 7 and 300.
        let number = |value: i64| -> Vec<u8> {
            let mut left = (value << 1 ^ value >> 63) as u64;
            let mut bytes = Vec::new();
            while left > 127 {
                bytes.push(left as u8 | 128);
                left >>= 7;
            }
            bytes.push(left as u8);
            bytes
        };
        let place = |position: i64| (position + 1) << 1;
        let table = [
            number(1),
            number(place(10)),
            number(-5 - 1),
            number(place(7) - place(10)),
            number(200),
            number(place(300) - place(7)),
        ]
        .concat();
        assert_eq!(position(&table, 0), Some(10));
        assert_eq!(position(&table, 4), Some(10));
        assert_eq!(position(&table, 5), Some(7));
        assert_eq!(position(&table, 204), Some(7));
        assert_eq!(position(&table, 205), Some(300));
        assert_eq!(position(&[], 3), None);
        // A table that ends inside of an entry, and a number without an end.
        assert_eq!(position(&table[..3], 5), Some(10));
        assert_eq!(position(&[255; 40], 5), None);
    }

    #[test]
    fn words_are_numbers_or_pointers() {
        assert_eq!((smi(7 << 32), object(7 << 32)), (Some(7), None));
        assert_eq!((smi(0x1001), object(0x1001)), (None, Some(0x1000)));
        // A weak one is not followed.
        assert_eq!(object(0x1003), None);
    }

    #[test]
    fn the_path_of_a_module_is_decoded() {
        assert_eq!(decoded("/a%20b/%C3%A4.mjs"), "/a b/ä.mjs");
        assert_eq!(decoded("/100%"), "/100%");
    }
}
