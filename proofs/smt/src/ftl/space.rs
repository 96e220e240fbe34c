//! Room: the constraints are decided as they are; the epoch's budget; a page takes one page of the room, and a
//! victim is begun only while the rest of the epoch's writes find their place. `coq/FtlSpace.v` has the
//! consequences over epochs.

use crate::ftl::HOST;
use crate::limits::{Constraints, Number};
use crate::obligation;
use crate::platform::Word as _;
use crate::state::{Begin, SMALL, State, ghost};
use crate::sym::{loop_shown, n};
use smt::explore::{branch, prove, reached};
use smt::term::{Term, any, apply, not, truth};
use smt::word::Word;
use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

/// An integer without bounds: an expression whose operators nothing is known of, and the most that it can
/// be. As long as that fits, the code's numbers of 128 bits are those integers.
#[derive(Clone, Copy)]
struct Integer {
    term: Term,
    most: u128,
}

impl Integer {
    fn any(name: &str) -> Integer {
        Integer {
            term: Word::any(name).0,
            most: u64::MAX.into(),
        }
    }

    fn operator(self, name: &str, other: Integer, most: Option<u128>) -> Integer {
        prove("a number does not fit 128 bits", truth(most.is_some()));
        Integer {
            term: apply(name, 64, &[self.term, other.term]),
            most: most.unwrap_or(u128::MAX),
        }
    }

    fn at_most(self, other: Integer) -> Term {
        apply("at most", 0, &[self.term, other.term])
    }
}

impl Number for Integer {
    fn of(value: u64) -> Integer {
        Integer {
            term: n(value),
            most: value.into(),
        }
    }
}

impl Add for Integer {
    type Output = Integer;

    fn add(self, other: Integer) -> Integer {
        self.operator("plus", other, self.most.checked_add(other.most))
    }
}

impl Sub for Integer {
    type Output = Integer;

    fn sub(self, other: Integer) -> Integer {
        // The order is total: of two numbers one is at most the other.
        let above = any([other.at_most(self), not(self.at_most(other))]);
        prove("a subtraction goes below zero", above);
        self.operator("minus", other, Some(self.most))
    }
}

impl Mul for Integer {
    type Output = Integer;

    fn mul(self, other: Integer) -> Integer {
        self.operator("times", other, self.most.checked_mul(other.most))
    }
}

impl PartialEq for Integer {
    fn eq(&self, other: &Integer) -> bool {
        self <= other && other <= self
    }
}

impl PartialOrd for Integer {
    fn partial_cmp(&self, other: &Integer) -> Option<Ordering> {
        Some(if self < other {
            Ordering::Less
        } else if other < self {
            Ordering::Greater
        } else {
            Ordering::Equal
        })
    }

    fn lt(&self, other: &Integer) -> bool {
        !branch(other.at_most(*self))
    }

    fn le(&self, other: &Integer) -> bool {
        branch(self.at_most(*other))
    }

    fn gt(&self, other: &Integer) -> bool {
        other < self
    }

    fn ge(&self, other: &Integer) -> bool {
        other <= self
    }
}

/// Of all numbers of 64 bits. The constraints are written down a second time, after the paper and `FtlSpace.fits`.
fn constraints() {
    obligation(
        "space: the constraints are decided as they are, whatever the numbers",
        &["hold", "fail"],
        || {
            let any = Integer::any;
            let c = Constraints {
                writes: any("W, rounded"),
                added: any("W, rounded, - W"),
                sectors: any("L"),
                block: any("S"),
                victim: any("N"),
                victims: any("K"),
                threshold: any("U"),
                newest: any("Z"),
                reserve: any("reserve"),
                margin: any("margin"),
                blocks: any("P - F"),
            };
            let holds = c.hold();
            let wanted = [
                // (1)
                (c.writes + c.victims * c.victim).at_most(c.victims * c.block),
                (c.writes + c.victims * c.victim).at_most(c.reserve * c.block),
                // (2)
                (c.threshold + c.reserve).at_most(c.blocks),
                c.added.at_most(c.margin * c.block),
                // The pigeonhole.
                not(c.threshold.at_most(c.newest)),
            ];
            let above = branch(not(c.threshold.at_most(c.newest)));
            let pigeons = above && {
                let old = c.threshold - c.newest;
                branch(not((old * (c.victim + Integer::of(1))).at_most(c.sectors)))
            };
            let all = wanted.into_iter().all(branch) && pigeons;
            prove("other constraints are decided", truth(all == holds));
            reached(if holds { "hold" } else { "fail" });
        },
    );
}

/// The bounds of an epoch: `Limits::derive` takes none but those that fulfil the constraints, and here
/// they are kept to.
fn budget() {
    obligation(
        "space: budget: whole only when the reserve is there",
        &["whole", "cut"],
        || {
            let mut state = State::any(Begin {
                open: [2, 1, 0, 0],
                ..Begin::default()
            });
            let (epoch, reserve) = (state.ftl.limits.epoch, state.ftl.limits.reserve);
            crate::sym::some_number(1000);
            state.ftl.renew_budget();
            let have = state.ftl.ready();
            prove("more than an epoch", state.ftl.budget.0.at_most(n(epoch)));
            let spare = ghost().spare.times(SMALL.data_pages());
            let open = n(3 * SMALL.data_pages());
            prove("more room than blocks", have.0.at_most(spare.plus(open)));
            let needed = n(reserve * SMALL.data_pages());
            if !branch(have.0.below(needed)) {
                prove("less than an epoch", state.ftl.budget.0.equal(n(epoch)));
                reached("whole");
            } else {
                reached("cut");
            }
        },
    );
}

/// `FtlSpace.take`: wherever a page goes.
fn page() {
    obligation(
        "space: a page of the host's takes one page of the room",
        &["here"],
        || {
            let mut state = State::any(Begin {
                host: 1,
                ..Begin::default()
            })
            .with_room(HOST);
            let before = state.ftl.ready();
            if state.ftl.seal(HOST, false).is_ok() && branch(n(1).at_most(before.0)) {
                let after = state.ftl.ready();
                let one = after.0.plus(n(1)).equal(before.0);
                prove("a page takes more room than its own, or less", one);
                reached("here");
            }
        },
    );
}

/// Any proposed block.
fn victims() {
    obligation(
        "space: a victim is begun only with room for the rest of the epoch",
        &["begun", "not"],
        || {
            let mut state = State::any(Begin {
                host: 1,
                moved: 1,
                ..Begin::default()
            });
            // The proposal, or none: the plain choice then asks the same question.
            loop_shown("victims", |_| {});
            loop_shown("words of a list", |_| {});
            loop_shown("pages of a block", |_| {});
            let ready = state.ftl.ready();
            let (valid, limits) = (state.ftl.blocks.valid.0, state.ftl.limits);
            let result = state.ftl.next_victim();
            match (&state.ftl.victim, result) {
                (Some(victim), Ok(())) => {
                    let valid = crate::sym::cell(valid).words.get(victim.block.0);
                    let needed = n(limits.rounding + 2).plus(state.ftl.room().0).plus(valid);
                    let have = ready.times(SMALL.sectors).0;
                    prove("no room for the rest of the epoch", needed.at_most(have));
                    let plenty = n((limits.reserve + 1) * SMALL.data_pages()).at_most(ready.0);
                    let few = valid.at_most(n(limits.victim));
                    prove("too many valid sectors", any([few, plenty]));
                    let is = state.ftl.blocks.is_victim(victim.block);
                    prove("the block is no victim", truth(is));
                    reached("begun");
                }
                (None, Ok(())) => reached("not"),
                (_, Err(_)) => {}
            }
        },
    );
}

pub fn obligations() {
    constraints();
    budget();
    page();
    victims();
}
