//! `rename` with every case of POSIX and of Linux's `renameat2` (CORNERS 28).
//!
//! Order of checks, as in Linux: `.` and `..`; both parents and names; source exists;
//! flags against the target; loops; same inode (nothing happens); permissions and
//! kinds at the source, then at the target; an empty target directory; `..` writable.

use super::perm::{WRITE, inherit};
use super::{Body, Node, Tree, TreeResult, is_dots};
use std::sync::Arc;
use steadfast_vfs::{Caller, Errno, FileKind, Ino, RenameMode, Time};

impl Tree {
    /// Whether `ancestor` is `ino` or a directory above it.
    fn is_above(&self, ancestor: Ino, mut ino: Ino) -> TreeResult<bool> {
        loop {
            if ino == ancestor {
                return Ok(true);
            }
            // A removed directory that is still open may have lost its parent.
            let Ok(node) = self.node(ino) else {
                return Ok(false);
            };
            let above = node.dir()?.parent;
            if above == ino {
                return Ok(false);
            }
            ino = above;
        }
    }

    /// Renames atomically.
    pub fn rename(
        &mut self,
        caller: &Caller,
        at: Time,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> TreeResult<()> {
        self.search(caller, from.0)?;
        self.search(caller, to.0)?;
        if is_dots(from.1) {
            return Err(Errno::Busy);
        }
        if is_dots(to.1) {
            let exists = mode.is_no_replace();
            return Err(if exists { Errno::Exist } else { Errno::Busy });
        }
        let source = self.find(caller, from.0, from.1)?.ok_or(Errno::NoEnt)?;
        let target = self.find(caller, to.0, to.1)?;
        match (mode, target) {
            (mode, Some(_)) if mode.is_no_replace() => return Err(Errno::Exist),
            (RenameMode::Exchange, None) => return Err(Errno::NoEnt),
            _ => {}
        }
        let exchange = mode == RenameMode::Exchange;
        let moves = from.0 != to.0;
        if moves && self.is_above(source, to.0)? {
            return Err(Errno::Inval);
        }
        if let Some(t) = target
            && moves
            && self.is_above(t, from.0)?
        {
            return Err(if exchange {
                Errno::Inval
            } else {
                Errno::NotEmpty
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        let source_is_dir = self.node(source)?.is_dir();
        let target_is_dir = match target {
            Some(t) => self.node(t)?.is_dir(),
            None => false,
        };
        self.may_delete(caller, from.0, source, source_is_dir)?;
        match target {
            None => self.may_add(caller, to.0)?,
            Some(t) => {
                let as_dir = if exchange {
                    target_is_dir
                } else {
                    source_is_dir
                };
                self.may_delete(caller, to.0, t, as_dir)?;
            }
        }
        // A directory that gets another parent has its '..' rewritten.
        if moves && source_is_dir {
            self.node(source)?.may(caller, WRITE)?;
        }
        if let Some(t) = target {
            if exchange && moves && target_is_dir {
                self.node(t)?.may(caller, WRITE)?;
            }
            if !exchange && target_is_dir && !self.node(t)?.dir()?.entries.is_empty() {
                return Err(Errno::NotEmpty);
            }
        }

        self.dir_mut(to.0)?.set(to.1, source);
        match target {
            Some(t) if exchange => self.dir_mut(from.0)?.set(from.1, t),
            _ if mode.leaves_whiteout() => self.white_out(caller, at, from)?,
            _ => self.dir_mut(from.0)?.unset(from.1),
        }
        if source_is_dir {
            self.adopt(source, from.0, to.0)?;
        }
        self.touch_dir(from.0, at);
        self.touch_dir(to.0, at);
        self.node_mut(source)?.ctime = at;
        if let Some(t) = target {
            if exchange {
                self.node_mut(t)?.ctime = at;
                if target_is_dir {
                    self.adopt(t, to.0, from.0)?;
                }
            } else {
                if target_is_dir {
                    self.node_mut(to.0)?.nlink -= 1;
                }
                self.drop_name(at, t)?;
            }
        }
        Ok(())
    }

    /// Replaces an entry by a new whiteout, which gets no ACL.
    fn white_out(
        &mut self,
        caller: &Caller,
        at: Time,
        (dir, name): (Ino, &[u8]),
    ) -> TreeResult<()> {
        let (gid, perm) = inherit(self.node(dir)?, caller, FileKind::CharDevice, 0);
        let whiteout = Node {
            kind: FileKind::CharDevice,
            perm,
            uid: caller.uid,
            gid,
            nlink: 1,
            rdev: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            xattrs: Arc::default(),
            body: Body::Special,
        };
        let ino = self.next_ino;
        self.nodes.insert(ino, whiteout);
        self.next_ino += 1;
        self.dir_mut(dir)?.set(name, ino);
        Ok(())
    }

    /// Directory `dir` goes from one parent to another: `..` and link counts follow.
    fn adopt(&mut self, dir: Ino, from: Ino, to: Ino) -> TreeResult<()> {
        if from != to {
            self.dir_mut(dir)?.parent = to;
            self.node_mut(from)?.nlink -= 1;
            self.node_mut(to)?.nlink += 1;
        }
        Ok(())
    }
}
