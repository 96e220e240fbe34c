//! Access times as `relatime` has them: a read is noted if it is the first since the last
//! change, or a day after the last one that was noted.
//!
//! Reads relate to nothing, so a noted read is no operation of the reader's stream: it waits in memory (`notes::Notes`), where
//! `getattr` finds it, and is written at a sync of everything, at unmount, and when too many wait. It is written in
//! a stream of its own, which is committed at once, and only while no stream has an uncommitted change of the inode; so no
//! two streams form one order by it. A crash loses the notes that wait.
//!
//! A note belongs to an inode's generation. An operation that sets the time of access takes the note away with the commit.

use super::object;
use crate::error::from_journal;
use crate::layout::{DiskInode, DiskTime};
use crate::mounted::Mounted;
use crate::notes::Note;
use crate::pages::COST_INODE;
use crate::work::Work;
use steadfast_journal::{Access, Credits};
use steadfast_vfs::{Attr, Errno, Ino, InodeFlags, Result, Stream, Time};

/// A read is noted after so long in any case.
const NOTED_EVERY_SECS: i64 = 24 * 3600;
/// The stream that notes are written in. No front end has it.
const NOTES_STREAM: Stream = Stream(u32::MAX);

/// Result of writing a note.
#[derive(PartialEq, Eq)]
enum Written {
    /// The inode has it, or is gone.
    Done,
    /// A stream has an uncommitted change of the inode.
    NotNow,
}

impl Mounted {
    /// Notes a read, if it is due.
    pub(crate) fn op_accessed(&self, ino: Ino) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut disk = self.read_inode(ino)?;
        if let Some(note) = self.notes.of(ino, &disk) {
            disk.atime = note.atime;
        }
        let now = self.now();
        if disk.flags().has(InodeFlags::NOATIME) || !is_due(&disk, now) {
            return Ok(());
        }
        let note = Note {
            generation: disk.generation.get(),
            atime: now,
        };
        if !self.notes.add(ino, note) {
            return Ok(());
        }
        self.write_notes(true)?;
        let stream = self.store.stream(NOTES_STREAM);
        self.store.journal.sync_stream(stream).map_err(from_journal)
    }

    /// All notes are in operations, before everything is committed for good.
    ///
    /// # Errors
    /// As for [`Mounted::write_notes`].
    pub(crate) fn write_last_notes(&self) -> Result<()> {
        self.write_notes(false)?;
        if self.notes.is_empty() {
            return Ok(());
        }
        self.store.journal.sync_all().map_err(from_journal)?;
        self.write_notes(true)
    }

    /// Writes the notes that wait, except those of inodes with uncommitted changes; these wait on, or are
    /// dropped to `make_room`. The caller commits them. Hold no lock and no operation.
    ///
    /// # Errors
    /// EIO, EUCLEAN, EROFS.
    pub(crate) fn write_notes(&self, make_room: bool) -> Result<()> {
        for (ino, note) in self.notes.all() {
            let written = match self.write_note(ino, note) {
                Err(error) if error == Errno::Stale => Written::Done,
                written => written?,
            };
            if make_room || written == Written::Done {
                self.notes.remove(ino, Some(note));
            }
        }
        Ok(())
    }

    fn write_note(&self, ino: Ino, note: Note) -> Result<Written> {
        let mut work = self.store.begin(NOTES_STREAM, Credits::log(COST_INODE))?;
        let inode = self.inode(ino);
        let _lock = inode.exclusive();
        let mut node = self.node(ino)?;
        if node.old.generation.get() != note.generation || node.old.atime == note.atime {
            return Ok(Written::Done);
        }
        let object = object(ino, &node.old);
        let changed_by = self.store.journal.stream_of(object);
        if changed_by.is_some_and(|stream| stream != work.stream()) {
            return Ok(Written::NotNow);
        }
        work.relate(object, Access::Shared);
        node.new.atime = note.atime;
        node.store(&mut work)?;
        work.commit();
        Ok(Written::Done)
    }

    /// The operation sets the time of access.
    pub(super) fn forget_note<'a>(&'a self, work: &mut Work<'a>, ino: Ino) {
        work.on_end(move |ticket| {
            if ticket.is_some() {
                self.notes.remove(ino, None);
            }
        });
    }

    /// An inode's attributes, its noted read included; `delayed` as in [`DiskInode::attr`].
    pub(super) fn attr_of(&self, ino: Ino, disk: &DiskInode, delayed: u64) -> Attr {
        let mut attr = disk.attr(ino, delayed);
        if let Some(note) = self.notes.of(ino, disk) {
            attr.atime = note.atime.into();
        }
        attr
    }
}

fn is_due(disk: &DiskInode, now: DiskTime) -> bool {
    let time = Time::from;
    let atime = time(disk.atime);
    atime <= time(disk.mtime)
        || atime <= time(disk.ctime)
        || time(now).secs.saturating_sub(atime.secs) >= NOTED_EVERY_SECS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DiskInode;
    use zerocopy::FromZeros;

    fn at(secs: i64) -> DiskTime {
        Time { secs, nanos: 0 }.into()
    }

    #[test]
    fn the_first_read_after_a_change_and_one_a_day_are_noted() {
        let mut disk = DiskInode::new_zeroed();
        (disk.atime, disk.mtime, disk.ctime) = (at(100), at(100), at(100));
        assert!(is_due(&disk, at(100)), "never read");
        disk.atime = at(101);
        assert!(!is_due(&disk, at(102)), "read since it was changed");
        disk.ctime = at(103);
        assert!(is_due(&disk, at(104)), "changed since");
        disk.atime = at(200);
        assert!(!is_due(&disk, at(200 + NOTED_EVERY_SECS - 1)));
        assert!(is_due(&disk, at(200 + NOTED_EVERY_SECS)));
        disk.atime = at(i64::MAX);
        assert!(!is_due(&disk, at(i64::MIN)));
    }
}
