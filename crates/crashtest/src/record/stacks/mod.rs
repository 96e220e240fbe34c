//! The place in the program that a call comes from.
//!
//! While a request is served its caller sleeps in the kernel: `/proc/TID/syscall` gives its stack pointer and program
//! counter, its memory holds its stack, which is unwound here. Nothing is loaded into the program. The kernel does
//! not show the frame pointer: if a function needs it, the nearest return address above the stack pointer that
//! follows a call of this function shows where its frame is.
//!
//! A loop makes its calls from the same stack: the places and values of its return addresses are remembered. If they
//! are unchanged, the stack is the one that was unwound before.
//!
//! If a stack leads into CPython, the frames of Python replace those of its interpreter (`python`); if it leads into V8,
//! those of JavaScript do (`javascript`).
//!
//! Threads of the server read these files, so none of them may be on the mount itself: objects there are not opened.

mod javascript;
mod memory;
mod objects;
mod python;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};

use crate::trace::{Frame, Stack};
use javascript::V8;
use memory::Memory;
use objects::{Bytes, Objects};
use python::{Found, Python, ThreadState};

/// Maximum number of bytes of a stack that are read.
const STACK_BYTES: usize = 48 << 10;
/// Maximum number of frames of a stack.
const FRAMES_MAX: usize = 48;
/// Maximum number of words of a stack that are searched for one return address.
const SCANNED_MAX: usize = 2048;
/// Maximum number of return addresses of other functions that are tried.
const OTHERS_MAX: usize = 32;
/// Number of frames that must be unwound from one of them.
const AHEAD: usize = 3;
/// Number of checks of a caller that does not sleep yet.
const LOOKS_MAX: usize = 200;
/// Maximum number of processes whose objects are remembered.
const PROCESSES_MAX: usize = 256;

/// Maximum number of stacks whose return addresses are remembered.
const SEEN_MAX: usize = 4096;
/// Maximum number of them with the same place and the same pointer.
const WAYS_MAX: usize = 16;
/// Maximum number of threads whose registers are kept open.
const THREADS_MAX: usize = 256;
/// Maximum number of threads whose state in an interpreter is remembered.
const STATES_MAX: usize = 4096;
/// The function that runs Python.
const EVALUATES: &str = "PyEval_EvalFrameDefault";

/// A stack, and its number among those that differ.
#[derive(Clone, Debug)]
pub(super) struct Captured {
    pub(super) key: u32,
    pub(super) stack: Arc<Stack>,
}

/// Takes stacks, each different one once.
pub(super) struct Stacks {
    on: AtomicBool,
    inner: Mutex<Inner>,
    /// `/proc/TID/syscall` of threads that have called.
    registers: Mutex<HashMap<u32, Arc<File>>>,
}

/// A file that is mapped with the right to execute.
#[derive(Clone)]
struct Mapping {
    start: u64,
    end: u64,
    /// Difference of addresses: added to the file's own, it gives those in memory.
    bias: u64,
    object: Option<usize>,
}

/// A stack of native frames.
#[derive(Clone)]
struct Native {
    captured: Captured,
    /// Frame pointers of its frames, the innermost first.
    bases: Arc<[u64]>,
}

/// Places of the return addresses of a stack in memory, and their values.
struct Seen {
    slots: Vec<(u64, u64)>,
    native: Native,
}

impl Seen {
    /// Bytes from the stack pointer to the end of the last of them.
    fn len(&self, sp: u64) -> usize {
        let last = self.slots.last().map(|(slot, _)| slot.wrapping_sub(sp));
        let len = last.and_then(|l| usize::try_from(l).ok()?.checked_add(8));
        len.filter(|l| *l <= STACK_BYTES).unwrap_or(0)
    }

    /// Whether a stack that begins at `sp` with these bytes has them.
    fn is_in(&self, bytes: &[u8], sp: u64) -> bool {
        let there = |(slot, back): &(u64, u64)| {
            let at = usize::try_from(slot.wrapping_sub(sp)).unwrap_or(usize::MAX);
            let word = bytes.get(at..).and_then(|rest| rest.get(..8));
            word.is_some_and(|w| w == back.to_le_bytes())
        };
        !self.slots.is_empty() && self.slots.iter().all(there)
    }
}

struct Process {
    program: PathBuf,
    mappings: Vec<Mapping>,
    unwinder: UnwinderX86_64<Bytes>,
    language: Option<Language>,
}

/// What a process runs beside native code.
#[derive(Clone)]
enum Language {
    Python(Python),
    JavaScript(Arc<V8>),
}

/// What was unwound.
struct Unwound {
    /// The addresses of the frames, the innermost first; those of callers lie in the call.
    addresses: Vec<u64>,
    /// Where the return addresses lie, if that is known of all of them.
    slots: Option<Vec<(u64, u64)>>,
    /// What the frame pointer was in the frames, as far as it points into the stack.
    bases: Vec<u64>,
}

struct Inner {
    /// Device number of the mount, as `/proc/PID/maps` writes it.
    mount: Option<String>,
    processes: HashMap<u32, Process>,
    objects: Objects,
    cache: CacheX86_64,
    known: HashMap<Vec<(usize, u64)>, Captured>,
    /// By process, the native stack, and the frames of Python.
    mixed: HashMap<(u32, u32, Vec<Found>), Captured>,
    /// The same of JavaScript.
    scripts: HashMap<(u32, u32, Vec<javascript::Found>), Captured>,
    /// The states of threads that run Python, by process and thread.
    states: HashMap<(u32, u32), ThreadState>,
    /// Number of the next stack.
    next: u32,
    /// By process, stack pointer and program counter.
    seen: HashMap<(u32, u64, u64), Vec<Arc<Seen>>>,
}

impl Stacks {
    pub(super) fn new() -> Stacks {
        Stacks {
            on: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                mount: None,
                processes: HashMap::new(),
                objects: Objects::default(),
                cache: CacheX86_64::new(),
                known: HashMap::new(),
                mixed: HashMap::new(),
                scripts: HashMap::new(),
                states: HashMap::new(),
                next: 0,
                seen: HashMap::new(),
            }),
            registers: Mutex::default(),
        }
    }

    /// Takes stacks from now on. `device` is that of the mount.
    pub(super) fn begin(&self, device: u64) {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        self.inner().mount = Some(format!("{major:02x}:{minor:02x}"));
        self.on.store(true, Ordering::Release);
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stack of a thread that sleeps in a call.
    pub(super) fn of(&self, thread: u32, process: u32) -> Option<Captured> {
        if thread == 0 || !self.on.load(Ordering::Acquire) {
            return None;
        }
        let (sp, pc) = self.registers(thread)?;
        let memory = Memory::of(thread)?;
        let native = match self.seen(memory, (process, sp, pc)) {
            Some(seen) => seen,
            None => {
                let stack = StackMemory::read(memory, sp)?;
                self.inner().capture(process, pc, &stack)?
            }
        };
        let language = {
            let inner = self.inner();
            let known = inner.processes.get(&process);
            known.and_then(|p| p.language.clone())
        };
        Some(match language {
            Some(Language::Python(python)) => {
                self.with_python(native.captured, python, memory, (process, thread))
            }
            Some(Language::JavaScript(v8)) => self.with_javascript(native, &v8, memory, process),
            None => native.captured,
        })
    }

    /// A stack that was unwound before, if its return addresses are where they were.
    fn seen(&self, memory: Memory, at: (u32, u64, u64)) -> Option<Native> {
        let all = self.inner().seen.get(&at)?.clone();
        let len = all.iter().map(|s| s.len(at.1)).max()?;
        let mut bytes = vec![0; len];
        let n = memory.read(at.1, &mut bytes)?;
        let bytes = bytes.get(..n)?;
        let found = all.iter().find(|s| s.is_in(bytes, at.1));
        found.map(|s| s.native.clone())
    }

    /// The same stack with the frames of Python in it, if there are some.
    fn with_python(
        &self,
        native: Captured,
        python: Python,
        memory: Memory,
        (process, thread): (u32, u32),
    ) -> Captured {
        let known = self.inner().states.get(&(process, thread)).copied();
        let state = match known.filter(|s| python.is_of(memory, *s, thread)) {
            Some(state) => Some(state),
            None => python.state(memory, thread, thread == process),
        };
        let Some(state) = state else {
            return native;
        };
        if known != Some(state) {
            let mut inner = self.inner();
            if inner.states.len() >= STATES_MAX {
                inner.states.clear();
            }
            inner.states.insert((process, thread), state);
        }
        let found = python.frames(memory, state);
        if found.is_empty() {
            return native;
        }
        let key = (process, native.key, found);
        if let Some(known) = self.inner().mixed.get(&key) {
            return known.clone();
        }
        let told = key.2.iter().filter_map(|f| python.told(memory, f));
        let told: Vec<Frame> = told.collect();
        let mut frames = native.stack.frames.clone();
        let evaluates = |f: &Frame| f.function.as_ref().is_some_and(|f| f.contains(EVALUATES));
        // Frames below are those of the interpreter and its callers; frames above say less than those of Python.
        if let Some(at) = frames.iter().position(evaluates) {
            frames.truncate(at);
        }
        frames.retain(|f| !is_interpreter(&f.object));
        frames.extend(told);
        let mut inner = self.inner();
        let captured = Captured {
            key: inner.number(),
            stack: Arc::new(Stack { frames }),
        };
        inner.mixed.insert(key, captured.clone());
        captured
    }

    /// The same stack with the frames of JavaScript in it, if there are some.
    fn with_javascript(&self, native: Native, v8: &V8, memory: Memory, process: u32) -> Captured {
        let (found, scripts): (Vec<_>, Vec<_>) =
            v8.frames(memory, &native.bases).into_iter().unzip();
        let native = native.captured;
        if found.is_empty() {
            return native;
        }
        let key = (process, native.key, found);
        if let Some(known) = self.inner().scripts.get(&key) {
            return known.clone();
        }
        // Calls of C, and of what extends Node: then its own code, which says less than that of JavaScript.
        let before = native.stack.frames.iter();
        let before = before.take_while(|f| !javascript::is_of_engine(&f.object));
        let told = key.2.iter().zip(scripts);
        let told = told.map(|(found, script)| v8.told(memory, found, script));
        let frames = before.cloned().chain(told).collect();
        let mut inner = self.inner();
        let captured = Captured {
            key: inner.number(),
            stack: Arc::new(Stack { frames }),
        };
        if inner.scripts.len() >= SEEN_MAX {
            inner.scripts.clear();
        }
        inner.scripts.insert(key, captured.clone());
        captured
    }

    /// Stack pointer and program counter, once the thread sleeps.
    fn registers(&self, thread: u32) -> Option<(u64, u64)> {
        let files = || {
            self.registers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let known = files().get(&thread).cloned();
        if let Some(file) = known {
            // A number that is reused belongs to another thread: reading fails.
            if let Some(registers) = registers(&file) {
                return Some(registers);
            }
        }
        let file = Arc::new(File::open(format!("/proc/{thread}/syscall")).ok()?);
        let found = registers(&file);
        let mut files = files();
        if files.len() >= THREADS_MAX {
            files.clear();
        }
        files.insert(thread, file);
        found
    }
}

/// Whether a file is CPython itself.
fn is_interpreter(object: &[u8]) -> bool {
    let name = object.rsplit(|&b| b == b'/').next().unwrap_or_default();
    name.starts_with(b"python3") || name.starts_with(b"libpython3")
}

/// Stack pointer and program counter, once the thread sleeps.
fn registers(file: &File) -> Option<(u64, u64)> {
    let mut bytes = [0; 256];
    for _ in 0..LOOKS_MAX {
        let n = file.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(bytes.get(..n)?).ok()?;
        let mut words = text.split_whitespace().rev();
        match (words.next(), words.next()) {
            (Some("running"), _) => std::thread::yield_now(),
            (Some(pc), Some(sp)) => {
                let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
                return Some((number(sp)?, number(pc)?));
            }
            _ => return None,
        }
    }
    None
}

struct StackMemory {
    memory: Memory,
    start: u64,
    bytes: Vec<u8>,
}

impl StackMemory {
    fn read(memory: Memory, sp: u64) -> Option<StackMemory> {
        let mut bytes = vec![0; STACK_BYTES];
        // Less at the end of the stack.
        let n = memory.read(sp, &mut bytes)?;
        bytes.truncate(n);
        Some(StackMemory {
            memory,
            start: sp,
            bytes,
        })
    }

    /// A word that is not on the stack.
    fn far_word(&self, address: u64) -> Option<u64> {
        self.memory.word(address)
    }

    /// Target of a call of `target`: stubs of the dynamic linker jump through a slot.
    fn through_stub(&self, target: u64) -> Option<u64> {
        let mut code = [0; 16];
        if self.memory.read_exact(target, &mut code).is_none() {
            return Some(target);
        }
        let begin = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            4
        } else {
            0
        };
        let begin = begin + usize::from(code[begin] == 0xf2);
        match code[begin..] {
            [0xff, 0x25, a, b, c, d, ..] => {
                let next = target.wrapping_add(begin as u64 + 6);
                let slot = next.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
                self.far_word(slot)
            }
            _ => Some(target),
        }
    }

    fn has(&self, address: u64) -> bool {
        self.word(address).is_some()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl Process {
    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let at = self.mappings.partition_point(|m| m.end <= address);
        self.mappings.get(at).filter(|m| m.start <= address)
    }

    /// Start of the function of an address, if that is known.
    fn function(&self, address: u64, objects: &Objects) -> Option<u64> {
        let mapping = self.mapping(address)?;
        let begin = objects
            .get(mapping.object?)?
            .function(address.wrapping_sub(mapping.bias))?;
        Some(begin.wrapping_add(mapping.bias))
    }

    /// Whether a call of this function is before an address that may be a return address.
    fn call_before(
        &self,
        back: u64,
        function: Option<u64>,
        memory: &StackMemory,
        objects: &Objects,
    ) -> Call {
        let Some(mapping) = self.mapping(back) else {
            return Call::None;
        };
        let object = mapping.object.and_then(|o| objects.get(o));
        let before = object.and_then(|o| o.code_before(back.wrapping_sub(mapping.bias)));
        let Some([rex, mov, a, b, c, d, e, f, g]) = before else {
            return Call::None;
        };
        let distance = |bytes| i64::from(i32::from_le_bytes(bytes));
        let relative = |from: u64| from.wrapping_add_signed(distance([d, e, f, g]));
        // Code that is not optimised loads the slot's value into a register, which it calls.
        let loaded = (rex, mov, a & 0xc7, f) == (0x48, 0x8b, 0x05, 0xff) && g == 0xd0 | a >> 3 & 7;
        let target = match (b, c) {
            (_, 0xe8) => memory.through_stub(relative(back)),
            // Through a slot whose distance from the code is known.
            (0xff, 0x15) => memory.far_word(relative(back)),
            _ if loaded => {
                let after = back.wrapping_sub(2);
                memory.far_word(after.wrapping_add_signed(distance([b, c, d, e])))
            }
            _ => {
                // FF /2 with a register, or memory with a displacement of 0, 1 or 4 bytes.
                let indirect = |opcode: u8, modrm: u8| opcode == 0xff && modrm >> 3 & 7 == 2;
                let any = indirect(f, g) || indirect(e, f) || indirect(b, c) || indirect(a, b);
                return if any { Call::Other } else { Call::None };
            }
        };
        match target {
            Some(_) if target == function => Call::OfFunction,
            _ => Call::Other,
        }
    }

    /// The frame pointer of a frame, by its return address: it follows a call of the frame's function, or it is the nearest one
    /// from which the stack can be unwound on.
    fn frame_pointer(
        &self,
        frame: FrameAddress,
        sp: u64,
        memory: &StackMemory,
        cache: &mut CacheX86_64,
        objects: &Objects,
    ) -> Option<u64> {
        let function = self.function(frame.address_for_lookup(), objects);
        let mut others = Vec::new();
        let mut at = sp.next_multiple_of(8);
        for _ in 0..SCANNED_MAX {
            let Some(word) = memory.word(at) else {
                break;
            };
            match self.call_before(word, function, memory, objects) {
                Call::OfFunction => return at.checked_sub(8),
                Call::Other if others.len() < OTHERS_MAX => others.extend(at.checked_sub(8)),
                _ => {}
            }
            at += 8;
        }
        let mut goes_on = |bp: &u64| {
            let mut read = |address: u64| memory.word(address).ok_or(());
            let mut registers = UnwindRegsX86_64::new(0, sp, *bp);
            let mut frame = frame;
            for _ in 0..AHEAD {
                let back = self
                    .unwinder
                    .unwind_frame(frame, &mut registers, cache, &mut read);
                let Some(back) = back.ok().flatten() else {
                    return false;
                };
                if self.call_before(back, None, memory, objects) == Call::None {
                    return false;
                }
                let Some(next) = FrameAddress::from_return_address(back) else {
                    return false;
                };
                frame = next;
            }
            true
        };
        others.into_iter().find(|bp| goes_on(bp))
    }

    /// The addresses of the frames, the innermost first; those of callers lie in the call. Also the places of the
    /// return addresses, if all of them are known.
    fn unwind(
        &self,
        pc: u64,
        memory: &StackMemory,
        cache: &mut CacheX86_64,
        objects: &Objects,
    ) -> Unwound {
        let mut bases = Vec::new();
        let mut slots = Some(Vec::new());
        let mut read = |address: u64| memory.word(address).ok_or(());
        let mut found = vec![pc];
        let mut frame = FrameAddress::InstructionPointer(pc);
        let mut registers = UnwindRegsX86_64::new(pc, memory.start, 0);
        while found.len() < FRAMES_MAX {
            let mut next = registers;
            let mut back = self
                .unwinder
                .unwind_frame(frame, &mut next, cache, &mut read);
            // Without a frame pointer the function that needs one looks like the first of the stack.
            if !matches!(back, Ok(Some(_)))
                && registers.bp() == 0
                && let Some(bp) = self.frame_pointer(frame, registers.sp(), memory, cache, objects)
            {
                next = UnwindRegsX86_64::new(registers.ip(), registers.sp(), bp);
                back = self
                    .unwinder
                    .unwind_frame(frame, &mut next, cache, &mut read);
            }
            // A stack that cannot be unwound to its end is used as far as it goes.
            let Some(caller) = back
                .ok()
                .flatten()
                .and_then(FrameAddress::from_return_address)
            else {
                break;
            };
            registers = next;
            frame = caller;
            found.push(caller.address_for_lookup());
            let base = registers.bp();
            if base >= registers.sp() && memory.has(base) && bases.last() != Some(&base) {
                bases.push(base);
            }
            // A call pushes it right below where the stack of the caller ends.
            let slot = registers.sp().wrapping_sub(8);
            let back = memory.word(slot);
            let back = back.filter(|b| b.wrapping_sub(1) == caller.address_for_lookup());
            slots = slots.zip(back).map(|(mut slots, back)| {
                slots.push((slot, back));
                slots
            });
        }
        Unwound {
            addresses: found,
            slots,
            bases,
        }
    }
}

/// The code before an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    None,
    Other,
    OfFunction,
}

impl Inner {
    fn capture(&mut self, process: u32, pc: u64, memory: &StackMemory) -> Option<Native> {
        self.know(process, pc)?;
        let known = self.processes.get(&process)?;
        let mut addresses = Vec::new();
        let unwound = known.unwind(pc, memory, &mut self.cache, &self.objects);
        for address in unwound.addresses {
            if let Some(mapping) = known.mapping(address)
                && let Some(object) = mapping.object
            {
                addresses.push((object, address.wrapping_sub(mapping.bias)));
            }
        }
        if addresses.is_empty() {
            return None;
        }
        let captured = match self.known.get(&addresses) {
            Some(captured) => captured.clone(),
            None => {
                let frames: Vec<Frame> = addresses
                    .iter()
                    .flat_map(|(object, address)| self.objects.frames(*object, *address))
                    .collect();
                let captured = Captured {
                    key: self.number(),
                    stack: Arc::new(Stack { frames }),
                };
                self.known.insert(addresses, captured.clone());
                captured
            }
        };
        let native = Native {
            captured,
            bases: unwound.bases.into(),
        };
        self.remember((process, memory.start, pc), unwound.slots, &native);
        Some(native)
    }

    /// A number that no stack has.
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn remember(&mut self, at: (u32, u64, u64), slots: Option<Vec<(u64, u64)>>, native: &Native) {
        let Some(slots) = slots else {
            return;
        };
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        let native = native.clone();
        let of = self.seen.entry(at).or_default();
        // Ways that lead to one place on the stack differ above it.
        if of.len() >= WAYS_MAX {
            of.remove(0);
        }
        of.push(Arc::new(Seen { slots, native }));
    }

    /// Reads the mappings of a process, unless they are known: those of another program, or code at a new address,
    /// are not.
    fn know(&mut self, process: u32, pc: u64) -> Option<()> {
        let program = fs::read_link(format!("/proc/{process}/exe")).ok()?;
        if let Some(known) = self.processes.get(&process)
            && known.program == program
            && known.mapping(pc).is_some()
        {
            return Some(());
        }
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
        let mut known = Process {
            program,
            mappings: Vec::new(),
            unwinder: UnwinderX86_64::new(),
            language: None,
        };
        for line in maps.split(|&b| b == b'\n') {
            self.map(line, &mut known);
        }
        self.processes.insert(process, known);
        Some(())
    }

    /// One line of `/proc/PID/maps`: `start-end rwxp offset device inode path`.
    fn map(&mut self, line: &[u8], process: &mut Process) -> Option<()> {
        let mut words = line.splitn(6, |&b| b == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let (start, end) = word()?.split_once('-')?;
        let (rights, offset, device, _inode) = (word()?, word()?, word()?, word()?);
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        if !rights.contains('x') {
            return None;
        }
        let path = words.next().unwrap_or_default().trim_ascii_start();
        let file = path.starts_with(b"/") && self.mount.as_deref() != Some(device);
        let object = file
            .then(|| {
                self.objects
                    .open(Path::new(std::ffi::OsStr::from_bytes(path)))
            })
            .flatten();
        let mut mapping = Mapping {
            start,
            end,
            bias: 0,
            object,
        };
        if let Some(index) = object
            && let Some(of_file) = self.objects.get(index)
        {
            mapping.bias = start.wrapping_sub(of_file.address_of(offset)?);
            let language = match (of_file.interpreter, &of_file.v8) {
                (Some(python), _) => Some(Language::Python(python.at(mapping.bias))),
                (None, Some(v8)) => Some(Language::JavaScript(Arc::clone(v8))),
                (None, None) => None,
            };
            process.language = process.language.take().or(language);
            let info: ExplicitModuleSectionInfo<Bytes> = of_file.sections();
            let name = path.escape_ascii().to_string();
            process
                .unwinder
                .add_module(Module::new(name, start..end, mapping.bias, info));
        }
        process.mappings.push(mapping);
        Some(())
    }
}
