//! Rules that a test can leave out on purpose, to see that its harness notices. A release has none of them.
//!
//! [`planted_faults!`] declares a struct of switches for a crate that has a feature `faults`. With the feature a test sets
//! them. Without it the struct is empty, and reading a switch gives a constant: no program can plant a fault, whatever
//! it does, and what only a fault would reach is not compiled into it.
//!
//! ```
//! steadfast_faults::planted_faults! {
//!     /// Rules of this crate.
//!     pub struct Faults {
//!         /// Commits are acknowledged without the flush.
//!         pub skip_flush: bool,
//!     }
//! }
//!
//! assert!(!Faults::default().skip_flush);
//! ```

#![no_std]

/// Value of a switch when nothing is planted.
#[doc(hidden)]
pub trait Unplanted {
    /// The value.
    const NONE: Self;
}

impl Unplanted for bool {
    const NONE: bool = false;
}

/// Declares the switches of a crate. See the crate's header.
#[macro_export]
macro_rules! planted_faults {
    (
        $(#[$about:meta])*
        pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* }
    ) => {
        $(#[$about])*
        #[cfg(feature = "faults")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        $(#[$about])*
        #[cfg(not(feature = "faults"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $name {}

        #[cfg(not(feature = "faults"))]
        const _: () = {
            /// The switches, none of them set.
            pub struct Switches {
                $($(#[$doc])* pub $field: $kind,)*
            }

            impl $crate::Unplanted for $name {
                const NONE: $name = $name {};
            }

            impl ::core::ops::Deref for $name {
                type Target = Switches;

                #[inline(always)]
                fn deref(&self) -> &Switches {
                    const { &Switches { $($field: <$kind as $crate::Unplanted>::NONE,)* } }
                }
            }
        };
    };
}

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub)]

    planted_faults! {
        /// Faults of a part.
        pub struct Inner {
            /// One.
            pub one: bool,
        }
    }

    planted_faults! {
        /// Faults of the whole.
        pub struct Outer {
            /// Another.
            pub other: bool,
            /// The part's.
            pub inner: Inner,
        }
    }

    #[test]
    fn nothing_is_planted_unless_a_test_does() {
        let none = Outer::default();
        assert!(!none.other && !none.inner.one);
        assert_eq!(none, none.clone());
    }

    #[cfg(not(feature = "faults"))]
    #[test]
    fn without_the_feature_there_is_no_place_for_a_fault() {
        assert_eq!(size_of::<Outer>(), 0);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn with_the_feature_a_switch_is_set() {
        let mut faults = Outer::default();
        faults.inner.one = true;
        assert!(faults.inner.one && !faults.other);
        assert_ne!(faults, Outer::default());
    }
}
