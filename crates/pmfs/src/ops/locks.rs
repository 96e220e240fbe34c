//! Several nodes locked at once, in the order of their numbers, each once.

use crate::table::{Node, State};
use smallvec::SmallVec;
use std::sync::RwLockWriteGuard;

/// Nodes locked exclusively: `N` roles, of which some may be played by one node.
pub(super) struct Locked<'a, const N: usize> {
    held: SmallVec<[RwLockWriteGuard<'a, State>; 4]>,
    /// Which of them each role has.
    of: [usize; N],
}

impl<'a, const N: usize> Locked<'a, N> {
    /// Locks the nodes of an operation that holds no other node's lock.
    pub(super) fn lock(roles: [&'a Node; N]) -> Locked<'a, N> {
        let mut order: [usize; N] = std::array::from_fn(|role| role);
        // A number has one node at a time, but somebody may still hold one that was freed.
        let key = |role: &usize| (roles[*role].inode, std::ptr::from_ref(roles[*role]));
        order.sort_unstable_by_key(key);
        let mut held = SmallVec::new();
        let mut of = [0; N];
        let mut last = None;
        for role in order {
            let node = roles[role];
            if !last.is_some_and(|last| std::ptr::eq(last, node)) {
                held.push(node.write());
                last = Some(node);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::InodeRef;
    use steadfast_vfs::FileKind;

    #[test]
    fn nodes_are_locked_once_each_in_any_order_that_they_come() {
        let node = |number| {
            let inode = InodeRef {
                number,
                generation: 1,
            };
            Node::new(inode, FileKind::Regular, State::default())
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
}
