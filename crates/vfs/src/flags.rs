//! Flags of files and directories that `chattr` sets: the numbers of `FS_IOC_SETFLAGS`.

use std::fmt;
use std::ops::BitOr;

/// A set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct InodeFlags(u32);

impl InodeFlags {
    /// No flags.
    pub const NONE: InodeFlags = InodeFlags(0);
    /// Nothing of it changes: neither content nor attributes nor names (`chattr +i`).
    pub const IMMUTABLE: InodeFlags = InodeFlags(0x10);
    /// It only grows: content is added at the end, entries are added (`chattr +a`).
    pub const APPEND: InodeFlags = InodeFlags(0x20);
    /// `dump` leaves it out (`chattr +d`).
    pub const NODUMP: InodeFlags = InodeFlags(0x40);
    /// Reading changes no access time (`chattr +A`).
    pub const NOATIME: InodeFlags = InodeFlags(0x80);
    /// Overwrites stay where the file is, and new files in a directory get the flag (`chattr +C`).
    pub const NOCOW: InodeFlags = InodeFlags(0x80_0000);

    /// All that there are, with the letters of `lsattr`.
    pub const LETTERS: [(InodeFlags, char); 5] = [
        (InodeFlags::IMMUTABLE, 'i'),
        (InodeFlags::APPEND, 'a'),
        (InodeFlags::NODUMP, 'd'),
        (InodeFlags::NOATIME, 'A'),
        (InodeFlags::NOCOW, 'C'),
    ];

    /// From a number; none if it has other bits.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<InodeFlags> {
        let all = InodeFlags::LETTERS
            .iter()
            .fold(0, |all, (flag, _)| all | flag.0);
        (bits & !all == 0).then_some(InodeFlags(bits))
    }

    /// As a number.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether any of `flags` is set.
    #[must_use]
    pub fn has(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 != 0
    }

    /// Those that are in both.
    #[must_use]
    pub fn both(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 & flags.0)
    }

    /// Those that are in one of the two only.
    #[must_use]
    pub fn differing(self, flags: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 ^ flags.0)
    }
}

impl BitOr for InodeFlags {
    type Output = InodeFlags;

    fn bitor(self, other: InodeFlags) -> InodeFlags {
        InodeFlags(self.0 | other.0)
    }
}

/// The letters of `lsattr`; a dash if there are none.
impl fmt::Display for InodeFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = InodeFlags::LETTERS
            .iter()
            .filter(|(flag, _)| self.has(*flag));
        let letters: String = set.map(|(_, letter)| *letter).collect();
        f.write_str(if letters.is_empty() { "-" } else { &letters })
    }
}
