//! The transitions as a table, to compare with the model in `proofs/alloy` (`tests/suite/alloy.rs`).
//!
//! A row is made from a function with the types of the transition, and its columns are the names of these types: the table
//! cannot differ from the code. The model has the same states.
//!
//! Pages of files share a state in sets ([`Descriptors`]): the effect of a set on a page is in the rows of object `Page`
//! with `Before`, `Beside` or `Killed` in their function.

use super::dentry::states as slot;
use super::dirpage::states as dirpage;
use super::inode::states as inode;
use super::persist::{Brand, Clean, Dirty, InFlight};
use super::{
    Adoption, Attributes, Before, Beside, Content, Dentry, Descriptors, DirPage, DirectoryRun,
    FreePages, Inline, Inode, Killed, LongName, NewTag, Newborn, Next, Owned, Ready, ShortName,
    Times, Unseen,
};

/// One transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// `Inode`, `Slot` or `Page`.
    pub object: &'static str,
    /// Persistence and operational state before.
    pub from: (&'static str, &'static str),
    /// The same after it.
    pub to: (&'static str, &'static str),
    /// Conditions on other objects: object, persistence, operational state.
    pub needs: [Option<(&'static str, &'static str, &'static str)>; 2],
    /// The function.
    pub by: &'static str,
}

/// A type that has a name in the table.
trait Named {
    const NAME: &'static str;
}

macro_rules! names {
    ($($state:ty: $name:literal),+ $(,)?) => {
        $(impl Named for $state {
            const NAME: &'static str = $name;
        })+
    };
}

names! {
    Dirty: "Dirty",
    InFlight: "InFlight",
    Clean: "Clean",
    inode::Free: "Free",
    inode::Bodied: "Bodied",
    inode::Init: "Init",
    inode::Live: "Live",
    inode::Changed: "Changed",
    slot::Free: "Free",
    slot::Continued: "Continued",
    slot::Named: "Named",
    slot::Live<'static>: "Live",
    slot::Swapped<'static>: "Swapped",
    dirpage::Zeroed: "Zeroed",
    dirpage::Filled: "Filled",
    dirpage::Adopted<dirpage::Zeroed>: "Adopted",
    dirpage::Adopted<dirpage::Filled>: "Adopted",
    dirpage::Opened: "Opened",
    Before: "Before",
    Beside: "Beside",
    Killed: "Killed",
}
impl<A> Named for slot::Aimed<'_, A> {
    const NAME: &'static str = "Aimed";
}
impl<A> Named for slot::Committed<'_, A> {
    const NAME: &'static str = "Committed";
}
impl<W> Named for slot::Cleared<W> {
    const NAME: &'static str = "Cleared";
}

/// An object in its state.
trait Stated {
    const OBJECT: &'static str;
    const STATE: (&'static str, &'static str);
}
impl<P: Named, S: Named> Stated for Inode<'_, P, S> {
    const OBJECT: &'static str = "Inode";
    const STATE: (&'static str, &'static str) = (P::NAME, S::NAME);
}
impl<P: Named, S: Named> Stated for Dentry<'_, P, S> {
    const OBJECT: &'static str = "Slot";
    const STATE: (&'static str, &'static str) = (P::NAME, S::NAME);
}
impl<P: Named, S: Named> Stated for DirPage<'_, P, S> {
    const OBJECT: &'static str = "Page";
    const STATE: (&'static str, &'static str) = (P::NAME, S::NAME);
}
impl<P: Named, S: Named> Stated for Descriptors<'_, P, S> {
    const OBJECT: &'static str = "Descriptors";
    const STATE: (&'static str, &'static str) = (P::NAME, S::NAME);
}
impl<P: Named> Stated for Content<'_, P> {
    const OBJECT: &'static str = "Content";
    const STATE: (&'static str, &'static str) = (P::NAME, "Written");
}
impl<P: Named> Stated for Inline<'_, P> {
    const OBJECT: &'static str = "Inline";
    const STATE: (&'static str, &'static str) = (P::NAME, "Written");
}

type Need = Option<(&'static str, &'static str, &'static str)>;

const fn need<T: Stated>() -> Need {
    Some((T::OBJECT, T::STATE.0, T::STATE.1))
}

/// Needs of a transition from other objects.
trait Evidence {
    const NEEDS: [Need; 2];
}
impl Evidence for () {
    const NEEDS: [Need; 2] = [None, None];
}
impl<T: Stated> Evidence for &T {
    const NEEDS: [Need; 2] = [need::<T>(), None];
}
impl<T: Stated, U: Stated> Evidence for (&T, &U) {
    const NEEDS: [Need; 2] = [need::<T>(), need::<U>()];
}

/// A row from a function: the object, evidence, other arguments, and the object in its next state.
const fn row<A: Stated, E: Evidence, X, B: Stated>(
    by: &'static str,
    _: fn(A, E, X) -> B,
) -> Transition {
    Transition {
        object: A::OBJECT,
        from: A::STATE,
        to: B::STATE,
        needs: E::NEEDS,
        by,
    }
}

/// A row for the effect of a set of descriptors on a page, from a function.
const fn page<X, S: Named>(
    by: &'static str,
    from: &'static str,
    to: &'static str,
    _: fn(Descriptors<'static, Dirty, S>, X) -> Descriptors<'static, Dirty, S>,
) -> Transition {
    Transition {
        object: "Page",
        from: (Clean::NAME, from),
        to: (Dirty::NAME, to),
        needs: [None, None],
        by,
    }
}

/// A row of how a new page of a directory begins, from a function.
const fn new_page<X, S: Named>(
    by: &'static str,
    _: fn(LiveInode, FreePages<'static>, X) -> G<InFlight, S>,
) -> Transition {
    Transition {
        object: "Page",
        from: (Clean::NAME, "Free"),
        to: (InFlight::NAME, S::NAME),
        needs: [None, None],
        by,
    }
}

type O<P, S> = Inode<'static, P, S>;
type D<P, S> = Dentry<'static, P, S>;
type G<P, S> = DirPage<'static, P, S>;
type LiveInode = &'static O<Clean, inode::Live>;
type FromSlot = slot::From<'static>;
type SwapSlot = slot::Swap<'static, 'static>;
type LiveSlot = slot::Live<'static>;
type LiveSlotRef = &'static D<Clean, LiveSlot>;
type Long = &'static LongName<'static>;
type WhiteoutOf = (LiveSlotRef, &'static O<Clean, inode::Init>);
type Commit = (
    Next<'static>,
    &'static Attributes,
    &'static Times,
    &'static Ready<'static>,
    Option<&'static Descriptors<'static, InFlight, Beside>>,
);
type Body = (
    &'static Descriptors<'static, Clean, Before>,
    &'static Content<'static, Clean>,
);

/// All transitions but `flush` and the fence, which lead every object from `Dirty` to `InFlight` to `Clean`.
pub const TRANSITIONS: &[Transition] = &[
    // Inodes.
    row(
        "Inode::init",
        |x: O<Clean, inode::Free>, (), new: &'static Newborn<'static>| x.init(new),
    ),
    row(
        "Inode::init_bodied",
        |x: O<Clean, inode::Free>, (), new: &'static Newborn<'static>| x.init_bodied(new),
    ),
    row(
        "Inode::complete_inline",
        |x: O<Clean, inode::Bodied>, (), (): ()| x.complete_inline(),
    ),
    row(
        "Inode::complete",
        |x: O<Clean, inode::Bodied>, body: Body, (): ()| x.complete(body.0, body.1),
    ),
    // `Ready` holds only clean objects, and those that may be beside the commit are in flight: see its test.
    row(
        "Inode::commit",
        |x: O<Clean, inode::Live>, (), args: Commit| {
            x.commit(args.0, args.1, args.2, args.3, args.4)
        },
    ),
    // Slots.
    row(
        "Dentry::continue_name",
        |x: D<Clean, slot::Free>, (), name: Long| x.continue_name(name),
    ),
    row(
        "Dentry::name",
        |x: D<Clean, slot::Free>, (), (name, tag): (ShortName<'static>, NewTag)| x.name(name, tag),
    ),
    row(
        "Dentry::name",
        |x: D<Clean, slot::Continued>, (), (name, tag): (Long, NewTag)| x.name(name, tag),
    ),
    row(
        "Dentry::commit",
        |x: D<Dirty, slot::Named>, i: &'static O<InFlight, inode::Init>, (): ()| x.commit(i),
    ),
    row(
        "Dentry::commit",
        |x: D<Dirty, slot::Named>, i: &'static O<Clean, inode::Init>, (): ()| x.commit(i),
    ),
    row(
        "Dentry::commit",
        |x: D<Dirty, slot::Named>, i: &'static O<Clean, inode::Live>, (): ()| x.commit(i),
    ),
    row(
        "Dentry::aim",
        |x: D<Dirty, slot::Named>, from: LiveSlotRef, (): ()| x.aim(from),
    ),
    row(
        "Dentry::aim_swap",
        |x: D<Dirty, slot::Named>, of: WhiteoutOf, (): ()| x.aim_swap(of.0, of.1),
    ),
    row(
        "Dentry::aim",
        |x: D<Clean, LiveSlot>, from: LiveSlotRef, tag: NewTag| x.aim(from, tag),
    ),
    row(
        "Dentry::aim_exchange",
        |x: D<Clean, LiveSlot>, from: LiveSlotRef, tag: NewTag| x.aim_exchange(from, tag),
    ),
    row(
        "Dentry::aim_swap",
        |x: D<Clean, LiveSlot>, of: WhiteoutOf, tag: NewTag| x.aim_swap(of.0, of.1, tag),
    ),
    row(
        "Dentry::commit",
        |x: D<Dirty, slot::Aimed<'static, FromSlot>>, (), (): ()| x.commit(),
    ),
    row(
        "Dentry::commit",
        |x: D<Dirty, slot::Aimed<'static, SwapSlot>>, (), (): ()| x.commit(),
    ),
    row(
        "Dentry::clear",
        |x: D<Clean, LiveSlot>,
         to: &'static D<Clean, slot::Committed<'static, FromSlot>>,
         (): ()| x.clear(to),
    ),
    row(
        "Dentry::swap",
        |x: D<Clean, LiveSlot>,
         to: &'static D<Clean, slot::Committed<'static, SwapSlot>>,
         tag: NewTag| x.swap(to, tag),
    ),
    row("Dentry::remove", |x: D<Clean, LiveSlot>, (), (): ()| {
        x.remove()
    }),
    // Pages of directories. Zeros are stored around the cache: they are in flight at once.
    new_page("DirPage::zero", |dir, free, (): ()| {
        DirPage::zero(dir, free)
    }),
    new_page("DirPage::fill", |dir, free, name: Long| {
        DirPage::fill(dir, free, name)
    }),
    row(
        "DirPage::adopt",
        |x: G<Clean, dirpage::Zeroed>, (), at: u64| x.adopt(at),
    ),
    row(
        "DirPage::adopt",
        |x: G<Clean, dirpage::Filled>, (), at: u64| x.adopt(at),
    ),
    row(
        "DirPage::open",
        |x: G<InFlight, dirpage::Adopted<dirpage::Zeroed>>, (), slot: Brand<'static>| {
            x.open(slot).0
        },
    ),
    row(
        "DirPage::open",
        |x: G<InFlight, dirpage::Adopted<dirpage::Filled>>, (), slot: Brand<'static>| {
            x.open(slot).0
        },
    ),
    // Pages of files.
    page(
        "Descriptors<Before>::adopt",
        "Free",
        "Adopted",
        |x: Descriptors<'static, Dirty, Before>, a: Adoption<'static>| x.adopt(a),
    ),
    page(
        "Descriptors<Before>::reserve",
        "Free",
        "Adopted",
        |x: Descriptors<'static, Dirty, Before>, a: Adoption<'static>| x.reserve(a),
    ),
    page(
        "Descriptors<Beside>::reserve",
        "Free",
        "Adopted",
        |x: Descriptors<'static, Dirty, Beside>, a: Adoption<'static>| x.reserve(a),
    ),
    page(
        "Descriptors<Before>::turn",
        "Live",
        "Turned",
        |x: Descriptors<'static, Dirty, Before>, o: &'static Owned<'static>| x.turn(o),
    ),
    page(
        "Descriptors<Before>::clear",
        "Live",
        "Turned",
        |x: Descriptors<'static, Dirty, Before>, o: &'static Owned<'static>| x.clear(o),
    ),
    page(
        "Descriptors<Before>::die",
        "Live",
        "Dying",
        |x: Descriptors<'static, Dirty, Before>, o: &'static Owned<'static>| x.die(o),
    ),
    page(
        "Descriptors<Beside>::trim",
        "Live",
        "Dying",
        |x: Descriptors<'static, Dirty, Beside>, o: &'static Unseen<'static>| x.trim(o),
    ),
    page(
        "Descriptors<Killed>::kill",
        "Live",
        "Killed",
        |x: Descriptors<'static, Dirty, Killed>, o: &'static DirectoryRun<'static>| x.kill(o),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn states(of: &str, side: fn(&Transition) -> (&'static str, &'static str)) -> BTreeSet<&str> {
        let rows = TRANSITIONS.iter().filter(|row| row.object == of);
        rows.map(|row| side(row).1).collect()
    }

    #[test]
    fn every_state_is_a_beginning_or_has_a_way_in() {
        for (object, beginnings) in [
            ("Inode", &["Free", "Live"][..]),
            ("Slot", &["Free", "Live"]),
            ("Page", &["Free", "Live"]),
        ] {
            let (from, to) = (states(object, |row| row.from), states(object, |row| row.to));
            let orphans: Vec<_> = from.difference(&to).copied().collect();
            assert_eq!(orphans, beginnings, "{object}");
        }
    }

    #[test]
    fn objects_in_flight_wait_for_their_fence() {
        // Only the first slot of a new page is taken while its descriptor is in flight.
        let waiting = TRANSITIONS.iter().filter(|row| row.from.0 == "InFlight");
        assert!(waiting.clone().all(|row| row.by == "DirPage::open"));
        assert_eq!(waiting.count(), 2);
    }

    #[test]
    fn evidence_is_clean_but_for_a_birth_in_the_fence_of_its_name() {
        for row in TRANSITIONS {
            for (object, persistence, state) in row.needs.into_iter().flatten() {
                let birth = (row.by, object, state) == ("Dentry::commit", "Inode", "Init");
                assert!(persistence == "Clean" || birth, "{row:?}");
            }
        }
    }

    #[test]
    fn a_second_step_needs_the_first() {
        for by in ["Dentry::clear", "Dentry::swap"] {
            let rows: Vec<_> = TRANSITIONS.iter().filter(|row| row.by == by).collect();
            let wanted = [Some(("Slot", "Clean", "Committed")), None];
            assert!(rows.iter().all(|row| row.needs == wanted));
            assert_eq!(rows.len(), 1);
        }
    }
}
