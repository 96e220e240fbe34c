//! Embedded stores under the transactions of `sync`: an object of 128 bytes and two bits each, durable when the
//! commit returns. Both stores have one writer at a time; the threads take turns.

use crate::figures::{Clocks, Figures};
use crate::volume::{BITS_PER_THREAD, OBJECTS_PER_BLOCK, contents};
use redb::{Database, TableDefinition};
use rusqlite::Connection;
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// As many objects as a thread of `sync` has.
const OBJECTS_PER_THREAD: u64 = 64 * OBJECTS_PER_BLOCK;
const BITMAPS: u64 = 2;
/// Commits before the clock starts: the files have their size, and SQLite's log begins anew.
const WARM_UP_COMMITS: u64 = 500;

/// One transaction's changes.
struct Change {
    object: u64,
    contents: [u8; 128],
    bits: [u64; BITMAPS as usize],
    value: bool,
}

fn change(thread: u64, threads: u64, turn: u64) -> Change {
    let bit = thread * BITS_PER_THREAD + turn % BITS_PER_THREAD;
    Change {
        object: thread * OBJECTS_PER_THREAD + turn % OBJECTS_PER_THREAD,
        contents: contents(turn),
        bits: [bit, threads * BITS_PER_THREAD + bit],
        value: (turn / BITS_PER_THREAD).is_multiple_of(2),
    }
}

trait Store: Sync {
    /// Makes these changes in one transaction, durable on return.
    fn commit(&self, changes: &[Change]) -> Result<(), String>;
}

/// `threads` threads for `time` on a store in `dir`, which must have no store yet.
pub(crate) fn run(name: &str, dir: &Path, threads: u32, time: Duration) -> Result<Figures, String> {
    match name {
        "sqlite" => measure(&Sqlite::create(&dir.join("sqlite.db"))?, threads, time),
        "redb" => measure(&Redb::create(&dir.join("redb.db"))?, threads, time),
        _ => Err(format!("'{name}' is neither 'sqlite' nor 'redb'")),
    }
}

fn measure(store: &dyn Store, threads: u32, time: Duration) -> Result<Figures, String> {
    let threads = u64::from(threads);
    // Every row exists before the clock starts.
    let all: Vec<Change> = (0..threads)
        .flat_map(|t| (0..OBJECTS_PER_THREAD).map(move |turn| change(t, threads, turn)))
        .collect();
    store.commit(&all)?;
    for turn in 0..WARM_UP_COMMITS {
        store.commit(&[change(0, threads, turn)])?;
    }
    let stop = AtomicBool::new(false);
    let clocks = Clocks::start();
    let commits = thread::scope(|scope| {
        let work = |thread| {
            let stop = &stop;
            move || -> Result<u64, String> {
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    store.commit(&[change(thread, threads, turn)])?;
                    turn += 1;
                }
                Ok(turn)
            }
        };
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(work(t))).collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut commits = 0;
        for thread in running {
            commits += thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok::<u64, String>(commits)
    })?;
    let commits = commits as f64;
    Ok(Figures::default()
        .with("commits", commits)
        .with("commits_per_second", commits / clocks.wall_seconds())
        .with("cpu_us_per_commit", clocks.cpu_seconds() * 1e6 / commits))
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// SQLite with a write-ahead log that is synced at every commit.
struct Sqlite(Mutex<Connection>);

impl Sqlite {
    fn create(path: &Path) -> Result<Sqlite, String> {
        let connection = Connection::open(path).map_err(text)?;
        let mode: String = connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(text)?;
        if mode != "wal" {
            return Err(format!("SQLite keeps to journal_mode {mode}"));
        }
        connection
            .execute_batch(
                "PRAGMA synchronous = FULL;
                 CREATE TABLE objects (id INTEGER PRIMARY KEY, contents BLOB NOT NULL);
                 CREATE TABLE bits (id INTEGER PRIMARY KEY, value INTEGER NOT NULL);",
            )
            .map_err(text)?;
        Ok(Sqlite(Mutex::new(connection)))
    }
}

impl Store for Sqlite {
    fn commit(&self, changes: &[Change]) -> Result<(), String> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut put = || -> rusqlite::Result<()> {
            let transaction = connection.transaction()?;
            let mut object = transaction.prepare_cached("REPLACE INTO objects VALUES (?1, ?2)")?;
            let mut bit = transaction.prepare_cached("REPLACE INTO bits VALUES (?1, ?2)")?;
            for change in changes {
                object.execute((change.object as i64, &change.contents))?;
                for id in change.bits {
                    bit.execute((id as i64, change.value))?;
                }
            }
            drop((object, bit));
            transaction.commit()
        };
        put().map_err(text)
    }
}

const OBJECTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("objects");
const BITS: TableDefinition<'_, u64, bool> = TableDefinition::new("bits");

/// redb, whose commits are durable by default.
struct Redb(Database);

impl Redb {
    fn create(path: &Path) -> Result<Redb, String> {
        Database::create(path).map(Redb).map_err(text)
    }
}

impl Store for Redb {
    fn commit(&self, changes: &[Change]) -> Result<(), String> {
        let put = || -> Result<(), redb::Error> {
            let transaction = self.0.begin_write()?;
            {
                let mut objects = transaction.open_table(OBJECTS)?;
                let mut bits = transaction.open_table(BITS)?;
                for change in changes {
                    objects.insert(change.object, &change.contents[..])?;
                    for id in change.bits {
                        bits.insert(id, change.value)?;
                    }
                }
            }
            Ok(transaction.commit()?)
        };
        put().map_err(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_stores_keep_committed_values() {
        let dir = std::env::temp_dir().join(format!("steadfast-stores-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let time = Duration::from_millis(20);
        let sqlite = run("sqlite", &dir, 2, time);
        let redb = run("redb", &dir, 2, time);
        let rows: i64 = Connection::open(dir.join("sqlite.db"))
            .and_then(|c| c.query_row("SELECT count(*) FROM objects", [], |row| row.get(0)))
            .unwrap();
        let other = run("other", &dir, 2, time);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(sqlite.unwrap().get("commits") > 0.0);
        assert!(redb.unwrap().get("commits") > 0.0);
        assert_eq!(rows as u64, 2 * OBJECTS_PER_THREAD);
        assert!(other.is_err());
    }
}
