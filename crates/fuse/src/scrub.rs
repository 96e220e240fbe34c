//! A scrub of a mounted volume, piece by piece: a piece is the value of an attribute whose name says where it
//! begins. Nothing is kept between two pieces, so a scrub may stop, or go on later.
//!
//! Name: [`PREFIX`], then inode, key, blocks and 1 if content is to be read, with dots between them. Value: lines of
//! a word and its values, separated by spaces.

use std::fmt::Write;
use std::io;
use std::path::Path;

use steadfast_vfs::{ScrubCursor, ScrubFinding, ScrubPiece};

/// Prefix of names.
pub(crate) const PREFIX: &str = "system.steadfast.scrub.";
/// Most bytes of a value.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a fault's description.
const WHAT_BYTES_MAX: usize = 400;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ScrubRequest {
    pub(crate) from: ScrubCursor,
    pub(crate) blocks: u64,
    pub(crate) data: bool,
}

/// The request that a name is; `None` if it is none.
pub(crate) fn asked(name: &[u8]) -> Option<ScrubRequest> {
    let numbers = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let numbers: Option<Vec<u64>> = numbers.split('.').map(|n| n.parse().ok()).collect();
    match numbers?[..] {
        [ino, key, blocks, data @ 0..=1] => Some(ScrubRequest {
            from: ScrubCursor { ino, key },
            blocks,
            data: data == 1,
        }),
        _ => None,
    }
}

fn name(asked: &ScrubRequest) -> String {
    let ScrubRequest { from, blocks, data } = asked;
    format!(
        "{PREFIX}{}.{}.{blocks}.{}",
        from.ino,
        from.key,
        u8::from(*data)
    )
}

pub(crate) fn encode(piece: &ScrubPiece) -> Vec<u8> {
    let mut text = String::new();
    let counts = [
        ("done", piece.done),
        ("total", piece.total),
        ("metadata", piece.metadata_blocks),
        ("older", piece.older_blocks),
        ("data", piece.data_blocks),
    ];
    for (word, count) in counts {
        let _ = writeln!(text, "{word} {count}");
    }
    if let Some(next) = piece.next {
        let _ = writeln!(text, "next {} {}", next.ino, next.key);
    }
    for finding in &piece.findings {
        let ino = finding.ino.map_or("-".to_owned(), |ino| ino.to_string());
        let what: String = finding
            .what
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(WHAT_BYTES_MAX)
            .collect();
        let _ = writeln!(text, "finding {} {ino} {what}", finding.block);
    }
    text.into_bytes()
}

fn decode(text: &str) -> Option<ScrubPiece> {
    let mut piece = ScrubPiece::default();
    for line in text.lines() {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "done" => piece.done = rest.parse().ok()?,
            "total" => piece.total = rest.parse().ok()?,
            "metadata" => piece.metadata_blocks = rest.parse().ok()?,
            "older" => piece.older_blocks = rest.parse().ok()?,
            "data" => piece.data_blocks = rest.parse().ok()?,
            "next" => {
                let (ino, key) = rest.split_once(' ')?;
                let (ino, key) = (ino.parse().ok()?, key.parse().ok()?);
                piece.next = Some(ScrubCursor { ino, key });
            }
            "finding" => {
                let (block, rest) = rest.split_once(' ')?;
                let (ino, what) = rest.split_once(' ')?;
                piece.findings.push(ScrubFinding {
                    block: block.parse().ok()?,
                    ino: match ino {
                        "-" => None,
                        ino => Some(ino.parse().ok()?),
                    },
                    what: what.to_owned(),
                });
            }
            _ => {} // of a newer server
        }
    }
    Some(piece)
}

/// Looks at about `blocks` blocks of the volume mounted at (or above) `path`, from `from` on, while others work.
///
/// # Errors
/// EPERM if the caller is neither root nor the user that mounted; EOPNOTSUPP if `path` is on no Steadfast mount, or on that of
/// an older server.
pub fn scrub(path: &Path, from: ScrubCursor, blocks: u64, data: bool) -> io::Result<ScrubPiece> {
    let name = name(&ScrubRequest { from, blocks, data });
    let mut buf = vec![0u8; VALUE_BYTES_MAX];
    let len = rustix::fs::getxattr(path, name, &mut buf[..])?;
    let piece = std::str::from_utf8(&buf[..len]).ok().and_then(decode);
    piece.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no piece of a scrub"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_come_through_whole() {
        let sent = ScrubRequest {
            from: ScrubCursor { ino: 7, key: 9 },
            blocks: 100,
            data: true,
        };
        assert_eq!(asked(name(&sent).as_bytes()), Some(sent));
        for wrong in ["", "1.2.3", "1.2.3.4", "1.2.3.x", "1.2.3.1.5", "-1.2.3.0"] {
            assert_eq!(
                asked(format!("{PREFIX}{wrong}").as_bytes()),
                None,
                "{wrong}"
            );
        }
        assert_eq!(asked(b"user.x"), None);
        let finding = |ino, what: &str| ScrubFinding {
            block: 12,
            ino,
            what: what.to_owned(),
        };
        let piece = ScrubPiece {
            next: Some(ScrubCursor { ino: 3, key: 0 }),
            done: 1,
            total: 2,
            metadata_blocks: 3,
            older_blocks: 4,
            data_blocks: 5,
            findings: vec![finding(None, "a b c"), finding(Some(8), "d")],
        };
        let text = String::from_utf8_lossy(&encode(&piece)).into_owned();
        assert_eq!(decode(&text), Some(piece));
        assert_eq!(decode("finding x"), None);
        let long = ScrubPiece {
            findings: vec![finding(None, &"x\n".repeat(10_000)); 64],
            ..ScrubPiece::default()
        };
        assert!(encode(&long).len() < VALUE_BYTES_MAX);
    }
}
