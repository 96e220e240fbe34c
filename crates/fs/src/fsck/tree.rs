//! Walks B+trees without the mounted code, trusting nothing: every node is claimed once,
//! so a walk ends, and faulty parts are left out of the items that it returns.
//!
//! Builds them too, bottom up, for trees that lost something.

use super::check::Check;
use super::finding::{Place, Problem};
use crate::layout::{
    INLINE_BYTES, Item, META_BYTES, NODE_ITEMS, NODE_MAGIC, NodeHeader, ROOT_ITEMS, TREE_LEVEL_MAX,
};
use steadfast_block::{BLOCK_SIZE, Block};
use steadfast_vfs::Ino;
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<NodeHeader>();
const ITEM: usize = size_of::<Item>();

/// Content of a tree.
#[derive(Default)]
pub(super) struct Tree {
    /// The values, in order.
    pub(super) items: Vec<Item>,
    /// Blocks of its nodes.
    pub(super) nodes: Vec<u64>,
    /// Something had to be left out: the tree must be built anew.
    pub(super) damaged: bool,
}

/// Mode of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Claims the nodes and reports faults.
    Check,
    /// A tree that was checked before: only collects.
    Collect,
}

/// A node's header and items, or its fault.
struct Parsed {
    level: u16,
    items: Vec<Item>,
    wrong: Option<String>,
}

fn parse(bytes: &[u8], capacity: usize) -> Result<Parsed, String> {
    let Ok((header, rest)) = NodeHeader::ref_from_prefix(bytes) else {
        return Err("it is too short".into());
    };
    if header.magic.get() != NODE_MAGIC {
        return Err(format!("its magic number is {:#x}", header.magic.get()));
    }
    let (level, count) = (header.level.get(), usize::from(header.count.get()));
    if level > TREE_LEVEL_MAX {
        return Err(format!("its level is {level}"));
    }
    if count > capacity {
        return Err(format!("it claims {count} items, {capacity} is the most"));
    }
    let mut wrong = None;
    if header.reserved.get() != 0 {
        wrong = Some("its reserved bytes are not zero".to_owned());
    }
    let items: Vec<Item> = rest
        .chunks_exact(ITEM)
        .take(count)
        .filter_map(|bytes| Item::read_from_bytes(bytes).ok())
        .collect();
    let used = (count * ITEM).min(rest.len());
    if rest[used..].iter().any(|byte| *byte != 0) {
        wrong = Some("the bytes after its items are not zero".to_owned());
    }
    Ok(Parsed {
        level,
        items,
        wrong,
    })
}

/// The metadata blocks that a root names: nodes, or a directory's leaves.
pub(super) fn children(body: &[u8; INLINE_BYTES], data: bool) -> Vec<u64> {
    match parse(body, ROOT_ITEMS) {
        Ok(root) if root.level > 0 || !data => blocks_of(&root.items),
        _ => Vec::new(),
    }
}

fn blocks_of(items: &[Item]) -> Vec<u64> {
    items.iter().map(|item| item.block.get()).collect()
}

impl Check<'_> {
    /// Walks the tree whose root is `body`.
    pub(super) fn walk_tree(&mut self, owner: Ino, body: &[u8; INLINE_BYTES], mode: Mode) -> Tree {
        let mut tree = Tree::default();
        let root = match parse(body, ROOT_ITEMS) {
            Ok(root) => root,
            Err(why) => {
                self.tree_finding(mode, Problem::TreeRoot, owner, None, why, &mut tree);
                return tree;
            }
        };
        if let Some(why) = root.wrong.clone() {
            self.tree_finding(mode, Problem::TreeRoot, owner, None, why, &mut tree);
        }
        if root.level > 0 && root.items.is_empty() {
            let why = "it has a level but no items".to_owned();
            self.tree_finding(mode, Problem::TreeRoot, owner, None, why, &mut tree);
        }
        self.walk_items(owner, None, root, (0, u64::MAX), mode, &mut tree);
        tree
    }

    fn walk_items(
        &mut self,
        owner: Ino,
        at: Option<u64>,
        node: Parsed,
        (low, high): (u64, u64),
        mode: Mode,
        tree: &mut Tree,
    ) {
        let mut kept: Vec<Item> = Vec::with_capacity(node.items.len());
        for item in &node.items {
            let key = item.key.get();
            let after = kept.last().is_none_or(|last| last.key.get() < key);
            if after && key >= low && key < high {
                kept.push(*item);
                continue;
            }
            let why = if after {
                format!("key {key} lies outside {low} to {high}")
            } else {
                format!("key {key} is out of order")
            };
            self.tree_finding(mode, Problem::TreeItem, owner, at, why, tree);
        }
        if node.level == 0 {
            tree.items.extend(kept);
            return;
        }
        if let Some(first) = kept.first_mut()
            && first.key.get() != low
        {
            let why = format!("its first key is {}, {low} is expected", first.key.get());
            self.tree_finding(mode, Problem::TreeItem, owner, at, why, tree);
            first.key = low.into();
        }
        self.read_ahead(blocks_of(&kept));
        for (index, item) in kept.iter().enumerate() {
            let above = kept.get(index + 1).map_or(high, |next| next.key.get());
            self.walk_node(
                owner,
                at,
                item,
                node.level - 1,
                (item.key.get(), above),
                mode,
                tree,
            );
        }
    }

    #[allow(clippy::too_many_arguments)] // one step of a recursion
    fn walk_node(
        &mut self,
        owner: Ino,
        parent: Option<u64>,
        item: &Item,
        level: u16,
        bounds: (u64, u64),
        mode: Mode,
        tree: &mut Tree,
    ) {
        let at = item.block.get();
        if !self.vol.is_data(steadfast_block::BlockNo(at)) {
            let why = format!("it names block {at}, where no node can be");
            self.tree_finding(mode, Problem::TreePointer, owner, parent, why, tree);
            return;
        }
        if mode == Mode::Check && self.used.get(at) {
            self.twice(owner, at, 1, "a tree node");
            tree.damaged = true;
            return;
        }
        let block = match self.source.meta(at) {
            Ok(block) => block,
            Err(bad) => {
                let why = format!("a tree node {bad}");
                self.tree_finding(
                    mode,
                    Problem::TreeNodeUnreadable,
                    owner,
                    Some(at),
                    why,
                    tree,
                );
                return;
            }
        };
        let node = match parse(&block[..META_BYTES], NODE_ITEMS) {
            Ok(node) if node.level == level => node,
            Ok(node) => {
                let why = format!("its level is {}, {level} is expected", node.level);
                self.tree_finding(mode, Problem::TreeNode, owner, Some(at), why, tree);
                return;
            }
            Err(why) => {
                self.tree_finding(mode, Problem::TreeNode, owner, Some(at), why, tree);
                return;
            }
        };
        if mode == Mode::Check {
            self.used.insert(at);
        }
        tree.nodes.push(at);
        let wrong = node.wrong.clone().or_else(|| {
            node.items
                .is_empty()
                .then(|| "it is empty and should not exist".to_owned())
        });
        if let Some(why) = wrong {
            self.tree_finding(mode, Problem::TreeNode, owner, Some(at), why, tree);
        }
        self.walk_items(owner, Some(at), node, bounds, mode, tree);
    }

    fn tree_finding(
        &mut self,
        mode: Mode,
        problem: Problem,
        owner: Ino,
        at: Option<u64>,
        why: String,
        tree: &mut Tree,
    ) {
        tree.damaged = true;
        if mode == Mode::Check {
            let place = at.map_or_else(|| Place::ino(owner), |at| Place::both(owner, at));
            let subject = if at.is_some() {
                "a tree node"
            } else {
                "the root of its tree"
            };
            let detail = match problem {
                Problem::TreeNodeUnreadable => why,
                _ => format!("{subject} is malformed: {why}"),
            };
            self.log.add(problem, place, detail);
        }
    }
}

fn fill(bytes: &mut [u8], level: u16, items: &[Item]) {
    bytes.fill(0);
    let header = NodeHeader {
        magic: NODE_MAGIC.into(),
        level: level.into(),
        count: (items.len() as u16).into(),
        reserved: 0.into(),
    };
    bytes[..HEADER].copy_from_slice(header.as_bytes());
    for (slot, item) in bytes[HEADER..].chunks_exact_mut(ITEM).zip(items) {
        slot.copy_from_slice(item.as_bytes());
    }
}

/// Node blocks that a tree of `items` values needs.
pub(super) fn nodes_needed(items: usize) -> usize {
    let (mut width, mut nodes) = (items, 0);
    while width > ROOT_ITEMS {
        width = width.div_ceil(NODE_ITEMS);
        nodes += width;
    }
    nodes
}

/// Builds a tree: the root's bytes, and its nodes at the blocks that `blocks` names,
/// which must be as many as [`nodes_needed`] says.
pub(super) fn build(
    items: &[Item],
    blocks: &[u64],
    mut put: impl FnMut(u64, Block),
) -> [u8; INLINE_BYTES] {
    let mut blocks = blocks.iter();
    let mut level = 0;
    let mut row: Vec<Item> = items.to_vec();
    while row.len() > ROOT_ITEMS {
        let mut above = Vec::with_capacity(row.len().div_ceil(NODE_ITEMS));
        for (chunk, at) in row.chunks(NODE_ITEMS).zip(&mut blocks) {
            let mut block = [0; BLOCK_SIZE];
            fill(&mut block[..META_BYTES], level, chunk);
            put(*at, block);
            let key = if above.is_empty() {
                0
            } else {
                chunk[0].key.get()
            };
            above.push(Item {
                key: key.into(),
                block: (*at).into(),
                ..Item::default()
            });
        }
        row = above;
        level += 1;
    }
    let mut body = [0; INLINE_BYTES];
    fill(&mut body, level, &row);
    body
}
