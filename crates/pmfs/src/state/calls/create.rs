//! New inodes: `create`, `nameless`, `symlink`.

use steadfast_vfs::FileKind;

use super::room::{NewName, Opened, Placed, Touch};
use crate::layout::{AttributePlace, INLINE_BYTES, InodeRef, PAGE_BYTES, PageKind};
use crate::state::inode::states::{Bodied, Init};
use crate::state::persist::{Brand, Clean, InFlight, fence};
use crate::state::{
    Adoption, Before, Bytes, Content, Descriptors, Error, FreeInode, FreePages, Inode, Medium,
    Newborn, Orphan, Result, Touches,
};

/// Extended attributes that an inode is born with.
#[must_use]
pub enum NewAttributes<'a, 'f> {
    /// At most 40 bytes, in the inode.
    Inline(&'a [u8]),
    /// In pages of its own.
    Pages {
        /// As many pages as the set needs.
        pages: Vec<FreePages<'f>>,
        /// The set.
        set: &'a [u8],
    },
}

/// An inode that is to be born.
#[must_use]
pub struct Birth<'a, 'f> {
    /// Which.
    pub inode: FreeInode<'f>,
    /// Its kind; symlinks have a call of their own.
    pub kind: FileKind,
    /// Permission bits, 12.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; of a device: its number. A symlink's is the length of its target.
    pub size_or_rdev: u64,
    /// Its four times.
    pub now: u64,
    /// Attributes that it inherits.
    pub attributes: Option<NewAttributes<'a, 'f>>,
}

/// A symlink's target.
#[must_use]
pub enum SymlinkTarget<'a, 'f> {
    /// At most 40 bytes, in the inode.
    Inline(&'a [u8]),
    /// In a page.
    Page {
        /// One page.
        page: FreePages<'f>,
        /// The target, at most 4096 bytes.
        target: &'a [u8],
    },
}

/// A new inode and its name.
#[must_use]
#[derive(Debug)]
pub struct Created {
    /// The inode.
    pub inode: InodeRef,
    /// Its name's place.
    pub placed: Placed,
}

/// Content that must be durable before the name.
struct Body<'a, 'f> {
    inline: &'a [u8],
    pages: Vec<(Adoption<'f>, &'a [u8])>,
    place: AttributePlace,
}

impl<'a, 'f> Body<'a, 'f> {
    fn of_attributes(attributes: NewAttributes<'a, 'f>) -> Result<Body<'a, 'f>> {
        Ok(match attributes {
            NewAttributes::Inline(set) => Body {
                inline: fit(set)?,
                pages: Vec::new(),
                place: AttributePlace::Inline,
            },
            NewAttributes::Pages { pages, set } => Body {
                inline: &[],
                pages: spread(pages, set, PageKind::Attributes)?,
                place: AttributePlace::Pages,
            },
        })
    }

    fn of_target(target: SymlinkTarget<'a, 'f>) -> Result<Body<'a, 'f>> {
        let (inline, pages) = match target {
            SymlinkTarget::Inline(target) => (fit(target)?, Vec::new()),
            SymlinkTarget::Page { page, target } => {
                (&[][..], spread(vec![page], target, PageKind::Data)?)
            }
        };
        Ok(Body {
            inline,
            pages,
            place: AttributePlace::None,
        })
    }
}

fn fit(inline: &[u8]) -> Result<&[u8]> {
    if inline.len() <= INLINE_BYTES {
        Ok(inline)
    } else {
        Err(Error::TooLong(inline.len()))
    }
}

/// Cuts bytes up for runs of pages. Runs that get none go back to the free space.
fn spread<'a, 'f>(
    pages: Vec<FreePages<'f>>,
    mut data: &'a [u8],
    kind: PageKind,
) -> Result<Vec<(Adoption<'f>, &'a [u8])>> {
    let mut spread = Vec::new();
    let mut offset = 0;
    for mut pages in pages {
        let wanted = (data.len() as u64).div_ceil(PAGE_BYTES);
        let pages = pages.split(wanted);
        if pages.len() == 0 {
            continue;
        }
        let (part, rest) = data.split_at(data.len().min((pages.len() * PAGE_BYTES) as usize));
        data = rest;
        let next = offset + pages.len();
        let adoption = Adoption {
            pages,
            offset,
            kind,
        };
        spread.push((adoption, part));
        offset = next;
    }
    if data.is_empty() {
        Ok(spread)
    } else {
        Err(Error::TooLong(data.len()))
    }
}

/// An inode whose body is in flight, too.
type WithBody<'i, P> = (
    Inode<'i, P, Bodied>,
    Option<(Content<'i, P>, Descriptors<'i, P, Before>)>,
);

/// The inode may be named: its body is durable.
fn complete<'i>((inode, pages): WithBody<'i, Clean>) -> Inode<'i, Clean, Init> {
    match pages {
        None => inode.complete_inline(),
        Some((content, descriptors)) => inode.complete(&descriptors, &content),
    }
}

/// A birth with a body, whose arguments are checked.
struct CheckedBirth<'a, 'f> {
    inode: FreeInode<'f>,
    new: Newborn<'a>,
    body: Body<'a, 'f>,
}

/// A birth without a body, whose arguments are checked.
pub(super) struct PlainBirth<'f> {
    inode: FreeInode<'f>,
    new: Newborn<'static>,
}

impl<'a, 'f> Birth<'a, 'f> {
    /// Of an inode with attributes that is no symlink.
    fn check(mut self) -> Result<CheckedBirth<'a, 'f>> {
        match (self.kind, self.attributes.take()) {
            (FileKind::Symlink, _) | (_, None) => Err(Error::WrongKind),
            (_, Some(attributes)) => Ok(self.with(Body::of_attributes(attributes)?)),
        }
    }

    /// Of one without attributes.
    #[inline]
    pub(super) fn check_plain(self) -> Result<PlainBirth<'f>> {
        if self.kind == FileKind::Symlink || self.attributes.is_some() {
            return Err(Error::WrongKind);
        }
        Ok(PlainBirth {
            new: self.newborn(AttributePlace::None, &[]),
            inode: self.inode,
        })
    }

    fn with(self, body: Body<'a, 'f>) -> CheckedBirth<'a, 'f> {
        CheckedBirth {
            new: self.newborn(body.place, body.inline),
            inode: self.inode,
            body,
        }
    }

    #[inline]
    fn newborn<'b>(&self, attributes: AttributePlace, inline: &'b [u8]) -> Newborn<'b> {
        Newborn {
            kind: self.kind,
            perm: self.perm,
            uid: self.uid,
            gid: self.gid,
            size_or_rdev: self.size_or_rdev,
            now: self.now,
            attributes,
            inline,
        }
    }
}

impl PlainBirth<'_> {
    /// The inode, in flight.
    #[inline]
    pub(super) fn bear(self, brand: Brand<'_>) -> Inode<'_, InFlight, Init> {
        Inode::free(brand, self.inode).init(&self.new).flush()
    }
}

impl CheckedBirth<'_, '_> {
    /// Stores the inode with its body: content, descriptors and both lines share a fence, which comes before the name.
    fn bear(self, brand: Brand<'_>) -> WithBody<'_, InFlight> {
        let inode = Inode::free(brand, self.inode).init_bodied(&self.new);
        if self.body.pages.is_empty() {
            return (inode.flush(), None);
        }
        let mut content = Content::of(&inode);
        let mut descriptors = Descriptors::of_newborn(&inode);
        for (adoption, data) in self.body.pages {
            content = content.write_free(&adoption.pages, Bytes::Data(data));
            descriptors = descriptors.adopt(adoption);
        }
        let descriptors = descriptors.flush();
        (inode.flush(), Some((content, descriptors)))
    }
}

/// Creates a file, directory, device, pipe or socket.
///
/// Plan: `inode, slot` with one fence. If the name comes first, its inode has a generation that was never born, and recovery
/// drops the name; if the inode comes first, nothing names it. With attributes, they must be there when the name is:
/// `attributes, inode | slot`. A long name's rest and a new page's zeros come first, too. (SquirrelFS §3.3 has two fences,
/// because an inode's number says nothing about its life.)
///
/// # Errors
/// Before the first store: [`Error::WrongKind`] for a symlink, [`Error::TooLong`], [`Error::Stale`] for the directory,
/// [`Error::TagsExhausted`].
pub fn create(
    m: &Medium,
    birth: Birth<'_, '_>,
    name: NewName<'_, '_>,
    touch: Touch,
) -> Result<Created> {
    let mut touches = Touches::new(m);
    touches.directory(touch.dir, touch.now)?;
    if birth.attributes.is_some() {
        return create_bodied(m, birth.check()?, name, touches);
    }
    let birth = birth.check_plain()?;
    m.brands3(|i, d, s| {
        let name = name.check(d)?;
        let inode = birth.bear(i);
        let opened = name.prepare(s).settle(m);
        let slot = opened.slot.commit(&inode).flush();
        let stamps = touches.stamp().flush();
        let (inode, slot, page, _) = fence(m, (inode, slot, opened.page, stamps));
        Ok(Created {
            inode: inode.inode(),
            placed: Placed::new(&slot, page),
        })
    })
}

/// Creates something with attributes.
fn create_bodied(
    m: &Medium,
    birth: CheckedBirth<'_, '_>,
    name: NewName<'_, '_>,
    touches: Touches<'_>,
) -> Result<Created> {
    m.brands3(|i, d, s| {
        let name = name.check(d)?;
        let body = birth.bear(i);
        let (opened, body) = name.prepare(s).settle_with(m, body);
        Ok(name_complete(m, complete(body), opened, touches))
    })
}

/// The second half of a creation whose first half is durable.
fn name_complete<'i>(
    m: &Medium,
    inode: Inode<'i, Clean, Init>,
    opened: Opened<'_, '_>,
    touches: Touches<'_>,
) -> Created {
    let slot = opened.slot.commit(&inode).flush();
    let stamps = touches.stamp().flush();
    let (slot, page, _) = fence(m, (slot, opened.page, stamps));
    Created {
        inode: inode.inode(),
        placed: Placed::new(&slot, page),
    }
}

/// Makes an inode without a name, for `O_TMPFILE`: an orphan until [`link`](super::link) names it.
///
/// Plan: `attributes, inode` with one fence, so that a later `link` names something durable.
///
/// # Errors
/// Before the first store: [`Error::WrongKind`] for a symlink, [`Error::TooLong`].
pub fn nameless(m: &Medium, birth: Birth<'_, '_>) -> Result<Orphan> {
    if birth.attributes.is_some() {
        let birth = birth.check()?;
        return Ok(m.brand(|i| complete(fence(m, birth.bear(i))).nameless().last()));
    }
    let birth = birth.check_plain()?;
    Ok(m.brand(|i| fence(m, birth.bear(i)).nameless().last()))
}

/// Makes a symlink. `birth.kind`, its size and its attributes are set by the target.
///
/// Plan: `target, descriptor, inode | slot`: a link that is there has its target. The rest of a long name and the zeros of a
/// new page share the first fence. (With the descriptor in the fence of the name, a crash shows a link without a target.)
///
/// # Errors
/// Before the first store: [`Error::TooLong`], [`Error::Stale`] for the directory, [`Error::TagsExhausted`].
pub fn symlink(
    m: &Medium,
    birth: Birth<'_, '_>,
    target: SymlinkTarget<'_, '_>,
    name: NewName<'_, '_>,
    touch: Touch,
) -> Result<Created> {
    let len = match &target {
        SymlinkTarget::Inline(target) | SymlinkTarget::Page { target, .. } => target.len(),
    };
    let birth = Birth {
        kind: FileKind::Symlink,
        size_or_rdev: len as u64,
        attributes: None,
        ..birth
    };
    let body = Body::of_target(target)?;
    let mut touches = Touches::new(m);
    touches.directory(touch.dir, touch.now)?;
    m.brands3(|i, d, s| {
        let name = name.check(d)?;
        let body = birth.with(body).bear(i);
        let (opened, body) = name.prepare(s).settle_with(m, body);
        Ok(name_complete(m, complete(body), opened, touches))
    })
}
