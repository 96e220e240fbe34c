//! The search for the newest root.
//!
//! Roots lie in the anchors, page after page, and each is durable before the next one is programmed. The
//! search reads each anchor up to two erased pages in a row. A damaged page does not end the search:
//! newer roots may lie after it.
//!
//! A damaged page may be the newest root if it lies after the newest whole one in its anchor, or in an anchor without
//! any: anchors are filled one after the other. It was torn by a crash or has rotted. The mount looks further then
//! (`past`).

use crate::checkpoint::{NUMBERS, ROOT_SEAL};
use crate::error::{FtlError, Result};
use crate::ftl::Faults;
use crate::limits::ANCHORS;
use crate::map::corrupt_at;
use crate::platform::{Page, Platform, Word};
use crate::shape::Shape;
use crate::tag::{self, Tag};

/// A root, and the anchor that it lies in.
pub(crate) type Root<P> = (
    <P as Platform>::W,
    Tag<<P as Platform>::W>,
    <P as Platform>::P,
);

/// Content of the anchors.
pub(crate) struct Roots<P: Platform> {
    /// The newest whole root.
    pub(crate) newest: Option<Root<P>>,
    /// A damaged page that may have been a newer one.
    pub(crate) damaged: Option<P::W>,
}

/// Content of a page of an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anchored {
    Root,
    Erased,
    Damaged,
}

/// Reads the anchors.
pub(crate) fn find_roots<P: Platform>(
    platform: &mut P,
    shape: &Shape,
    faults: &Faults,
) -> Result<Roots<P>, P::Error> {
    let mut newest = None;
    let mut last = [None; ANCHORS as usize];
    let mut first = None;
    for (anchor, behind) in (0..).zip(&mut last) {
        let mut erased = 0;
        let mut roots = false;
        for index in 0..shape.pages {
            let [anchor, index] = [anchor, index].map(P::W::of);
            match look_for_root(platform, shape, anchor, index, &mut newest)? {
                Anchored::Root => (erased, roots, *behind) = (0, true, None),
                Anchored::Erased => erased += 1,
                Anchored::Damaged => {
                    erased = 0;
                    *behind = behind.or(Some(shape.page_at(anchor, index)));
                    if faults.damaged_root_ends {
                        break;
                    }
                }
            }
            if erased == 2 {
                break;
            }
        }
        if !roots {
            first = first.or(*behind);
        }
    }
    platform.arrive();
    let own = (newest.as_ref()).and_then(|(anchor, ..): &Root<P>| {
        let number = (0..ANCHORS).find(|&other| P::W::of(other) == *anchor);
        number.and_then(|number| last[number as usize])
    });
    let damaged = own.or(first);
    Ok(Roots { newest, damaged })
}

/// Returns the kind of page here, and takes a root if it is newer than the one so far.
pub(crate) fn look_for_root<P: Platform>(
    platform: &mut P,
    shape: &Shape,
    anchor: P::W,
    index: P::W,
    newest: &mut Option<Root<P>>,
) -> Result<Anchored, P::Error> {
    let n = P::W::of;
    let at = shape.page_at(anchor, index);
    let Some(page) = platform.fetch(at).map_err(FtlError::Flash)? else {
        return Ok(Anchored::Damaged);
    };
    if page.is_blank() {
        return Ok(Anchored::Erased);
    }
    let tag = Tag::read(shape, n(ROOT_SEAL), at, &page)
        .filter(|tag| tag.is(tag::ROOT) && tag.number < n(NUMBERS));
    let Some(tag) = tag else {
        return Ok(Anchored::Damaged);
    };
    if (newest.as_ref()).is_none_or(|(_, other, _)| tag.number > other.number) {
        *newest = Some((anchor, tag, page));
    }
    Ok(Anchored::Root)
}

/// Reason why a memory without a root is no disk: it never was one, or the medium is damaged.
///
/// From the first format on there is a whole root at every crash (`Ftl::clear`). So if any block holds a page
/// of the layer, the roots were lost.
pub(crate) fn no_root<P: Platform>(
    platform: &mut P,
    shape: &Shape,
    damaged: Option<P::W>,
) -> Result<FtlError<P::Error>, P::Error> {
    let used = any_first_page(platform, shape, |_, page| Tag::is_marked(shape, page))?;
    let n = P::W::of;
    let at = damaged.unwrap_or(shape.page_at(n(0), n(0)));
    Ok(if used {
        corrupt_at(shape, "root", at)
    } else {
        FtlError::NotFormatted
    })
}

/// Reason why there is no disk, by the newest root: there never was one, or the root after that one is damaged.
///
/// A format writes no data page, and returns when a root leads to the disk. So a data page of this volume
/// says that there was such a root.
pub(crate) fn vacant<P: Platform>(
    platform: &mut P,
    shape: &Shape,
    volume: P::W,
    damaged: Option<P::W>,
) -> Result<FtlError<P::Error>, P::Error> {
    let Some(damaged) = damaged else {
        return Ok(FtlError::NotFormatted);
    };
    let used = any_first_page(platform, shape, |at, page| {
        Tag::read(shape, volume, at, page).is_some_and(|tag| tag.is_data())
    })?;
    Ok(if used {
        corrupt_at(shape, "root", damaged)
    } else {
        FtlError::NotFormatted
    })
}

/// Whether this holds of the first page of any block but the anchors.
fn any_first_page<P: Platform>(
    platform: &mut P,
    shape: &Shape,
    holds: impl Fn(P::W, &P::P) -> bool,
) -> Result<bool, P::Error> {
    for block in ANCHORS..shape.blocks {
        let at = shape.page_at(P::W::of(block), P::W::of(0));
        let page = platform.fetch(at).map_err(FtlError::Flash)?;
        if page.is_some_and(|page| holds(at, &page)) {
            platform.arrive();
            return Ok(true);
        }
    }
    platform.arrive();
    Ok(false)
}
