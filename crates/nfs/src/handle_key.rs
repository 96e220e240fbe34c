//! [`HandleKey`]: the secret of a server whose file systems cannot keep one, and the file that holds it.
//!
//! Servers that share the file have the same key, whoever made it: clients keep their handles across a restart, and across
//! a change of hosts.
//!
//! Invariants:
//! * the file appears at once and whole, with mode 0600: it is written and synced under a name of its own, and linked to its
//!   place. A key that is there already is never replaced;
//! * no key is used before the file and its name are durable;
//! * only a file that does not exist is made. A directory that does not exist, or a file that cannot be read or is no key, is
//!   an error: clients would lose all handles with another key.
//!
//! ```text
//! steadfast-nfs-handle-key 1\n
//! the key, 32 hexadecimal digits\n
//! XXH3-64 of the two lines above, 16 hexadecimal digits\n
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// First line of a file.
const TITLE: &str = "steadfast-nfs-handle-key 1\n";
/// Bytes of a file.
const FILE_BYTES: usize = TITLE.len() + 33 + 17;
/// Permission bits that a file may not have: of others, and of writers in its group.
const FORBIDDEN: u32 = 0o027;
/// Times that a file is looked for and made.
const TRIES_MAX: u32 = 16;

/// Secret key of the file handles of a server: a client can use no handle that it did not get from a server with this key.
/// [`Options::handle_key`](crate::Options::handle_key) says when it counts.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKey([u8; 16]);

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleKey(…)")
    }
}

/// Reasons why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandleKeyError {
    /// The system gives no random numbers.
    #[error("no random numbers for a handle key: {0}")]
    Random(io::Error),
    /// A system call failed.
    #[error("handle key {}: {attempt}: {source}", path.display())]
    System {
        /// The key's file.
        path: PathBuf,
        /// Operation that failed.
        attempt: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The file is no key, or not secret.
    #[error("handle key {}: {reason}", path.display())]
    Refused {
        /// The key's file.
        path: PathBuf,
        /// Reason, and what to do.
        reason: String,
    },
}

impl HandleKey {
    /// A new key. Handles live as long as the servers to which it is given.
    ///
    /// # Errors
    /// [`HandleKeyError::Random`].
    pub fn random() -> Result<HandleKey, HandleKeyError> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|e| HandleKeyError::Random(io::Error::other(e)))?;
        Ok(HandleKey(key))
    }

    /// A key that the embedder keeps. The bytes must be random: they are all that a client needs to forge handles.
    #[must_use]
    pub fn from_bytes(key: [u8; 16]) -> HandleKey {
        HandleKey(key)
    }

    /// The key in a file. If the file does not exist, it is made with a random key; servers that make it at the same time end
    /// with one key.
    ///
    /// # Errors
    /// The file cannot be read, made or made durable, is no key, or users other than its owner and its group may read it.
    pub fn from_file(path: impl AsRef<Path>) -> Result<HandleKey, HandleKeyError> {
        let file = KeyFile::at(path.as_ref())?;
        for _ in 0..TRIES_MAX {
            if let Some(key) = file.read()? {
                // Also if another server made it just now, and has not come to this.
                file.sync_directory()?;
                return Ok(key);
            }
            file.make(&HandleKey::random()?)?;
        }
        Err(file.refused("it cannot be opened, and cannot be made: is it a symbolic link to a file that does not exist?"))
    }

    /// The key of one of the server's volumes: no handle of one can be used with another.
    pub(crate) fn of_volume(&self, name: &str) -> [u8; 16] {
        let mut hasher = siphasher::sip128::SipHasher24::new_with_key(&self.0);
        std::hash::Hasher::write(&mut hasher, name.as_bytes());
        let hash = siphasher::sip128::Hasher128::finish128(&hasher);
        hash.as_u128().to_be_bytes()
    }

    fn to_text(&self) -> String {
        let key = u128::from_be_bytes(self.0);
        let text = format!("{TITLE}{key:032x}\n");
        let sum = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        format!("{text}{sum:016x}\n")
    }

    /// None if the bytes are not exactly a file's.
    fn from_text(bytes: &[u8]) -> Option<HandleKey> {
        let digits = bytes.strip_prefix(TITLE.as_bytes())?.get(..32)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let key = u128::from_str_radix(digits, 16).ok()?;
        let key = HandleKey(key.to_be_bytes());
        (key.to_text().as_bytes() == bytes).then_some(key)
    }
}

/// A file, and the directory that has its name.
struct KeyFile<'a> {
    path: &'a Path,
    directory: &'a Path,
    name: String,
}

impl<'a> KeyFile<'a> {
    fn at(path: &'a Path) -> Result<KeyFile<'a>, HandleKeyError> {
        let (Some(name), Some(directory)) = (path.file_name(), path.parent()) else {
            return Err(HandleKeyError::Refused {
                path: path.to_owned(),
                reason: "is the name of a directory, not of a file".to_owned(),
            });
        };
        let directory = match directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => directory,
        };
        Ok(KeyFile {
            path,
            directory,
            name: name.to_string_lossy().into_owned(),
        })
    }

    fn refused(&self, reason: impl Into<String>) -> HandleKeyError {
        HandleKeyError::Refused {
            path: self.path.to_owned(),
            reason: reason.into(),
        }
    }

    fn failed(&self, attempt: &'static str) -> impl FnOnce(io::Error) -> HandleKeyError {
        let path = self.path.to_owned();
        move |source| HandleKeyError::System {
            path,
            attempt,
            source,
        }
    }

    /// The key; none if there is no file of this name.
    fn read(&self) -> Result<Option<HandleKey>, HandleKeyError> {
        // A pipe of this name must not make the server wait.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = (OpenOptions::new().read(true).custom_flags(flags)).open(self.path);
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.failed("opening it")(e)),
        };
        let metadata = file.metadata().map_err(self.failed("looking at it"))?;
        if !metadata.is_file() {
            return Err(self.refused("is no regular file"));
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & FORBIDDEN != 0 {
            return Err(self.refused(format!(
                "has mode {mode:04o}, so that others than its owner may know or change the key: chmod 600, and \
                 make a new key if they did"
            )));
        }
        // One byte more shows a file that is too long.
        let mut bytes = Vec::with_capacity(FILE_BYTES + 1);
        file.take(FILE_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(self.failed("reading it"))?;
        HandleKey::from_text(&bytes).map(Some).ok_or_else(|| {
            self.refused("is no handle key: remove it, and clients have to mount again")
        })
    }

    /// Makes the file with this key, unless there is one by now.
    fn make(&self, key: &HandleKey) -> Result<(), HandleKeyError> {
        let own = self.write_aside(key)?;
        let linked = fs::hard_link(&own, self.path);
        let removed = fs::remove_file(&own);
        match linked {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed("linking it to its name")(e));
            }
            _ => removed.map_err(self.failed("removing the temporary name"))?,
        }
        self.sync_directory()
    }

    /// Writes and syncs a file with a name that no other server has; returns its path.
    fn write_aside(&self, key: &HandleKey) -> Result<PathBuf, HandleKeyError> {
        let (own, mut file) = loop {
            // Not the number of the process: a server in another container may have the same.
            let number =
                getrandom::u64().map_err(|e| HandleKeyError::Random(io::Error::other(e)))?;
            let own = (self.directory).join(format!(".{}.{number:016x}.new", self.name));
            let made = (OpenOptions::new().write(true).create_new(true).mode(0o600)).open(&own);
            match made {
                Ok(file) => break (own, file),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(self.failed("making a file in its directory")(e)),
            }
        };
        let written = file
            .set_permissions(fs::Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(key.to_text().as_bytes()))
            .and_then(|()| file.sync_all());
        if let Err(e) = written {
            let _ = fs::remove_file(&own);
            return Err(self.failed("writing it")(e));
        }
        Ok(own)
    }

    fn sync_directory(&self) -> Result<(), HandleKeyError> {
        File::open(self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(self.failed("making its name durable"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Barrier;

    /// Names in a directory.
    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    fn refusal(path: &Path) -> String {
        HandleKey::from_file(path).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_made_once_with_mode_0600_and_its_key_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = HandleKey::from_file(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
        assert_eq!(names(dir.path()), ["key"], "nothing else is left");
        assert_eq!(HandleKey::from_file(&path).unwrap(), key);
        let other = HandleKey::from_file(dir.path().join("other")).unwrap();
        assert_ne!(other, key);
    }

    /// Threads have the process number of each other, as two servers in two containers may.
    #[test]
    fn servers_with_one_process_number_that_make_the_file_together_end_with_one_key() {
        const SERVERS: usize = 16;
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("key");
            let begin = Barrier::new(SERVERS);
            let keys: Vec<HandleKey> = std::thread::scope(|scope| {
                let server = || {
                    begin.wait();
                    HandleKey::from_file(&path).unwrap()
                };
                let servers: Vec<_> = (0..SERVERS).map(|_| scope.spawn(server)).collect();
                servers.into_iter().map(|it| it.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]));
            assert_eq!(HandleKey::from_file(&path).unwrap(), keys[0]);
            assert_eq!(names(dir.path()), ["key"]);
        }
    }

    #[test]
    fn a_key_that_another_server_made_first_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = HandleKey::from_file(&path).unwrap();
        let late = HandleKey::random().unwrap();
        let file = KeyFile::at(&path).unwrap();
        file.make(&late).unwrap();
        assert_eq!(file.read().unwrap(), Some(first));
        assert_eq!(names(dir.path()), ["key"]);
    }

    #[test]
    fn only_an_absent_file_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let said = refusal(&dir.path().join("absent/key"));
        assert!(said.contains("No such file or directory"), "{said}");
        assert!(!dir.path().join("absent").exists());

        let directory = dir.path().join("directory");
        fs::create_dir(&directory).unwrap();
        assert!(refusal(&directory).contains("is no regular file"));
        assert!(refusal(&directory.join("..")).contains("the name of a directory"));

        fs::write(dir.path().join("file"), "").unwrap();
        let said = refusal(&dir.path().join("file/key"));
        assert!(said.contains("opening it: Not a directory"), "{said}");

        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("absent", &dangling).unwrap();
        assert!(refusal(&dangling).contains("symbolic link"));
        let around = dir.path().join("around");
        std::os::unix::fs::symlink("around", &around).unwrap();
        assert!(refusal(&around).contains("opening it"));
        let mut left = names(dir.path());
        left.sort();
        assert_eq!(left, ["around", "dangling", "directory", "file"]);
    }

    #[test]
    fn a_file_that_was_cut_lengthened_or_changed_is_no_key_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        HandleKey::from_file(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut wrong: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
        wrong.push([&whole[..], b"\n"].concat());
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            wrong.push(changed);
        }
        for bytes in wrong {
            fs::write(&path, &bytes).unwrap();
            let said = refusal(&path);
            assert!(said.contains("is no handle key: remove it"), "{said}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        fs::write(&path, &whole).unwrap();
        assert!(HandleKey::from_file(&path).is_ok());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        HandleKey::from_file(&path).unwrap();
        for (mode, allowed) in [(0o644, false), (0o660, false), (0o440, true), (0o400, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(HandleKey::from_file(&path).is_ok(), allowed, "{mode:o}");
        }
    }

    #[test]
    fn a_key_of_bytes_shows_no_byte_and_differs_for_each_volume() {
        let key = HandleKey::from_bytes([7; 16]);
        assert_eq!(format!("{key:?}"), "HandleKey(…)");
        assert_ne!(key.of_volume("a"), key.of_volume("b"));
        assert_eq!(key.of_volume("a"), key.clone().of_volume("a"));
        assert_ne!(key, HandleKey::random().unwrap());
    }
}
