//! Durability of an object's last stores: `Dirty`, `InFlight`, `Clean`; the brands of objects; and the fence.

use std::marker::PhantomData;

use steadfast_pm::Durability;

use super::medium::Medium;

/// The last stores are in the cache.
#[derive(Debug)]
pub struct Dirty(());

/// The last stores are written back, and this thread has not fenced yet. A fence covers the write-backs of its own thread
/// only, so a thing in flight cannot be sent to another.
#[derive(Debug)]
pub struct InFlight(PhantomData<*const ()>);

/// Everything is durable.
#[derive(Debug)]
pub struct Clean(());

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// One of [`Dirty`], [`InFlight`] and [`Clean`].
pub trait Persistence: Sealed {}
impl Sealed for Dirty {}
impl Sealed for InFlight {}
impl Sealed for Clean {}
impl Persistence for Dirty {}
impl Persistence for InFlight {}
impl Persistence for Clean {}

/// [`InFlight`] or [`Clean`]: durable after the next fence of this thread at the latest.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not written back: a crash after the next fence may lose it",
    label = "must be `InFlight` or `Clean`",
    note = "call `flush` first"
)]
pub trait Flushed: Persistence {}
impl Flushed for InFlight {}
impl Flushed for Clean {}

/// An identity that no two objects share: the lifetime is invariant and each comes from a closure of
/// [`Medium::brand`] that must work for every lifetime.
pub struct Brand<'id> {
    pub(super) m: &'id Medium,
    _invariant: PhantomData<fn(&'id ()) -> &'id ()>,
}

impl<'id> Brand<'id> {
    #[inline]
    pub(super) fn new(m: &'id Medium) -> Brand<'id> {
        Brand {
            m,
            _invariant: PhantomData,
        }
    }

    /// The medium.
    #[must_use]
    #[inline]
    pub fn medium(&self) -> &'id Medium {
        self.m
    }
}

/// Proof that a fence was issued, for [`Fenced::cleaned`]. Only this module can make one.
#[derive(Clone, Copy)]
pub struct Witness(());

/// Something in flight that a fence makes clean, or a tuple, `Option` or `Vec` of such things.
#[diagnostic::on_unimplemented(
    message = "a fence does not make `{Self}` durable",
    label = "not in flight",
    note = "call `flush` on a `Dirty` object first; a `Clean` one needs no fence"
)]
pub trait Fenced: FencedSealed {
    /// The same, durable.
    type Clean;
    /// Whether part of it was stored non-temporally, so that even a persistent cache does not order it.
    #[doc(hidden)]
    fn non_temporal(&self) -> bool;
    #[doc(hidden)]
    fn cleaned(self, witness: Witness) -> Self::Clean;
}

/// Keeps [`Fenced`] from being implemented elsewhere.
pub(super) use fenced_sealed::FencedSealed;
mod fenced_sealed {
    pub trait FencedSealed {}
}

/// One fence: everything in `things` is durable when it returns. The last step of every call.
#[inline]
pub fn fence<T: Fenced>(m: &Medium, things: T) -> T::Clean {
    m.region.fence();
    things.cleaned(Witness(()))
}

/// One fence between two steps of a call: `things` are durable before anything that is stored afterwards. Where caches are
/// persistent, ordinary stores are so anyway, in program order; then only non-temporal stores need the instruction.
#[inline]
pub fn order<T: Fenced>(m: &Medium, things: T) -> T::Clean {
    if m.durability() != Durability::Eadr || things.non_temporal() {
        m.region.fence();
    }
    things.cleaned(Witness(()))
}

impl<T: Fenced> FencedSealed for Option<T> {}
impl<T: Fenced> Fenced for Option<T> {
    type Clean = Option<T::Clean>;
    #[inline]
    fn non_temporal(&self) -> bool {
        self.as_ref().is_some_and(T::non_temporal)
    }
    #[inline]
    fn cleaned(self, witness: Witness) -> Self::Clean {
        self.map(|thing| thing.cleaned(witness))
    }
}

impl FencedSealed for () {}
impl Fenced for () {
    type Clean = ();
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) {}
}

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Fenced),+> FencedSealed for ($($name,)+) {}
        impl<$($name: Fenced),+> Fenced for ($($name,)+) {
            type Clean = ($($name::Clean,)+);
            #[inline]
            fn non_temporal(&self) -> bool {
                $(self.$index.non_temporal())||+
            }
            #[inline]
            fn cleaned(self, witness: Witness) -> Self::Clean {
                ($(self.$index.cleaned(witness),)+)
            }
        }
    };
}
tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
