//! Names in directories: found, given room, entered in the indexes and taken out of them.

use super::inode::{Disk, damaged};
use super::{exists, has_name};
use crate::fs::PmFs;
use crate::index::dir::Found;
use crate::layout::{InodeRef, Place, slots_of};
use crate::state::{FreedSlots, NewName, Placed, Room, persist::Clean};
use crate::table::{Directory, Node, State};
use std::sync::RwLockWriteGuard;
use steadfast_vfs::policy::{self, EXEC, Subject, WRITE, may_grow};
use steadfast_vfs::{Caller, Errno, Error, Result};

/// A name that was looked for.
pub(super) struct FoundName<'t> {
    /// Its hash in the index of the directory.
    pub(super) hash: u64,
    /// Entry of the name, if there is one.
    pub(super) entry: Option<Entry<'t>>,
}

/// Entry of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'t> {
    /// Its first slot.
    pub(super) place: Place,
    /// The inode.
    pub(super) node: Node<'t>,
}

/// A directory that may get a name.
pub(super) struct Parent {
    /// The name's hash in the index of the directory.
    pub(super) hash: u64,
    /// The directory.
    pub(super) disk: Disk,
    /// The same, for decisions.
    pub(super) subject: Subject,
}

/// The names of a directory.
pub(super) fn names<'s>(dir: &Node<'_>, state: &'s mut State) -> Result<&'s mut Directory> {
    let names = state.directory_mut();
    names.ok_or_else(|| damaged(dir, "a directory without an index"))
}

impl PmFs {
    /// Looks up a name in a directory, whose lock the caller holds.
    pub(super) fn find(&self, dir: &Node<'_>, state: &State, name: &[u8]) -> Result<FoundName<'_>> {
        let (hash, found) = self.found(state, name);
        let entry = match found {
            None => None,
            Some(Found { place, inode }) => match self.table().get(inode.number) {
                Some(node) if node.inode == inode => Some(Entry { place, node }),
                _ => return Err(damaged(dir, "a name of an inode that does not exist")),
            },
        };
        Ok(FoundName { hash, entry })
    }

    fn found(&self, state: &State, name: &[u8]) -> (u64, Option<Found>) {
        let Some(content) = state.directory() else {
            return (0, None);
        };
        let hash = content.names.hash(name);
        let found = content.names.find_hashed(self.medium(), name, hash);
        (hash, found)
    }

    /// Whether the caller may make `name` in a directory, whose lock it holds: the checks in Linux's order.
    pub(super) fn may_create(
        &self,
        caller: &Caller,
        dir: &Node<'_>,
        state: &State,
        name: &[u8],
    ) -> Result<Parent> {
        let disk = self.search(caller, dir, state)?;
        if policy::is_dots(name) {
            return Err(Errno::Exist.into());
        }
        policy::check_name(name)?;
        let (hash, found) = self.found(state, name);
        if found.is_some() {
            return Err(Errno::Exist.into());
        }
        has_name(state)?;
        let subject = self.subject(dir, state, &disk)?;
        may_grow(&subject)?;
        self.require(caller, dir, state, &disk, WRITE | EXEC)?;
        Ok(Parent {
            hash,
            disk,
            subject,
        })
    }

    /// Room for a new name: slots in a row, or a new page. The last thing that a call reserves, because slots are not given
    /// back by themselves.
    pub(super) fn room<'a>(
        &'a self,
        dir: &Node<'_>,
        state: &mut State,
        name: &'a [u8],
    ) -> Result<NewName<'a, 'a>> {
        let content = names(dir, state)?;
        let room = match content.slots.take(slots_of(name.len()) as u64) {
            Some(slots) => Room::Slots(slots),
            None => {
                let offset = content.names.next_offset().ok_or(Errno::FBig)?;
                let last = content.names.pages().last();
                let near = last.map(|(_, page)| crate::layout::Page(page.0 + 1));
                let mut pages = self.free()?.pages(1, near).ok_or_else(full)?;
                let page = pages.pop().ok_or_else(full)?;
                Room::NewPage { page, offset }
            }
        };
        Ok(NewName {
            dir: dir.inode,
            name,
            room,
        })
    }

    /// Enters a new name of this hash in a directory's indexes.
    pub(super) fn entered(&self, dir: &Node<'_>, state: &mut State, hash: u64, placed: Placed) {
        if let Ok(content) = names(dir, state) {
            content.names.insert_hashed(hash, placed.place);
            if let Some(rest) = placed.rest {
                let offset = content.names.next_offset().unwrap_or(0);
                content.names.add_page(offset, placed.place.page());
                content.slots.add(rest);
            }
        }
    }

    /// Takes a name out of them.
    pub(super) fn left(
        &self,
        dir: &Node<'_>,
        state: &mut State,
        (hash, place): (u64, Place),
        slots: FreedSlots<Clean>,
    ) {
        if let Ok(content) = names(dir, state) {
            content.names.remove_hashed(hash, place);
            content.slots.add(slots);
        }
    }

    /// Locks a directory, and the inode that `name` names in it, both exclusively. `before` looks at the directory first, and
    /// `run` gets its result; `before` runs again if the directory was unlocked meanwhile. ENOENT.
    pub(super) fn with_entry<T, D>(
        &self,
        dir: &Node<'_>,
        name: &[u8],
        before: impl Fn(&State) -> Result<D>,
        run: impl FnOnce(&mut State, D, (u64, &Entry<'_>), RwLockWriteGuard<'_, State>) -> Result<T>,
    ) -> Result<T> {
        let mut state = dir.write();
        loop {
            exists(dir, &state)?;
            let seen = before(&state)?;
            let FoundName { hash, entry } = self.find(dir, &state, name)?;
            let entry = entry.ok_or(Errno::NoEnt)?;
            let child = entry.node;
            if child.inode.number == dir.inode.number {
                return Err(damaged(dir, "a directory that contains itself"));
            }
            // Against the order of locks: only if it is free.
            let inner = match child.inode.number > dir.inode.number {
                true => Some(child.write()),
                false => child.try_write(),
            };
            if let Some(inner) = inner {
                return run(&mut state, seen, (hash, &entry), inner);
            }
            drop(state);
            let inner = child.write();
            state = dir.write();
            exists(dir, &state)?;
            let seen = before(&state)?;
            match self.find(dir, &state, name)?.entry {
                Some(entry) if entry.node == child => {
                    return run(&mut state, seen, (hash, &entry), inner);
                }
                _ => {}
            }
        }
    }
}

/// No page or no inode is left.
pub(super) fn full() -> Error {
    Errno::NoSpc.into()
}

/// The words on the medium made the call fail: nothing was stored.
pub(super) fn refused(error: crate::state::Error) -> Error {
    use crate::state::Error as Refused;
    let errno = match error {
        Refused::TagsExhausted => Errno::NoSpc,
        Refused::SequenceExhausted(_) => Errno::FBig,
        _ => Errno::Uclean,
    };
    Error::new(errno, error.to_string())
}

/// The times of a directory whose names change.
pub(super) fn touch(dir: InodeRef, now: u64) -> crate::state::Touch {
    crate::state::Touch { dir, now }
}
