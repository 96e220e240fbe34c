//! Lists of streams, of their counts, of merges and of rules: values of attributes, a page at a time.
//!
//! A page is lines of fields with tabs between them; [`steadfast_stream`] reads it. If there is more, the last line says where
//! to go on. Names have no control characters; other bytes are escaped.

use std::collections::HashMap;
use std::fmt::Write;

use steadfast_fuse_wire::Errno;
use steadfast_stream::wire::{
    Interval, NEXT, PAGE_BYTES_MAX, XATTR_LIST, XATTR_MERGES, XATTR_RULES, XATTR_SHOW, XATTR_STATS,
    escape,
};
use steadfast_vfs::{Caller, Ino, Stream};

use super::Requester;
use super::placed::By;
use super::registry::{Member, Registry};
use super::resolver::Resolver;

/// Room that is left for a page's last line.
const LAST_LINE_BYTES: usize = 64;
/// Directories above one whose path is looked for, and entries of each of them.
const PATH_DEPTH_MAX: usize = 64;
const PATH_ENTRIES_MAX: usize = 4096;
/// Processes and threads that are looked at before streams are listed.
const MISSED: usize = 1024;
/// Paths that are looked for in a page.
const PATHS_MAX: usize = 64;
/// Longest path that is reported.
const PATH_BYTES_MAX: usize = 4096;

/// Lines, as many as fit into a value.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    /// Adds a line; if it does not fit, says that the next page begins at `at`.
    fn add(&mut self, at: u64, line: &str) -> bool {
        if self.text.len() + line.len() + 1 > PAGE_BYTES_MAX - LAST_LINE_BYTES {
            let _ = writeln!(self.text, "{NEXT}\t{at}");
            return false;
        }
        self.text.push_str(line);
        self.text.push('\n');
        true
    }

    fn value(self) -> Vec<u8> {
        self.text.into_bytes()
    }
}

/// User and name of a stream, by its number.
fn of_number(registry: &Registry, stream: Stream) -> (u32, String) {
    let named = registry.numbered(stream.0);
    named.map_or((0, String::new()), |named| (named.user, named.name.clone()))
}

fn interval(interval: Interval) -> String {
    match interval {
        Interval::Every(time) => time.as_millis().to_string(),
        Interval::Keep | Interval::Volume => "-".to_owned(),
    }
}

fn because(by: &By) -> String {
    match by {
        By::Set => "process".to_owned(),
        By::Ancestor(number) => format!("ancestor {number}"),
        By::Cgroup(path) => format!("cgroup {path}"),
        By::Environment => "environment".to_owned(),
        By::Directory(ino) => format!("directory {ino}"),
        By::Nothing => "default".to_owned(),
    }
}

/// The number that follows an attribute's name and a dot.
fn number_after(name: &[u8], attribute: &str) -> Option<u64> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(attribute)?;
    rest.strip_prefix('.')?.parse().ok()
}

impl Resolver {
    /// The value of one of the lists' attributes; `None` if the name is none of them. `administers`: the caller may know paths.
    pub(crate) fn list(
        &self,
        request: &Requester,
        name: &[u8],
        administers: bool,
    ) -> Option<Result<Vec<u8>, Errno>> {
        let from = |attribute: &str| number_after(name, attribute);
        let shown = if let Some(pid) = from(XATTR_SHOW) {
            u32::try_from(pid)
                .map_err(|_| Errno::SRCH)
                .and_then(|pid| self.page_of_process(request, pid))
        } else if let Some(from) = from(XATTR_LIST) {
            self.offered().map(|()| self.page_of_streams(request, from))
        } else if let Some(from) = from(XATTR_STATS) {
            self.page_of_stats(request, from)
        } else if let Some(skip) = from(XATTR_MERGES) {
            self.page_of_merges(administers, skip)
        } else if let Some(skip) = from(XATTR_RULES) {
            self.page_of_rules(administers, skip)
        } else {
            return None;
        };
        Some(shown)
    }

    fn page_of_process(&self, request: &Requester, pid: u32) -> Result<Vec<u8>, Errno> {
        let (process, decision) = self.shown(request, pid)?;
        let (number, user, ignore, name) = fields(&decision.member);
        let because = escape(because(&decision.by).as_bytes());
        let line = format!("{process}\t{number}\t{user}\t{ignore}\t{because}\t{name}\n");
        Ok(line.into_bytes())
    }

    fn page_of_streams(&self, request: &Requester, from: u64) -> Vec<u8> {
        let mut page = Page::default();
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        let mut tables = self.tables();
        if from == 0 {
            // Streams without members are shown, and go when the next one is set.
            self.miss(&mut tables, MISSED);
        }
        for named in tables.registry.from(from) {
            if request.uid != 0 && request.uid != named.user {
                continue;
            }
            let (number, user, name) = (named.number.0, named.user, &named.name);
            let ignore = u8::from(named.ignores_fsync());
            let (interval, members) = (interval(named.interval()), named.members());
            let line = format!("{number}\t{user}\t{ignore}\t{interval}\t{members}\t{name}");
            if !page.add(number.into(), &line) {
                break;
            }
        }
        page.value()
    }

    fn page_of_stats(&self, request: &Requester, from: u64) -> Result<Vec<u8>, Errno> {
        let (volume, _) = self.needed()?;
        let mut page = Page::default();
        let mut stats = volume.stats();
        stats.sort_by_key(|one| one.stream);
        for one in stats {
            let number = one.stream.0;
            if u64::from(number) < from {
                continue;
            }
            let tables = self.tables();
            let known = number == 0 || tables.registry.numbered(number).is_some();
            let (user, name) = of_number(&tables.registry, one.stream);
            drop(tables);
            if !known && one.uncommitted == 0 {
                // A request of a process that has left the stream since came after it was forgotten.
                volume.forget(one.stream);
            }
            if request.uid != 0 && request.uid != user && number != 0 {
                continue;
            }
            let waits = one.waited_for.iter();
            let waits = waits.map(|(stream, times)| format!("{}:{times}", stream.0));
            // A line has to fit into a page.
            let waits: Vec<_> = waits.take(1000).collect();
            let line = format!(
                "{number}\t{user}\t{}\t{}\t{}\t{}\t{}\t{}\t{name}",
                one.operations,
                one.commits,
                one.own_bytes,
                one.carried_bytes,
                one.uncommitted,
                waits.join(",")
            );
            if !page.add(number.into(), &line) {
                break;
            }
        }
        Ok(page.value())
    }

    fn page_of_merges(&self, administers: bool, skip: u64) -> Result<Vec<u8>, Errno> {
        let (volume, _) = self.needed()?;
        if !administers {
            return Err(Errno::PERM);
        }
        let mut page = Page::default();
        let merges = volume.merges();
        // Many merges of one file are usual.
        let mut paths: HashMap<Ino, Option<Vec<u8>>> = HashMap::new();
        for (at, merge) in (0..).zip(merges.iter()).skip(usize_of(skip)) {
            let mut line = String::new();
            for stream in merge.streams {
                let (user, name) = of_number(&self.tables().registry, stream);
                let _ = write!(line, "{}\t{user}\t{name}\t", stream.0);
            }
            let inode = merge.inode.map_or("-".to_owned(), |ino| ino.to_string());
            let found = merge.inode.filter(|ino| {
                merge.path.is_none() && (paths.len() < PATHS_MAX || paths.contains_key(ino))
            });
            let found = found.and_then(|ino| {
                paths
                    .entry(ino)
                    .or_insert_with(|| self.path(ino))
                    .as_deref()
            });
            let path = merge.path.as_deref().or(found);
            let path = path.map_or("-".to_owned(), |path| {
                escape(&path[..path.len().min(PATH_BYTES_MAX)])
            });
            let _ = write!(line, "{}\t{inode}\t{path}", merge.cause.name());
            if !page.add(at, &line) {
                break;
            }
        }
        Ok(page.value())
    }

    fn page_of_rules(&self, administers: bool, skip: u64) -> Result<Vec<u8>, Errno> {
        self.offered()?;
        if !administers {
            return Err(Errno::PERM);
        }
        let tables = self.tables();
        let cgroups = tables.rules.cgroups().map(|(path, stream)| {
            let path = escape(path.as_bytes());
            (
                format!("cgroup\t{}\t{}\t0\t", stream.user, stream.name),
                Ok(path),
            )
        });
        let mut directories: Vec<_> = tables.rules.directories().collect();
        directories.sort_by_key(|(ino, _)| *ino);
        let directories = directories.into_iter().map(|(ino, below)| {
            let (user, name) = (below.stream.user, &below.stream.name);
            (format!("directory\t{user}\t{name}\t{ino}\t"), Err(ino))
        });
        let environment = tables.rules.environment;
        let environment = environment.then(|| ("environment\t0\t\t0\t".to_owned(), Ok("-".into())));
        let all = cgroups.chain(directories).chain(environment);
        let rules: Vec<(String, Result<String, Ino>)> = all.collect();
        drop(tables);
        let mut page = Page::default();
        for (at, (mut line, place)) in (0..).zip(rules).skip(usize_of(skip)) {
            line += &place.unwrap_or_else(|ino| {
                let path = self.path(ino);
                path.map_or("-".to_owned(), |path| escape(&path))
            });
            if !page.add(at, &line) {
                break;
            }
        }
        Ok(page.value())
    }

    /// A path of an inode within the volume, if it is found with bounded effort: that of a file where it was last seen.
    fn path(&self, inode: Ino) -> Option<Vec<u8>> {
        let root = Caller {
            checked: true,
            ..Caller::root()
        };
        let mut path = Vec::new();
        let mut at = inode;
        for _ in 0..PATH_DEPTH_MAX {
            if at == self.shared.fs.root() {
                return Some(match path.is_empty() {
                    true => b"/".to_vec(),
                    false => path,
                });
            }
            let (mut found, mut looked_at) = (None, 0);
            let above = self.shared.gate.pass(|| {
                let above = match self.shared.fs.lookup(&root, at, b"..") {
                    Err(error) if error == steadfast_vfs::Errno::NotDir => {
                        self.shared.nodes.parent(at).ok_or(error)?
                    }
                    above => above?.ino,
                };
                self.shared.fs.readdir(&root, above, 0, &mut |entry| {
                    looked_at += 1;
                    if entry.ino == at && entry.name != b"." && entry.name != b".." {
                        found = Some(entry.name.to_vec());
                    }
                    found.is_none() && looked_at < PATH_ENTRIES_MAX
                })?;
                steadfast_vfs::Result::Ok(above)
            });
            let mut longer = vec![b'/'];
            longer.extend(found?);
            longer.append(&mut path);
            if longer.len() > PATH_BYTES_MAX {
                return None;
            }
            path = longer;
            at = above.ok()?.ok()?;
        }
        None
    }
}

/// Number, user, whether syncs are ignored, and name.
fn fields(member: &Member) -> (u32, u32, u8, &str) {
    member.as_ref().map_or((0, 0, 0, ""), |named| {
        let ignore = u8::from(named.ignores_fsync());
        (named.number.0, named.user, ignore, &named.name)
    })
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_full_says_where_the_next_begins() {
        let mut page = Page::default();
        let line = "x".repeat(1000);
        let mut fit = 0;
        while page.add(fit, &line) {
            fit += 1;
        }
        let text = String::from_utf8_lossy(&page.value()).into_owned();
        assert!(text.len() <= PAGE_BYTES_MAX);
        assert_eq!(text.lines().last(), Some(&*format!("{NEXT}\t{fit}")));
        assert_eq!(text.lines().count() as u64, fit + 1);
    }

    #[test]
    fn only_a_number_follows_a_list() {
        let attribute = XATTR_LIST.as_bytes();
        let after = |rest: &str| number_after(&[attribute, rest.as_bytes()].concat(), XATTR_LIST);
        assert_eq!(after(".7"), Some(7));
        for wrong in ["", ".", "7", ".x", ".-1", ".1.2", ".99999999999999999999"] {
            assert_eq!(after(wrong), None, "{wrong}");
        }
    }
}
