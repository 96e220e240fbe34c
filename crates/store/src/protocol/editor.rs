//! The editor: it changes the list of snapshots without owning the volume.
//!
//! It keeps the claim, so it fences no writer. Each attempt puts a list under a new name, then swaps `head` from the version
//! whose list it changed. If the outcome is unknown and `head` has changed, the caller checks whether its change is there.

use super::{Answer, Head, Nonce, ObjectName, Reference, Request, Stamp};

/// An instruction of an editor to its driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Edit {
    /// Send this request.
    Send(Request),
    /// The current head. Load its roots; if the change is not in them, call [`Editor::write`].
    Read(Head),
    /// The change took effect; this version of `head` has it.
    Done(Head),
    /// The list's name is taken: the nonce was used before.
    Doubled(ObjectName),
    /// Nothing to do.
    Nothing,
}

/// One change of the list of snapshots and pins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Editor {
    pending: Option<(Head, Head)>,
}

impl Editor {
    /// An editor and its first request.
    #[must_use]
    pub fn new() -> (Editor, Request) {
        (Editor { pending: None }, Request::ReadHead)
    }

    /// Puts a list with the contents `stamp`, and makes `head` name it if `head` still is `from`. Each call needs a new nonce.
    pub fn write(&mut self, from: Head, stamp: Stamp, nonce: Nonce) -> Request {
        let name = ObjectName::Roots {
            term: from.claim.term,
            nonce,
        };
        let mut to = from.successor(nonce);
        to.roots = Some(Reference { name, stamp });
        self.pending = Some((from, to));
        Request::PutObject { name, stamp }
    }

    /// Takes the outcome of a request.
    pub fn answer(&mut self, request: &Request, answer: Answer) -> Edit {
        let swap = |(from, to): &(Head, Head)| {
            Edit::Send(Request::SwapHead {
                from: from.version,
                to: to.clone(),
            })
        };
        match (request, answer, &self.pending) {
            (Request::ReadHead, Answer::Head(now), Some((_, to))) if now.version == to.version => {
                Edit::Done(now)
            }
            (Request::ReadHead, Answer::Head(now), Some(pending))
                if now.version == pending.0.version =>
            {
                swap(pending)
            }
            (Request::ReadHead, Answer::Head(now), _) => {
                self.pending = None;
                Edit::Read(now)
            }
            (Request::PutObject { .. }, Answer::Done, Some(pending)) => swap(pending),
            (Request::PutObject { name, .. }, _, Some(_)) => Edit::Send(Request::ReadObject(*name)),
            (Request::ReadObject(name), Answer::Object(seen), Some(pending)) => {
                match (seen, pending.1.roots) {
                    (Some(seen), Some(roots)) if seen == roots.stamp => swap(pending),
                    (None, Some(Reference { stamp, .. })) => {
                        Edit::Send(Request::PutObject { name: *name, stamp })
                    }
                    _ => Edit::Doubled(*name),
                }
            }
            (Request::SwapHead { .. }, Answer::Done, Some((_, to))) => Edit::Done(to.clone()),
            (Request::SwapHead { .. }, _, Some(_)) => Edit::Send(Request::ReadHead),
            (Request::ReadHead | Request::ReadObject(_), _, _) => Edit::Send(request.clone()),
            _ => Edit::Nothing,
        }
    }
}
