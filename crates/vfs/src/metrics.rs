//! Metrics in the text format of Prometheus (version 0.0.4), for every front end that offers them.
//!
//! Invariants: a family has one name, one type and one help text, and all its samples stand together; the name of a
//! counter ends in `_total`. [`Metrics::volume`] describes what [`crate::FileSystem::counters`] lists.

use std::fmt::Write;

/// Type of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, from the start of the process on.
    Counter,
    /// It goes up and down, or is a maximum.
    Gauge,
    /// Counts of observations by class, their number and their sum.
    Histogram,
}

/// A counter of a volume: its name in [`crate::FileSystem::counters`], and its meaning.
type Described = (&'static str, &'static str);

/// Levels and maxima: they may become smaller.
const GAUGES: [Described; 14] = [
    (
        "largest_batch_now",
        "Most transactions that one commit held",
    ),
    ("log_blocks_used_now", "Blocks of the log in use"),
    ("log_capacity_blocks_now", "Blocks of the log"),
    (
        "uncommitted_transactions_now",
        "Transactions that are not durable yet",
    ),
    (
        "failed_now",
        "1 if the volume failed: nothing is written to it any more",
    ),
    (
        "frozen_now",
        "1 while the volume is frozen: writes to the device wait",
    ),
    (
        "store_lag_flushes_now",
        "Flushes that the cache has and the store lacks",
    ),
    ("store_lag_bytes_now", "Bytes of those flushes"),
    (
        "store_lag_ms_now",
        "Age of the oldest of those flushes in milliseconds",
    ),
    ("read_only_now", "1 if the volume can only be read"),
    ("size_bytes_now", "Bytes for files and metadata"),
    ("free_bytes_now", "Bytes that are free"),
    (
        "stream_known_now",
        "Streams that changed or synced something",
    ),
    (
        "stream_uncommitted_now",
        "Streams with operations that are not durable yet",
    ),
];

/// Values that only grow.
const COUNTERS: [Described; 35] = [
    ("operations", "Operations that changed something"),
    ("changed_bytes", "Bytes that operations changed"),
    ("transactions", "Transactions that were made"),
    (
        "merges",
        "Transactions that were merged into an earlier one",
    ),
    ("commits", "Commits"),
    ("batched_transactions", "Transactions that commits wrote"),
    ("record_bytes", "Bytes of log records"),
    ("log_blocks", "Blocks written to the log"),
    (
        "data_blocks",
        "Blocks of data written to new places, around the log",
    ),
    (
        "in_place_blocks",
        "Blocks of data overwritten in place, around the log",
    ),
    ("flushes", "Flushes of the device"),
    ("checkpoints", "Checkpoints"),
    ("home_blocks", "Blocks that checkpoints wrote in place"),
    ("released_blocks", "Blocks that became free"),
    ("trims", "Trims sent to the device"),
    ("trimmed_blocks", "Blocks that were trimmed"),
    ("store_gets", "GET and HEAD requests to the object store"),
    ("store_get_bytes", "Bytes that those requests brought"),
    ("store_puts", "PUT requests to the object store"),
    ("store_put_bytes", "Bytes that those requests carried"),
    ("store_deletes", "DELETE requests to the object store"),
    (
        "store_checkpoints",
        "Checkpoints of the map on the object store",
    ),
    (
        "store_moved_blocks",
        "Blocks that collection moved to other objects",
    ),
    ("waits", "Operations that waited for room in the log"),
    (
        "stream_commits",
        "Commits that streams asked for: syncs and commit intervals",
    ),
    (
        "stream_own_bytes",
        "Bytes that streams' own operations wrote to the device",
    ),
    (
        "stream_carried_bytes",
        "Bytes of other streams that commits of a stream had to write",
    ),
    ("stream_waits", "Times that a stream waited for another one"),
    (
        "stream_merges_file",
        "Merges of streams that changed one file",
    ),
    (
        "stream_merges_name",
        "Merges of streams that changed or looked for one name",
    ),
    (
        "stream_merges_directory",
        "Merges because a stream changed a directory as a whole",
    ),
    (
        "stream_merges_block",
        "Merges because a stream rebuilt an index block or made or freed an inode block",
    ),
    (
        "stream_merges_topology",
        "Merges of streams that moved directories",
    ),
    (
        "stream_merges_bytes",
        "Merges of streams that changed the same bytes of a block",
    ),
    (
        "stream_merges_life",
        "Merges because a stream freed or reused a block",
    ),
];

#[derive(Debug)]
struct Family {
    name: String,
    kind: Kind,
    help: String,
    lines: String,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
}

/// Labels of a sample.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Metrics {
    /// Adds a sample to the family `name`. The first sample decides type and help.
    pub fn add(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        labels: Labels<'_>,
        value: impl Into<Value>,
    ) {
        self.add_part((name, kind, help), "", labels, value);
    }

    /// Adds a sample of a histogram: `part` is `_bucket`, `_sum` or `_count`.
    pub fn add_part(
        &mut self,
        (name, kind, help): (&str, Kind, &str),
        part: &str,
        labels: Labels<'_>,
        value: impl Into<Value>,
    ) {
        let index = match self.families.iter().position(|family| family.name == name) {
            Some(index) => index,
            None => {
                self.families.push(Family {
                    name: name.to_owned(),
                    kind,
                    help: escaped(help, false),
                    lines: String::new(),
                });
                self.families.len() - 1
            }
        };
        let lines = &mut self.families[index].lines;
        lines.push_str(name);
        lines.push_str(part);
        for (at, (label, text)) in labels.iter().enumerate() {
            let begin = if at == 0 { '{' } else { ',' };
            let _ = write!(lines, "{begin}{label}=\"{}\"", escaped(text, true));
        }
        if !labels.is_empty() {
            lines.push('}');
        }
        let _ = match value.into() {
            Value::Whole(value) => writeln!(lines, " {value}"),
            Value::Real(value) => writeln!(lines, " {value}"),
        };
    }

    /// Adds the counters of a volume, by name as [`crate::FileSystem::counters`] lists
    /// them, as `steadfast_volume_…`, and its size and free space.
    pub fn volume<'n>(
        &mut self,
        labels: Labels<'_>,
        counters: impl IntoIterator<Item = (&'n str, u64)>,
        space: Option<&crate::StatFs>,
    ) {
        for (name, value) in counters {
            let described = |table: &[Described]| {
                let mut found = table.iter().filter(|(known, _)| *known == name);
                found.next().map(|(_, help)| *help)
            };
            let level = name.strip_suffix("_now");
            let (kind, help) = match (described(&GAUGES), described(&COUNTERS)) {
                (Some(help), _) => (Kind::Gauge, help.to_owned()),
                (_, Some(help)) => (Kind::Counter, help.to_owned()),
                _ if level.is_some() => (Kind::Gauge, plain(name)),
                _ => (Kind::Counter, plain(name)),
            };
            let name = level.unwrap_or(name);
            let name = match kind {
                Kind::Counter => format!("steadfast_volume_{name}_total"),
                _ => format!("steadfast_volume_{name}"),
            };
            self.add((&name, kind, &help), labels, value);
        }
        if let Some(space) = space {
            let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_size));
            for (name, help, value) in [
                (
                    "size_bytes",
                    "Bytes for files and metadata",
                    bytes(space.blocks),
                ),
                (
                    "free_bytes",
                    "Bytes that are free",
                    bytes(space.blocks_free),
                ),
                (
                    "free_inodes",
                    "Files that could still be made",
                    space.inodes_free,
                ),
            ] {
                let name = format!("steadfast_volume_{name}");
                self.add((&name, Kind::Gauge, help), labels, value);
            }
        }
    }

    /// The page.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let (name, help) = (&family.name, &family.help);
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{}",
                family.lines
            );
        }
        text
    }
}

/// A value of a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Real(value)
    }
}

/// A help text for a name that no table describes.
fn plain(name: &str) -> String {
    name.trim_end_matches("_now").replace('_', " ")
}

fn escaped(text: &str, label: bool) -> String {
    let mut escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if label {
        escaped = escaped.replace('"', "\\\"");
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_together_with_its_help_and_type() {
        let mut metrics = Metrics::default();
        for (volume, sum) in [("a \"b\"\\", 1), ("c\nd", 2)] {
            let space = crate::StatFs {
                block_size: 4096,
                blocks_free: sum,
                ..crate::StatFs::default()
            };
            let counters = [("commits", sum), ("largest_batch_now", 7), ("new_now", 3)];
            metrics.volume(&[("volume", volume)], counters, Some(&space));
        }
        metrics.add(("x_total", Kind::Counter, "An x"), &[], 0.5);
        let text = metrics.text();
        for part in [
            "# HELP steadfast_volume_commits_total Commits\n# TYPE steadfast_volume_commits_total counter\n\
             steadfast_volume_commits_total{volume=\"a \\\"b\\\"\\\\\"} 1\n\
             steadfast_volume_commits_total{volume=\"c\\nd\"} 2\n",
            "# TYPE steadfast_volume_largest_batch gauge\n",
            "# HELP steadfast_volume_new new\n# TYPE steadfast_volume_new gauge\n",
            "steadfast_volume_free_bytes{volume=\"c\\nd\"} 8192\n",
            "# HELP x_total An x\n# TYPE x_total counter\nx_total 0.5\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 7);
    }

    #[test]
    fn a_value_that_may_become_smaller_is_no_counter() {
        for (name, _) in COUNTERS {
            assert!(!name.ends_with("_now"), "{name}");
            assert!(!GAUGES.iter().any(|(other, _)| *other == name), "{name}");
        }
    }
}
