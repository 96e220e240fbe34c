//! Writes that are not stable yet, and the effect of a COMMIT on them.

use nfs3_types::nfs3::{self as n, stable_how, writeverf3};
use steadfast_nfs_client::calls::decode;
use steadfast_nfs_client::client::succeeded;
use steadfast_nfs_client::rpc::Reply;
use steadfast_nfs_client::{Failure, wrong};

/// One piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Writes of one file that are on their way or wait for a COMMIT.
#[derive(Default)]
pub(crate) struct Uncommitted {
    sent: Vec<(u32, Piece)>,
    /// Answered writes, with the verifier of the answer.
    answered: Vec<(Piece, writeverf3)>,
    /// The rest of writes that were done in part.
    short: Vec<Piece>,
}

impl Uncommitted {
    pub(crate) fn sent(&mut self, xid: u32, piece: Piece) {
        self.sent.push((xid, piece));
    }

    /// Takes the reply to one of the writes.
    pub(crate) fn answered(&mut self, reply: &Reply) -> Result<(), Failure> {
        let Some(at) = self.sent.iter().position(|(xid, _)| *xid == reply.xid) else {
            return Err(Failure::Protocol("a reply to no WRITE".to_owned()));
        };
        let (_, piece) = self.sent.swap_remove(at);
        let what = format!("WRITE at {}", piece.offset);
        let done = succeeded(decode::<n::WRITE3args<'_>>(&reply.body)?, &what)?;
        if done.count == 0 || done.count > piece.len {
            return wrong(format!("{what}: {} of {} bytes", done.count, piece.len));
        }
        let (now, later) = (
            Piece {
                len: done.count,
                ..piece
            },
            Piece {
                offset: piece.offset + u64::from(done.count),
                len: piece.len - done.count,
            },
        );
        if later.len > 0 {
            self.short.push(later);
        }
        if done.committed == stable_how::UNSTABLE {
            self.answered.push((now, done.verf));
        }
        Ok(())
    }

    /// Pieces to write before a COMMIT makes sense: the rest of short writes.
    pub(crate) fn unwritten(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.short)
    }

    /// Writes that a COMMIT that answered with `verifier` has not made stable: those that another instance of the
    /// server answered. They have to be sent again.
    pub(crate) fn committed(&mut self, verifier: writeverf3) -> Vec<Piece> {
        std::mem::take(&mut self.answered)
            .into_iter()
            .filter(|(_, theirs)| *theirs != verifier)
            .map(|(piece, _)| piece)
            .collect()
    }
}
