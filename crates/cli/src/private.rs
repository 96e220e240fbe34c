//! Files whose readers can read a volume around its permissions: images, caches and keys. They are for their owner alone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What others may do: the bits of a mode.
const OTHERS: u32 = 0o077;

/// The mode of a regular file that others may read or write; `None` for any other file.
fn open_mode(path: &Path) -> Option<u32> {
    let metadata = std::fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode() & 0o7777;
    (metadata.is_file() && mode & 0o066 != 0).then_some(mode)
}

/// A line about a regular file that others may read or write, and what to do about it. `what` they then have.
pub(crate) fn warning(path: &Path, what: &str) -> Option<String> {
    let mode = open_mode(path)?;
    Some(format!(
        "other users may read or write {} (its mode is {mode:04o}), and so {what}: chmod 600 it",
        path.display()
    ))
}

/// What readers of an image have.
pub(crate) const EVERY_FILE: &str = "every file of the volume";

/// Takes a regular file from all but its owner; a line that says so, or why not.
pub(crate) fn restrict(path: &Path) -> Option<String> {
    let mode = open_mode(path)?;
    let restricted = mode & !OTHERS;
    match std::fs::set_permissions(path, Permissions::from_mode(restricted)) {
        Ok(()) => Some(format!(
            "its mode was {mode:04o}, with which other users could read every file of the volume: now it is {restricted:04o}"
        )),
        Err(e) => {
            let warning = warning(path, EVERY_FILE)?;
            Some(format!("{warning} ({e})"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_of_its_owner_alone_and_what_is_no_file_want_no_warning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, "x").unwrap();
        for (mode, warned) in [
            (0o600, false),
            (0o400, false),
            (0o711, false),
            (0o644, true),
            (0o620, true),
        ] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(warning(&path, EVERY_FILE).is_some(), warned, "{mode:o}");
        }
        assert!(restrict(&path).is_some());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(restrict(&path), None);
        assert_eq!(warning(Path::new("/dev/null"), EVERY_FILE), None);
        assert_eq!(warning(&dir.path().join("absent"), EVERY_FILE), None);
    }
}
