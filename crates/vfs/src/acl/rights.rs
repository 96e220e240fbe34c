//! Rights that a list gives, and the relation of the list and the mode.
//!
//! Invariant of the file systems: the permission bits of an inode with an access ACL equal the list's
//! entries for owner, mask and other ([`Acl::perm_bits`]). Both change in one operation. A list that says
//! no more than the mode ([`Acl::is_minimal`]) is not stored.

use super::{Acl, Who};
use crate::Caller;

impl Acl {
    /// Whether the list gives all of `mask` to a caller that is neither root nor the owner of an inode
    /// of group `gid`. The first class that the caller belongs to decides; of several groups, any that suffices.
    #[must_use]
    pub fn permits(&self, caller: &Caller, gid: u32, mask: u8) -> bool {
        let limit = self.perm(Who::Mask).unwrap_or(7);
        if let Some(perm) = self.perm(Who::User(caller.uid)) {
            return mask & !(perm & limit) == 0;
        }
        let mut in_group = false;
        for entry in self.entries() {
            let member = match entry.who {
                Who::OwningGroup => caller.in_group(gid),
                Who::Group(id) => caller.in_group(id),
                _ => false,
            };
            if member && mask & !entry.perm == 0 {
                return mask & !limit == 0;
            }
            in_group |= member;
        }
        !in_group && mask & !self.perm(Who::Other).unwrap_or(0) == 0
    }

    /// The entry that the group bits of a mode stand for.
    fn group_class(&self) -> Who {
        match self.perm(Who::Mask) {
            Some(_) => Who::Mask,
            None => Who::OwningGroup,
        }
    }

    /// The nine permission bits that an inode with this access ACL has.
    #[must_use]
    pub fn perm_bits(&self) -> u16 {
        [Who::Owner, self.group_class(), Who::Other]
            .into_iter()
            .fold(0, |bits, who| {
                bits << 3 | u16::from(self.perm(who).unwrap_or(0))
            })
    }

    /// Changes the list as a change of the permission bits to `perm` demands.
    pub fn set_perm_bits(&mut self, perm: u16) {
        for (who, shift) in [(Who::Owner, 6), (self.group_class(), 3), (Who::Other, 0)] {
            self.set_perm(who, (perm >> shift & 7) as u8);
        }
    }

    /// Whether the list says no more than its [`Acl::perm_bits`].
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.entries().len() == 3
    }

    /// The access ACL of a new inode that is asked for with the permission bits `perm`, in a directory
    /// with this default ACL: nothing is allowed that either of them does not allow.
    #[must_use]
    pub fn inherited(&self, perm: u16) -> Acl {
        let mut acl = self.clone();
        acl.set_perm_bits(self.perm_bits() & perm);
        acl
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::Caller;
    use crate::acl::Who;
    use crate::acl::tests::{list, sample};
    use std::sync::Arc;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: Arc::from(groups),
            ..Caller::root()
        }
    }

    #[test]
    fn the_first_class_decides_and_the_mask_limits_all_but_owner_and_others() {
        let acl = sample();
        let may = |who: &Caller, mask| acl.permits(who, 30, mask);
        assert!(may(&caller(10, 0, &[]), 6));
        assert!(
            !may(&caller(10, 20, &[30]), 1),
            "by name, whatever the groups give"
        );
        assert!(
            !may(&caller(11, 30, &[]), 4),
            "by name, though the group may"
        );
        assert!(may(&caller(12, 30, &[]), 4));
        assert!(may(&caller(12, 30, &[20]), 2), "any of the groups");
        assert!(!may(&caller(12, 30, &[20]), 6), "but one of them all of it");
        assert!(
            !may(&caller(12, 20, &[]), 1),
            "the mask takes execution away"
        );
        assert!(may(&caller(12, 12, &[]), 1));
        assert!(!may(&caller(12, 12, &[]), 4));
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let mut acl = sample();
        assert_eq!(acl.perm_bits(), 0o761);
        acl.set_perm_bits(0o640);
        assert_eq!(acl.perm_bits(), 0o640);
        assert_eq!(acl.perm(Who::Mask), Some(4));
        assert_eq!(
            acl.perm(Who::OwningGroup),
            Some(4),
            "the mask stands for the group"
        );
        let minimal = [(Who::Owner, 6), (Who::OwningGroup, 0), (Who::Other, 0)];
        let mut plain = list(&minimal).unwrap();
        plain.set_perm_bits(0o755);
        assert_eq!(plain.perm_bits(), 0o755);
        assert!(plain.is_minimal() && !sample().is_minimal());
    }

    #[test]
    fn an_inherited_list_allows_no_more_than_was_asked_for() {
        let acl = sample().inherited(0o640);
        assert_eq!(acl.perm_bits(), 0o640);
        assert_eq!(acl.perm(Who::User(10)), Some(6));
        assert_eq!(sample().inherited(0o777).perm_bits(), 0o761);
    }
}
