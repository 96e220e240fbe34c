//! Several nodes locked at once, in the order of their numbers, each once.

use crate::table::{Node, State};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::RwLockWriteGuard;
use steadfast_vfs::{Errno, Result};

/// Nodes locked exclusively: `N` roles, of which some may be played by one node.
pub(super) struct Locked<'a, const N: usize> {
    held: SmallVec<[RwLockWriteGuard<'a, State>; 4]>,
    /// Index of each role's lock in `held`.
    of: [usize; N],
}

impl<'a, const N: usize> Locked<'a, N> {
    /// Locks the nodes of an operation that holds no other node's lock.
    pub(super) fn lock(roles: [&Node<'a>; N]) -> Locked<'a, N> {
        let mut order: [usize; N] = std::array::from_fn(|role| role);
        // By number: of two nodes of one number at most one is there still, and they have one lock.
        order.sort_unstable_by_key(|role| roles[*role].inode.number);
        let mut held = SmallVec::new();
        let mut of = [0; N];
        let mut last = None;
        for role in order {
            let number = roles[role].inode.number;
            if last.replace(number) != Some(number) {
                held.push(roles[role].write());
            }
            of[role] = held.len() - 1;
        }
        Locked { held, of }
    }

    /// The state of the node in a role.
    pub(super) fn state(&mut self, role: usize) -> &mut State {
        &mut self.held[self.of[role]]
    }

    /// The same, to look at.
    pub(super) fn look(&self, role: usize) -> &State {
        &self.held[self.of[role]]
    }
}

impl<'a> Locked<'a, 4> {
    /// A directory whose lock is held, in the first two roles, and two things in it. `None` if one of those comes before the directory in the order of locks, and its lock is taken.
    pub(super) fn within(
        dir: &Node<'a>,
        state: RwLockWriteGuard<'a, State>,
        [one, other]: [&Node<'a>; 2],
    ) -> Option<Locked<'a, 4>> {
        let mut held = SmallVec::new();
        held.push(state);
        let lock = |node: &Node<'a>| match node.inode.number > dir.inode.number {
            true => Some(node.write()),
            // The lock of the directory itself is taken, too.
            false => node.try_write(),
        };
        let of = match one.inode.number.cmp(&other.inode.number) {
            Ordering::Equal => {
                held.push(lock(one)?);
                [0, 0, 1, 1]
            }
            Ordering::Less => {
                held.push(lock(one)?);
                held.push(lock(other)?);
                [0, 0, 1, 2]
            }
            Ordering::Greater => {
                held.push(lock(other)?);
                held.push(lock(one)?);
                [0, 0, 2, 1]
            }
        };
        Some(Locked { held, of })
    }
}

/// Locks a directory and the place of an inode that is to be born: the state of each. ESTALE if the directory was freed and its
/// number is that of the new inode.
pub(super) fn lock_new<'a>(
    dir: &Node<'a>,
    new: &Node<'a>,
) -> Result<(RwLockWriteGuard<'a, State>, RwLockWriteGuard<'a, State>)> {
    if dir.inode.number < new.inode.number {
        let state = dir.write();
        Ok((state, new.write()))
    } else if dir.inode.number > new.inode.number {
        let inner = new.write();
        Ok((dir.write(), inner))
    } else {
        Err(Errno::Stale.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::{Geometry, InodeRef};
    use crate::table::Table;
    use steadfast_vfs::FileKind;

    #[test]
    fn nodes_are_locked_once_each_in_any_order_that_they_come() {
        let table = Table::new(Geometry::new(1 << 20, 16 << 10).unwrap());
        let node = |number| {
            let inode = InodeRef {
                number,
                generation: 1,
            };
            table.place(inode, FileKind::Regular, false).unwrap()
        };
        let (a, b) = (node(1), node(2));
        let mut locked = Locked::lock([&b, &a, &b, &a]);
        locked.state(1).links = 7;
        locked.state(2).links = 8;
        assert_eq!((locked.look(3).links, locked.look(0).links), (7, 8));
        assert!(a.try_read().is_none() && b.try_read().is_none());
        drop(locked);
        assert_eq!((a.read().links, b.read().links), (7, 8));
    }

    #[test]
    fn two_nodes_of_one_number_are_locked_once() {
        let table = Table::new(Geometry::new(1 << 20, 16 << 10).unwrap());
        let node = |generation| {
            let inode = InodeRef {
                number: 1,
                generation,
            };
            table.place(inode, FileKind::Directory, false).unwrap()
        };
        let (old, new) = (node(1), node(2));
        drop(Locked::lock([&old, &new]));
        assert!(lock_new(&old, &new).is_err_and(|error| error == Errno::Stale));
    }
}
