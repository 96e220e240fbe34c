//! Size of the machine's memory, for the default budget of uncommitted data.

use crate::{DIRTY_BLOCKS_DEFAULT_MAX, DIRTY_MEMORY_SHARE};
use std::sync::OnceLock;
use steadfast_block::BLOCK_SIZE;

/// Fewest blocks of the default budget (16 MiB), however little memory there is.
const DIRTY_BLOCKS_DEFAULT_MIN: u64 = 4096;

/// The default of [`Config::dirty_blocks`](crate::Config::dirty_blocks).
#[must_use]
pub fn dirty_blocks_default() -> u64 {
    static BLOCKS: OnceLock<u64> = OnceLock::new();
    *BLOCKS.get_or_init(|| {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let machine = memory_bytes(&read("/proc/meminfo"));
        // A limit of the control group that the process sees as its root.
        let group = read("/sys/fs/cgroup/memory.max").trim().parse().ok();
        let bytes = match (machine, group) {
            (Some(machine), Some(group)) => Some(u64::min(machine, group)),
            (machine, group) => machine.or(group),
        };
        budget(bytes)
    })
}

/// An eighth of the memory, within bounds.
fn budget(memory_bytes: Option<u64>) -> u64 {
    let share = memory_bytes.unwrap_or_default() / DIRTY_MEMORY_SHARE / BLOCK_SIZE as u64;
    share.clamp(DIRTY_BLOCKS_DEFAULT_MIN, DIRTY_BLOCKS_DEFAULT_MAX)
}

/// `MemTotal` of `/proc/meminfo`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_an_eighth_of_the_memory_and_a_gibibyte_at_most() {
        const MIB: u64 = 1 << 20;
        let mib = |memory| budget(memory) * BLOCK_SIZE as u64 / MIB;
        assert_eq!(mib(Some(2048 * MIB)), 256);
        assert_eq!(mib(Some(64 * 1024 * MIB)), 1024);
        assert_eq!((mib(Some(MIB)), mib(None)), (16, 16));
    }

    #[test]
    fn the_kernels_words_are_read() {
        let told = "MemFree: 1 kB\nMemTotal:       16384 kB\n";
        assert_eq!(memory_bytes(told).unwrap(), 16 << 20);
        for odd in [
            "",
            "MemTotal: kB",
            "MemTotal: 99999999999999999999 kB",
            "MemTotal: 5",
        ] {
            assert_eq!(memory_bytes(odd), None);
        }
    }
}
