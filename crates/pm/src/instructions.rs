//! The processor's instructions for persistence: line write-back, non-temporal stores, the store fence.
//!
//! Everything here is safe to call: the functions take slices of atomic words. The inline assembly reads and writes exactly
//! these words, each aligned word in one piece, like relaxed atomic accesses; so a racing access from another thread is no
//! data race. Under Miri and on processors without a version of their own, relaxed atomic accesses stand in.
//!
//! Non-temporal stores are weakly ordered: other threads may see them late, up to the next fence of the thread that issued
//! them. A caller that hands data to another thread fences first.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The instruction that writes a cache line back to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Instruction {
    /// x86 `clwb`: writes back, may keep the line in the cache.
    Clwb,
    /// x86 `clflushopt`: writes back and evicts.
    Clflushopt,
    /// x86 `clflush`: as [`Instruction::Clflushopt`], but each waits for the one before.
    Clflush,
    /// aarch64 `dc cvap`: cleans the line to the point of persistence.
    DcCvap,
    /// None: stores are durable nowhere. Only for memory that is lost with the process anyway.
    None,
}

impl Instruction {
    /// The best one that this processor has. It is asked once: in a virtual machine, the answer takes microseconds.
    #[must_use]
    pub fn detect() -> Instruction {
        static DETECTED: OnceLock<Instruction> = OnceLock::new();
        *DETECTED.get_or_init(native::detect)
    }
}

impl std::fmt::Display for Instruction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Instruction::Clwb => "clwb",
            Instruction::Clflushopt => "clflushopt",
            Instruction::Clflush => "clflush",
            Instruction::DcCvap => "dc cvap",
            Instruction::None => "none",
        })
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod native {
    use super::{AtomicU64, Instruction};
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    pub(crate) fn detect() -> Instruction {
        const CLFLUSH: u32 = 1 << 19;
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        let features = if __cpuid(0).eax >= 7 {
            __cpuid_count(7, 0).ebx
        } else {
            0
        };
        if features & CLWB != 0 {
            Instruction::Clwb
        } else if features & CLFLUSHOPT != 0 {
            Instruction::Clflushopt
        } else if __cpuid(1).edx & CLFLUSH != 0 {
            Instruction::Clflush
        } else {
            Instruction::None
        }
    }

    #[inline]
    pub(crate) fn write_back(instruction: Instruction, word: &AtomicU64) {
        let at = word.as_ptr();
        // SAFETY: `at` is valid, and none of the instructions changes what a program can observe of memory. `detect` chose
        // one that this processor has. Without `nomem`, the compiler keeps earlier stores before it.
        unsafe {
            match instruction {
                Instruction::Clwb => {
                    asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags));
                }
                Instruction::Clflushopt => {
                    asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
                }
                Instruction::Clflush => {
                    asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags));
                }
                Instruction::DcCvap | Instruction::None => {}
            }
        }
    }

    #[inline]
    pub(crate) fn fence() {
        // SAFETY: `sfence` only orders memory accesses. Without `nomem`, the compiler keeps them on their side, too.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }

    pub(crate) fn store_data(_: Instruction, to: &[AtomicU64], from: &[u8]) {
        assert_eq!(to.len() * 8, from.len());
        let (mut to, mut from, mut words) = (to.as_ptr().cast::<u64>(), from.as_ptr(), to.len());
        // SAFETY: `to` and `from` are valid for `words` words, which the loops count down. Atomic words may be changed through
        // a shared reference. The source need not be aligned; `movntdq` is used on 16-byte aligned targets only.
        unsafe {
            while words > 0 && to.addr() % 16 != 0 {
                asm!("mov {word}, [{from}]", "movnti [{to}], {word}", word = out(reg) _, from = in(reg) from,
                    to = in(reg) to, options(nostack, preserves_flags));
                (to, from, words) = (to.add(1), from.add(8), words - 1);
            }
            while words >= 8 {
                asm!(
                    "movdqu {a}, [{from}]", "movdqu {b}, [{from} + 16]",
                    "movdqu {c}, [{from} + 32]", "movdqu {d}, [{from} + 48]",
                    "movntdq [{to}], {a}", "movntdq [{to} + 16], {b}",
                    "movntdq [{to} + 32], {c}", "movntdq [{to} + 48], {d}",
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                    from = in(reg) from, to = in(reg) to, options(nostack, preserves_flags)
                );
                (to, from, words) = (to.add(8), from.add(64), words - 8);
            }
            while words > 0 {
                asm!("mov {word}, [{from}]", "movnti [{to}], {word}", word = out(reg) _, from = in(reg) from,
                    to = in(reg) to, options(nostack, preserves_flags));
                (to, from, words) = (to.add(1), from.add(8), words - 1);
            }
        }
    }

    /// Words from which on the string instruction is worth its start.
    const STRING_WORDS_MIN: usize = 64;

    pub(crate) fn load_data(from: &[AtomicU64], to: &mut [u8]) {
        assert_eq!(from.len() * 8, to.len());
        if from.len() < STRING_WORDS_MIN {
            return super::portable::load_data(from, to);
        }
        // SAFETY: `from` and `to` are valid for `from.len()` words and do not overlap, because `to` is exclusive. Neither
        // needs to be aligned. The direction flag is clear whenever assembly starts.
        unsafe {
            asm!(
                "rep movsq",
                inout("rcx") from.len() => _,
                inout("rsi") from.as_ptr() => _,
                inout("rdi") to.as_mut_ptr() => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod native {
    use super::{AtomicU64, Instruction, portable};
    use crate::LINE_BYTES;
    use std::arch::asm;

    pub(crate) use portable::load_data;

    pub(crate) fn detect() -> Instruction {
        let cache_type: u64;
        // SAFETY: reads a register that Linux lets programs read.
        unsafe {
            asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags))
        }
        // Words of 4 bytes in the smallest line, as a power of two. A line shorter than ours would be written back in part.
        let line_bytes = 4_u64 << (cache_type >> 16 & 0xf);
        if std::arch::is_aarch64_feature_detected!("dpb") && line_bytes >= LINE_BYTES {
            Instruction::DcCvap
        } else {
            Instruction::None
        }
    }

    #[inline]
    pub(crate) fn write_back(instruction: Instruction, word: &AtomicU64) {
        if instruction == Instruction::DcCvap {
            // SAFETY: the address is valid, and the instruction changes nothing that a program can observe of memory; `detect`
            // found it. This is `dc cvap` by its number: assemblers know the name for ARMv8.2 alone.
            unsafe {
                asm!("sys #3, c7, c12, #1, {}", in(reg) word.as_ptr(), options(nostack, preserves_flags))
            }
        }
    }

    #[inline]
    pub(crate) fn fence() {
        // SAFETY: a barrier only orders; without `nomem`, the compiler keeps memory accesses on their side.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
    }

    /// There is no non-temporal store that a barrier alone makes durable: the lines are written back here.
    pub(crate) fn store_data(instruction: Instruction, to: &[AtomicU64], from: &[u8]) {
        portable::store_data(instruction, to, from);
        let mut line = u64::MAX;
        for word in to {
            let this = word.as_ptr().addr() as u64 / LINE_BYTES;
            if this != line {
                line = this;
                write_back(instruction, word);
            }
        }
    }
}

/// Plain accesses: the whole implementation under Miri and on other processors, a part of it elsewhere.
#[allow(dead_code)]
mod portable {
    use super::{AtomicU64, Instruction, Ordering};
    use std::sync::atomic;

    pub(crate) fn detect() -> Instruction {
        Instruction::None
    }

    pub(crate) fn write_back(_: Instruction, _: &AtomicU64) {}

    pub(crate) fn fence() {
        atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn store_data(_: Instruction, to: &[AtomicU64], from: &[u8]) {
        assert_eq!(to.len() * 8, from.len());
        let (chunks, _) = from.as_chunks::<8>();
        for (to, from) in to.iter().zip(chunks) {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }

    pub(crate) fn load_data(from: &[AtomicU64], to: &mut [u8]) {
        assert_eq!(from.len() * 8, to.len());
        let (chunks, _) = to.as_chunks_mut::<8>();
        for (to, from) in chunks.iter_mut().zip(from) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
}

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
use portable as native;

pub(crate) use native::{fence, load_data, store_data, write_back};

/// The word as it lies in memory.
pub(crate) fn load_data_word(from: &AtomicU64) -> [u8; 8] {
    from.load(Ordering::Relaxed).to_ne_bytes()
}
