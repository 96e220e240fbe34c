//! Terms of bit-vectors and truth values. Each is kept once, and simplified when it is made: sums
//! are linear combinations, so that two places in a buffer a known distance apart are seen to be.
//! Questions that are decided here do not go to the solver; all others do.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

/// A term, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Term(u32);

/// Structure of a term. Truth values have width 0.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Node {
    Truth(bool),
    Number {
        width: u32,
        value: u64,
    },
    Variable {
        width: u32,
        name: String,
    },
    /// A byte of an unknown sequence, at a place of 64 bits.
    Byte {
        sequence: String,
        at: Term,
    },
    /// A value of an unknown function.
    Apply {
        function: String,
        width: u32,
        to: Vec<Term>,
    },
    /// Sum of terms of 64 bits, each times a factor, and a number; modulo 2^64.
    Sum(Vec<(Term, u64)>, u64),
    Masked(Term, u64),
    /// The higher part first.
    Joined(Vec<Term>),
    Part {
        of: Term,
        low: u32,
        width: u32,
    },
    Choice(Term, Term, Term),
    Not(Term),
    All(Vec<Term>),
    Equal(Term, Term),
    Below(Term, Term),
}

#[derive(Default)]
struct Arena {
    nodes: Vec<(Node, u32)>,
    known: HashMap<Node, Term>,
}

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
    static PROPER: RefCell<HashSet<Term>> = RefCell::default();
}

/// A difference that is not below zero on the path that is being tried.
pub fn is_proper(difference: Term) {
    PROPER.with_borrow_mut(|proper| proper.insert(difference));
}

/// Another path is tried.
pub fn forget_proper() {
    PROPER.with_borrow_mut(HashSet::clear);
}

/// The bound of a sum, if it is below 2^64.
fn bound(mut terms: impl Iterator<Item = (Term, i128)>, value: u64) -> Option<u64> {
    terms.try_fold(value, |sum, (term, times)| {
        let times = u64::try_from(times).ok()?;
        sum.checked_add(term.most().checked_mul(times)?)
    })
}

fn make(node: Node, width: u32) -> Term {
    ARENA.with_borrow_mut(|arena| {
        if let Some(&term) = arena.known.get(&node) {
            return term;
        }
        let term = Term(arena.nodes.len() as u32);
        arena.nodes.push((node.clone(), width));
        arena.known.insert(node, term);
        term
    })
}

fn mask(width: u32) -> u64 {
    if width >= 64 {
        u64::MAX
    } else {
        (1 << width) - 1
    }
}

pub fn truth(value: bool) -> Term {
    make(Node::Truth(value), 0)
}

pub fn number(width: u32, value: u64) -> Term {
    assert!((1..=64).contains(&width) && value <= mask(width));
    make(Node::Number { width, value }, width)
}

/// An unknown; width 0 is a truth value.
pub fn variable(name: &str, width: u32) -> Term {
    make(
        Node::Variable {
            width,
            name: name.into(),
        },
        width,
    )
}

/// The byte at a place of an unknown sequence of bytes.
pub fn byte(sequence: &str, at: Term) -> Term {
    make(
        Node::Byte {
            sequence: sequence.into(),
            at,
        },
        8,
    )
}

/// The value of an unknown function at this place, of `width` bits; width 0 is a truth value.
pub fn apply(function: &str, width: u32, to: &[Term]) -> Term {
    let node = Node::Apply {
        function: function.into(),
        width,
        to: to.to_vec(),
    };
    make(node, width)
}

impl Term {
    fn node(self) -> Node {
        ARENA.with_borrow(|arena| arena.nodes[self.0 as usize].0.clone())
    }

    pub fn width(self) -> u32 {
        ARENA.with_borrow(|arena| arena.nodes[self.0 as usize].1)
    }

    pub fn as_number(self) -> Option<u64> {
        match self.node() {
            Node::Number { value, .. } => Some(value),
            _ => None,
        }
    }

    pub fn as_truth(self) -> Option<bool> {
        match self.node() {
            Node::Truth(value) => Some(value),
            _ => None,
        }
    }

    /// A bound that follows from the term's form alone.
    pub fn most(self) -> u64 {
        match self.node() {
            Node::Number { value, .. } => value,
            Node::Sum(..) => self.natural().unwrap_or(u64::MAX),
            Node::Masked(term, bits) => bits.min(term.most()),
            Node::Choice(_, a, b) => a.most().max(b.most()),
            Node::Joined(parts) => {
                let zeros = parts.iter().take_while(|part| part.as_number() == Some(0));
                mask(self.width() - zeros.map(|part| part.width()).sum::<u32>())
            }
            _ => mask(self.width()),
        }
    }

    /// A lower bound that follows from the term's form alone.
    fn least(self) -> u64 {
        let (terms, value) = self.linear();
        let terms = terms.into_iter().map(|(term, times)| (term, times.into()));
        bound(terms, value).map_or(0, |_| value)
    }

    /// The bound of a term that is a sum without any wrapping, or a difference that was proved to be
    /// one: here, values that are modulo 2^64 elsewhere are integers.
    fn natural(self) -> Option<u64> {
        let (terms, value) = self.integer()?;
        let start = u64::try_from(value.max(0)).ok()?;
        let rising = terms.into_iter().filter(|(_, times)| *times > 0);
        bound(rising, start)
    }

    /// The term as a linear combination of integers, if it is known to be one.
    fn integer(self) -> Option<(BTreeMap<Term, i128>, i128)> {
        let (terms, value) = self.linear();
        let plain = terms
            .iter()
            .map(|(term, times)| (*term, i128::from(*times)));
        if bound(plain.clone(), value).is_some() {
            return Some((plain.collect(), value.into()));
        }
        let proper = PROPER.with_borrow(|proper| proper.contains(&self));
        let signed = |times: u64| i128::from(times as i64);
        let terms = terms.into_iter().map(|(term, times)| (term, signed(times)));
        proper.then(|| (terms.collect(), signed(value)))
    }

    /// Both sides of a comparison without their common terms and without differences.
    fn apart(self, other: Term) -> Option<(Term, Term)> {
        let ((mut terms, mut value), (others, more)) = (self.integer()?, other.integer()?);
        value -= more;
        for (term, times) in others {
            *terms.entry(term).or_default() -= times;
        }
        let side = |sign: i128| {
            let value = u64::try_from((value * sign).max(0)).ok()?;
            let terms = terms.iter().map(|(term, times)| (*term, times * sign));
            let terms = terms.filter(|(_, times)| *times > 0);
            bound(terms.clone(), value)?;
            Some(sum(
                terms.map(|(term, times)| (term, times as u64)).collect(),
                value,
            ))
        };
        Some((side(1)?, side(-1)?))
    }

    fn linear(self) -> (BTreeMap<Term, u64>, u64) {
        match self.node() {
            Node::Number { value, .. } => (BTreeMap::new(), value),
            Node::Sum(terms, value) => (terms.into_iter().collect(), value),
            _ => (BTreeMap::from([(self, 1)]), 0),
        }
    }

    fn combine(self, other: Term, factor: u64) -> Term {
        assert!(self.width() == 64 && other.width() == 64);
        let (mut terms, mut value) = self.linear();
        let (others, more) = other.linear();
        value = value.wrapping_add(more.wrapping_mul(factor));
        for (term, times) in others {
            let sum = terms.entry(term).or_default();
            *sum = sum.wrapping_add(times.wrapping_mul(factor));
        }
        sum(terms, value)
    }

    /// Modulo 2^64.
    pub fn plus(self, other: Term) -> Term {
        self.combine(other, 1)
    }

    /// Modulo 2^64.
    pub fn minus(self, other: Term) -> Term {
        self.combine(other, u64::MAX)
    }

    /// Modulo 2^64.
    pub fn times(self, factor: u64) -> Term {
        number(64, 0).combine(self, factor)
    }

    pub fn masked(self, bits: u64) -> Term {
        match self.as_number() {
            Some(value) => number(64, value & bits),
            None if bits == 0 => number(64, 0),
            None if bits & bits.wrapping_add(1) == 0 && bits != u64::MAX => {
                self.part(0, bits.count_ones()).widened()
            }
            None => make(Node::Masked(self, bits), 64),
        }
    }

    pub fn shifted(self, by: u32) -> Term {
        match self.as_number() {
            Some(value) => number(64, value >> by),
            None if by == 0 => self,
            None => self.part(by, 64 - by).widened(),
        }
    }

    /// Times 2^by, modulo 2^64.
    pub fn raised(self, by: u32) -> Term {
        match (self.as_number(), by) {
            (Some(value), _) => number(64, value << by),
            (None, 0) => self,
            (None, _) => joined(&[self.part(0, 64 - by), number(by, 0)]),
        }
    }

    /// The sum, where one of both fills zeros of the other.
    pub fn filled(self, other: Term) -> Term {
        let zeros = |term: Term| match term.node() {
            Node::Joined(parts) => {
                match parts.last().map(|last| (last.as_number(), last.width())) {
                    Some((Some(0), width)) => width,
                    _ => 0,
                }
            }
            _ => 0,
        };
        for (high, low) in [(self, other), (other, self)] {
            let bits = zeros(high);
            if bits > 0 && low.most() <= mask(bits) {
                return joined(&[high.part(bits, 64 - bits), low.part(0, bits)]);
            }
        }
        self.plus(other)
    }

    /// `width` bits from `low` on.
    pub fn part(self, low: u32, width: u32) -> Term {
        if width == self.width() {
            return self;
        }
        match self.node() {
            Node::Number { value, .. } => number(width, value >> low & mask(width)),
            Node::Part { of, low: inner, .. } => of.part(inner + low, width),
            Node::Joined(parts) => {
                // Only parts that the wanted bits meet; cut at both ends.
                let mut at = self.width();
                let mut wanted = Vec::new();
                for part in parts {
                    at -= part.width();
                    let (from, to) = (low.max(at), (low + width).min(at + part.width()));
                    if from < to {
                        wanted.push(part.part(from - at, to - from));
                    }
                }
                joined(&wanted)
            }
            _ => make(
                Node::Part {
                    of: self,
                    low,
                    width,
                },
                width,
            ),
        }
    }

    /// With zeros in front, 64 bits.
    pub fn widened(self) -> Term {
        match self.width() {
            64 => self,
            width => joined(&[number(64 - width, 0), self]),
        }
    }

    pub fn equal(self, other: Term) -> Term {
        assert_eq!(self.width(), other.width());
        if self == other {
            return truth(true);
        }
        match (self.node(), other.node()) {
            (Node::Number { .. }, Node::Number { .. }) => return truth(false),
            (Node::Joined(a), Node::Joined(b))
                if a.iter().map(|t| t.width()).eq(b.iter().map(|t| t.width())) =>
            {
                return all(a.iter().zip(&b).map(|(a, b)| a.equal(*b)));
            }
            (Node::Truth(value), _) => return if value { other } else { not(other) },
            (_, Node::Truth(value)) => return if value { self } else { not(self) },
            _ if self.width() == 64 => {
                if self.minus(other).as_number().is_some_and(|by| by != 0) {
                    return truth(false);
                }
                if let Some((a, b)) = self.apart(other).filter(|apart| *apart != (self, other)) {
                    return a.equal(b);
                }
                let bound = |number: Term, term: Term| {
                    number.as_number().is_some_and(|value| value > term.most())
                };
                if bound(self, other) || bound(other, self) {
                    return truth(false);
                }
            }
            _ => {}
        }
        make(Node::Equal(self.min(other), self.max(other)), 0)
    }

    /// Unsigned.
    pub fn below(self, other: Term) -> Term {
        if self == other || self.least() >= other.most() {
            return truth(false);
        }
        match self.most() < other.least() {
            true => truth(true),
            false => match self.apart(other).filter(|apart| *apart != (self, other)) {
                Some((a, b)) => a.below(b),
                None => make(Node::Below(self, other), 0),
            },
        }
    }

    /// Unsigned.
    pub fn at_most(self, other: Term) -> Term {
        not(other.below(self))
    }
}

/// A sum of terms, each times a factor, and a number.
fn sum(mut terms: BTreeMap<Term, u64>, value: u64) -> Term {
    terms.retain(|_, times| *times != 0);
    let terms: Vec<_> = terms.into_iter().collect();
    match terms[..] {
        [] => number(64, value),
        [(term, 1)] if value == 0 => term,
        _ => make(Node::Sum(terms, value), 64),
    }
}

/// The higher part first.
pub fn joined(parts: &[Term]) -> Term {
    let mut out: Vec<Term> = Vec::new();
    for &part in parts {
        let inner = match part.node() {
            Node::Joined(inner) => inner,
            _ => vec![part],
        };
        for next in inner {
            let Some(&last) = out.last() else {
                out.push(next);
                continue;
            };
            let width = last.width() + next.width();
            let merged = match (last.node(), next.node()) {
                (
                    Node::Part {
                        of: a, low: high, ..
                    },
                    Node::Part {
                        of: b,
                        low,
                        width: lower,
                    },
                ) if a == b && high == low + lower => a.part(low, width),
                (
                    Node::Number { value: a, .. },
                    Node::Number {
                        value: b,
                        width: low,
                    },
                ) if width <= 64 => number(width, a << low | b),
                _ => {
                    out.push(next);
                    continue;
                }
            };
            out.pop();
            out.push(merged);
        }
    }
    match out[..] {
        [one] => one,
        _ => {
            let width = out.iter().map(|part| part.width()).sum();
            make(Node::Joined(out), width)
        }
    }
}

pub fn choice(condition: Term, yes: Term, no: Term) -> Term {
    match condition.as_truth() {
        Some(true) => yes,
        Some(false) => no,
        None if yes == no => yes,
        None if yes.width() == 0 => any([all([condition, yes]), all([not(condition), no])]),
        None => make(Node::Choice(condition, yes, no), yes.width()),
    }
}

pub fn not(term: Term) -> Term {
    match term.node() {
        Node::Truth(value) => truth(!value),
        Node::Not(inner) => inner,
        _ => make(Node::Not(term), 0),
    }
}

pub fn all(terms: impl IntoIterator<Item = Term>) -> Term {
    let mut parts = Vec::new();
    for term in terms {
        match term.node() {
            Node::Truth(true) => {}
            Node::Truth(false) => return term,
            Node::All(inner) => parts.extend(inner),
            _ => parts.push(term),
        }
    }
    parts.sort_unstable();
    parts.dedup();
    match parts[..] {
        [] => truth(true),
        [one] => one,
        _ => make(Node::All(parts), 0),
    }
}

pub fn any(terms: impl IntoIterator<Item = Term>) -> Term {
    not(all(terms.into_iter().map(not)))
}

pub fn implies(condition: Term, then: Term) -> Term {
    any([not(condition), then])
}

/// Name of a term in a script.
pub fn name(term: Term) -> String {
    match term.node() {
        Node::Truth(value) => value.to_string(),
        Node::Number { width, value } if width % 4 == 0 => {
            format!("#x{value:0width$x}", width = width as usize / 4)
        }
        Node::Number { width, value } => format!("#b{value:0width$b}", width = width as usize),
        // One name may stand for unknowns of several widths in different obligations.
        Node::Variable { width: 64, name } => format!("|{name}|"),
        Node::Variable { width, name } => format!("|{name}:{width}|"),
        _ => format!("t{}", term.0),
    }
}

fn sort(width: u32) -> String {
    match width {
        0 => "Bool".into(),
        _ => format!("(_ BitVec {width})"),
    }
}

/// Definitions of a script so far.
#[derive(Default)]
pub struct Defined {
    terms: Vec<bool>,
    sequences: Vec<String>,
}

/// Appends the definitions that `term` needs and that are not there yet.
pub fn define(term: Term, defined: &mut Defined, script: &mut String) {
    let index = term.0 as usize;
    if defined.terms.len() <= index {
        defined.terms.resize(index + 1, false);
    }
    if std::mem::replace(&mut defined.terms[index], true) {
        return;
    }
    let node = term.node();
    for part in parts(&node) {
        define(part, defined, script);
    }
    let list = |terms: &[Term]| terms.iter().map(|t| name(*t)).collect::<Vec<_>>().join(" ");
    let body = match &node {
        Node::Truth(_) | Node::Number { .. } => return,
        Node::Variable { width, .. } => {
            let _ = writeln!(script, "(declare-const {} {})", name(term), sort(*width));
            return;
        }
        Node::Byte { sequence, at } => {
            if !defined.sequences.contains(sequence) {
                let _ = writeln!(
                    script,
                    "(declare-fun |{sequence}[]| ((_ BitVec 64)) (_ BitVec 8))"
                );
                defined.sequences.push(sequence.clone());
            }
            format!("(|{sequence}[]| {})", name(*at))
        }
        Node::Apply {
            function,
            width,
            to,
        } => {
            // One name may stand for functions of several widths in different obligations.
            let from: Vec<_> = to.iter().map(|t| t.width().to_string()).collect();
            let function = format!("{function}({}:{width})", from.join(","));
            if !defined.sequences.contains(&function) {
                let from: Vec<_> = to.iter().map(|t| sort(t.width())).collect();
                let _ = writeln!(
                    script,
                    "(declare-fun |{function}| ({}) {})",
                    from.join(" "),
                    sort(*width)
                );
                defined.sequences.push(function.clone());
            }
            format!("(|{function}| {})", list(to))
        }
        Node::Sum(terms, value) => {
            let mut sum = format!("#x{value:016x}");
            for (term, times) in terms {
                sum = match *times {
                    1 => format!("(bvadd {sum} {})", name(*term)),
                    u64::MAX => format!("(bvsub {sum} {})", name(*term)),
                    times => format!("(bvadd {sum} (bvmul #x{times:016x} {}))", name(*term)),
                };
            }
            sum
        }
        Node::Masked(term, bits) => format!("(bvand {} #x{bits:016x})", name(*term)),
        Node::Joined(parts) => format!("(concat {})", list(parts)),
        Node::Part { of, low, width } => {
            format!("((_ extract {} {low}) {})", low + width - 1, name(*of))
        }
        Node::Choice(c, a, b) => format!("(ite {} {} {})", name(*c), name(*a), name(*b)),
        Node::Not(a) => format!("(not {})", name(*a)),
        Node::All(parts) => format!("(and {})", list(parts)),
        Node::Equal(a, b) => format!("(= {} {})", name(*a), name(*b)),
        Node::Below(a, b) => format!("(bvult {} {})", name(*a), name(*b)),
    };
    let _ = writeln!(
        script,
        "(define-fun {} () {} {body})",
        name(term),
        sort(term.width())
    );
}

fn parts(node: &Node) -> Vec<Term> {
    match node {
        Node::Truth(_) | Node::Number { .. } | Node::Variable { .. } => vec![],
        Node::Byte { at, .. } => vec![*at],
        Node::Sum(terms, _) => terms.iter().map(|(term, _)| *term).collect(),
        Node::Masked(a, _) | Node::Part { of: a, .. } | Node::Not(a) => vec![*a],
        Node::Joined(parts) | Node::All(parts) | Node::Apply { to: parts, .. } => parts.clone(),
        Node::Choice(a, b, c) => vec![*a, *b, *c],
        Node::Equal(a, b) | Node::Below(a, b) => vec![*a, *b],
    }
}

/// An unknown that a term depends on, for counterexamples.
pub enum Unknown {
    Variable(String, Term),
    /// A byte of a sequence: its place, and the byte.
    Byte(String, Term, Term),
    /// A value of an unknown function: its arguments, and the value.
    Value(String, Vec<Term>, Term),
}

/// The unknowns that the terms depend on.
pub fn unknowns(terms: &[Term]) -> Vec<Unknown> {
    let mut seen = HashSet::new();
    let mut left = terms.to_vec();
    let mut found = Vec::new();
    while let Some(term) = left.pop() {
        if !seen.insert(term) {
            continue;
        }
        let node = term.node();
        left.extend(parts(&node));
        match node {
            Node::Variable { name, .. } => found.push(Unknown::Variable(name, term)),
            Node::Byte { sequence, at } => found.push(Unknown::Byte(sequence, at, term)),
            Node::Apply { function, to, .. } => found.push(Unknown::Value(function, to, term)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_between_places_are_seen() {
        let (x, y) = (variable("x", 64), variable("y", 64));
        let n = |value| number(64, value);
        assert_eq!(x.plus(n(3)).plus(y).minus(x), y.plus(n(3)));
        assert_eq!(x.plus(n(3)).equal(x.plus(n(4))), truth(false));
        assert_eq!(n(3).minus(n(4)), n(u64::MAX));
    }

    #[test]
    fn common_terms_of_two_natural_sums_do_not_matter() {
        let [x, y, z] = ["a", "b", "c"].map(|name| variable(name, 32).widened());
        let n = |value| number(64, value);
        assert_eq!(x.plus(y).below(x.plus(y).plus(n(1))), truth(true));
        assert_eq!(x.plus(z).below(y.plus(z)), x.below(y));
        assert_eq!(x.plus(y).at_most(x), y.at_most(n(0)));
        // Not where a sum may wrap.
        let wide = variable("d", 64);
        assert_eq!(wide.at_most(wide.plus(n(1))).as_truth(), None);
        assert_eq!(x.minus(y).at_most(x).as_truth(), None);
        is_proper(x.minus(y));
        assert_eq!(x.minus(y).at_most(x), truth(true));
        assert_eq!(z.at_most(x.minus(y)), z.plus(y).at_most(x));
        forget_proper();
    }

    #[test]
    fn bytes_of_a_number_join_to_the_number() {
        let x = variable("x", 64);
        let bytes: Vec<Term> = (0..8).rev().map(|i| x.part(i * 8, 8)).collect();
        assert_eq!(joined(&bytes), x);
        assert_eq!(joined(&bytes[4..]).part(8, 8), x.part(8, 8));
        assert_eq!(number(16, 0x1234).part(8, 8), number(8, 0x12));
        assert_eq!(joined(&[number(8, 1), number(8, 2)]), number(16, 0x102));
    }
}
