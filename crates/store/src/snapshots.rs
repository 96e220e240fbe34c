//! Changes of the list of snapshots, without ownership of the volume.

use crate::device::{Core, Sources, load_root, read_history, read_roots};
use crate::driver::Failed;
use crate::io::{Io, Put};
use crate::object::{
    HeadObject, Pin, PinKind, Roots, decode_head, decode_volume, encode_head, encode_roots, open,
};
use crate::place::random;
use crate::protocol::{Answer, Edit, Editor, Head, Nonce, ObjectName, Request};
use crate::runtime::runtime;
use crate::volume::{Found, OpenError};
use bytes::Bytes;
use object_store::{PutMode, UpdateVersion};
use std::time::Duration;

/// A change of the list: returns the new list, or an error.
type Change<'a> = dyn FnMut(&Head, Roots) -> Result<Roots, OpenError> + 'a;

/// Carries out the requests of an [`Editor`], one at a time.
struct Session<'a> {
    io: &'a Io,
    /// The encoded list, for its new name.
    list: Option<Bytes>,
    /// The ETag of the last head read, and the owner, the size and the lease in it.
    tag: Option<UpdateVersion>,
    owner: String,
    blocks: u64,
    lease_ms: u32,
}

impl Session<'_> {
    async fn execute(&mut self, request: &Request) -> Result<Answer, OpenError> {
        let io = self.io;
        Ok(match request {
            Request::ReadHead => {
                let got = io.get(ObjectName::Head, None).await?;
                let got = got.ok_or_else(|| io.missing(ObjectName::Head))?;
                let object = decode_head(&io.coding, &got.bytes);
                let object = object.map_err(|why| io.damaged(ObjectName::Head, why))?;
                self.tag = Some(got.version);
                (self.owner, self.blocks) = (object.owner, object.blocks);
                self.lease_ms = object.lease_ms;
                Answer::Head(object.head)
            }
            Request::PutObject { name, .. } => {
                let bytes = self.list.clone().unwrap_or_default();
                outcome(io.put(*name, bytes, PutMode::Create).await)
            }
            Request::ReadObject(name) => {
                let got = io.get(*name, None).await?;
                Answer::Object(got.map(|got| {
                    open(&io.coding, *name, &got.bytes)
                        .map_or_else(|_| Default::default(), |(_, s)| s)
                }))
            }
            Request::SwapHead { to, .. } => {
                let Some(tag) = self.tag.clone() else {
                    return Ok(Answer::Refused);
                };
                let object = HeadObject {
                    head: to.clone(),
                    owner: self.owner.clone(),
                    blocks: self.blocks,
                    lease_ms: self.lease_ms,
                };
                let bytes = encode_head(&io.coding, &object);
                outcome(io.put(ObjectName::Head, bytes, PutMode::Update(tag)).await)
            }
            _ => return Err(Failed::Inconsistent("an editor sent a request of a writer").into()),
        })
    }
}

fn outcome(put: Put) -> Answer {
    match put {
        Put::Done(_) => Answer::Done,
        Put::Refused => Answer::Refused,
        Put::Unknown(_) => Answer::Unknown,
    }
}

impl Found {
    /// Changes the list of snapshots. `change` makes the new list from the present one; it is called again if another machine
    /// changed the list first.
    fn edit(&self, change: &mut Change<'_>) -> Result<(), OpenError> {
        let io = self.sources.own();
        let runtime = runtime()?;
        let (mut editor, mut request) = Editor::new();
        let mut session = Session {
            io,
            list: None,
            tag: None,
            owner: String::new(),
            blocks: 0,
            lease_ms: 0,
        };
        loop {
            let answer = runtime.block_on(session.execute(&request))?;
            match editor.answer(&request, answer) {
                Edit::Send(next) => request = next,
                Edit::Read(head) => {
                    let present = read_roots(io, head.roots)?;
                    let before = present.clone();
                    let roots = change(&head, present)?;
                    if roots == before {
                        return Ok(());
                    }
                    let nonce = Nonce(random()?);
                    let name = ObjectName::Roots {
                        term: head.claim.term,
                        nonce,
                    };
                    let salt = io.coding.salt()?;
                    let (bytes, stamp) = encode_roots(&io.coding, salt, name, &roots);
                    session.list = Some(bytes);
                    request = editor.write(head, stamp, nonce);
                }
                Edit::Done(_) => return Ok(()),
                Edit::Doubled(_) => {
                    return Err(Failed::Inconsistent("a random name was taken").into());
                }
                Edit::Nothing => {
                    return Err(Failed::Inconsistent("an editor has no next request").into());
                }
            }
        }
    }

    /// Adds a snapshot or a pin of a clone.
    pub(crate) fn add_pin(&self, pin: Pin) -> Result<Pin, OpenError> {
        let url = self.sources.own().location.url.clone();
        let mut added = pin;
        self.edit(&mut |head, mut roots| {
            if roots.pins.contains(&added) {
                // An earlier attempt took effect.
                return Ok(roots);
            }
            let same = |other: &Pin| {
                other.kind == PinKind::Snapshot
                    && added.kind == PinKind::Snapshot
                    && other.name == added.name
            };
            if roots.pins.iter().any(same) {
                return Err(OpenError::SnapshotExists {
                    url: url.clone(),
                    name: added.name.clone(),
                });
            }
            match added.kind {
                // A writer never retires the checkpoint that `head` names.
                PinKind::Snapshot => added.base = head.base,
                // The snapshot pins the objects of the clone, unless the snapshot was deleted meanwhile.
                PinKind::Clone => {
                    let pinned = |pin: &Pin| pin.base == added.base;
                    if !roots.pins.iter().any(pinned) {
                        return Err(OpenError::NoSnapshot {
                            url: url.clone(),
                            name: added.name.clone(),
                        });
                    }
                }
            }
            roots.pins.push(added.clone());
            Ok(roots)
        })?;
        Ok(added)
    }

    /// Deletes a snapshot. A later checkpoint of a writer retires the objects that only this snapshot needed.
    ///
    /// # Errors
    /// [`OpenError::NoSnapshot`], the store's.
    pub fn delete_snapshot(&self, name: &str) -> Result<(), OpenError> {
        self.remove_pin(PinKind::Snapshot, name)
    }

    /// Removes a clone that was deleted, or is to be given up, from the list.
    ///
    /// # Errors
    /// [`OpenError::NoSnapshot`], the store's.
    pub fn forget_clone(&self, url: &str) -> Result<(), OpenError> {
        self.remove_pin(PinKind::Clone, url)
    }

    /// The snapshots and clones of this volume that need objects of its parents.
    ///
    /// # Errors
    /// The store's; damage.
    pub fn pins_with_parents(&self) -> Result<Vec<Pin>, OpenError> {
        let pins = self.state()?.roots.pins;
        let mut needing = Vec::new();
        for pin in pins {
            let loaded = load_root(&self.sources, pin.base, None)?;
            if Core::of(loaded, pin.base, Duration::ZERO).needs_parents() {
                needing.push(pin);
            }
        }
        Ok(needing)
    }

    /// Removes the pin of this clone at its parent, after the clone was [promoted](crate::StoreDevice::promote). The parent may
    /// then delete the objects that the clone needed. It is no failure if the parent is gone.
    ///
    /// # Errors
    /// [`OpenError::NeedsParents`]: nothing is changed. The store's; damage.
    pub fn leave_parent(&self, patience: Duration) -> Result<(), OpenError> {
        let Some(parent) = self.object.parents.first() else {
            return Ok(());
        };
        let (_, core) = read_history(&self.sources, self.object.base, Duration::ZERO)?;
        let mut needing = self.pins_with_parents()?;
        if core.needs_parents() || !needing.is_empty() {
            let names = needing.drain(..).map(|pin| pin.name).collect();
            return Err(OpenError::NeedsParents {
                url: self.url(),
                parent: parent.url.clone(),
                names,
            });
        }
        let Some(io) = self.sources.all().get(1) else {
            return Ok(());
        };
        let at = io.location.clone();
        io.set_patience(Some(patience));
        let got = runtime()?.block_on(io.get(ObjectName::Volume, None))?;
        let Some(got) = got else {
            return Ok(());
        };
        let object = decode_volume(&got.bytes);
        let object = object.map_err(|why| io.damaged(ObjectName::Volume, why))?;
        if object.id != parent.id {
            // Another volume is there now.
            return Ok(());
        }
        let keys = self.sources.own().coding.keys.clone();
        let sources = Sources::of(at, &object, keys, &[], Some(patience));
        let parent = Found { object, sources };
        parent.edit(&mut |_, mut roots| {
            let own = |pin: &Pin| pin.kind == PinKind::Clone && pin.id == self.object.id;
            roots.pins.retain(|pin| !own(pin));
            Ok(roots)
        })
    }

    fn remove_pin(&self, kind: PinKind, name: &str) -> Result<(), OpenError> {
        let url = self.sources.own().location.url.clone();
        let mut removed = false;
        self.edit(&mut |_, mut roots| {
            let before = roots.pins.len();
            roots
                .pins
                .retain(|pin| pin.kind != kind || pin.name != name);
            if roots.pins.len() == before && !removed {
                return Err(OpenError::NoSnapshot {
                    url: url.clone(),
                    name: name.to_owned(),
                });
            }
            removed = true;
            Ok(roots)
        })
    }
}
