//! Names: short ones fit into the line of their commit word, long ones go on in further slots.

use crate::layout::{NAME_HEAD, slots_of};
use crate::state::{Error, Result};

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;

/// A name of at most 32 bytes: it shares the line of its commit word.
#[derive(Clone, Copy, Debug)]
pub struct ShortName<'a>(&'a [u8]);

/// A longer name: its rest must be durable before the commit word.
#[derive(Clone, Copy, Debug)]
pub struct LongName<'a>(&'a [u8]);

/// A name of either kind.
#[derive(Clone, Copy, Debug)]
pub enum Name<'a> {
    /// At most 32 bytes.
    Short(ShortName<'a>),
    /// More.
    Long(LongName<'a>),
}

impl<'a> Name<'a> {
    /// A name of 1 to 255 bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`], also for the empty name.
    #[inline]
    pub fn new(name: &'a [u8]) -> Result<Name<'a>> {
        match name.len() {
            1..=NAME_HEAD => Ok(Name::Short(ShortName(name))),
            33..=NAME_MAX => Ok(Name::Long(LongName(name))),
            len => Err(Error::TooLong(len)),
        }
    }

    /// Slots that it takes.
    #[must_use]
    #[inline]
    pub fn slots(&self) -> u64 {
        match self {
            Name::Short(_) => 1,
            Name::Long(name) => name.slots(),
        }
    }
}

impl<'a> ShortName<'a> {
    #[inline]
    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> LongName<'a> {
    #[inline]
    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Slots that it takes, at least 2.
    #[must_use]
    #[inline]
    pub fn slots(&self) -> u64 {
        slots_of(self.0.len()) as u64
    }
}
