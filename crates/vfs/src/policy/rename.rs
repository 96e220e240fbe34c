//! The checks of a rename, in Linux's order, once both names have been looked up.

use super::{EXEC, Subject, WRITE, may_grow, not_fixed, sticky};
use crate::{Caller, Errno, RenameMode, Result};

/// Inodes that a rename concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The directory of the old name.
    pub from: Subject,
    /// The directory of the new name.
    pub to: Subject,
    /// Whether these are two.
    pub moves: bool,
    /// Whether `to` still has a name.
    pub to_alive: bool,
    /// Inode of the old name.
    pub source: Subject,
    /// The inode of the new name, if there is one; not the source.
    pub target: Option<Subject>,
}

/// One of the inodes that a rename concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// The directory of the old name.
    From,
    /// The directory of the new name.
    To,
    /// The renamed inode.
    Source,
    /// The replaced or exchanged inode.
    Target,
}

/// Whether the mode allows a target, or can do without one: the first check.
///
/// # Errors
/// EEXIST, ENOENT.
pub fn check_target(mode: RenameMode, has_target: bool) -> Result<()> {
    match (mode, has_target) {
        (mode, true) if mode.is_no_replace() => Err(Errno::Exist.into()),
        (RenameMode::Exchange, false) => Err(Errno::NoEnt.into()),
        _ => Ok(()),
    }
}

/// Whether the caller may rename, and kinds fit. `require` says whether the caller has permission.
/// Returns whether the target is a directory that has to be empty, the last check.
///
/// # Errors
/// EPERM, ENOENT for a directory that was removed, ENOTDIR, EISDIR, and those of `require`.
pub fn may_rename(
    caller: &Caller,
    renamed: &Renamed,
    mode: RenameMode,
    mut require: impl FnMut(Party, u8) -> Result<()>,
) -> Result<bool> {
    let Renamed {
        from,
        to,
        moves,
        to_alive,
        source,
        target,
    } = *renamed;
    let exchange = mode == RenameMode::Exchange;
    require(Party::From, WRITE | EXEC)?;
    not_fixed(&from)?;
    not_fixed(&source)?;
    sticky(caller, &from, &source)?;
    match target {
        None => {
            if !to_alive {
                return Err(Errno::NoEnt.into());
            }
            may_grow(&to)?;
            require(Party::To, WRITE | EXEC)?;
        }
        Some(target) => {
            require(Party::To, WRITE | EXEC)?;
            not_fixed(&to)?;
            not_fixed(&target)?;
            sticky(caller, &to, &target)?;
            match (exchange, source.is_dir(), target.is_dir()) {
                (false, true, false) => return Err(Errno::NotDir.into()),
                (false, false, true) => return Err(Errno::IsDir.into()),
                _ => {}
            }
        }
    }
    // A directory that gets another `..` is itself written to.
    if moves && source.is_dir() {
        require(Party::Source, WRITE)?;
    }
    match target {
        Some(target) if exchange && moves && target.is_dir() => {
            require(Party::Target, WRITE)?;
            Ok(false)
        }
        Some(target) => Ok(!exchange && target.is_dir()),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::tests::{caller, dir, file};

    fn asked(renamed: &Renamed, mode: RenameMode) -> (Result<bool>, Vec<(Party, u8)>) {
        let mut asked = Vec::new();
        let result = may_rename(&caller(5, 5, &[]), renamed, mode, |party, mask| {
            asked.push((party, mask));
            Ok(())
        });
        (result, asked)
    }

    #[test]
    fn directories_that_move_are_written_to_and_those_replaced_must_be_empty() {
        let (d, f) = (dir(0o777, 1, 1), file(0o644, 1, 1));
        let renamed = Renamed {
            from: d,
            to: d,
            moves: true,
            to_alive: true,
            source: d,
            target: Some(d),
        };
        let both = WRITE | EXEC;
        let (result, parties) = asked(&renamed, RenameMode::Replace);
        assert!(result.unwrap());
        let sides = [(Party::From, both), (Party::To, both)];
        assert_eq!(parties[..2], sides);
        assert_eq!(parties[2..], [(Party::Source, WRITE)]);
        let (result, parties) = asked(&renamed, RenameMode::Exchange);
        assert!(!result.unwrap());
        let children = [(Party::Source, WRITE), (Party::Target, WRITE)];
        assert_eq!(parties[2..], children);
        let stays = Renamed {
            moves: false,
            ..renamed
        };
        assert_eq!(asked(&stays, RenameMode::Exchange).1, sides);
        let over = |source, target| {
            let renamed = Renamed {
                source,
                target: Some(target),
                ..stays
            };
            asked(&renamed, RenameMode::Replace).0.map_err(|e| e.errno)
        };
        assert_eq!(over(d, f), Err(Errno::NotDir));
        assert_eq!(over(f, d), Err(Errno::IsDir));
        assert_eq!(over(f, f), Ok(false));
    }

    #[test]
    fn nothing_new_comes_into_a_removed_directory() {
        let (d, f) = (dir(0o777, 1, 1), file(0o644, 1, 1));
        let renamed = Renamed {
            from: d,
            to: d,
            moves: true,
            to_alive: false,
            source: f,
            target: None,
        };
        let (result, _) = asked(&renamed, RenameMode::Replace);
        assert!(result.is_err_and(|e| e == Errno::NoEnt));
    }
}
