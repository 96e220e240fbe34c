//! A region: bounds, little-endian words, counters and the one branch that leads to the recorder.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::instructions::{self, Instruction};
use crate::mapping::Mapping;
use crate::open::LockedFile;
use crate::recorder::{Event, Recorder};
use crate::{LINE_BYTES, WORD_BYTES, counts};

/// Persistence of stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// After its line is written back by this instruction, and a fence.
    Line(Instruction),
    /// As soon as it is visible: the platform saves its caches when power fails. Non-temporal stores still need a fence.
    Eadr,
}

/// A region of persistent memory. See the [crate's documentation](crate).
///
/// All methods take `&self`: words are atomic, so that racing threads see old or new words and never a torn one. Order between
/// threads is the caller's: stores by [`write_data`](Region::write_data) are ordered before later stores only by a
/// [`fence`](Region::fence).
pub struct Region {
    mapping: Mapping,
    durability: Durability,
    mode: Mode,
    /// The file, which stays locked as long as it is mapped: it comes after the mapping, so it is dropped later.
    file: Option<(LockedFile, PathBuf)>,
}

/// A cache line of a region: found once, for several stores.
#[derive(Clone, Copy)]
pub struct Line<'r> {
    words: &'r [AtomicU64; LINE_WORDS],
    /// Its first byte.
    at: u64,
    mode: &'r Mode,
}

/// Words of a line.
const LINE_WORDS: usize = (LINE_BYTES / WORD_BYTES) as usize;

/// Mode of stores.
enum Mode {
    Plain,
    ReadOnly,
    Recorded(Box<Recorder>),
}

impl Region {
    fn in_memory(mapping: Mapping) -> Region {
        Region {
            mapping,
            durability: Durability::Line(Instruction::detect()),
            mode: Mode::Plain,
            file: None,
        }
    }

    pub(crate) fn in_file(
        mapping: Mapping,
        durability: Durability,
        read_only: bool,
        file: LockedFile,
        path: &Path,
    ) -> Region {
        Region {
            mapping,
            durability,
            mode: if read_only {
                Mode::ReadOnly
            } else {
                Mode::Plain
            },
            file: Some((file, path.to_owned())),
        }
    }

    /// Plain memory of at least `bytes` bytes (rounded up to whole lines), all zero. It is lost with the region. Running out
    /// of memory ends the process, as it does for a `Vec`.
    #[must_use]
    pub fn anonymous(bytes: u64) -> Region {
        Region::in_memory(Mapping::zeroed(
            usize::try_from(bytes).unwrap_or(usize::MAX),
        ))
    }

    /// Plain memory that holds `content`, padded with zeros to whole lines.
    #[must_use]
    pub fn with_content(content: &[u8]) -> Region {
        Region::in_memory(Mapping::with_content(content))
    }

    /// Plain memory that holds `words`, padded with zeros to whole lines.
    #[must_use]
    pub fn with_words(words: &[u64]) -> Region {
        Region::in_memory(Mapping::with_words(words))
    }

    /// Plain memory that holds `content`, padded with zeros to whole lines, and records all events on it.
    #[must_use]
    #[allow(clippy::needless_pass_by_value)]
    pub fn recorded(content: Vec<u8>) -> Region {
        Region::with_content(&content).into_recorded()
    }

    /// From now on, records all events on a region of plain memory. Its present content counts as durable.
    pub(crate) fn into_recorded(mut self) -> Region {
        let recorder = Recorder::new(self.snapshot());
        self.mode = Mode::Recorded(Box::new(recorder));
        self
    }

    /// The same region of plain memory on a platform whose caches survive a power cut ([`Durability::Eadr`]). For tests: in
    /// plain memory, nothing survives.
    #[must_use]
    pub fn with_eadr(mut self) -> Region {
        if self.file.is_none() {
            self.durability = Durability::Eadr;
        }
        self
    }

    /// The file of the region, if it lies in one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Whether stores are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        matches!(self.mode, Mode::ReadOnly)
    }

    /// Bytes of the region.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.mapping.words().len() as u64 * WORD_BYTES
    }

    /// Persistence of the region's stores.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether the memory has failed: the file shrank, or the medium reported an error. Some words are then zeros, and stores
    /// to them are lost. A region that has failed stays failed.
    #[must_use]
    #[inline]
    pub fn failed(&self) -> bool {
        self.mapping.failed()
    }

    /// The recorder of a [`recorded`](Region::recorded) region.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        match &self.mode {
            Mode::Recorded(recorder) => Some(recorder),
            Mode::Plain | Mode::ReadOnly => None,
        }
    }

    /// Forgets the recorded events, and takes everything stored so far as durable. Does nothing on other regions.
    pub fn restart_recorder(&self) {
        if let Mode::Recorded(recorder) = &self.mode {
            recorder.restart(|| self.snapshot());
        }
    }

    /// All bytes.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.mapping.words().len() * 8];
        instructions::load_data(self.mapping.words(), &mut bytes);
        bytes
    }

    fn snapshot(&self) -> Vec<u64> {
        let words = self.mapping.words().iter();
        words
            .map(|word| u64::from_le(word.load(Ordering::Relaxed)))
            .collect()
    }

    /// The cell at `at`.
    #[inline]
    fn cell(&self, at: u64) -> &AtomicU64 {
        assert!(
            at.is_multiple_of(WORD_BYTES),
            "address {at} is no multiple of 8"
        );
        &self.mapping.words()[(at / WORD_BYTES) as usize]
    }

    /// The word at `at`, which is a multiple of 8. Earlier stores of its writer are visible, too.
    ///
    /// # Panics
    /// If `at` is out of bounds or not aligned.
    #[must_use]
    #[inline]
    pub fn load(&self, at: u64) -> u64 {
        let word = self.cell(at).load(Ordering::Acquire);
        if let Mode::Recorded(recorder) = &self.mode {
            recorder.note_read((at / WORD_BYTES) as usize, 1);
        }
        u64::from_le(word)
    }

    /// Stores a word at `at`, which is a multiple of 8.
    ///
    /// # Panics
    /// If `at` is out of bounds or not aligned.
    #[inline]
    pub fn store(&self, at: u64, word: u64) {
        let cell = self.cell(at);
        counts::stored();
        match &self.mode {
            Mode::Plain => cell.store(word.to_le(), Ordering::Release),
            Mode::ReadOnly => refuse_store(),
            Mode::Recorded(recorder) => record_store(recorder, cell, at, word),
        }
    }

    /// The cache line that has the byte at `at`.
    ///
    /// # Panics
    /// If the line is out of bounds.
    #[must_use]
    #[inline]
    pub fn line(&self, at: u64) -> Line<'_> {
        let (lines, _) = self.mapping.words().as_chunks::<LINE_WORDS>();
        Line {
            words: &lines[(at / LINE_BYTES) as usize],
            at: at / LINE_BYTES * LINE_BYTES,
            mode: &self.mode,
        }
    }

    /// Reads bytes, of any alignment. A racing write shows in some of the words and not in others.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let parts = Parts::of(at, buf.len(), self.len());
        if let Mode::Recorded(recorder) = &self.mode {
            let tail = !(buf.len() - parts.head).is_multiple_of(8);
            let words = usize::from(parts.head > 0) + parts.whole + usize::from(tail);
            recorder.note_read(parts.first, words);
        }
        let words = self.mapping.words();
        let (head, rest) = buf.split_at_mut(parts.head);
        let (whole, tail) = rest.split_at_mut(parts.whole * 8);
        if !head.is_empty() {
            let from = instructions::load_data_word(&words[parts.first]);
            head.copy_from_slice(&from[parts.skip..parts.skip + parts.head]);
        }
        let next = parts.first_whole;
        instructions::load_data(&words[next..next + parts.whole], whole);
        if !tail.is_empty() {
            let from = instructions::load_data_word(&words[next + parts.whole]);
            tail.copy_from_slice(&from[..tail.len()]);
        }
    }

    /// Writes data of any alignment by non-temporal stores. Durable after the next fence of this thread.
    ///
    /// A word that is written in part is read, merged and stored: no other thread may write to the same word meanwhile.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn write_data(&self, at: u64, data: &[u8]) {
        let parts = Parts::of(at, data.len(), self.len());
        counts::data_stored(data.len() as u64);
        let (head, rest) = data.split_at(parts.head);
        let (whole, tail) = rest.split_at(parts.whole * 8);
        self.merge(parts.first, parts.skip, head);
        self.data_words(parts.first_whole, whole);
        self.merge(parts.first_whole + parts.whole, 0, tail);
    }

    /// Zeros a range of any alignment, as [`write_data`](Region::write_data) would.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn zero_data(&self, at: u64, len: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len()));
        let mut done = 0;
        while done < len {
            // Cut at a multiple of the page, so that no word is merged in the middle.
            let room = ZEROS.len() as u64 - (at + done) % ZEROS.len() as u64;
            let part = room.min(len - done);
            self.write_data(at + done, &ZEROS[..part as usize]);
            done += part;
        }
    }

    /// Stores whole words of data.
    fn data_words(&self, first: usize, data: &[u8]) {
        let to = &self.mapping.words()[first..first + data.len() / 8];
        let recorder = match &self.mode {
            Mode::Plain => return instructions::store_data(self.instruction(), to, data),
            Mode::ReadOnly => refuse_store(),
            Mode::Recorded(recorder) => recorder,
        };
        let (chunks, _) = data.as_chunks::<8>();
        for (index, (to, bytes)) in to.iter().zip(chunks).enumerate() {
            let at = (first + index) as u64 * WORD_BYTES;
            let word = u64::from_le_bytes(*bytes);
            recorder.step(Event::Data { at, word }, || {
                to.store(word.to_le(), Ordering::Release);
            });
        }
    }

    /// Stores some bytes of one word.
    fn merge(&self, index: usize, skip: usize, data: &[u8]) {
        if !data.is_empty() {
            if let Mode::Recorded(recorder) = &self.mode {
                recorder.note_read(index, 1);
            }
            let mut word = instructions::load_data_word(&self.mapping.words()[index]);
            word[skip..skip + data.len()].copy_from_slice(data);
            self.data_words(index, &word);
        }
    }

    fn instruction(&self) -> Instruction {
        match self.durability {
            Durability::Line(instruction) => instruction,
            Durability::Eadr => Instruction::None,
        }
    }

    /// Writes back each cache line of the range once. Together with the next fence of this thread, that makes the ordinary
    /// stores to these lines durable. Under eADR it does nothing.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    pub fn write_back(&self, at: u64, len: u64) {
        let end = at.checked_add(len).filter(|end| *end <= self.len());
        assert!(end.is_some(), "{len} bytes at {at} are out of bounds");
        let Durability::Line(instruction) = self.durability else {
            return;
        };
        let (Some(end), true) = (end, len > 0) else {
            return;
        };
        let (first, end) = (at / LINE_BYTES, end.div_ceil(LINE_BYTES));
        counts::lines_written_back(end - first);
        if let Mode::Recorded(recorder) = &self.mode {
            return record_write_backs(recorder, first, end);
        }
        let (lines, _) = self.mapping.words().as_chunks::<LINE_WORDS>();
        for line in &lines[first as usize..end as usize] {
            instructions::write_back(instruction, &line[0]);
        }
    }

    /// Makes this thread's earlier write-backs and non-temporal stores durable, before all its later stores.
    #[inline]
    pub fn fence(&self) {
        counts::fenced();
        if let Mode::Recorded(recorder) = &self.mode {
            recorder.step(Event::Fence, || {});
        } else {
            instructions::fence();
        }
    }
}

impl Line<'_> {
    /// The word at byte `offset` of the line, as [`Region::load`]; only its place within a line counts.
    #[must_use]
    #[inline]
    pub fn load(&self, offset: u64) -> u64 {
        debug_assert!(offset.is_multiple_of(WORD_BYTES));
        let offset = offset % LINE_BYTES;
        let word = self.words[(offset / WORD_BYTES) as usize].load(Ordering::Acquire);
        if let Mode::Recorded(recorder) = self.mode {
            recorder.note_read(((self.at + offset) / WORD_BYTES) as usize, 1);
        }
        u64::from_le(word)
    }

    /// Stores a word at byte `offset` of the line, a multiple of 8; only its place within a line counts. As
    /// [`Region::store`].
    #[inline]
    pub fn store(&self, offset: u64, word: u64) {
        debug_assert!(offset.is_multiple_of(WORD_BYTES));
        let offset = offset % LINE_BYTES;
        let cell = &self.words[(offset / WORD_BYTES) as usize];
        counts::stored();
        match self.mode {
            Mode::Plain => cell.store(word.to_le(), Ordering::Release),
            Mode::ReadOnly => refuse_store(),
            Mode::Recorded(recorder) => record_store(recorder, cell, self.at + offset, word),
        }
    }
}

impl fmt::Debug for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("at", &self.at).finish()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("bytes", &self.len())
            .field("durability", &self.durability)
            .field("path", &self.path())
            .field("read_only", &self.read_only())
            .field("recorded", &self.recorder().is_some())
            .field("failed", &self.failed())
            .finish()
    }
}

/// A store to a recorded region. Apart, so that the others stay short.
#[cold]
#[inline(never)]
fn record_store(recorder: &Recorder, cell: &AtomicU64, at: u64, word: u64) {
    recorder.step(Event::Store { at, word }, || {
        cell.store(word.to_le(), Ordering::Release);
    });
}

/// Write-backs of lines of a recorded region.
#[cold]
#[inline(never)]
fn record_write_backs(recorder: &Recorder, first: u64, end: u64) {
    for line in first..end {
        recorder.step(Event::WriteBack { line }, || {});
    }
}

/// A store to a read-only region is a mistake of the program: without this, it would be a segmentation fault.
#[cold]
#[inline(never)]
#[allow(clippy::panic)]
fn refuse_store() -> ! {
    panic!("a store to a region that is open read-only")
}

/// A range of bytes, cut at the borders of words.
struct Parts {
    /// Index of the word that the head is in.
    first: usize,
    /// Bytes of that word before the head.
    skip: usize,
    /// Bytes before the first whole word.
    head: usize,
    /// Index of the first whole word.
    first_whole: usize,
    /// Whole words.
    whole: usize,
}

impl Parts {
    fn of(at: u64, len: usize, bytes: u64) -> Parts {
        let end = at.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= bytes),
            "{len} bytes at {at} are out of bounds: the region has {bytes}"
        );
        let (first, skip) = ((at / WORD_BYTES) as usize, (at % WORD_BYTES) as usize);
        let head = if skip == 0 { 0 } else { len.min(8 - skip) };
        Parts {
            first,
            skip,
            head,
            first_whole: first + usize::from(skip > 0),
            whole: (len - head) / 8,
        }
    }
}

#[cfg(test)]
mod tests;
