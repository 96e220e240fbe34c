//! Checks of an unmounted volume, and sweeps for garbage that nothing names.

use crate::device::{Core, Sources, load_root, read_history};
use crate::io::StoreError;
use crate::map::REGION_BLOCKS;
use crate::object::{CellKind, HeadObject, PinKind, open};
use crate::protocol::{Head, ObjectName, Slot, Stamp, closed_below};
use crate::runtime::runtime;
use crate::volume::{Found, OpenError};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// Objects that are read concurrently.
const AT_ONCE: usize = 8;

/// A defect that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the object.
    pub object: String,
    /// The user of the object: `the volume`, or a snapshot or a clone with its name.
    pub needed_by: String,
    /// Description of the defect.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Defects.
    pub findings: Vec<Finding>,
    /// Number of objects that were read.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of objects below the prefix.
    pub listed: u64,
    /// Number of objects that nothing names and no writer can still name.
    pub garbage: u64,
    /// Bytes of these objects.
    pub garbage_bytes: u64,
    /// Number of deleted objects.
    pub deleted: u64,
    /// Files or objects below the prefix whose names no volume uses.
    pub foreign: u64,
}

/// Objects to read, each with its expected stamp and its user.
type Needed = BTreeMap<(u16, ObjectName), (Option<Stamp>, String)>;

fn need(needed: &mut Needed, core: &Core, by: &str) {
    for (_, entry) in core.map.objects().filter(|(_, entry)| entry.live > 0) {
        needed
            .entry((entry.source, entry.name))
            .or_insert_with(|| (Some(entry.stamp), by.to_owned()));
    }
    let named: HashSet<u32> = core.directory.values().map(|place| place.map).collect();
    for (index, map) in core.maps.iter().enumerate() {
        if named.contains(&(index as u32)) {
            needed
                .entry((map.source, map.reference.name))
                .or_insert_with(|| (Some(map.reference.stamp), by.to_owned()));
        }
    }
}

impl Found {
    /// Loads the volume and its snapshots.
    fn everything(&self) -> Result<(Head, Needed, Vec<Core>), OpenError> {
        let keep = Duration::ZERO;
        let (HeadObject { head, .. }, core) =
            read_history(&self.sources, self.object().base, keep)?;
        let mut needed = Needed::new();
        if let Some(root) = head.base.root {
            needed.insert((0, root.name), (Some(root.stamp), "the volume".to_owned()));
        }
        if let Some(roots) = head.roots {
            let by = "the list of snapshots".to_owned();
            needed.insert((0, roots.name), (Some(roots.stamp), by));
        }
        for slot in head.base.through.0 + 1..=core.last_slot().0 {
            if let Some(at) = head.slot_name(Slot(slot)) {
                let by = "the volume".to_owned();
                needed.insert((0, ObjectName::Log(at)), (None, by));
            }
        }
        need(&mut needed, &core, "the volume");
        let mut cores = vec![core];
        for pin in &self.state()?.roots.pins {
            let by = match pin.kind {
                PinKind::Snapshot => format!("the snapshot '{}'", pin.name),
                PinKind::Clone => format!("the clone {}", pin.name),
            };
            if let Some(root) = pin.base.root {
                let entry = needed.entry((0, root.name));
                entry.or_insert((Some(root.stamp), by.clone()));
            }
            let loaded = load_root(&self.sources, pin.base, None)?;
            let core = Core::of(loaded, pin.base, keep);
            need(&mut needed, &core, &by);
            cores.push(core);
        }
        Ok((head, needed, cores))
    }

    /// Reads every object that the volume or one of its snapshots needs, and compares its hash; then checks every part of the
    /// map. `progress` gets the number of objects done, and the total.
    ///
    /// # Errors
    /// The objects that the volume needs cannot be determined.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, OpenError> {
        let (_, needed, mut cores) = self.everything()?;
        let total = needed.len() as u64;
        let mut checked = Checked::default();
        let sources = &self.sources;
        runtime()?.block_on(async {
            let reads = needed
                .iter()
                .map(|((source, name), (stamp, by))| async move {
                    let found = look(sources, *source, *name, *stamp).await;
                    (*name, by, found)
                });
            let mut reads = stream::iter(reads).buffer_unordered(AT_ONCE);
            while let Some((name, by, found)) = reads.next().await {
                checked.objects += 1;
                match found {
                    Ok(Ok(bytes)) => checked.bytes += bytes,
                    Ok(Err(what)) => checked.findings.push(Finding {
                        object: name.to_string(),
                        needed_by: by.clone(),
                        what,
                    }),
                    Err(error) => return Err(error),
                }
                progress(checked.objects, total);
            }
            Ok(())
        })?;
        let blocks = self.state()?.blocks;
        for core in &mut cores {
            self.check_map(core, blocks, &mut checked)?;
        }
        Ok(checked)
    }

    /// Checks that every extent is in an object of the table, and that the table's counts are right.
    fn check_map(
        &self,
        core: &mut Core,
        blocks: u64,
        checked: &mut Checked,
    ) -> Result<(), OpenError> {
        let regions: Vec<u64> = core
            .directory
            .keys()
            .filter(|(kind, _)| *kind == CellKind::Region)
            .map(|(_, region)| *region)
            .collect();
        for region in regions {
            core.load_regions(&self.sources, region.saturating_mul(REGION_BLOCKS), 1)?;
        }
        let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
        for (_, count, spot) in core.map.over(0, blocks) {
            *counted.entry(spot.object).or_default() += u64::from(count);
        }
        let mut wrong = |what: String| {
            checked.findings.push(Finding {
                object: "map".to_owned(),
                needed_by: "the volume".to_owned(),
                what,
            });
        };
        for (id, entry) in core.map.objects() {
            let count = counted.remove(&id).unwrap_or(0);
            if count != u64::from(entry.live) {
                wrong(format!(
                    "{} has {count} blocks in use, the table says {}",
                    entry.name, entry.live
                ));
            }
        }
        for (id, count) in counted {
            wrong(format!(
                "{count} blocks lie in object {id}, which the table lacks"
            ));
        }
        Ok(())
    }

    /// Lists all objects below the prefix and finds the garbage: objects of closed terms that nothing names, so no writer can
    /// still name them. With `delete`, deletes them. Seals stay: the first seal of each term is needed for ever.
    ///
    /// # Errors
    /// The store's.
    pub fn sweep(&self, delete: bool) -> Result<Swept, OpenError> {
        let (head, needed, cores) = self.everything()?;
        let mut known: HashSet<ObjectName> = needed
            .keys()
            .filter(|(source, _)| *source == 0)
            .map(|(_, name)| *name)
            .collect();
        for core in &cores {
            known.extend(core.other_names());
            let own = core.map.objects().filter(|(_, entry)| entry.source == 0);
            known.extend(own.map(|(_, entry)| entry.name));
            known.extend(core.maps.iter().map(|map| map.reference.name));
        }
        let below = closed_below(&head);
        let io = self.sources.own();
        let mut swept = Swept::default();
        for (name, bytes) in self.list()? {
            swept.listed += 1;
            let Ok(name) = name.parse::<ObjectName>() else {
                swept.foreign += 1;
                continue;
            };
            let term = match name {
                ObjectName::Log(at) => at.term,
                ObjectName::Data { term, .. } | ObjectName::Map { term, .. } => term,
                // `head` may soon name a list of snapshots of the present term.
                ObjectName::Roots { term, .. } => term,
                _ => continue,
            };
            if term >= below || known.contains(&name) {
                continue;
            }
            if matches!(name, ObjectName::Log(_)) && self.is_seal(name)? {
                continue;
            }
            swept.garbage += 1;
            swept.garbage_bytes += bytes;
            if delete {
                runtime()?.block_on(io.delete(name))?;
                swept.deleted += 1;
            }
        }
        Ok(swept)
    }

    /// All objects below the prefix: names relative to it, and sizes in bytes.
    ///
    /// # Errors
    /// The store's.
    pub fn list(&self) -> Result<Vec<(String, u64)>, OpenError> {
        let location = &self.sources.own().location;
        let listed = runtime()?.block_on(async {
            let listing = location.store.list(Some(&location.prefix));
            listing.try_collect::<Vec<_>>().await
        });
        let io = self.sources.own();
        let listed =
            listed.map_err(|e| io.refused("listing", "objects", &crate::io::first_line(&e)))?;
        let name = |meta: object_store::ObjectMeta| {
            let name = meta.location.as_ref();
            let name = name.strip_prefix(location.prefix.as_ref()).unwrap_or(name);
            (name.trim_start_matches('/').to_owned(), meta.size)
        };
        Ok(listed.into_iter().map(name).collect())
    }

    fn is_seal(&self, name: ObjectName) -> Result<bool, OpenError> {
        use crate::object::{SlotBody, decode_slot};
        let ObjectName::Log(at) = name else {
            return Ok(false);
        };
        let io = self.sources.own();
        let got = runtime()?.block_on(io.get(name, None))?;
        // An object that cannot be read stays: it may be a seal.
        Ok(got.is_some_and(|got| {
            !matches!(
                decode_slot(&io.coding, at, &got.bytes),
                Ok((SlotBody::Epoch(_), _))
            )
        }))
    }
}

/// Reads an object. Returns its length, or its defect.
async fn look(
    sources: &Sources,
    source: u16,
    name: ObjectName,
    stamp: Option<Stamp>,
) -> Result<Result<u64, String>, StoreError> {
    let io = sources.get(source)?;
    let Some(got) = io.get(name, None).await? else {
        return Ok(Err(io.missing(name).to_string()));
    };
    Ok(match open(&io.coding, name, &got.bytes) {
        Err(why) => Err(io.damaged(name, why).to_string()),
        Ok((_, found)) if stamp.is_some_and(|stamp| stamp != found) => Err(format!(
            "{name} in {} is whole, but not the one that is needed",
            io.location.url
        )),
        Ok(_) => Ok(got.bytes.len() as u64),
    })
}
