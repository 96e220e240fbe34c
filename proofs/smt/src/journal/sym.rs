//! The base of the codecs, as terms: bytes with unknown contents and length, bytes that were put
//! together, and a hash of which only the assumption is known.

use crate::codec::record::Cursor;
use crate::codec::{Bytes, HASH_BYTES, Keyed, Sink, Word as CodecWord};
use smt::explore::{assume, branch, end_path, fresh, prove, unknown};
use smt::term::{Term, all, any, byte, choice, implies, is_proper, joined, not, number, truth};
use smt::word::Word;
use std::cell::RefCell;

impl CodecWord for Word {
    fn of(value: u64) -> Word {
        Word::of(value)
    }

    fn low(self) -> u32 {
        0
    }
}

/// Bits of a buffer's length: at most 4 GiB, where a log has at most 1 GiB.
pub const LENGTH_BITS: u32 = 32;

/// Source of bytes.
#[derive(Clone)]
enum Source {
    /// Anything.
    Any(String),
    /// Pieces, one after the other.
    Made(Vec<Piece>),
    /// Other bytes, with another one at this place.
    Changed(View, Term, Term),
}

#[derive(Clone, Copy)]
struct Piece {
    start: Term,
    length: Term,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// A little-endian number, or a hash.
    Value(Term),
    Copy(View),
}

/// One step of an outermost loop: the loop, and the cursor before and after the step.
pub struct Step {
    pub nth: u32,
    pub before: Cursor<View>,
    pub behind: Cursor<View>,
}

type Watcher = std::rc::Rc<dyn Fn(&Step)>;

#[derive(Default)]
struct Path {
    sources: Vec<Source>,
    hashed: Vec<Hashed>,
    watched: Vec<Term>,
    /// Current depth of loops, and number of outermost ones that are done.
    depth: u32,
    loops: u32,
    watcher: Option<Watcher>,
    /// Loops that ran to their end: where from, how often, and where to.
    ends: Vec<(Term, Term, Term)>,
    /// Loops of a second run that end where those of the first did.
    replayed: Option<std::collections::VecDeque<(Term, Term, Term)>>,
}

thread_local! {
    static PATH: RefCell<Path> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Path) -> T) -> T {
    PATH.with_borrow_mut(f)
}

/// A new path begins.
pub fn reset() {
    PATH.take();
}

/// Bytes `from .. to` of a source.
#[derive(Clone, Copy, PartialEq)]
pub struct View {
    source: usize,
    pub from: Term,
    pub to: Term,
}

fn number64(value: u64) -> Term {
    number(64, value)
}

impl View {
    fn of(source: Source, length: Term) -> View {
        let source = with(|path| {
            path.sources.push(source);
            path.sources.len() - 1
        });
        View {
            source,
            from: number64(0),
            to: length,
        }
    }

    /// Any bytes.
    pub fn any(name: &str) -> View {
        View::sized(name, Word::bits(&format!("{name}.length"), LENGTH_BITS).0)
    }

    /// Any bytes of this length.
    pub fn sized(name: &str, length: Term) -> View {
        View::of(Source::Any(fresh(name)), length)
    }

    /// The same with another byte at `place`.
    pub fn changed(self, place: Term) -> View {
        let new = unknown("new byte", 8);
        assume(not(new.equal(self.byte(place))));
        View::of(Source::Changed(self, place, new), self.span())
    }

    /// The number of `bytes` bytes at a fixed place of the byte map.
    pub fn at(self, place: u64, bytes: u64) -> Term {
        self.value(number64(place), bytes).widened()
    }

    pub fn span(self) -> Term {
        self.to.minus(self.from)
    }

    /// The byte at a place, which is inside or does not matter.
    pub fn byte(self, at: Term) -> Term {
        let at = self.from.plus(at);
        let source = with(|path| path.sources[self.source].clone());
        match source {
            Source::Any(name) => byte(&name, at),
            Source::Made(pieces) => made_byte(&pieces, at),
            Source::Changed(view, place, new) => choice(at.equal(place), new, view.byte(at)),
        }
    }

    fn value(self, at: Term, bytes: u64) -> Term {
        let parts: Vec<Term> = (0..bytes)
            .rev()
            .map(|i| self.byte(at.plus(number64(i))))
            .collect();
        joined(&parts)
    }

    #[track_caller]
    fn in_range(self, at: Term, bytes: u64) {
        let end = at.plus(number64(bytes));
        let fits = all([at.at_most(end), end.at_most(self.span())]);
        prove("a read is out of range", fits);
    }
}

/// The byte of the piece that a place lies in. Pieces do not overlap, so one that is seen to hold
/// it is the one.
fn made_byte(pieces: &[Piece], at: Term) -> Term {
    let inside = |piece: &Piece| {
        all([
            piece.start.at_most(at),
            at.below(piece.start.plus(piece.length)),
        ])
    };
    let read = |piece: &Piece| {
        let into = at.minus(piece.start);
        match piece.what {
            What::Copy(view) => view.byte(into),
            What::Value(value) => match into.as_number() {
                Some(i) if i * 8 < u64::from(value.width()) => value.part(i as u32 * 8, 8),
                Some(_) => number(8, 0),
                None => (0..value.width() / 8).fold(number(8, 0), |other, i| {
                    choice(
                        into.equal(number64(u64::from(i))),
                        value.part(i * 8, 8),
                        other,
                    )
                }),
            },
        }
    };
    let holds = |piece: &&Piece| {
        let into = at.minus(piece.start);
        into.below(piece.length).as_truth() == Some(true)
    };
    match pieces.iter().find(holds) {
        Some(piece) => read(piece),
        None => pieces.iter().fold(number(8, 0), |other, piece| {
            choice(inside(piece), read(piece), other)
        }),
    }
}

#[derive(Clone, Copy)]
pub struct Digest(pub Term);

impl PartialEq for Digest {
    fn eq(&self, other: &Digest) -> bool {
        branch(self.0.equal(other.0))
    }
}

impl Bytes for View {
    type Word = Word;
    type Digest = Digest;

    fn length(self) -> Word {
        Word(self.span())
    }

    #[track_caller]
    fn word<const N: usize>(self, at: Word) -> Word {
        self.in_range(at.0, N as u64);
        Word(self.value(at.0, N as u64).widened())
    }

    #[track_caller]
    fn digest(self, at: Word) -> Digest {
        self.in_range(at.0, HASH_BYTES);
        Digest(self.value(at.0, HASH_BYTES))
    }

    #[track_caller]
    fn slice(self, from: Word, to: Word) -> View {
        let fits = all([from.0.at_most(to.0), to.0.at_most(self.span())]);
        prove("a slice is out of range", fits);
        is_proper(to.0.minus(from.0));
        View {
            source: self.source,
            from: self.from.plus(from.0),
            to: self.from.plus(to.0),
        }
    }

    fn is_blank(self) -> bool {
        branch(unknown("blank", 0))
    }

    /// A number of steps that is known: one after the other. Else any one of them, from anywhere
    /// that the steps before can have led to, and the code after all of them.
    fn repeat<E>(
        times: Word,
        cursor: &mut Cursor<View>,
        mut step: impl FnMut(&mut Cursor<View>) -> Result<(), E>,
    ) -> Result<(), E> {
        if times.0.as_number().is_some() {
            let mut left = times.0.as_number();
            while left != Some(0) {
                step(cursor)?;
                left = left.and_then(|n| n.checked_sub(1));
            }
            return Ok(());
        }
        if let Some((start, count, end)) =
            with(|path| path.replayed.as_mut().and_then(|ends| ends.pop_front()))
        {
            prove("loops do not begin together", cursor.at.0.equal(start));
            prove("loops are not as long", times.0.equal(count));
            cursor.at = Word(end);
            return Ok(());
        }
        let (start, end) = (cursor.at.0, cursor.end.0);
        let span = cursor.bytes.span();
        prove("a cursor is beyond its end", start.at_most(end));
        prove("a cursor's end is beyond the bytes", end.at_most(span));
        let depth = with(|path| path.depth);
        let nth = with(|path| path.loops);
        let somewhere = |cursor: &mut Cursor<View>| {
            let steps = Word::bits("cursor moves", LENGTH_BITS).0;
            cursor.at = Word(start.plus(steps));
            assume(cursor.at.0.at_most(end));
        };
        if branch(unknown("one of the steps", 0)) {
            assume(number64(0).below(times.0));
            somewhere(cursor);
            let before = *cursor;
            with(|path| path.depth += 1);
            let done = step(cursor);
            with(|path| path.depth -= 1);
            done?;
            prove("a step does not go forward", before.at.0.below(cursor.at.0));
            prove("a step leaves the record", cursor.at.0.at_most(end));
            prove("a step moves the end", cursor.end.0.equal(end));
            if let Some(watcher) = with(|path| path.watcher.take()).filter(|_| depth == 0) {
                watcher(&Step {
                    nth,
                    before,
                    behind: *cursor,
                });
            }
            end_path();
        }
        if depth == 0 {
            with(|path| path.loops += 1);
        }
        somewhere(cursor);
        let none = times.0.equal(number64(0));
        assume(choice(
            none,
            cursor.at.0.equal(start),
            start.below(cursor.at.0),
        ));
        with(|path| path.ends.push((start, times.0, cursor.at.0)));
        Ok(())
    }
}

/// Tells `watcher` of a step that a loop does.
pub fn watch_steps(watcher: impl Fn(&Step) + 'static) {
    with(|path| path.watcher = Some(std::rc::Rc::new(watcher)));
}

/// The loops from here on end where those so far did, in this order: they do the same steps.
pub fn same_loops() {
    with(|path| path.replayed = Some(std::mem::take(&mut path.ends).into()));
}

/// Cursor after the last loop that ran to its end.
pub fn last_loop_end() -> Option<Term> {
    with(|path| path.ends.last().map(|(_, _, end)| *end))
}

/// Bytes being put together.
pub struct Out {
    pieces: Vec<Piece>,
    pub length: Term,
}

impl Out {
    pub fn new() -> Out {
        Out {
            pieces: Vec::new(),
            length: number64(0),
        }
    }

    fn piece(&mut self, length: Term, what: What) {
        self.pieces.push(Piece {
            start: self.length,
            length,
            what,
        });
        self.length = self.length.plus(length);
    }

    /// View of the current content.
    pub fn view(&self) -> View {
        View::of(Source::Made(self.pieces.clone()), self.length)
    }
}

impl Sink<View> for Out {
    #[track_caller]
    fn put<const N: usize>(&mut self, value: Word) {
        let bits = 8 * N as u32;
        if bits < 64 {
            prove(
                "a number does not fit its field",
                value.0.below(number64(1 << bits)),
            );
        }
        self.piece(number64(N as u64), What::Value(value.0.part(0, bits)));
    }

    fn put_digest(&mut self, digest: &Digest) {
        self.piece(number64(HASH_BYTES), What::Value(digest.0));
    }

    fn append(&mut self, bytes: View) {
        self.piece(bytes.span(), What::Copy(bytes));
    }
}

/// Something that was hashed under a volume's key.
#[derive(Clone, Copy)]
pub struct Hashed {
    pub volume: [Term; 2],
    head: View,
    zeros: u64,
    body: Option<View>,
    pub digest: Term,
}

impl Hashed {
    fn head_bytes(&self) -> u64 {
        match self.head.span().as_number() {
            Some(bytes) => bytes,
            None => unreachable!("heads have a fixed length"),
        }
    }

    fn body_span(&self) -> Term {
        self.body.map_or(number64(0), View::span)
    }

    fn length(&self) -> Term {
        number64(self.head_bytes() + self.zeros).plus(self.body_span())
    }

    /// The byte at a place before the body.
    fn byte(&self, at: u64) -> Option<Term> {
        let head = self.head_bytes();
        if at < head {
            Some(self.head.byte(number64(at)))
        } else if at < head + self.zeros {
            Some(number(8, 0))
        } else {
            None
        }
    }

    fn same_volume(&self, other: &Hashed) -> Term {
        all((0..2).map(|i| self.volume[i].equal(other.volume[i])))
    }

    /// Both have the same bytes before their bodies, as far as both are known there.
    fn same_head(&self, other: &Hashed) -> Term {
        let bytes = (0..).map_while(|i| Some(self.byte(i)?.equal(other.byte(i)?)));
        all(bytes)
    }

    fn same_body_at(&self, other: &Hashed, at: Term) -> Term {
        match (self.body, other.body) {
            (Some(a), Some(b)) => implies(at.below(a.span()), a.byte(at).equal(b.byte(at))),
            _ => truth(true),
        }
    }

    fn aligned(&self, other: &Hashed) -> bool {
        (self.head_bytes(), self.zeros) == (other.head_bytes(), other.zeros)
    }
}

/// Bodies that are hashed to the same are the same at this place, too (of all places, which the
/// assumption speaks of, the ones that an obligation needs are named).
pub fn compare_bodies_at(place: Term) {
    with(|path| path.watched.push(place));
}

/// Hashes: a function, and no two inputs (of any volumes) have the same hash.
pub fn hash(volume: [Term; 2], head: View, zeros: u64, body: Option<View>) -> Term {
    let (known, watched) = with(|path| (path.hashed.clone(), path.watched.clone()));
    let digest = unknown("hash", 256);
    let new = Hashed {
        volume,
        head,
        zeros,
        body,
        digest,
    };
    for old in &known {
        let same = digest.equal(old.digest);
        let same_length = new.length().equal(old.length());
        let aligned = new.aligned(old);
        // Not two hashes of one input: else there is a place where the inputs differ.
        if aligned {
            let place = unknown("place", 64);
            let differ = all([
                place.below(new.body_span()),
                not(new.same_body_at(old, place)),
            ]);
            let equal = [new.same_volume(old), same_length, new.same_head(old)];
            assume(any([same, not(all(equal)), differ]));
        }
        // Not two inputs of one hash.
        let bodies = watched.iter().filter(|_| aligned);
        let bodies = all(bodies.map(|place| new.same_body_at(old, *place)));
        let equal = [
            new.same_volume(old),
            same_length,
            new.same_head(old),
            bodies,
        ];
        assume(implies(same, all(equal)));
    }
    with(|path| path.hashed.push(new));
    digest
}

/// The last input that was hashed.
pub fn last_hashed() -> Hashed {
    with(|path| match path.hashed.last() {
        Some(last) => *last,
        None => unreachable!("nothing was hashed"),
    })
}

/// A volume's identity.
#[derive(Clone, Copy)]
pub struct Volume(pub [Term; 2]);

impl Volume {
    pub fn any(name: &str) -> Volume {
        Volume([
            unknown(&format!("{name}.low"), 64),
            unknown(&format!("{name}.high"), 64),
        ])
    }

    pub fn is(&self, other: &Volume) -> Term {
        all((0..2).map(|i| self.0[i].equal(other.0[i])))
    }
}

impl Keyed<View> for Volume {
    type Out = Out;

    fn volume(&self) -> [Word; 2] {
        self.0.map(Word)
    }

    fn digest(&self, head: View, body: Option<View>) -> Digest {
        Digest(hash(self.0, head, HASH_BYTES, body))
    }

    fn seal(&self, out: &mut Out, body: Option<View>) {
        let digest = self.digest(out.view(), body);
        out.put_digest(&digest);
    }
}
