//! Errors of file-system calls, and their one mapping to error numbers.

use std::borrow::Cow;

macro_rules! errnos {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// Error numbers that a file system reports (Linux values).
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(i32)]
        pub enum Errno { $(#[doc = $text] $name = $code,)* }

        impl Errno {
            /// Meaning in words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }
        }
    };
}

errnos! {
    Perm = 1, "operation not permitted";
    NoEnt = 2, "no such file or directory";
    Io = 5, "input/output error";
    NxIo = 6, "no such address";
    BadF = 9, "bad file handle";
    Again = 11, "the guard does not hold";
    NoMem = 12, "out of memory";
    Access = 13, "permission denied";
    Busy = 16, "resource busy";
    Exist = 17, "file exists";
    NotDir = 20, "not a directory";
    IsDir = 21, "is a directory";
    Inval = 22, "invalid argument";
    FBig = 27, "file too large";
    NoSpc = 28, "no space left on the volume";
    RoFs = 30, "read-only file system";
    MLink = 31, "too many links";
    Range = 34, "result too large";
    NameTooLong = 36, "file name too long";
    NoSys = 38, "function not implemented";
    NotEmpty = 39, "directory not empty";
    NoData = 61, "no such attribute";
    Overflow = 75, "value too large";
    OpNotSupp = 95, "operation not supported";
    Stale = 116, "stale file handle";
    Uclean = 117, "structure needs cleaning";
}

impl Errno {
    /// The number that system calls return.
    #[must_use]
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// A failed call: the error number for the caller, and details where the caller is not
/// the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{}", .errno.text(), .detail.as_ref().map(|d| format!(": {d}")).unwrap_or_default())]
pub struct Error {
    /// Error number that the caller gets.
    pub errno: Errno,
    /// Details, for logs and tools.
    pub detail: Option<Cow<'static, str>>,
}

impl Error {
    /// An error with an explanation.
    pub fn new(errno: Errno, detail: impl Into<Cow<'static, str>>) -> Error {
        Error {
            errno,
            detail: Some(detail.into()),
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error {
            errno,
            detail: None,
        }
    }
}

impl PartialEq<Errno> for Error {
    fn eq(&self, other: &Errno) -> bool {
        self.errno == *other
    }
}

/// Result of a file-system call.
pub type Result<T> = std::result::Result<T, Error>;
