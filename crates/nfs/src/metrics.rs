//! Metrics: calls by procedure, their latencies, and failures.
//!
//! Latency is the time from the call's arrival in memory until its reply is handed to the kernel or queued. It is
//! counted in classes that double, beginning with one microsecond.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nfs3_types::nfs3::NFS_PROGRAM;
use steadfast_vfs::metrics::{Kind, Metrics as Page};

/// Procedures of NFS.
pub(crate) const PROCEDURES: usize = 22;
/// Number of classes of latency. The last class has no upper bound.
const CLASSES: usize = 26;

/// Names of procedures in counters.
const NAMES: [&str; PROCEDURES] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

/// Names of procedures as in RFC 1813.
const UPPER_NAMES: [&str; PROCEDURES] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// The name of a procedure as in RFC 1813.
pub(crate) fn name_of(procedure: NFS_PROGRAM) -> &'static str {
    UPPER_NAMES[procedure as usize]
}

/// The longest latency of a class, in microseconds.
fn class_us(class: usize) -> u64 {
    1 << class
}

/// The counters of one procedure.
#[derive(Debug, Default)]
struct CallStats {
    count: AtomicU64,
    errors: AtomicU64,
    total_ns: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

impl CallStats {
    /// A quantile of the latency, in microseconds: this many of a thousand calls do not exceed it.
    fn quantile_us(&self, per_mille: u64) -> u64 {
        let counts = self.classes.each_ref().map(|class| class.load(Relaxed));
        let wanted = (counts.iter().sum::<u64>() * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (class, count) in counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return class_us(class);
            }
        }
        0
    }
}

macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// See the module's header.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            asked: [CallStats; PROCEDURES],
            $($(#[doc = $text])* pub(crate) $name: AtomicU64,)*
        }

        impl Metrics {
            fn others(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($text),*), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Bytes of READ replies
    bytes_read,
    /// Bytes of WRITE calls that were written
    bytes_written,
    /// Calls of the MOUNT program
    mount_requests,
    /// Calls that no procedure saw: unknown program, version or procedure, bad credential, garbage arguments
    rejected_requests,
    /// Calls through an export that does not admit the client
    refused,
    /// Handles that this server never made
    forged_handles,
    /// Calls that were answered from the duplicate-request cache
    duplicates_answered,
    /// Calls that came while the same call was in progress
    duplicates_joined,
    /// Connections that were accepted
    connections_accepted,
    /// Connections that were protected by TLS: handshakes that ended well
    tls_connections_accepted,
    /// Handshakes of TLS that did not end well
    tls_handshakes_failed,
    /// Calls over connections that are less protected than their export wants
    refused_insecure,
    /// Connections that were closed for what they sent: no RPC, or a record that is too long
    connections_closed_garbage,
    /// Connections that were closed because the client sent or took nothing for too long
    connections_closed_slow,
    /// Connections that were closed to make room for others
    connections_closed_crowded,
    /// Connections that were closed at once: no export admits the client, and the places for such clients were taken
    connections_refused,
    /// Times that a connection had to wait for memory
    memory_waits,
    /// Connections now
    connections_now,
    /// Connections over TLS, now
    tls_connections_now,
    /// Bytes that clients make the server hold, now
    memory_bytes_now,
    /// Bytes of records that are arriving, now
    arriving_bytes_now,
    /// Bytes of replies that clients have not taken, now
    unsent_bytes_now,
}

impl Metrics {
    /// Counts a call.
    pub(crate) fn asked(&self, procedure: NFS_PROGRAM, took: Duration, error: bool) {
        let asked = &self.asked[procedure as usize];
        asked.count.fetch_add(1, Relaxed);
        if error {
            asked.errors.fetch_add(1, Relaxed);
        }
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        asked.total_ns.fetch_add(ns, Relaxed);
        let us = ns.div_ceil(1000).max(1);
        // The class whose bound is the next power of two.
        let class = us.next_power_of_two().trailing_zeros() as usize;
        asked.classes[class.min(CLASSES - 1)].fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes_read(&self, len: usize) {
        self.bytes_read.fetch_add(len as u64, Relaxed);
    }

    pub(crate) fn bytes_written(&self, len: usize) {
        self.bytes_written.fetch_add(len as u64, Relaxed);
    }

    /// All counters by name. A name that ends in `_now` is a gauge.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let mut list = Vec::new();
        for (name, asked) in NAMES.iter().zip(&self.asked) {
            let count = asked.count.load(Relaxed);
            list.push((format!("requests_{name}"), count));
            list.push((format!("errors_{name}"), asked.errors.load(Relaxed)));
            if count > 0 {
                for (quantile, per_mille) in [("p50", 500), ("p99", 990)] {
                    let name = format!("latency_us_{quantile}_{name}_now");
                    list.push((name, asked.quantile_us(per_mille)));
                }
            }
        }
        let others = self.others().into_iter();
        list.extend(others.map(|(name, _, value)| (name.to_owned(), value)));
        list
    }

    /// Adds all counters to a page for Prometheus.
    pub(crate) fn add_to(&self, page: &mut Page) {
        let each = || NAMES.iter().zip(&self.asked);
        let errors = (
            "steadfast_nfs_errors_total",
            Kind::Counter,
            "Calls by procedure that were answered with an error",
        );
        for (name, asked) in each() {
            let labels = [("procedure", *name)];
            page.add(errors, &labels, asked.errors.load(Relaxed));
        }
        let seconds = (
            "steadfast_nfs_request_seconds",
            Kind::Histogram,
            "Time from a call's arrival to its reply, by procedure",
        );
        for (name, asked) in each().filter(|(_, asked)| asked.count.load(Relaxed) > 0) {
            let mut sum = 0;
            for (class, count) in asked.classes.iter().enumerate() {
                sum += count.load(Relaxed);
                let le = match class == CLASSES - 1 {
                    true => "+Inf".to_owned(),
                    false => format!("{}", class_us(class) as f64 / 1e6),
                };
                let labels = [("procedure", *name), ("le", le.as_str())];
                page.add_part(seconds, "_bucket", &labels, sum);
            }
            let labels = [("procedure", *name)];
            let total = asked.total_ns.load(Relaxed) as f64 / 1e9;
            page.add_part(seconds, "_sum", &labels, total);
            page.add_part(seconds, "_count", &labels, sum);
        }
        for (name, help, value) in self.others() {
            let (name, kind) = match name.strip_suffix("_now") {
                Some(name) => (format!("steadfast_nfs_{name}"), Kind::Gauge),
                None => (format!("steadfast_nfs_{name}_total"), Kind::Counter),
            };
            page.add((&name, kind, help.trim()), &[], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_by_class() {
        let metrics = Metrics::default();
        for us in [1, 3, 3, 3, 3, 3, 3, 3, 3, 100_000] {
            let took = Duration::from_micros(us);
            metrics.asked(NFS_PROGRAM::NFSPROC3_READ, took, us == 1);
        }
        metrics.asked(NFS_PROGRAM::NFSPROC3_NULL, Duration::MAX, false);
        let list = metrics.list();
        let get = |name: &str| {
            list.iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| *value)
        };
        assert_eq!(get("requests_read"), Some(10));
        assert_eq!(get("errors_read"), Some(1));
        assert_eq!(get("latency_us_p50_read_now"), Some(4));
        assert_eq!(get("latency_us_p99_read_now"), Some(1 << 17));
        assert_eq!(get("requests_write"), Some(0));
        let mut page = Page::default();
        metrics.add_to(&mut page);
        let text = page.text();
        for line in [
            "steadfast_nfs_request_seconds_bucket{procedure=\"read\",le=\"0.000004\"} 9\n",
            "steadfast_nfs_request_seconds_bucket{procedure=\"read\",le=\"+Inf\"} 10\n",
            "steadfast_nfs_errors_total{procedure=\"read\"} 1\n",
            "# TYPE steadfast_nfs_connections gauge\nsteadfast_nfs_connections 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
