//! A user namespace, so that users who are not root have a mount of their own.

use nix::sched::CloneFlags;
use std::fs;
use std::io;

/// Moves this process into a user namespace in which it may mount, with the same user and group. For processes
/// without other threads; does nothing for root.
///
/// # Errors
/// If the system does not offer it. Recording then mounts through `fusermount3`.
pub fn enter_user_namespace() -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // As the old namespace knows them.
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
