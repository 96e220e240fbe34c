//! Turns steps into effects, their order, and the demands of syncs.

use super::{
    Bits, Bytes, Change, Disk, EFFECTS_MAX, Effect, Effects, Entry, Ino, Run, Step, What, is_dir,
};
use crate::models::{
    Allocate, Append, Classes, Demand, Heuristic, Hole, Model, Rename, Scope, Truncate,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of parts of one write.
const PARTS_MAX: u64 = 64;
/// Maximum number of sizes between the old one and the new one that one write may leave.
const SIZES_MAX: usize = 16;

/// A fault planted in the order or the demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The model's rules have no effect.
    NoRules,
    /// One more rule: everything is ordered by time.
    MoreRules,
    /// Effects on one cell have no order.
    NoCells,
    /// A sync demands nothing.
    NoDemand,
    /// fdatasync demands what sync does.
    FullDemand,
    /// A sync's demands count before it has returned.
    EarlyDemand,
    /// Removed names are forgotten.
    NoRemove,
    /// Sizes are forgotten.
    NoSize,
    /// The last part of a write is forgotten.
    NoLastPart,
    /// The size does not wait for the data.
    SizeAlone,
    /// Heuristics are ignored.
    NoHeuristics,
    /// An acknowledgement counts one step too late.
    LateAck,
    /// A rename leaves the old name.
    HalfRename,
}

/// The byte that stands for old content of the medium at an offset of a file.
pub(crate) fn garbage(offset: u64) -> u8 {
    (offset.wrapping_mul(37) >> 2) as u8 | 0x80
}

/// A cell: one value on the medium.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Cell {
    Name(Ino, Arc<[u8]>),
    Size(Ino),
    Attr(Ino),
    Xattr(Ino, Vec<u8>),
    Unit(Ino, u64),
}

/// State of a file.
#[derive(Default)]
struct File {
    /// Effects on its data and sizes.
    content: Bits,
    /// Data beyond the size at its time, for which later sizes wait.
    fresh: Bits,
    /// Effects of writes on its size.
    sizes: Bits,
    /// The last change of its metadata.
    last: Option<usize>,
    /// Whether it was cut to nothing and not closed since.
    emptied: bool,
    /// Truncations, holes and allocations, each with the range whose blocks it changes: data outside need not wait for it.
    cuts: Vec<(usize, (u64, u64))>,
}

struct Proto {
    class: Classes,
    file: Option<Ino>,
    dir: Option<Ino>,
    changes: Vec<Change>,
    cells: Vec<Cell>,
    part: Option<(u64, u64)>,
    extra: Bits,
    tears: bool,
    /// The range whose blocks it changes, if it is no write.
    range: Option<(u64, u64)>,
}

impl Proto {
    fn new(class: Classes, changes: Vec<Change>) -> Proto {
        Proto {
            class,
            file: None,
            dir: None,
            changes,
            cells: Vec::new(),
            part: None,
            extra: Bits::new(),
            tears: false,
            range: None,
        }
    }
}

struct Builder<'a> {
    model: &'a Model,
    /// The model's unit of data, or a coarser one.
    unit: u64,
    fault: Option<Fault>,
    now: Disk,
    all: Vec<Effect>,
    last: HashMap<Cell, usize>,
    files: BTreeMap<Ino, File>,
    /// Effects on the names of an inode.
    names: HashMap<Ino, Vec<usize>>,
    /// For each rule and its scope: the effects so far, with all before them.
    bound: HashMap<(usize, u64), Bits>,
    /// Effects that all later metadata waits for.
    floor: Bits,
    demanded: Bits,
    /// Inodes that were synced, and the names that they got since.
    synced: BTreeSet<Ino>,
    renamed: Bits,
}

/// `coarse`: the smallest size of a part of a write. Several units of the model become one, so there are fewer
/// states, all of them allowed.
pub(super) fn build(run: &Run, model: &Model, coarse: u64, fault: Option<Fault>) -> Effects {
    let mut base = run.base.clone();
    for step in &run.steps {
        if let What::Make { ino, node, .. } = &step.what {
            base.add(*ino, node.clone());
        }
    }
    let mut b = Builder {
        model,
        unit: coarse.max(model.unit).next_multiple_of(model.unit),
        fault,
        now: base.clone(),
        all: Vec::new(),
        last: HashMap::new(),
        files: BTreeMap::new(),
        names: HashMap::new(),
        bound: HashMap::new(),
        floor: Bits::new(),
        demanded: Bits::new(),
        synced: BTreeSet::new(),
        renamed: Bits::new(),
    };
    let mut effects = Effects {
        base,
        all: Vec::new(),
        demanded: vec![Arc::default()],
        upto: vec![0],
        acked: vec![0],
        acks: Vec::new(),
        stacks: run.steps.iter().map(|s| s.stack).collect(),
        left_out: 0,
    };
    for (i, step) in run.steps.iter().enumerate() {
        if b.all.len() > EFFECTS_MAX {
            effects.left_out = run.steps.len() - i;
            break;
        }
        for proto in b.effects_of(step) {
            b.push(i, proto);
        }
        let before = b.demanded.len();
        b.sync(step);
        if let What::Ack { text } = &step.what {
            effects.acks.push(text.clone());
        }
        let last = effects.demanded.last().cloned().unwrap_or_default();
        let same = b.demanded.len() == before;
        effects.demanded.push(match same {
            true => last,
            false => Arc::new(b.demanded.clone()),
        });
        effects.upto.push(b.all.len());
        effects.acked.push(effects.acks.len());
    }
    if fault == Some(Fault::EarlyDemand) {
        effects.demanded.remove(0);
        let last = effects.demanded.last().cloned().unwrap_or_default();
        effects.demanded.push(last);
    }
    if fault == Some(Fault::LateAck) {
        effects.acked.insert(0, 0);
        effects.acked.pop();
    }
    effects.all = b.all;
    effects
}

impl Builder<'_> {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn entry(&self, at: &Entry, ino: Ino, set: bool) -> Change {
        let (dir, name) = (at.0, Arc::clone(&at.1));
        match set {
            true => Change::Set { dir, name, ino },
            false => Change::Unset { dir, name, ino },
        }
    }

    fn named(&self, at: &Entry, ino: Ino, changes: Vec<Change>) -> Proto {
        let mut proto = Proto::new(Classes::ENTRY, changes);
        proto.file = Some(ino);
        proto.dir = Some(at.0);
        proto.cells.push(Cell::Name(at.0, Arc::clone(&at.1)));
        proto
    }

    fn effects_of(&mut self, step: &Step) -> Vec<Proto> {
        match &step.what {
            What::Make { at, ino, .. } | What::Link { ino, at } => {
                vec![self.named(at, *ino, vec![self.entry(at, *ino, true)])]
            }
            What::Remove { at } => match self.now.lookup(at.0, &at.1) {
                Some(_) if self.has(Fault::NoRemove) => Vec::new(),
                Some(ino) => vec![self.named(at, ino, vec![self.entry(at, ino, false)])],
                None => Vec::new(),
            },
            What::Rename { from, to, exchange } => self.rename(from, to, *exchange),
            What::Write { ino, offset, bytes } => self.write(*ino, *offset, bytes),
            What::Truncate { ino, size } => {
                // If data waits for nothing, a truncation does not wait either for the zeros that its last block
                // gets.
                let old =
                    self.model.hole == Hole::Garbage && self.model.truncate == Truncate::ZerosFirst;
                let change = Change::Resize {
                    ino: *ino,
                    size: *size,
                    unit: if old { self.model.unit } else { 1 },
                };
                if *size == 0 {
                    self.files.entry(*ino).or_default().emptied = true;
                }
                let cut = self.cut(*ino, change, (*size, u64::MAX));
                self.zeroed(*ino, *size).into_iter().chain([cut]).collect()
            }
            What::Allocate { ino, size } if self.now.size(*ino) < *size => {
                let change = Change::Grow {
                    ino: *ino,
                    size: *size,
                };
                let old = self.now.size(*ino);
                vec![self.cut(*ino, change, (old, u64::MAX))]
            }
            What::Allocate { ino, size } => self.allocated(*ino, *size).into_iter().collect(),
            What::Zero { ino, offset, len } => {
                let (ino, offset, len) = (*ino, *offset, *len);
                let change = Change::Zero { ino, offset, len };
                let mut hole = self.cut(ino, change, (offset, offset.saturating_add(len)));
                // A hole does not wait for sizes that are not written yet: a real ext4 shows it with an older one.
                if self.model.truncate == Truncate::ZerosFirst {
                    hole.cells.clear();
                }
                vec![hole]
            }
            What::Attr {
                ino,
                perm,
                uid,
                gid,
            } => {
                let change = Change::Attr {
                    ino: *ino,
                    perm: *perm,
                    uid: *uid,
                    gid: *gid,
                };
                vec![self.attr(*ino, change, Cell::Attr(*ino))]
            }
            What::Xattr { ino, name, value } => {
                let change = Change::Xattr {
                    ino: *ino,
                    name: name.clone(),
                    value: value.clone(),
                };
                vec![self.attr(*ino, change, Cell::Xattr(*ino, name.clone()))]
            }
            What::Close { ino } => {
                let also = &self.model.also;
                let size_alone = also.contains(&Heuristic::CloseAfterTruncateSize);
                let wanted = size_alone || also.contains(&Heuristic::CloseAfterTruncate);
                if let Some(file) = self.files.get_mut(ino)
                    && std::mem::take(&mut file.emptied)
                    && wanted
                    && self.fault != Some(Fault::NoHeuristics)
                {
                    let content = match size_alone {
                        true => self.sizes_of(*ino),
                        false => self.content_of(*ino),
                    };
                    let closed = self.closure(&content, false);
                    self.floor.add(&closed);
                }
                Vec::new()
            }
            What::Fsync { .. } | What::Sync | What::SyncRange { .. } | What::Ack { .. } => {
                Vec::new()
            }
        }
    }

    fn attr(&self, ino: Ino, change: Change, cell: Cell) -> Proto {
        let mut proto = Proto::new(Classes::ATTR, vec![change]);
        proto.file = Some(ino);
        proto.cells.push(cell);
        proto
    }

    fn cut(&self, ino: Ino, change: Change, (from, to): (u64, u64)) -> Proto {
        let mut proto = Proto::new(Classes::TRUNCATE, vec![change]);
        proto.file = Some(ino);
        proto.cells = vec![Cell::Size(ino)];
        // If blocks are overwritten in place, a block that stays takes writes before the truncation is durable.
        let unit = self.model.unit;
        proto.range = Some(match self.model.truncate {
            Truncate::Atomic => (0, u64::MAX),
            Truncate::ZerosFirst => (from.next_multiple_of(unit), to),
        });
        proto
    }

    /// Space allocated inside the size may make a size durable that earlier writes have not made durable yet: a real
    /// ext4 shows it before theirs, and a real XFS does not.
    fn allocated(&self, ino: Ino, size: u64) -> Option<Proto> {
        let file = self.files.get(&ino)?;
        if self.model.allocate == Allocate::Room || self.demanded.contains(&file.sizes) {
            return None;
        }
        let mut proto = Proto::new(Classes::TRUNCATE, vec![Change::Grow { ino, size }]);
        proto.file = Some(ino);
        Some(proto)
    }

    fn content_of(&self, ino: Ino) -> Bits {
        let content = self.files.get(&ino).map(|f| f.content.clone());
        content.unwrap_or_default()
    }

    /// Effects that set its size, without the data.
    fn sizes_of(&self, ino: Ino) -> Bits {
        let sizes = Classes::SIZE.and(Classes::TRUNCATE);
        let content = self.content_of(ino);
        let all = content.iter();
        all.filter(|e| self.all[*e].class.meets(sizes)).collect()
    }

    /// The zeros that a truncation writes into the rest of the last unit.
    fn zeroed(&self, ino: Ino, size: u64) -> Option<Proto> {
        let unit = self.model.unit;
        let end = size.next_multiple_of(unit).min(self.now.size(ino));
        if self.model.truncate != Truncate::ZerosFirst || end <= size {
            return None;
        }
        let (offset, len) = (size, end - size);
        let mut proto = Proto::new(Classes::DATA, vec![Change::Zero { ino, offset, len }]);
        proto.file = Some(ino);
        proto.part = Some((size, end));
        proto.tears = self.model.tear < unit;
        proto.cells = vec![Cell::Unit(ino, size / self.unit)];
        Some(proto)
    }

    fn rename(&mut self, from: &Entry, to: &Entry, exchange: bool) -> Vec<Proto> {
        let Some(ino) = self.now.lookup(from.0, &from.1) else {
            return Vec::new();
        };
        let target = self.now.lookup(to.0, &to.1);
        if target == Some(ino) {
            return Vec::new();
        }
        let mut first = self.named(to, ino, vec![self.entry(to, ino, true)]);
        if let (Some(other), true) = (target, exchange) {
            first.changes.push(self.entry(from, other, true));
            first.cells.push(Cell::Name(from.0, Arc::clone(&from.1)));
        }
        for heuristic in self
            .model
            .also
            .iter()
            .filter(|_| !self.has(Fault::NoHeuristics))
        {
            let first_durable = match heuristic {
                Heuristic::Rename => self.content_of(ino),
                Heuristic::RenameOver if target.is_some() => self.content_of(ino),
                Heuristic::RenameOverSize if target.is_some() => self.sizes_of(ino),
                _ => continue,
            };
            first.extra.add(&self.closure(&first_durable, false));
        }
        if exchange {
            return vec![first];
        }
        let gone = self.entry(from, ino, false);
        if self.has(Fault::HalfRename) {
            return vec![first];
        }
        match self.model.rename {
            // A sync of the new directory logs only its entry: a real Btrfs then shows both names.
            Rename::Atomic if self.model.sync_jumps && from.0 != to.0 => {
                let mut gone = self.named(from, ino, vec![gone]);
                gone.cells.push(Cell::Name(to.0, Arc::clone(&to.1)));
                vec![first, gone]
            }
            Rename::Atomic => {
                first.changes.insert(0, gone);
                first.cells.push(Cell::Name(from.0, Arc::clone(&from.1)));
                vec![first]
            }
            Rename::Split => vec![first, self.named(from, ino, vec![gone])],
        }
    }

    fn write(&mut self, ino: Ino, offset: u64, bytes: &Bytes) -> Vec<Proto> {
        let len = bytes.len() as u64;
        if len == 0 || is_dir(&self.now, ino) {
            return Vec::new();
        }
        let end = offset.saturating_add(len);
        let old = self.now.size(ino);
        let mut unit = self.unit;
        while len / unit >= PARTS_MAX {
            unit = unit.saturating_mul(2);
        }
        let mut protos = Vec::new();
        let mut ends = Vec::new();
        let mut at = offset;
        while at < end {
            let to = (at / unit + 1).saturating_mul(unit).min(end);
            let range = ((at - offset) as usize, (to - offset) as usize);
            let change = Change::Data {
                ino,
                offset,
                bytes: bytes.clone(),
                range,
            };
            let mut proto = Proto::new(Classes::DATA, vec![change]);
            proto.file = Some(ino);
            proto.part = Some((at, to));
            proto.tears = self.model.tear < self.model.unit;
            // Cells are units, whatever the sizes of parts are.
            let units = at / self.unit..=(to - 1) / self.unit;
            proto.cells = units.map(|u| Cell::Unit(ino, u)).collect();
            if to > old {
                ends.push(to);
                if self.model.append == Append::Together {
                    proto.class = Classes::DATA.and(Classes::SIZE);
                    proto.changes.push(Change::Grow { ino, size: to });
                    proto.cells.push(Cell::Size(ino));
                    proto.tears = false;
                }
            }
            protos.push(proto);
            at = to;
        }
        if self.has(Fault::NoLastPart) {
            protos.pop();
        }
        if self.model.append != Append::Together && !self.has(Fault::NoSize) {
            let sizes = self.sizes(ino, old, &ends);
            match self.model.hole {
                // Garbage lies below the data, so it comes first.
                Hole::Garbage => protos.splice(0..0, sizes).for_each(drop),
                Hole::Zeros => protos.extend(sizes),
            }
        }
        protos
    }

    /// The sizes that a write may leave.
    fn sizes(&self, ino: Ino, old: u64, ends: &[u64]) -> Vec<Proto> {
        let step = ends.len().div_ceil(SIZES_MAX).max(1);
        let mut from = old;
        let mut protos = Vec::new();
        for (i, to) in ends.iter().enumerate() {
            if (i + 1) % step != 0 && i + 1 != ends.len() {
                continue;
            }
            let mut changes = vec![Change::Grow { ino, size: *to }];
            if self.model.hole == Hole::Garbage {
                let bytes = Bytes::garbage(from..*to);
                let range = (0, bytes.len());
                changes.push(Change::Data {
                    ino,
                    offset: from,
                    bytes,
                    range,
                });
            }
            let mut proto = Proto::new(Classes::SIZE, changes);
            proto.file = Some(ino);
            proto.part = Some((from, *to));
            proto.cells = vec![Cell::Size(ino)];
            protos.push(proto);
            from = *to;
        }
        protos
    }

    fn key(proto: &Proto, scope: Scope) -> Option<u64> {
        match scope {
            Scope::Fs => Some(0),
            Scope::Directory => proto.dir,
            Scope::File => proto.file,
        }
    }

    fn push(&mut self, step: usize, mut proto: Proto) {
        let id = self.all.len();
        let mut cells = Bits::new();
        // Each brings along everything before it.
        let mut direct: Vec<usize> = Vec::new();
        if !self.has(Fault::NoCells) {
            // Copy on write: a truncation sets the size, even if written sizes wait for their data.
            let overtakes = proto.range.is_some()
                && self.model.truncate == Truncate::Atomic
                && self.model.append == Append::DataBeforeSize;
            let last = proto.cells.iter().filter_map(|c| self.last.get(c).copied());
            let last = last.filter(|e| !overtakes || self.all[*e].class != Classes::SIZE);
            for other in last.chain(self.cuts_before(&proto)) {
                cells.add(&self.all[other].cells);
                cells.insert(other);
                direct.push(other);
            }
        }
        // No log of syncs shows a size before the data that it covers: this is an order of cells, which no sync
        // jumps.
        let waits = proto.class == Classes::SIZE
            && matches!(
                self.model.append,
                Append::DataBeforeSize | Append::NewUnitsBeforeSize
            );
        if waits && !self.has(Fault::SizeAlone) {
            let file = proto.file.and_then(|f| self.files.get(&f));
            let covered = proto.part.map_or(u64::MAX, |(_, to)| to);
            let mut fresh = file.map(|f| f.fresh.clone()).unwrap_or_default();
            fresh.subtract(&cells);
            for id in fresh.iter() {
                let data = &self.all[id];
                if data.part.is_none_or(|(from, _)| from < covered) {
                    cells.add(&data.cells);
                    cells.insert(id);
                    direct.push(id);
                }
            }
        }
        let mut before = cells.clone();
        for other in direct {
            before.add(&self.all[other].before);
        }
        before.add(&proto.extra);
        if proto.class.meets(Classes::METADATA) {
            before.add(&self.floor);
        }
        if !self.has(Fault::NoRules) {
            for (i, rule) in self.model.order.iter().enumerate() {
                if rule.after.meets(proto.class)
                    && let Some(key) = Builder::key(&proto, rule.scope)
                    && let Some(bound) = self.bound.get(&(i, key))
                {
                    before.add(bound);
                }
            }
        }
        if self.has(Fault::MoreRules) {
            before = Bits::first(id);
        }
        for (i, rule) in self.model.order.iter().enumerate() {
            if rule.before.meets(proto.class)
                && let Some(key) = Builder::key(&proto, rule.scope)
            {
                let bound = self.bound.entry((i, key)).or_default();
                bound.add(&before);
                bound.insert(id);
            }
        }
        for cell in proto.cells.drain(..) {
            self.last.insert(cell, id);
        }
        self.note(id, &proto);
        // The next steps need names and sizes, not content.
        for change in proto.changes.iter().filter(|c| !c.is_content()) {
            self.now.apply(change);
        }
        self.all.push(Effect {
            step,
            class: proto.class,
            file: proto.file,
            dir: proto.dir,
            changes: proto.changes,
            part: proto.part,
            tears: proto.tears,
            before,
            cells,
        });
    }

    /// The truncations that data waits for: those that freed its blocks. With other truncations it has only the size
    /// in common.
    fn cuts_before(&self, proto: &Proto) -> Vec<usize> {
        let data = proto.class.meets(Classes::DATA) || proto.range.is_some();
        let file = proto.file.filter(|_| data).and_then(|f| self.files.get(&f));
        let (from, to) = proto.part.unwrap_or((0, u64::MAX));
        let cuts = file.into_iter().flat_map(|f| &f.cuts);
        cuts.filter(|(_, range)| from < range.1 && range.0 < to)
            .map(|(id, _)| *id)
            .collect()
    }

    fn note(&mut self, id: usize, proto: &Proto) {
        let metadata = proto.class.meets(Classes::METADATA);
        if let (Some(dir), true) = (proto.dir, metadata) {
            self.files.entry(dir).or_default().last = Some(id);
        }
        let Some(ino) = proto.file else {
            return;
        };
        if proto.class.meets(Classes::ENTRY) {
            self.names.entry(ino).or_default().push(id);
        }
        let named = |c: &Change| matches!(c, Change::Set { ino: i, .. } if *i == ino);
        if self.synced.contains(&ino) && proto.changes.iter().any(named) {
            self.renamed.insert(id);
        }
        let size = self.now.size(ino);
        let file = self.files.entry(ino).or_default();
        if metadata {
            file.last = Some(id);
        }
        if let Some(range) = proto.range {
            file.cuts.push((id, range));
        }
        if proto
            .class
            .meets(Classes::DATA.and(Classes::SIZE).and(Classes::TRUNCATE))
        {
            file.content.insert(id);
        }
        if proto.class.meets(Classes::SIZE) {
            file.sizes.insert(id);
        }
        if let Some((from, to)) = proto.part.filter(|_| proto.class == Classes::DATA) {
            let old_unit = !size.is_multiple_of(self.unit) && from / self.unit == size / self.unit;
            let waits = !old_unit || self.model.append == Append::DataBeforeSize;
            if to > size && waits {
                file.fresh.insert(id);
            }
        }
    }

    /// A set and everything before it.
    fn closure(&self, set: &Bits, cells_alone: bool) -> Bits {
        let mut closed = set.clone();
        for i in set.iter() {
            let effect = &self.all[i];
            closed.add(if cells_alone {
                &effect.cells
            } else {
                &effect.before
            });
        }
        closed
    }

    fn sync(&mut self, step: &Step) {
        let model = self.model;
        let mut demands: Vec<(Option<Ino>, &Demand)> =
            model.call.iter().map(|d| (None, d)).collect();
        let everything = Demand::Earlier(Classes::ALL);
        match &step.what {
            What::Fsync { .. } if self.has(Fault::FullDemand) => demands.push((None, &everything)),
            What::Fsync { ino, data_only } => {
                let list = match (is_dir(&self.now, *ino), data_only) {
                    (true, _) => &model.fsync_dir,
                    (false, true) => &model.fdatasync,
                    (false, false) => &model.fsync,
                };
                demands.extend(list.iter().map(|d| (Some(*ino), d)));
            }
            What::Sync => demands.extend(model.sync.iter().map(|d| (None, d))),
            What::SyncRange { ino } => {
                demands.extend(model.sync_file_range.iter().map(|d| (Some(*ino), d)));
            }
            _ => {}
        }
        if model.lying_disk || self.has(Fault::NoDemand) {
            return;
        }
        let mut wanted = Bits::new();
        for (ino, demand) in demands {
            self.demand(ino, *demand, &mut wanted);
        }
        // What was demanded before is there with all that comes before it.
        wanted.subtract(&self.demanded);
        if let What::Fsync { ino, .. } = &step.what {
            // An inode that had nothing to sync is in no log.
            let mut pending = self.demanded.missing(self.all.len());
            if pending.any(|i| self.all[i].file == Some(*ino)) {
                self.synced.insert(*ino);
            }
        }
        let wanted = self.closure(&wanted, model.sync_jumps);
        self.demanded.add(&wanted);
    }

    /// Adds what a sync demands, as far as that was not demanded before.
    fn demand(&self, ino: Option<Ino>, demand: Demand, wanted: &mut Bits) {
        let matching = |classes: Classes, f: &dyn Fn(&Effect) -> bool| -> Bits {
            let fits = |e: &Effect| e.class.meets(classes) && f(e);
            let pending = self.demanded.missing(self.all.len());
            pending.filter(|i| fits(&self.all[*i])).collect()
        };
        let pending = || {
            let file = ino.and_then(|i| self.files.get(&i));
            file.is_some_and(|f| !self.demanded.contains(&f.sizes))
        };
        match demand {
            Demand::OfFile(classes) => {
                wanted.add(&matching(classes, &|e| ino.is_some() && e.file == ino));
            }
            Demand::NamesOfSynced => wanted.add(&self.renamed),
            Demand::EntriesOfDirectory => {
                wanted.add(&matching(Classes::ENTRY, &|e| {
                    ino.is_some() && e.dir == ino
                }));
            }
            Demand::Earlier(Classes::ALL) => wanted.add(&Bits::first(self.all.len())),
            Demand::Earlier(classes) => wanted.add(&matching(classes, &|_| true)),
            Demand::NamesOfFile => {
                // And the names of the directories that they are in.
                let mut todo: Vec<Ino> = ino.into_iter().collect();
                let mut seen: BTreeSet<Ino> = todo.iter().copied().collect();
                while let Some(of) = todo.pop() {
                    for i in self.names.get(&of).into_iter().flatten() {
                        todo.extend(self.all[*i].dir.filter(|d| seen.insert(*d)));
                        wanted.insert(*i);
                    }
                }
            }
            Demand::UpToLastChangeIfSize if !pending() => {}
            Demand::UpToLastChange | Demand::UpToLastChangeIfSize => {
                if pending() {
                    wanted.add(&matching(Classes::METADATA, &|_| true));
                } else if let Some(last) = ino.and_then(|i| self.files.get(&i)).and_then(|f| f.last)
                {
                    wanted.insert(last);
                }
            }
        }
    }
}
