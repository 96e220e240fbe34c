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
    let new_root = 2 * COST_BLOCK + COST_RANGE + (HEADER + NODE_ITEMS.min(8) * ITEM) as u64 + COST_BITS;
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
    encode(&Node { level: 0, items: Vec::new() }, &mut body);
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
        self.items.partition_point(|item| item.key.get() <= key).checked_sub(1)
    }
}

/// Where a node lies and what its place in the tree demands of it.
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
        let item = &node.items[index];
        Place {
            at: Some(BlockNo(item.block.get())),
            level: node.level.saturating_sub(1),
            low: item.key.get(),
            high: node.items.get(index + 1).map_or(self.high, |next| next.key.get()),
        }
    }
}

/// Decodes and checks a node of at most `max` items in `bytes`.
fn decode(volume: &Volume, bytes: &[u8], max: usize, place: &Place) -> Result<Node> {
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
        let (Some(end), false) = (end, key < low || key >= place.high || run == 0 || misplaced) else {
            return bad(format!("item {index} (key {key}, length {len}) is out of order"));
        };
        low = end;
        if !volume.run_is_data(BlockNo(block), run) {
            return bad(format!("item {index} points to block {block}, which cannot belong to a file"));
        }
    }
    Ok(Node { level, items: items.to_vec() })
}

/// Writes a node over `bytes`, zeros behind it.
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

const ROOT: Place = Place { at: None, level: 0, low: 0, high: u64::MAX };

fn root(volume: &Volume, body: &Body) -> Result<Node> {
    decode(volume, body, ROOT_ITEMS, &ROOT)
}

fn load(reader: &mut impl Reader, volume: &Volume, place: &Place) -> Result<Node> {
    let Some(at) = place.at else {
        return Err(Errno::Uclean.into());
    };
    let image = reader.meta(at)?;
    decode(volume, &image[..HEADER + NODE_ITEMS * ITEM], NODE_ITEMS, place)
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
    let mut found = None;
    walk(reader, volume, body, &mut Walk::Backward(key), &mut |item| {
        found = Some(*item);
        ControlFlow::Break(())
    })?;
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
/// EUCLEAN, EIO, and what `visit` returns.
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

/// Where two nodes differ: at most one range in the header, one in the items.
fn differences(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges = Vec::with_capacity(2);
    for (from, to) in [(0, HEADER), (HEADER, new.len())] {
        let (old, new) = (&old[from..to], &new[from..to]);
        let Some(first) = old.iter().zip(new).position(|(a, b)| a != b) else { continue };
        let last = old.iter().zip(new).rposition(|(a, b)| a != b).unwrap_or(first);
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
    work.write(at, Kind::Meta, 0, &bytes[..HEADER + node.items.len() * ITEM])?;
    Ok(at)
}

fn separator(key: u64, at: BlockNo) -> Item {
    Item { key: key.into(), block: at.0.into(), len: 0.into(), flags: 0.into() }
}

/// Inserts an item with a new key; node blocks come from near `goal`. Returns the number of
/// node blocks added.
///
/// # Errors
/// EUCLEAN if the key is there; ENOSPC, EIO; EFBIG if the tree is as deep as trees get.
pub(crate) fn insert(work: &mut Work<'_>, body: &mut Body, goal: BlockNo, item: Item) -> Result<u64> {
    let key = item.key.get();
    let Path { mut nodes, mut children } = descend(work, body, key)?;
    let mut added = 0;
    let mut pending = item;
    let mut index = match nodes.last() {
        Some((_, leaf)) => leaf.items.partition_point(|other| other.key.get() < key),
        None => 0,
    };
    if let Some((place, leaf)) = nodes.last() {
        let next = leaf.items.get(index).map_or(u64::MAX, |next| next.key.get());
        let overlaps_next = next - key < u64::from(item.len.get());
        let overlaps_last = index > 0 && {
            let last = &leaf.items[index - 1];
            last.key.get() + u64::from(last.len.get()) > key
        };
        if overlaps_next || overlaps_last || item.len.get() == 0 {
            return Err(damaged(format!("{}: key {key} to insert is taken", place.name())));
        }
    }
    while let Some((place, mut node)) = nodes.pop() {
        let max = if place.at.is_some() { NODE_ITEMS } else { ROOT_ITEMS };
        node.items.insert(index, pending);
        if node.items.len() <= max {
            store(work, body, &place, &node)?;
            return Ok(added);
        }
        if place.at.is_none() {
            // The root's items move down into a node of their own.
            let level = node.level + 1;
            if level > TREE_LEVEL_MAX {
                return Err(Error::new(Errno::FBig, "its block tree is as deep as it can get"));
            }
            let at = add_node(work, goal, &node)?;
            store(work, body, &place, &Node { level, items: vec![separator(0, at)] })?;
            return Ok(added + 1);
        }
        // Appending leaves the left node full, so that files written in order fill their nodes.
        let append = index + 1 == node.items.len();
        let cut = if append { index } else { node.items.len() / 2 };
        let right = Node { level: node.level, items: node.items.split_off(cut) };
        let Some(first) = right.items.first() else { return Err(Errno::Uclean.into()) };
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
    let Some((place, mut leaf)) = path.nodes.pop() else { return Err(Errno::Uclean.into()) };
    let index = leaf.position_le(key).filter(|&index| leaf.items[index].key.get() == key);
    let Some(index) = index else {
        return Err(damaged(format!("{}: key {key} to replace is absent", place.name())));
    };
    let bound = leaf.items.get(index + 1).map_or(u64::MAX, |next| next.key.get());
    let end = item.key.get().checked_add(u64::from(item.len.get()));
    let outside = item.key.get() < key || item.key.get() >= place.high;
    if outside || item.len.get() == 0 || end.is_none_or(|end| end > bound) {
        return Err(damaged(format!("{}: key {key} overlaps the next", place.name())));
    }
    leaf.items[index] = item;
    store(work, body, &place, &leaf)
}

/// Removes the item with key `key`. Returns the number of node blocks freed.
///
/// # Errors
/// EUCLEAN if there is no such item; EIO.
pub(crate) fn remove(work: &mut Work<'_>, body: &mut Body, key: u64) -> Result<u64> {
    let Path { mut nodes, mut children } = descend(work, body, key)?;
    let mut index = match nodes.last() {
        Some((place, leaf)) => {
            match leaf.position_le(key).filter(|&index| leaf.items[index].key.get() == key) {
                Some(index) => index,
                None => return Err(damaged(format!("{}: key {key} to remove is absent", place.name()))),
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
        let Some(at) = place.at.filter(|_| child.items.len() <= ROOT_ITEMS) else { return Ok(freed) };
        work.relate(Object::Block(at.0), Access::Exclusive);
        encode(&child, body);
        work.free_run(at, 1)?;
        freed += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reader::Current;
    use crate::testing::{Bare, bare};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        /// Insert so many items from a key on, at a distance.
        Insert { key: u64, count: u64, stride: u64 },
        /// Remove the items whose keys lie in a range.
        Remove { key: u64, span: u64, backward: bool },
        /// Change an item, moving its key up a little.
        Replace { key: u64, by: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..20_000, 1u64..200, 1u64..40)
                .prop_map(|(key, count, stride)| Step::Insert { key, count, stride }),
            2 => (0u64..20_000, 1u64..8_000, any::<bool>())
                .prop_map(|(key, span, backward)| Step::Remove { key, span, backward }),
            1 => (0u64..20_000, 0u64..4).prop_map(|(key, by)| Step::Replace { key, by }),
        ]
    }

    /// A tree beside its model; keys are four apart at least, runs up to four long.
    struct Both<'a> {
        bare: &'a Bare,
        body: Body,
        model: BTreeMap<u64, Item>,
        nodes: u64,
        goal: BlockNo,
    }

    fn item(key: u64, goal: BlockNo) -> Item {
        Item {
            key: key.into(),
            block: (goal.0 + key % 100).into(),
            len: (1 + (key / 4) as u32 % 4).into(),
            flags: 0.into(),
        }
    }

    impl<'a> Both<'a> {
        fn new(bare: &'a Bare) -> Both<'a> {
            let goal = bare.store.volume.group_start(0).offset(50);
            Both { bare, body: empty(), model: BTreeMap::new(), nodes: 0, goal }
        }

        fn volume(&self) -> &'a Volume {
            &self.bare.store.volume
        }

        /// One operation with the credits that the functions promise to keep to.
        fn work(&self) -> Work<'a> {
            self.bare.begin(change_credits(level(self.volume(), &self.body).unwrap()))
        }

        fn insert(&mut self, key: u64) {
            let item = item(key, self.goal);
            let end = key + u64::from(item.len.get());
            if self.model.range(key + 1..end).next().is_some() {
                return;
            }
            let mut work = self.work();
            let mut body = self.body;
            let result = insert(&mut work, &mut body, self.goal, item);
            if self.model.contains_key(&key) {
                assert!(result.is_err());
                return;
            }
            self.nodes += result.unwrap();
            work.commit();
            self.body = body;
            self.model.insert(key, item);
        }

        fn remove(&mut self, key: u64) {
            let mut work = self.work();
            self.nodes -= remove(&mut work, &mut self.body, key).unwrap();
            work.commit();
            self.model.remove(&key);
        }

        fn run(&mut self, step: &Step) {
            match *step {
                Step::Insert { key, count, stride } => {
                    for index in 0..count {
                        self.insert((key + index * stride) * 4);
                    }
                }
                Step::Remove { key, span, backward } => {
                    let mut keys: Vec<u64> =
                        self.model.range(key * 4..(key + span) * 4).map(|(key, _)| *key).collect();
                    if backward {
                        keys.reverse();
                    }
                    for key in keys {
                        self.remove(key);
                    }
                }
                Step::Replace { key, by } => {
                    let Some((&key, &old)) = self.model.range(key * 4..).next() else { return };
                    let by = by.min(u64::from(old.len.get()) - 1);
                    if key % 4 != 0 {
                        return;
                    }
                    let new = Item {
                        key: (key + by).into(),
                        len: (old.len.get() - by as u32).into(),
                        ..old
                    };
                    let mut work = self.work();
                    replace(&mut work, &mut self.body, key, new).unwrap();
                    work.commit();
                    self.model.remove(&key);
                    self.model.insert(key + by, new);
                }
            }
        }

        fn check(&self) {
            let mut reader = Current(&self.bare.store.journal);
            let volume = self.volume();
            let mut all = Vec::new();
            for_each(&mut reader, volume, &self.body, 0, |item| {
                all.push(*item);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(all, self.model.values().copied().collect::<Vec<_>>());
            let mut nodes = 0;
            for_each_node(&mut reader, volume, &self.body, |_| {
                nodes += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(nodes, self.nodes);
            for key in (0..80_000).step_by(1_111) {
                let le = self.model.range(..=key).next_back().map(|(_, item)| *item);
                let ge = self.model.range(key..).next().map(|(_, item)| *item);
                assert_eq!(find_le(&mut reader, volume, &self.body, key).unwrap(), le);
                assert_eq!(find_ge(&mut reader, volume, &self.body, key).unwrap(), ge);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_tree_behaves_like_a_sorted_map(steps in prop::collection::vec(step(), 1..40)) {
            let bare = bare(2048);
            let before = bare.store.alloc.space().free;
            let mut both = Both::new(&bare);
            for step in &steps {
                both.run(step);
            }
            both.check();
            let keys: Vec<u64> = both.model.keys().copied().collect();
            for key in keys {
                both.remove(key);
            }
            prop_assert_eq!(both.body, empty());
            prop_assert_eq!(both.nodes, 0);
            bare.store.journal.sync_all().unwrap();
            prop_assert_eq!(bare.store.alloc.space().free, before);
        }

        #[test]
        fn corner_35_a_hostile_node_is_an_error_and_never_a_panic(
            bytes in prop::collection::vec((0usize..4064, any::<u8>()), 1..6),
            header in any::<Option<u64>>(),
            key in 0u64..20_000,
        ) {
            let bare = bare(2048);
            let mut both = Both::new(&bare);
            both.run(&Step::Insert { key: 0, count: 900, stride: 1 });
            let mut nodes = Vec::new();
            let volume = both.volume();
            for_each_node(&mut Current(&bare.store.journal), volume, &both.body, |at| {
                nodes.push(at);
                Ok(())
            })
            .unwrap();
            let mut work = bare.begin(20_000);
            let at = nodes[key as usize % nodes.len()];
            for (offset, byte) in bytes {
                work.write(at, Kind::Meta, offset, &[byte]).unwrap();
            }
            if let Some(header) = header {
                work.write(at, Kind::Meta, 0, &header.to_le_bytes()).unwrap();
            }
            work.commit();
            let mut reader = Current(&bare.store.journal);
            let mut seen = 0;
            let _ = for_each(&mut reader, volume, &both.body, 0, |_| {
                seen += 1;
                ControlFlow::Continue(())
            });
            prop_assert!(seen < 100_000);
            let _ = find_le(&mut reader, volume, &both.body, key);
            let mut body = both.body;
            let _ = insert(&mut bare.begin(30_000), &mut body, both.goal, item(key, both.goal));
            let mut body = both.body;
            let _ = remove(&mut bare.begin(30_000), &mut body, key / 4 * 4);
        }

        #[test]
        fn corner_35_a_hostile_root_is_an_error_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), INLINE_BYTES),
            level in 0u8..9,
            count in 0u8..5,
        ) {
            let bare = bare(512);
            let volume = &bare.store.volume;
            let mut body: Body = bytes.try_into().unwrap();
            body[..8].copy_from_slice(&[0x7e, 0x5f, level, 0, count, 0, 0, 0]);
            // Point at blocks that exist, so that the walk goes on to them.
            for item in 0..4 {
                let block = volume.group_start(0).0 + 2 + u64::from(body[16 + item * 24]) % 100;
                body[16 + item * 24..24 + item * 24].copy_from_slice(&block.to_le_bytes());
                body[8 + item * 24 + 2..16 + item * 24].fill(0);
            }
            let mut reader = Current(&bare.store.journal);
            let _ = for_each(&mut reader, volume, &body, 0, |_| ControlFlow::Continue(()));
            let _ = for_each_node(&mut reader, volume, &body, |_| Ok(()));
            let goal = volume.group_start(0).offset(50);
            let _ = insert(&mut bare.begin(30_000), &mut body.clone(), goal, item(400, goal));
            let _ = remove(&mut bare.begin(30_000), &mut body, 0);
        }
    }

    #[test]
    fn items_inserted_in_order_fill_their_nodes() {
        let bare = bare(2048);
        let mut both = Both::new(&bare);
        let count = 10 * NODE_ITEMS as u64;
        both.run(&Step::Insert { key: 0, count, stride: 1 });
        both.check();
        assert!(both.nodes <= 12, "{} nodes for {count} items", both.nodes);
    }
}
