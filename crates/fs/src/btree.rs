//! B+trees of [`Item`]s: extents of files, indexes of directories. The root lies in the
//! inode's body, the other nodes are sealed metadata blocks (see `layout`).
//!
//! Shape: all leaves are at level 0; a separator is a lower bound of the keys below it, and
//! the next separator is above them; the first separator of a node is the node's own lower
//! bound (0 on the left edge); no node block is empty; a root above level 0 has more
//! than one child or a child too full to move up. Items do not overlap: `key + len` is at
//! most the next key, wherever that lies.
//!
//! Every node is checked against all of this when it is read, levels strictly descend, so
//! that a hostile image gives EUCLEAN and never a panic or an endless walk (corner 35).
//! Changing a node relates its block exclusively (corner 57); the caller relates the root's inode.
//!
//! Functions that change a tree work on a copy of the body, which the caller stores with
//! the same work. They return by how many node blocks the tree grew or shrank.

use crate::error::damaged;
use crate::layout::{
    INLINE_BYTES, Item, NODE_ITEMS, NODE_MAGIC, NodeHeader, ROOT_ITEMS, TREE_LEVEL_MAX,
};
use crate::reader::Reader;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use std::ops::ControlFlow;
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{Access, Kind, Object};
use steadfast_vfs::{Errno, Error, Result};
use zerocopy::{FromBytes, IntoBytes};

/// The root of a tree, as it lies in an inode.
pub(crate) type Body = [u8; INLINE_BYTES];

const HEADER: usize = size_of::<NodeHeader>();
const ITEM: usize = size_of::<Item>();

/// Most log bytes that inserting, replacing or removing one item takes in a tree of this
/// level, besides the body: every node on the way rewritten and split, and the root moved
/// down. Each further change next to it takes a few items' bytes more.
pub(crate) fn change_credits(level: u16) -> u64 {
    let ranges = 2 * (COST_BLOCK + 3 * COST_RANGE);
    let node = ranges + NODE_BYTES * 3 / 2 + COST_BITS + COST_FREE + COST_BLOCK;
    let new_root =
        2 * COST_BLOCK + COST_RANGE + (HEADER + NODE_ITEMS.min(8) * ITEM) as u64 + COST_BITS;
    u64::from(level) * node + new_root
}

/// Most log bytes that emptying nodes from their ends takes per item: its own, and those of
/// its node and of the node's place above it, as if it were the last one there.
pub(crate) const REMOVE_LAST_CREDITS: u64 =
    2 * ITEM as u64 + COST_BLOCK + 2 * COST_RANGE + COST_BITS + COST_FREE + COST_BLOCK;

/// Bytes of a full node.
const NODE_BYTES: u64 = (HEADER + NODE_ITEMS * ITEM) as u64;

/// An empty tree.
pub(crate) fn empty() -> Body {
    let mut body = [0; INLINE_BYTES];
    encode(
        &Node {
            level: 0,
            items: Vec::new(),
        },
        &mut body,
    );
    body
}

/// A tree with one item.
pub(crate) fn of(item: &Item) -> Body {
    let mut body = [0; INLINE_BYTES];
    let node = Node {
        level: 0,
        items: vec![*item],
    };
    encode(&node, &mut body);
    body
}

/// A node, decoded and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// 0 for leaves.
    pub(crate) level: u16,
    /// Sorted by key.
    pub(crate) items: Vec<Item>,
}

impl Node {
    /// Number of the last item whose key is at most `key`.
    fn position_le(&self, key: u64) -> Option<usize> {
        position_le(&self.items, key)
    }
}

/// Number of the last item whose key is at most `key`.
fn position_le(items: &[Item], key: u64) -> Option<usize> {
    items
        .partition_point(|item| item.key.get() <= key)
        .checked_sub(1)
}

/// Place of a node, and its demands on the node.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: Option<BlockNo>,
    level: u16,
    low: u64,
    high: u64,
}

impl Place {
    fn name(&self) -> String {
        match self.at {
            Some(at) => format!("tree node in block {at}"),
            None => "tree root in an inode".into(),
        }
    }

    /// The place of child `index` of the node here.
    fn child(&self, node: &Node, index: usize) -> Place {
        self.child_of(node.level, &node.items, index)
    }

    fn child_of(&self, level: u16, items: &[Item], index: usize) -> Place {
        let item = &items[index];
        Place {
            at: Some(BlockNo(item.block.get())),
            level: level.saturating_sub(1),
            low: item.key.get(),
            high: items
                .get(index + 1)
                .map_or(self.high, |next| next.key.get()),
        }
    }
}

/// Checks a node of at most `max` items in `bytes`: its level and its items, where they are.
fn view<'b>(
    volume: &Volume,
    bytes: &'b [u8],
    max: usize,
    place: &Place,
) -> Result<(u16, &'b [Item])> {
    let bad = |why: String| Err(damaged(format!("{}: {why}", place.name())));
    let Ok((header, rest)) = NodeHeader::ref_from_prefix(bytes) else {
        return bad("it is too short".into());
    };
    if header.magic.get() != NODE_MAGIC || header.reserved.get() != 0 {
        return bad("it has no node's header".into());
    }
    let level = header.level.get();
    if place.at.is_some() && level != place.level || level > TREE_LEVEL_MAX {
        return bad(format!("its level is {level}, expected {}", place.level));
    }
    let count = usize::from(header.count.get());
    if count > max || (count == 0 && (place.at.is_some() || level > 0)) {
        return bad(format!("it has {count} items, {max} are the most"));
    }
    let Ok((items, _)) = <[Item]>::ref_from_prefix_with_elems(rest, count) else {
        return bad("it is too short".into());
    };
    let mut low = place.low;
    for (index, item) in items.iter().enumerate() {
        let (key, len, block) = (item.key.get(), u64::from(item.len.get()), item.block.get());
        // A run may reach beyond the next separator (a lower bound), not beyond the next run.
        let run = if level == 0 { len } else { 1 };
        let misplaced = level > 0 && index == 0 && key != low;
        let end = key.checked_add(run);
        let (Some(end), false) = (end, key < low || key >= place.high || run == 0 || misplaced)
        else {
            return bad(format!(
                "item {index} (key {key}, length {len}) is out of order"
            ));
        };
        low = end;
        if !volume.run_is_data(BlockNo(block), run) {
            return bad(format!(
                "item {index} points to block {block}, which cannot belong to a file"
            ));
        }
    }
    Ok((level, items))
}

/// Decodes and checks a node of at most `max` items in `bytes`.
fn decode(volume: &Volume, bytes: &[u8], max: usize, place: &Place) -> Result<Node> {
    let (level, items) = view(volume, bytes, max, place)?;
    Ok(Node {
        level,
        items: items.to_vec(),
    })
}

/// Writes a node over `bytes`, and zeros after it.
fn encode(node: &Node, bytes: &mut [u8]) {
    let header = NodeHeader {
        magic: NODE_MAGIC.into(),
        level: node.level.into(),
        count: (node.items.len() as u16).into(),
        reserved: 0.into(),
    };
    bytes.fill(0);
    bytes[..HEADER].copy_from_slice(header.as_bytes());
    let items = node.items.as_bytes();
    bytes[HEADER..HEADER + items.len()].copy_from_slice(items);
}

const ROOT: Place = Place {
    at: None,
    level: 0,
    low: 0,
    high: u64::MAX,
};

fn root(volume: &Volume, body: &Body) -> Result<Node> {
    decode(volume, body, ROOT_ITEMS, &ROOT)
}

fn load(reader: &mut impl Reader, volume: &Volume, place: &Place) -> Result<Node> {
    let Some(at) = place.at else {
        return Err(Errno::Uclean.into());
    };
    let image = reader.meta(at)?;
    decode(
        volume,
        &image[..HEADER + NODE_ITEMS * ITEM],
        NODE_ITEMS,
        place,
    )
}

/// The level of the root: how many node blocks a lookup reads.
///
/// # Errors
/// EUCLEAN.
pub(crate) fn level(volume: &Volume, body: &Body) -> Result<u16> {
    Ok(root(volume, body)?.level)
}

/// Items in the root if that is all there is, else `None`.
///
/// # Errors
/// EUCLEAN.
pub(crate) fn inline_items(volume: &Volume, body: &Body) -> Result<Option<usize>> {
    let node = root(volume, body)?;
    Ok((node.level == 0).then_some(node.items.len()))
}

/// The item with the largest key that is at most `key`.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn find_le(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    key: u64,
) -> Result<Option<Item>> {
    // Straight down, copying nothing. Only if all keys of the leaf are larger, the answer lies further left.
    let (level, items) = view(volume, body, ROOT_ITEMS, &ROOT)?;
    let Some(index) = position_le(items, key) else {
        return Ok(None);
    };
    if level == 0 {
        return Ok(Some(items[index]));
    }
    let mut place = ROOT.child_of(level, items, index);
    while let Some(at) = place.at {
        let image = reader.meta(at)?;
        let bytes = &image[..HEADER + NODE_ITEMS * ITEM];
        let (level, items) = view(volume, bytes, NODE_ITEMS, &place)?;
        let Some(index) = position_le(items, key) else {
            break;
        };
        if level == 0 {
            return Ok(Some(items[index]));
        }
        place = place.child_of(level, items, index);
    }
    let mut found = None;
    walk(
        reader,
        volume,
        body,
        &mut Walk::Backward(key),
        &mut |item| {
            found = Some(*item);
            ControlFlow::Break(())
        },
    )?;
    Ok(found)
}

/// The item with the smallest key that is at least `key`.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn find_ge(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    key: u64,
) -> Result<Option<Item>> {
    let mut found = None;
    for_each(reader, volume, body, key, |item| {
        found = Some(*item);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Visits the items whose keys are at least `from`, in order, until `visit` breaks.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn for_each(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    from: u64,
    mut visit: impl FnMut(&Item) -> ControlFlow<()>,
) -> Result<()> {
    walk(reader, volume, body, &mut Walk::Forward(from), &mut visit)
}

/// Visits every node block (not the root), children before their parents.
///
/// # Errors
/// EUCLEAN, EIO, and errors of `visit`.
pub(crate) fn for_each_node(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    mut visit: impl FnMut(BlockNo) -> Result<()>,
) -> Result<()> {
    fn below<R: Reader>(
        reader: &mut R,
        volume: &Volume,
        node: &Node,
        place: &Place,
        visit: &mut dyn FnMut(BlockNo) -> Result<()>,
    ) -> Result<()> {
        if node.level == 0 {
            return Ok(());
        }
        for index in 0..node.items.len() {
            let child_place = place.child(node, index);
            if node.level > 1 {
                let child = load(reader, volume, &child_place)?;
                below(reader, volume, &child, &child_place, visit)?;
            }
            visit(BlockNo(node.items[index].block.get()))?;
        }
        Ok(())
    }
    let node = root(volume, body)?;
    below(reader, volume, &node, &ROOT, &mut visit)
}

/// Direction and start of a walk over the items.
enum Walk {
    Forward(u64),
    Backward(u64),
}

fn walk(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    walk: &mut Walk,
    visit: &mut dyn FnMut(&Item) -> ControlFlow<()>,
) -> Result<()> {
    fn node_items<R: Reader>(
        reader: &mut R,
        volume: &Volume,
        node: &Node,
        place: &Place,
        walk: &Walk,
        visit: &mut dyn FnMut(&Item) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut step = |index: usize| -> Result<ControlFlow<()>> {
            if node.level == 0 {
                return Ok(visit(&node.items[index]));
            }
            let child_place = place.child(node, index);
            let child = load(reader, volume, &child_place)?;
            node_items(reader, volume, &child, &child_place, walk, visit)
        };
        match *walk {
            Walk::Forward(from) => {
                let first = if node.level == 0 {
                    node.items.partition_point(|item| item.key.get() < from)
                } else {
                    node.position_le(from).unwrap_or(0)
                };
                for index in first..node.items.len() {
                    if step(index)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Walk::Backward(from) => {
                let last = match node.position_le(from) {
                    Some(last) => last,
                    None if node.level > 0 => 0,
                    None => return Ok(ControlFlow::Continue(())),
                };
                for index in (0..=last).rev() {
                    if step(index)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
    let node = root(volume, body)?;
    node_items(reader, volume, &node, &ROOT, walk, visit).map(drop)
}

/// The nodes from the root down to the leaf for a key.
struct Path {
    nodes: Vec<(Place, Node)>,
    /// `children[i]`: which item of `nodes[i]` leads to `nodes[i + 1]`.
    children: Vec<usize>,
}

fn descend(work: &mut Work<'_>, body: &Body, key: u64) -> Result<Path> {
    let volume = work.volume();
    let mut nodes = vec![(ROOT, root(volume, body)?)];
    let mut children = Vec::new();
    while let Some((place, node)) = nodes.last()
        && node.level > 0
    {
        let index = node.position_le(key).unwrap_or(0);
        let place = place.child(node, index);
        children.push(index);
        let child = load(work, volume, &place)?;
        nodes.push((place, child));
    }
    Ok(Path { nodes, children })
}

/// Stores a changed node: the root in `body`, others as a patch of the bytes that differ.
fn store(work: &mut Work<'_>, body: &mut Body, place: &Place, node: &Node) -> Result<()> {
    let Some(at) = place.at else {
        encode(node, body);
        return Ok(());
    };
    work.relate(Object::Block(at.0), Access::Exclusive);
    let mut new = [0; HEADER + NODE_ITEMS * ITEM];
    encode(node, &mut new);
    let old = work.read(at, Kind::Meta)?;
    for (start, end) in differences(&old[..new.len()], &new) {
        work.write(at, Kind::Meta, start, &new[start..end])?;
    }
    Ok(())
}

/// Differences of two nodes: at most one range in the header, one in the items.
fn differences(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges = Vec::with_capacity(2);
    for (from, to) in [(0, HEADER), (HEADER, new.len())] {
        let (old, new) = (&old[from..to], &new[from..to]);
        let Some(first) = old.iter().zip(new).position(|(a, b)| a != b) else {
            continue;
        };
        let last = old
            .iter()
            .zip(new)
            .rposition(|(a, b)| a != b)
            .unwrap_or(first);
        ranges.push((from + first, from + last + 1));
    }
    ranges
}

/// A new node block near `goal`, zeroed and filled.
fn add_node(work: &mut Work<'_>, goal: BlockNo, node: &Node) -> Result<BlockNo> {
    let at = work.allocate_block(goal)?;
    work.relate(Object::Block(at.0), Access::Exclusive);
    work.zero(at, Kind::Meta)?;
    let mut bytes = [0; BLOCK_SIZE];
    encode(node, &mut bytes[..HEADER + NODE_ITEMS * ITEM]);
    work.write(
        at,
        Kind::Meta,
        0,
        &bytes[..HEADER + node.items.len() * ITEM],
    )?;
    Ok(at)
}

fn separator(key: u64, at: BlockNo) -> Item {
    Item {
        key: key.into(),
        block: at.0.into(),
        len: 0.into(),
        flags: 0.into(),
    }
}

/// Inserts an item with a new key; node blocks come from near `goal`. Returns the number of
/// node blocks added.
///
/// # Errors
/// EUCLEAN if the key is there; ENOSPC, EIO; EFBIG if the tree is as deep as trees get.
pub(crate) fn insert(
    work: &mut Work<'_>,
    body: &mut Body,
    goal: BlockNo,
    item: Item,
) -> Result<u64> {
    let key = item.key.get();
    let Path {
        mut nodes,
        mut children,
    } = descend(work, body, key)?;
    let mut added = 0;
    let mut pending = item;
    let mut index = match nodes.last() {
        Some((_, leaf)) => leaf.items.partition_point(|other| other.key.get() < key),
        None => 0,
    };
    if let Some((place, leaf)) = nodes.last() {
        let next = leaf
            .items
            .get(index)
            .map_or(u64::MAX, |next| next.key.get());
        let overlaps_next = next - key < u64::from(item.len.get());
        let overlaps_last = index > 0 && {
            let last = &leaf.items[index - 1];
            last.key.get() + u64::from(last.len.get()) > key
        };
        if overlaps_next || overlaps_last || item.len.get() == 0 {
            return Err(damaged(format!(
                "{}: key {key} to insert is taken",
                place.name()
            )));
        }
    }
    while let Some((place, mut node)) = nodes.pop() {
        let max = if place.at.is_some() {
            NODE_ITEMS
        } else {
            ROOT_ITEMS
        };
        node.items.insert(index, pending);
        if node.items.len() <= max {
            store(work, body, &place, &node)?;
            return Ok(added);
        }
        if place.at.is_none() {
            // The root's items move down into a node of their own.
            let level = node.level + 1;
            if level > TREE_LEVEL_MAX {
                return Err(Error::new(
                    Errno::FBig,
                    "its block tree is as deep as it can get",
                ));
            }
            let at = add_node(work, goal, &node)?;
            store(
                work,
                body,
                &place,
                &Node {
                    level,
                    items: vec![separator(0, at)],
                },
            )?;
            return Ok(added + 1);
        }
        // Appending leaves the left node full, so that files written in order fill their nodes.
        let append = index + 1 == node.items.len();
        let cut = if append { index } else { node.items.len() / 2 };
        let right = Node {
            level: node.level,
            items: node.items.split_off(cut),
        };
        let Some(first) = right.items.first() else {
            return Err(Errno::Uclean.into());
        };
        let first = first.key.get();
        store(work, body, &place, &node)?;
        let at = add_node(work, goal, &right)?;
        added += 1;
        pending = separator(first, at);
        index = children.pop().map_or(0, |child| child + 1);
    }
    Err(Errno::Uclean.into())
}

/// Replaces the item with key `key` by `item`. The new key may be larger than the old one
/// (a run that loses its front) but must stay before the next.
///
/// # Errors
/// EUCLEAN if there is no such item or the new one does not fit in its place; EIO.
pub(crate) fn replace(work: &mut Work<'_>, body: &mut Body, key: u64, item: Item) -> Result<()> {
    let mut path = descend(work, body, key)?;
    let Some((place, mut leaf)) = path.nodes.pop() else {
        return Err(Errno::Uclean.into());
    };
    let index = leaf
        .position_le(key)
        .filter(|&index| leaf.items[index].key.get() == key);
    let Some(index) = index else {
        return Err(damaged(format!(
            "{}: key {key} to replace is absent",
            place.name()
        )));
    };
    let bound = leaf
        .items
        .get(index + 1)
        .map_or(u64::MAX, |next| next.key.get());
    let end = item.key.get().checked_add(u64::from(item.len.get()));
    let outside = item.key.get() < key || item.key.get() >= place.high;
    if outside || item.len.get() == 0 || end.is_none_or(|end| end > bound) {
        return Err(damaged(format!(
            "{}: key {key} overlaps the next",
            place.name()
        )));
    }
    leaf.items[index] = item;
    store(work, body, &place, &leaf)
}

/// Removes the item with key `key`. Returns the number of node blocks freed.
///
/// # Errors
/// EUCLEAN if there is no such item; EIO.
pub(crate) fn remove(work: &mut Work<'_>, body: &mut Body, key: u64) -> Result<u64> {
    let Path {
        mut nodes,
        mut children,
    } = descend(work, body, key)?;
    let mut index = match nodes.last() {
        Some((place, leaf)) => {
            match leaf
                .position_le(key)
                .filter(|&index| leaf.items[index].key.get() == key)
            {
                Some(index) => index,
                None => {
                    return Err(damaged(format!(
                        "{}: key {key} to remove is absent",
                        place.name()
                    )));
                }
            }
        }
        None => return Err(Errno::Uclean.into()),
    };
    let mut freed = 0;
    while let Some((place, mut node)) = nodes.pop() {
        let removed = node.items.remove(index);
        if let (true, 0, Some(first)) = (node.level > 0, index, node.items.first_mut()) {
            // The first separator is the node's own lower bound.
            first.key = removed.key;
        }
        match place.at {
            Some(at) if node.items.is_empty() => {
                work.relate(Object::Block(at.0), Access::Exclusive);
                work.free_run(at, 1)?;
                freed += 1;
                index = children.pop().unwrap_or(0);
            }
            Some(_) => {
                store(work, body, &place, &node)?;
                break;
            }
            None => {
                if node.items.is_empty() {
                    node.level = 0;
                }
                store(work, body, &place, &node)?;
            }
        }
    }
    Ok(freed + collapse(work, body)?)
}

/// While the root has a single child whose items fit into it, moves them up.
fn collapse(work: &mut Work<'_>, body: &mut Body) -> Result<u64> {
    let mut freed = 0;
    loop {
        let node = root(work.volume(), body)?;
        if node.level == 0 || node.items.len() != 1 {
            return Ok(freed);
        }
        let place = ROOT.child(&node, 0);
        let child = load(work, work.volume(), &place)?;
        let Some(at) = place.at.filter(|_| child.items.len() <= ROOT_ITEMS) else {
            return Ok(freed);
        };
        work.relate(Object::Block(at.0), Access::Exclusive);
        encode(&child, body);
        work.free_run(at, 1)?;
        freed += 1;
    }
}

#[cfg(test)]
mod tests;
