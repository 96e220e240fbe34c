//! The effect of an operation on the objects by which streams relate.
//!
//! Objects: a file or other non-directory as a whole (data, size, attributes, link
//! count, mtime); one name in one directory, absent names included; the explicit
//! attributes of a directory, its existence among them; the parent of a directory.
//! Not objects: link counts and times of directories (they are sums and maxima over
//! operations), ctime and atime.
//!
//! Two effects are equal if they change the same objects from the same state to the
//! same state. Inodes are distinguished by number, so histories number them by operation.

use crate::hash::Hasher128;
use crate::tree::{Body, Dir, Node, Tree};
use std::sync::Arc;
use steadfast_vfs::Ino;

pub(super) struct Effect {
    /// Equal for equal effects.
    pub(super) digest: u128,
    /// Inodes that an fsync of which must make this durable.
    pub(super) touched: Vec<Ino>,
}

/// A node that has lost its last name cannot be seen after a crash.
fn alive(node: Option<&Node>) -> Option<&Node> {
    node.filter(|n| n.nlink > 0)
}

fn as_dir(node: Option<&Node>) -> Option<&Arc<Dir>> {
    match node.map(|n| &n.body) {
        Some(Body::Dir(d)) => Some(d),
        _ => None,
    }
}

/// Digest of a node's state as an object; 0 if there is none.
fn state(node: Option<&Node>) -> u128 {
    let Some(n) = node else { return 0 };
    let mut h = Hasher128::new(31);
    h.u64(u64::from(n.kind as u8) << 32 | u64::from(n.perm));
    h.u64(u64::from(n.uid) << 32 | u64::from(n.gid));
    for (k, v) in n.xattrs.iter() {
        h.bytes(k).bytes(v);
    }
    if let Body::Dir(_) = n.body {
        return h.finish();
    }
    h.u64(u64::from(n.nlink) << 32 | u64::from(n.rdev));
    h.u64(n.mtime.secs as u64).u64(u64::from(n.mtime.nanos));
    match &n.body {
        Body::File(d) => h.u128(d.digest()),
        Body::Link(t) => h.bytes(t),
        Body::Dir(_) | Body::Special => &mut h,
    };
    h.finish()
}

/// The effect that leads from one tree to the next.
pub(super) fn effect(before: &Tree, after: &Tree) -> Effect {
    let mut h = Hasher128::new(32);
    let mut touched = Vec::new();
    for change in before.nodes.changes(&after.nodes) {
        let (old, new) = (alive(change.before), alive(change.after));
        let mut hit = false;
        let (a, b) = (state(old), state(new));
        if a != b {
            h.u64(change.key).u64(1).u128(a).u128(b);
            hit = true;
        }
        hit |= entries(&mut h, change.key, as_dir(old), as_dir(new));
        if hit {
            touched.push(change.key);
        }
    }
    Effect {
        digest: h.finish(),
        touched,
    }
}

/// Adds the changes of a directory's names and parent; says whether there were any that
/// an fsync of the directory covers.
fn entries(h: &mut Hasher128, ino: Ino, old: Option<&Arc<Dir>>, new: Option<&Arc<Dir>>) -> bool {
    if let (Some(a), Some(b)) = (old, new)
        && Arc::ptr_eq(a, b)
    {
        return false;
    }
    let (above, now_above) = (old.map_or(0, |d| d.parent), new.map_or(0, |d| d.parent));
    if above != now_above {
        h.u64(ino).u64(2).u64(above).u64(now_above);
    }
    let find = |d: Option<&Arc<Dir>>, name: &[u8]| {
        d.and_then(|d| d.entries.get(name)).map_or(0, |s| s.ino)
    };
    let mut hit = false;
    for name in old.into_iter().flat_map(|d| d.entries.keys()) {
        let (a, b) = (find(old, name), find(new, name));
        if a != b {
            h.u64(ino).u64(3).bytes(name).u64(a).u64(b);
            hit = true;
        }
    }
    for name in new.into_iter().flat_map(|d| d.entries.keys()) {
        if find(old, name) == 0 {
            h.u64(ino).u64(3).bytes(name).u64(0).u64(find(new, name));
            hit = true;
        }
    }
    hit
}
