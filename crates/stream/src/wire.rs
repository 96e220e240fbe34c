//! The messages between the library and the server, for both of them.
//!
//! A request or an answer about one stream is a [`Message`]: the argument of an ioctl(2) on any file of the mount, and the
//! value of an extended attribute. An ioctl suits a C program; an attribute suits a program without `unsafe`. Lists are the values of attributes: lines of fields with
//! tabs between them, a page at a time. `include/steadfast/stream.h` repeats the layout in C.
//!
//! Invariants: every message is decoded with a bound and a typed error; an unknown flag or scope is refused, so that a
//! later version can give it a meaning.

use std::time::Duration;

/// Longest name of a stream, in bytes.
pub const NAME_MAX: usize = 255;

/// Rule for names, in words.
pub const NAME_RULE: &str =
    "a stream's name has 1 to 255 bytes of UTF-8, without '/' and without control characters";

/// Bytes of a [`Message`].
pub const MESSAGE_BYTES: usize = 288;
/// Start of the name in a [`Message`].
const NAME_AT: usize = 32;

/// Longest value of an attribute that carries a list.
pub const PAGE_BYTES_MAX: usize = 60 << 10;
/// The first field of a page's last line, if there is another page; the second names that page.
pub const NEXT: &str = "next";

/// The number of bytes of a message, where an ioctl's number has them.
const SIZE: u32 = (MESSAGE_BYTES as u32) << 16;
const WRITE: u32 = 1 << 30;
const READ: u32 = 2 << 30;

/// `_IOW('S', 0x10, struct steadfast_stream)`: sets a stream.
pub const IOCTL_SET: u32 = WRITE | SIZE | 0x5310;
/// `_IOR('S', 0x11, struct steadfast_stream)`: the calling thread's stream.
pub const IOCTL_GET: u32 = READ | SIZE | 0x5311;
/// `_IO('S', 0x12)`: commits the calling thread's stream.
pub const IOCTL_SYNC: u32 = 0x5312;
/// `_IOW('S', 0x13, struct steadfast_stream)`: commits the stream of this name.
pub const IOCTL_SYNC_NAMED: u32 = WRITE | SIZE | 0x5313;
/// `_IOWR('S', 0x14, struct steadfast_stream)`: the stream of the process `pid`.
pub const IOCTL_SHOW: u32 = WRITE | READ | SIZE | 0x5314;

/// Set: a [`Message`] that sets a stream. Read: the calling thread's stream, as a [`Message`].
pub const XATTR_STREAM: &str = "system.steadfast.stream";
/// Set: a [`Message`] that adds or removes a rule, followed by the path of a cgroup.
pub const XATTR_RULE: &str = "system.steadfast.stream.rule";
/// Read: commits the calling thread's stream. With a dot and a number: that stream.
pub const XATTR_SYNC: &str = "system.steadfast.stream.sync";
/// Read, with a dot and the number of a process: its stream, and why it is in it.
pub const XATTR_SHOW: &str = "system.steadfast.stream.show";
/// Read, with a dot and a number to begin with: a page of streams.
pub const XATTR_LIST: &str = "system.steadfast.stream.list";
/// Read, with a dot and a number to begin with: a page of the streams' counts.
pub const XATTR_STATS: &str = "system.steadfast.stream.stats";
/// Read, with a dot and how many to leave out: a page of merges.
pub const XATTR_MERGES: &str = "system.steadfast.stream.merges";
/// Read, with a dot and how many to leave out: a page of rules.
pub const XATTR_RULES: &str = "system.steadfast.stream.rules";
/// Read: empty if the mount has streams, else the reason why it has none.
pub const XATTR_WHY_NOT: &str = "system.steadfast.stream.why-not";

/// The user of a [`Message`] that names none.
pub const USER_DEFAULT: u32 = u32::MAX;

/// Syncs return at once in this stream.
pub const IGNORE_FSYNC: u32 = 1 << 0;
/// Syncs commit in this stream: undoes [`IGNORE_FSYNC`].
pub const HONOUR_FSYNC: u32 = 1 << 1;
/// The volume's default stream; the name is empty.
pub const DEFAULT: u32 = 1 << 2;
/// Removes a rule.
pub const REMOVE: u32 = 1 << 3;
const FLAGS: u32 = IGNORE_FSYNC | HONOUR_FSYNC | DEFAULT | REMOVE;

/// Subject of a [`Message`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Scope {
    /// The calling thread.
    #[default]
    Thread = 0,
    /// The process of the calling thread.
    Process = 1,
    /// The process [`Message::pid`].
    Pid = 2,
    /// The stream itself, which is there already; no process moves.
    Stream = 3,
    /// Rule: processes of a cgroup.
    Cgroup = 16,
    /// Rule: processes that change something below the directory that the request is made on.
    Directory = 17,
    /// Rule: processes with the variable `STEADFAST_STREAM` in their environment.
    Environment = 18,
}

impl Scope {
    fn of(number: u32) -> Option<Scope> {
        use Scope::{Cgroup, Directory, Environment, Pid, Process, Stream, Thread};
        [Thread, Process, Pid, Stream, Cgroup, Directory, Environment]
            .into_iter()
            .find(|scope| *scope as u32 == number)
    }
}

/// Maximum age of a stream's first uncommitted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Interval {
    /// As it is; that of the volume if the stream is new.
    #[default]
    Keep,
    /// That of the volume.
    Volume,
    /// This long, in whole milliseconds.
    Every(Duration),
}

const INTERVAL_VOLUME: u64 = u64::MAX;

impl Interval {
    fn to_ms(self) -> u64 {
        match self {
            Interval::Keep => 0,
            Interval::Volume => INTERVAL_VOLUME,
            Interval::Every(time) => u64::try_from(time.as_millis())
                .unwrap_or(INTERVAL_VOLUME)
                .clamp(1, INTERVAL_VOLUME - 1),
        }
    }

    fn of_ms(ms: u64) -> Interval {
        match ms {
            0 => Interval::Keep,
            INTERVAL_VOLUME => Interval::Volume,
            ms => Interval::Every(Duration::from_millis(ms)),
        }
    }
}

/// A request or an answer about one stream.
///
/// In memory, in the byte order of the machine: scope, pid, user and flags (32 bits each), the interval in milliseconds
/// (64 bits), the number (32 bits), four zero bytes, the name and zeros up to [`MESSAGE_BYTES`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Subject of the message.
    pub scope: Scope,
    /// The process, for [`Scope::Pid`].
    pub pid: u32,
    /// The user whose stream it is; [`USER_DEFAULT`] leaves that to the server.
    pub user: u32,
    /// [`IGNORE_FSYNC`] and others.
    pub flags: u32,
    /// The commit interval.
    pub interval: Interval,
    /// The stream's number, in answers.
    pub number: u32,
    /// The stream's name; empty for the default stream.
    pub name: String,
}

impl Default for Message {
    fn default() -> Message {
        Message {
            scope: Scope::Thread,
            pid: 0,
            user: USER_DEFAULT,
            flags: 0,
            interval: Interval::Keep,
            number: 0,
            name: String::new(),
        }
    }
}

/// Reason why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// There are fewer bytes than [`MESSAGE_BYTES`].
    Short,
    /// A scope or flag that this version does not know, or bytes that must be zero.
    Unknown,
    /// The name breaks the [rule](NAME_RULE).
    Name,
}

impl Message {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let words = [self.scope as u32, self.pid, self.user, self.flags];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..24].copy_from_slice(&self.interval.to_ms().to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.number.to_ne_bytes());
        let name = self.name.as_bytes();
        let len = name.len().min(NAME_MAX);
        bytes[NAME_AT..NAME_AT + len].copy_from_slice(&name[..len]);
        bytes
    }

    /// The message that the first [`MESSAGE_BYTES`] are. The name is checked unless it is empty.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let (bytes, _) = bytes
            .split_first_chunk::<MESSAGE_BYTES>()
            .ok_or(Malformed::Short)?;
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let scope = Scope::of(word(0)).ok_or(Malformed::Unknown)?;
        let flags = word(12);
        if flags & !FLAGS != 0 || word(28) != 0 {
            return Err(Malformed::Unknown);
        }
        let mut ms = [0; 8];
        ms.copy_from_slice(&bytes[16..24]);
        let name = &bytes[NAME_AT..];
        let len = name.iter().position(|b| *b == 0).ok_or(Malformed::Name)?;
        let name = std::str::from_utf8(&name[..len]).map_err(|_| Malformed::Name)?;
        if !name.is_empty() && !name_is_valid(name) {
            return Err(Malformed::Name);
        }
        Ok(Message {
            scope,
            pid: word(4),
            user: word(8),
            flags,
            interval: Interval::of_ms(u64::from_ne_bytes(ms)),
            number: word(24),
            name: name.to_owned(),
        })
    }
}

/// Whether a stream may have this name; see [`NAME_RULE`].
#[must_use]
pub fn name_is_valid(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(|c| c == '/' || c.is_control())
}

/// Makes a field of a line out of any bytes: those that would end a field or a line, and the backslash, become `\xHH`.
#[must_use]
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b' '..=b'~' if byte != b'\\' => text.push(char::from(byte)),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                text.push_str("\\x");
                text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                text.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    text
}

/// The bytes that [`escape`] was given; `None` if this is no result of it.
#[must_use]
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_first_chunk::<3>()?;
        let [b'x', high, low] = *digits else {
            return None;
        };
        let digit = |d: u8| char::from(d).to_digit(16);
        bytes.push(u8::try_from(digit(high)? << 4 | digit(low)?).ok()?);
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_message_comes_through_whole() {
        let sent = Message {
            scope: Scope::Pid,
            pid: 7,
            user: 1000,
            flags: IGNORE_FSYNC,
            interval: Interval::Every(Duration::from_millis(250)),
            number: 9,
            name: "é".repeat(127),
        };
        assert_eq!(Message::decode(&sent.encode()), Ok(sent));
        let none = Message::default();
        assert_eq!(Message::decode(&none.encode()), Ok(none));
    }

    #[test]
    fn malformed_messages_are_refused() {
        let good = Message::default().encode();
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good;
            bytes[at..at + value.len()].copy_from_slice(value);
            Message::decode(&bytes)
        };
        assert_eq!(Message::decode(&good[1..]), Err(Malformed::Short));
        assert_eq!(Message::decode(&[]), Err(Malformed::Short));
        assert_eq!(with(0, &[9]), Err(Malformed::Unknown), "a scope");
        assert_eq!(with(12, &[0x80]), Err(Malformed::Unknown), "a flag");
        assert_eq!(with(28, &[1]), Err(Malformed::Unknown), "reserved");
        assert_eq!(with(NAME_AT, &[b'x'; 256]), Err(Malformed::Name), "no end");
        assert_eq!(with(NAME_AT, b"a/b"), Err(Malformed::Name));
        assert_eq!(with(NAME_AT, b"a\nb"), Err(Malformed::Name));
        assert_eq!(with(NAME_AT, b"\xff"), Err(Malformed::Name));
        assert!(with(NAME_AT, &[b'x'; 255]).is_ok());
    }

    #[test]
    fn names_follow_the_rule() {
        for good in ["a", "data base", "ü", ".", "..", &"x".repeat(255)] {
            assert!(name_is_valid(good), "{good}");
        }
        for bad in ["", "/", "a/b", "a\0", "a\nb", "\u{7f}", &"x".repeat(256)] {
            assert!(!name_is_valid(bad), "{bad:?}");
        }
    }

    #[test]
    fn any_bytes_become_a_field_and_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let field = escape(&all);
        assert!(!field.contains(['\n', '\t']));
        assert_eq!(unescape(&field), Some(all));
        for wrong in ["\\", "\\x1", "\\xgg", "\\y00"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ioctl_numbers_are_those_of_the_header() {
        assert_eq!(IOCTL_SET, 0x4120_5310);
        assert_eq!(IOCTL_GET, 0x8120_5311);
        assert_eq!(IOCTL_SYNC_NAMED, 0x4120_5313);
        assert_eq!(IOCTL_SHOW, 0xc120_5314);
    }
}
