//! The steps of the programs in `compile_fail`, in the right order.

use steadfast_pmfs::layout::InodeRef;
use steadfast_pmfs::state::dentry::states::{Committed, From, Live, Named, Swap};
use steadfast_pmfs::state::dirpage::states::{Opened, Zeroed};
use steadfast_pmfs::state::inode::states::{self as inode, Bodied, Changed, Free, Init};
use steadfast_pmfs::state::line::LineWriter;
use steadfast_pmfs::state::persist::{Brand, Clean, Dirty, InFlight, fence, order};
use steadfast_pmfs::state::*;

pub fn line(mut line: LineWriter<'_>) {
    line.word(8, 2);
    line.commit(0, 1);
}

pub fn create<'s, 'i>(
    m: &Medium,
    slot: Dentry<'s, Clean, dentry::states::Free>,
    name: ShortName<'_>,
    tag: NewTag,
    inode: Inode<'i, Clean, Free>,
    new: &Newborn<'_>,
) -> Dentry<'s, Clean, Committed<'i, dentry::states::New>> {
    let inode = inode.init(new).flush();
    let slot = slot.name(name, tag).commit(&inode).flush();
    fence(m, (inode, slot)).1
}

pub fn long_name<'s>(
    m: &Medium,
    slot: Dentry<'s, Clean, dentry::states::Free>,
    name: &LongName<'_>,
    tag: NewTag,
) -> Dentry<'s, Dirty, Named> {
    order(m, slot.continue_name(name).flush()).name(name, tag)
}

pub fn new_page<'d>(
    m: &Medium,
    page: DirPage<'d, InFlight, Zeroed>,
    slot: Brand<'_>,
) -> DirPage<'d, InFlight, Opened> {
    let (page, _slot) = order(m, page).adopt(0).flush().open(slot);
    page
}

pub fn symlink<'s, 'i>(
    m: &Medium,
    slot: Dentry<'s, Dirty, Named>,
    inode: Inode<'i, InFlight, Bodied>,
    target: Descriptors<'i, InFlight, Before>,
    content: Content<'i, InFlight>,
) -> Dentry<'s, InFlight, Committed<'i, dentry::states::New>> {
    let (inode, target, content) = order(m, (inode, target, content));
    slot.commit(&inode.complete(&target, &content)).flush()
}

pub fn rename<'i>(m: &Medium, new: Dentry<'_, Dirty, Named>, old: Dentry<'_, Clean, Live<'i>>) {
    let new = order(m, new.aim(&old).commit().flush());
    let old = fence(m, old.clear(&new).flush());
    let _ = old.freed();
}

pub fn clear<'s, 'i>(
    new: &Dentry<'_, Clean, Committed<'i, From<'s>>>,
    old: Dentry<'s, Clean, Live<'i>>,
) {
    let _ = old.clear(new);
}

pub fn exchange<'i, 'j>(
    m: &Medium,
    one: Dentry<'_, Clean, Live<'i>>,
    other: Dentry<'_, Clean, Live<'j>>,
    tags: [NewTag; 2],
) {
    let [first, second] = tags;
    let other = order(m, other.aim_exchange(&one, first).commit().flush());
    let _ = fence(m, one.swap(&other, second).flush());
}

pub fn swap<'s, 'i, 'j>(
    one: Dentry<'s, Clean, Live<'i>>,
    other: &Dentry<'_, Clean, Committed<'i, Swap<'s, 'j>>>,
    tag: NewTag,
) {
    let _ = one.swap(other, tag);
}

pub fn whiteout<'i>(
    new: Dentry<'_, Dirty, Named>,
    old: &Dentry<'_, Clean, Live<'i>>,
    whiteout: &Inode<'_, Clean, Init>,
) {
    let _ = new.aim_swap(old, whiteout).commit();
}

pub fn remove<'i>(m: &Medium, slots: &mut SlotMap, slot: Dentry<'_, Clean, Live<'i>>) -> Orphan {
    let (freed, unlinked) = fence(m, slot.remove().flush()).freed();
    slots.add(freed);
    unlinked.last()
}

pub fn rmdir<'i>(gone: &Inode<'i, Clean, inode::Live>, run: PageRun) -> Result<()> {
    let run = gone.directory_run(run)?;
    let _ = Descriptors::killed(gone).kill(&run);
    Ok(())
}

#[allow(clippy::too_many_arguments)]
pub fn write<'i>(
    m: &Medium,
    space: &FreeSpace,
    inode: Inode<'i, Clean, inode::Live>,
    new: &Attributes,
    pages: Adoption<'_>,
    old: Extent,
    to: &Hidden<'i>,
    data: &[u8],
    inline: Inline<'i, Dirty>,
) -> Result<()> {
    let (next, old) = (inode.next()?, inode.owned(old)?);
    let content = Content::of(&inode).write(to, Bytes::Data(data));
    let pages = Descriptors::before(&inode, next)
        .adopt(pages)
        .die(&old)
        .flush();
    let (content, pages, inline) = order(m, (content, pages, inline.flush()));
    let ready = Ready {
        content: Some(content),
        descriptors: Some(pages),
        inline: Some(inline),
    };
    let inode = inode.commit(next, new, &Times::default(), &ready, None);
    let inode: Inode<'i, Clean, Changed> = fence(m, inode.flush());
    space.add(ready.freed(&inode));
    Ok(())
}

pub fn truncate<'i>(
    m: &Medium,
    space: &FreeSpace,
    inode: Inode<'i, Clean, inode::Live>,
    new: &Attributes,
    old: Extent,
) -> Result<()> {
    let (next, old) = (inode.next()?, inode.owned(old)?.unseen(new.size)?);
    let pages = Descriptors::beside(&inode, next).trim(&old).flush();
    let ready = Ready::default();
    let inode = inode.commit(next, new, &Times::default(), &ready, Some(&pages));
    let (inode, pages) = fence(m, (inode.flush(), pages));
    space.add(pages.freed(&inode));
    Ok(())
}

pub fn mount(m: &Medium, repairs: &[Repair], survey: Survey) -> Result<FreeSpace> {
    Ok(FreeSpace::new(m, recover(m, repairs, survey)?))
}

pub fn brands(m: &Medium, one: InodeRef, other: InodeRef) -> Result<(u64, u64)> {
    m.brands2(|i, j| Ok((Inode::live(i, one)?.size(), Inode::live(j, other)?.size())))
}

pub fn clean_in_another_thread(inode: Inode<'_, Clean, Init>) {
    std::thread::scope(|scope| {
        scope.spawn(move || inode.inode());
    });
}

fn main() {}
