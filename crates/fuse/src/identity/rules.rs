//! Rules of a mount: the streams of the processes of a cgroup, and of those that work below a directory.
//!
//! A rule holds its stream. Processes that it has moved stay where they are when it goes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use steadfast_vfs::Ino;

use super::registry::{Full, Named};

/// Most rules of a mount.
pub(crate) const RULES_MAX: usize = 1024;
/// Longest path of a cgroup.
const CGROUP_BYTES_MAX: usize = 4096;

/// A directory's rule.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    /// The directory's generation: another one may get its number.
    pub(crate) generation: u64,
    pub(crate) stream: Arc<Named>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    cgroups: BTreeMap<String, Arc<Named>>,
    directories: HashMap<Ino, Below>,
    /// The environment of processes is looked at even while there is no stream.
    pub(crate) environment: bool,
}

impl Rules {
    pub(crate) fn is_empty(&self) -> bool {
        !self.environment && self.cgroups.is_empty() && self.directories.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.cgroups.len() + self.directories.len()
    }

    pub(crate) fn cgroups(&self) -> impl Iterator<Item = (&String, &Arc<Named>)> {
        self.cgroups.iter()
    }

    pub(crate) fn has_cgroups(&self) -> bool {
        !self.cgroups.is_empty()
    }

    pub(crate) fn directories(&self) -> impl Iterator<Item = (Ino, &Below)> {
        self.directories.iter().map(|(ino, below)| (*ino, below))
    }

    pub(crate) fn has_directories(&self) -> bool {
        !self.directories.is_empty()
    }

    pub(crate) fn directory(&self, ino: Ino) -> Option<&Below> {
        self.directories.get(&ino)
    }

    /// The rule for a cgroup: its own, or that of the nearest one above.
    pub(crate) fn cgroup(&self, path: &str) -> Option<(&str, &Arc<Named>)> {
        let mut at = path;
        loop {
            if let Some((path, stream)) = self.cgroups.get_key_value(at) {
                return Some((path, stream));
            }
            at = match at.rsplit_once('/')? {
                ("", "") => return None,
                ("", _) => "/",
                (above, _) => above,
            };
        }
    }

    /// Adds or replaces a rule; the path is [valid](cgroup_is_valid).
    pub(crate) fn add_cgroup(&mut self, path: &str, stream: Arc<Named>) -> Result<(), Full> {
        if self.len() >= RULES_MAX && !self.cgroups.contains_key(path) {
            return Err(Full);
        }
        self.cgroups.insert(path.to_owned(), stream);
        Ok(())
    }

    pub(crate) fn remove_cgroup(&mut self, path: &str) -> bool {
        self.cgroups.remove(path).is_some()
    }

    /// Adds or replaces a rule.
    pub(crate) fn add_directory(&mut self, ino: Ino, below: Below) -> Result<(), Full> {
        if self.len() >= RULES_MAX && !self.directories.contains_key(&ino) {
            return Err(Full);
        }
        self.directories.insert(ino, below);
        Ok(())
    }

    pub(crate) fn remove_directory(&mut self, ino: Ino) -> bool {
        self.directories.remove(&ino).is_some()
    }
}

/// Whether this is the path of a cgroup as `/proc/PID/cgroup` has it: absolute, without empty names, `.` and `..`.
pub(crate) fn cgroup_is_valid(path: &str) -> bool {
    let names = match path.strip_prefix('/') {
        Some("") => return true,
        Some(names) if path.len() <= CGROUP_BYTES_MAX => names,
        _ => return false,
    };
    names
        .split('/')
        .all(|name| !matches!(name, "" | "." | "..") && !name.contains(['\0', '\n']))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::registry::Registry;

    #[test]
    fn the_longest_path_decides() {
        let mut streams = Registry::default();
        let mut rules = Rules::default();
        for path in ["/a", "/a/b", "/c/d"] {
            let stream = streams.join(0, &path.replace('/', ":")).unwrap();
            rules.add_cgroup(path, stream).unwrap();
        }
        let found = |path| rules.cgroup(path).map(|(path, _)| path);
        assert_eq!(found("/a/b/x/y"), Some("/a/b"));
        assert_eq!(found("/a/bx"), Some("/a"));
        assert_eq!(found("/a"), Some("/a"));
        for none in ["/", "/c", "/ab", "", "a"] {
            assert_eq!(found(none), None, "{none}");
        }
        rules
            .add_cgroup("/", streams.join(0, "all").unwrap())
            .unwrap();
        assert_eq!(rules.cgroup("/ab").unwrap().0, "/");
        assert_eq!(rules.cgroup("/").unwrap().0, "/");
    }

    #[test]
    fn only_paths_that_a_process_can_show_are_rules() {
        for good in ["/", "/a", "/a b/c.scope"] {
            assert!(cgroup_is_valid(good), "{good}");
        }
        let long = format!("/{}", "x".repeat(CGROUP_BYTES_MAX));
        for bad in [
            "", "a", "/a/", "//a", "/a//b", "/a/../b", "/.", "/a\n", &long,
        ] {
            assert!(!cgroup_is_valid(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_number_of_rules_is_bounded() {
        let mut streams = Registry::default();
        let stream = streams.join(0, "x").unwrap();
        let mut rules = Rules::default();
        for i in 0..RULES_MAX {
            rules
                .add_cgroup(&format!("/{i}"), Arc::clone(&stream))
                .unwrap();
        }
        assert_eq!(rules.add_cgroup("/x", Arc::clone(&stream)), Err(Full));
        assert_eq!(rules.add_cgroup("/1", Arc::clone(&stream)), Ok(()));
        assert!(rules.remove_cgroup("/1") && !rules.remove_cgroup("/1"));
    }
}
